/* facts.h - what a report says. A function names each fact once; it becomes a line of text or a member of
 * a JSON object. */
#ifndef MOEFLUX_CLI_REPORT_FACTS_H
#define MOEFLUX_CLI_REPORT_FACTS_H

#include <stdbool.h>
#include <stdint.h>

struct json_t;
struct output;

/* Where the facts go: one of them, the other is NULL. */
struct facts {
    struct output *out;
    struct json_t *object;
};

/* Adds a number of bytes; UINT64_MAX: not known. key NULL: not in JSON; title NULL: not in the text. note:
 * follows it in the text; "": none. */
void facts_bytes(const struct facts *f, const char *key, const char *title, uint64_t bytes, const char *note);
/* Adds a text, which need not be UTF-8. */
void facts_text(const struct facts *f, const char *key, const char *title, const char *text);
/* Add members of the object only. A count above INT64_MAX is null. */
void facts_count(const struct facts *f, const char *key, uint64_t count);
void facts_seconds(const struct facts *f, const char *key, uint64_t ns);
void facts_flag(const struct facts *f, const char *key, bool flag);
/* Take over `value`. */
void facts_value(const struct facts *f, const char *key, struct json_t *value);
/* Adds a line of the text only. */
void facts_line(const struct facts *f, const char *title, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds a line without a title. */
void facts_heading(const struct facts *f, const char *text);

#endif
