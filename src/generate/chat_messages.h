/* chat_messages.h - the messages of a request, as its template takes them. */
#ifndef MOEFLUX_GENERATE_CHAT_MESSAGES_H
#define MOEFLUX_GENERATE_CHAT_MESSAGES_H

#include <stdbool.h>

struct json_t;
struct moeflux_err;

/* Checks a list of {role, content, ...} and makes *out of it, the caller's: `system` (NULL or "": none) comes first if no system
 * message does. The arguments of tools' calls, which are texts of JSON there, become objects, as far as they are that; not with
 * as_texts: some templates take the one, some the other. No text at all stands for no arguments. *has_calls: there are any. `where`
 * begins the errors. ERR_FORMAT, ERR_MEMORY. */
int chat_messages_read(const struct json_t *from, const char *system, bool as_texts, struct json_t **out,
                       bool *has_calls, const char *where, struct moeflux_err *e);

#endif
