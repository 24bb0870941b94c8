/* utf8.h - checks and repairs UTF-8, also in a stream of tokens, which may cut characters. */
#ifndef MOEFLUX_TEXT_UTF8_H
#define MOEFLUX_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>

struct json_t;
struct str;

bool utf8_is_valid(const char *text, size_t len);

/* Copies `text` to `out` with every maximal invalid sequence replaced by U+FFFD (the Unicode standard's
 * "substitution of maximal subparts"). Returns the number of replacements. */
size_t utf8_clean(const char *text, size_t len, struct str *out);

/* Returns a text cleaned so as a JSON string, owned by the caller; NULL: no memory. */
struct json_t *utf8_json(const char *text, size_t len);

/* A stream. The bytes of an incomplete character are held back until the rest arrives. */
struct utf8_stream {
    char held[4];
    size_t n_held;
};

/* Appends the characters that are complete now to `out`; invalid bytes become U+FFFD. */
void utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t len, struct str *out);
/* Ends the text: an incomplete character becomes one U+FFFD. */
void utf8_stream_end(struct utf8_stream *s, struct str *out);

#endif
