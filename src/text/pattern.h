/* pattern.h - a split pattern as tokenizer.json writes it, said in PCRE2's words. A part of the tokenizer.
 *
 * The files are written for Oniguruma (Ruby syntax, UTF-8). What both engines read alike is kept; \s and \S are
 * spelt out as the Unicode property White_Space, because PCRE2 counts U+180E as a space; what means something
 * else in PCRE2 (nested sets, \h, \w, (?m), {,n}, backtracking verbs, ...) is refused. */
#ifndef MOEFLUX_TEXT_PATTERN_H
#define MOEFLUX_TEXT_PATTERN_H

#include <stddef.h>

struct moeflux_err;
struct str;

/* Appends the PCRE2 form to `out`, to be compiled with UTF, UCP and MULTILINE (Ruby's ^ and $ always work by
 * line). ERR_UNSUPPORTED names the construct and its place; ERR_MEMORY. */
int pattern_translate(const char *pattern, size_t len, struct str *out, struct moeflux_err *e);

#endif
