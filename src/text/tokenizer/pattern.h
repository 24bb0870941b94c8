/* pattern.h - a split pattern as tokenizer.json writes it, said in PCRE2's words. A part of the tokenizer.
 *
 * The files are written for Oniguruma (Ruby syntax, UTF-8). What both engines read alike is kept; \s and \S
 * are spelt out as the Unicode property White_Space, because PCRE2 counts U+180E as a space; what means
 * something else in PCRE2 (nested sets, \h, \w, (?m), {,n}, backtracking verbs, ...) is refused. */
#ifndef MOEFLUX_TEXT_TOKENIZER_PATTERN_H
#define MOEFLUX_TEXT_TOKENIZER_PATTERN_H

#include <stddef.h>

struct moeflux_err;
struct str;

/* Callouts in the PCRE2 form, from which its work can be counted and ended: PATTERN_START wherever a match is
 * tried, PATTERN_MARK before what repeats without limit (how far it got shows at the next one), and behind
 * every quantifier and group. So what lies between two of them is bounded by the pattern's length and
 * PATTERN_MAX_COUNT. */
enum { PATTERN_START = 1, PATTERN_MARK = 2, PATTERN_MAX_COUNT = 1000 };

/* Appends the PCRE2 form to `out`, to be compiled with UTF, UCP and MULTILINE (Ruby's ^ and $ always work by
 * line). ERR_UNSUPPORTED names the construct and its place; ERR_MEMORY. */
int pattern_translate(const char *pattern, size_t len, struct str *out, struct moeflux_err *e);

/* The same for a text that matches itself only. */
int pattern_quote(const char *text, size_t len, struct str *out, struct moeflux_err *e);

#endif
