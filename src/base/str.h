/* str.h - a growing byte string. A NUL that len does not count always follows the bytes. The first failure
 * sticks: later calls do nothing, and the caller checks str_ok once at the end. */
#ifndef MOEFLUX_BASE_STR_H
#define MOEFLUX_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

struct str {
    char *data; /* NULL while empty and never written */
    size_t len; /* bytes */
    size_t cap;
    bool failed;
};

void str_add(struct str *s, const char *bytes, size_t n);
void str_add_text(struct str *s, const char *text);
void str_addf(struct str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Empties the string and keeps its memory. */
void str_clear(struct str *s);
/* Returns the text as a C string; "" when nothing was written. Borrowed until the next change. */
const char *str_text(const struct str *s);
static inline bool str_ok(const struct str *s)
{
    return !s->failed;
}
void str_free(struct str *s);

bool str_ends_with(const char *text, const char *end);
/* Returns what follows `start` in the text; NULL: the text does not begin with it. */
const char *str_after(const char *text, const char *start);

#endif
