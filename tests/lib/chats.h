/* chats.h - prompts of short conversations, for the tests of chat templates. */
#ifndef MOEFLUX_TESTS_CHATS_H
#define MOEFLUX_TESTS_CHATS_H

#include "text/chat/chat.h"

/* Opens a chat, which must succeed. */
void chats_open(struct chat *c, const struct tokenizer *t, const char *family, enum chat_thinking thinking);
/* The error with which opening it fails. */
struct moeflux_err chats_refused(const struct tokenizer *t, const char *family, enum chat_thinking thinking);

/* {role, content} for each pair of texts. A caller gives it back with json_decref. */
#define chats_messages(...) chats_make((const char *const[]){__VA_ARGS__, NULL})
struct json_t *chats_make(const char *const *pairs);

/* The prompt's tokens replace those of `out`; n_system as in chat_prompt_tokens. Takes `messages`. */
void chats_prompt(const struct chat *c, struct json_t *messages, struct token_list *out, uint32_t *n_system);
/* The prompt is what this text encodes to, tags as tokens. Takes `messages`. */
void chats_expect(const struct chat *c, struct json_t *messages, const char *text);

#endif
