/* messages.h - the messages of a chat in the form of OpenAI's API. */
#ifndef MOEFLUX_API_MESSAGES_H
#define MOEFLUX_API_MESSAGES_H

struct json_t;
struct refusal;

/* Checks messages and converts them to what generate/request.h takes: texts in parts become one text, the
 * role "developer" becomes "system". in: NULL: absent, which is refused. The caller owns the result; NULL
 * with the refusal filled. */
struct json_t *messages_read(const struct json_t *in, struct refusal *refusal);

#endif
