/* chat_messages.h - the messages of a request, as its template takes them. */
#ifndef MOEFLUX_GENERATE_CHAT_MESSAGES_H
#define MOEFLUX_GENERATE_CHAT_MESSAGES_H

#include <stdbool.h>

struct json_t;
struct moeflux_err;

/* The form in which a template gets the arguments of tools' calls, which are texts of JSON in a request. Some
 * templates take texts, some objects, and some of these nothing else, as they go through the members. */
enum call_arguments {
    ARGUMENTS_PARSED, /* objects, as far as they are that; other texts as they are */
    ARGUMENTS_TEXTS,
    ARGUMENTS_OBJECTS, /* what is no object, such as a call that was cut, becomes an empty one */
    N_CALL_ARGUMENTS
};

/* Checks a list of {role, content, ...} and makes *out of it, the caller's: `system` (NULL or "": none) comes
 * first if no system message does. An empty text stands for no arguments. *has_calls: there are any. `where`
 * begins the errors. ERR_FORMAT, ERR_MEMORY. */
int chat_messages_read(const struct json_t *from, const char *system, enum call_arguments form,
                       struct json_t **out, bool *has_calls, const char *where, struct moeflux_err *e);

#endif
