/* json_text.h - texts for JSON, which is UTF-8. */
#ifndef MOEFLUX_TEXT_JSON_TEXT_H
#define MOEFLUX_TEXT_JSON_TEXT_H

#include <stddef.h>

struct json_t;

/* A JSON string of bytes that need not be UTF-8 (U+FFFD stands for what is not); the caller owns it. NULL without memory. */
struct json_t *json_text_new(const char *bytes, size_t n);

#endif
