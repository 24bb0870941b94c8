/* str.h - a growing byte string. The bytes are always followed by a NUL that len does not count. The first
 * failure sticks (like a recorded GPU error): later calls do nothing, str_ok asks once at the end. */
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
/* Empties without giving the memory back. */
void str_clear(struct str *s);
/* The text as C string; "" when nothing was written. Borrowed until the next change. */
const char *str_text(const struct str *s);
static inline bool str_ok(const struct str *s)
{
    return !s->failed;
}
void str_free(struct str *s);

#endif
