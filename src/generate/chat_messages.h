/* chat_messages.h - the messages of a request, in the form that the chat template takes. */
#ifndef MOEFLUX_GENERATE_CHAT_MESSAGES_H
#define MOEFLUX_GENERATE_CHAT_MESSAGES_H

#include <stdbool.h>

struct json_t;
struct moeflux_err;

/* The form in which a template gets the arguments of tool calls. In a request they are strings of JSON.
 * Some templates take strings, some take objects, and some fail on anything but objects, because they
 * iterate over the members. */
enum call_arguments {
    ARGUMENTS_PARSED, /* strings of an object are parsed; others stay strings */
    ARGUMENTS_TEXTS,
    ARGUMENTS_OBJECTS, /* a string of no object, such as a call that was cut, becomes {"arguments": string} */
    N_CALL_ARGUMENTS
};

/* Checks a list of {role, content, ...} and converts it to *out, which the caller owns. If the list has no
 * system message, `system` (NULL or "": none) becomes the first message. An empty string stands for no
 * arguments. Thinking of past answers that is called `reasoning` or `thinking` is `reasoning_content`, too.
 * *has_calls: there are tool calls. `where` begins the errors. ERR_FORMAT, ERR_MEMORY. */
int chat_messages_read(const struct json_t *from, const char *system, enum call_arguments form,
                       struct json_t **out, bool *has_calls, const char *where, struct moeflux_err *e);

#endif
