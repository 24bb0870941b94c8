/* messages.h - the messages of a chat as OpenAI's API has them. */
#ifndef MOEFLUX_API_MESSAGES_H
#define MOEFLUX_API_MESSAGES_H

struct json_t;
struct refusal;

/* Checks them and makes them what a request takes: texts in parts become one, a developer's is the system's.
 * in NULL: absent, which is refused. The result is the caller's; NULL with the refusal filled. */
struct json_t *messages_read(const struct json_t *in, struct refusal *no);

#endif
