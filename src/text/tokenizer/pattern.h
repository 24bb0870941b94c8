/* pattern.h - translates a split pattern of tokenizer.json to PCRE2's syntax. A part of the tokenizer.
 *
 * The files are written for Oniguruma (Ruby syntax, UTF-8). What means the same in both engines is kept. \s
 * and \S are spelt out as the Unicode property White_Space, because PCRE2 counts U+180E as a space. \p{..}
 * and \d get the characters of newer Unicode versions (newer_unicode.h). What
 * means something else in PCRE2 (nested sets, \h, \w, (?m), {,n}, backtracking verbs, ...) is refused. */
#ifndef MOEFLUX_TEXT_TOKENIZER_PATTERN_H
#define MOEFLUX_TEXT_TOKENIZER_PATTERN_H

#include <stddef.h>

struct moeflux_err;
struct str;

/* Numbers of the callouts in the PCRE2 form, which let the caller count a match's work and stop it.
 * PATTERN_START stands where a match is tried. PATTERN_MARK stands before every unlimited repetition (the
 * next callout shows how far it got) and after every quantifier and group. So the work between two callouts
 * is bounded by the pattern's length and PATTERN_MAX_COUNT, the largest count in braces. */
enum { PATTERN_START = 1, PATTERN_MARK = 2, PATTERN_MAX_COUNT = 1000 };

/* Appends the PCRE2 form to `out`, to be compiled with UTF, UCP and MULTILINE (Ruby's ^ and $ always match at
 * lines). ERR_UNSUPPORTED names the construct and its place; ERR_MEMORY. */
int pattern_translate(const char *pattern, size_t len, struct str *out, struct moeflux_err *e);

/* Appends a PCRE2 form that matches exactly this text. ERR_MEMORY. */
int pattern_quote(const char *text, size_t len, struct str *out, struct moeflux_err *e);

#endif
