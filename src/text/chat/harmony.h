/* harmony.h - gpt-oss's form of an answer: messages, each with a channel, between control tokens.
 *
 *   <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>
 *   ... <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
 *
 * Messages of the analysis channel are thinking, those of others the answer. What is for a recipient is a
 * call of a tool; it comes as HARMONY_CALL, the recipient, HARMONY_MESSAGE and the text (the form of
 * tool_calls.h). Two messages of a kind have an empty line between them. */
#ifndef MOEFLUX_TEXT_CHAT_HARMONY_H
#define MOEFLUX_TEXT_CHAT_HARMONY_H

#include <stdbool.h>
#include <stdint.h>

#include "text/chat/chat.h"

struct json_t;
struct moeflux_err;

#define HARMONY_CHANNEL  "<|channel|>"
#define HARMONY_MESSAGE  "<|message|>"
#define HARMONY_FORM     "<|constrain|>" /* before the form of a call's text */
#define HARMONY_CALL_END "<|call|>"
#define HARMONY_CALL     HARMONY_CHANNEL "commentary to="

/* Finds the tokens of the form. False: the tokenizer has not all of them, or the template does not write
 * them. */
bool harmony_find(struct harmony *h, const struct tokenizer *t, const char *chat_template);

/* Messages as templates of this form want them: reasoning_content is `thinking` too, and content that is null
 * is left out. NULL: no memory. The caller's. */
struct json_t *harmony_messages(const struct json_t *messages);

/* prompt: what the answer follows. */
void harmony_begin(struct chat_filter *f, const char *prompt_end);
/* As chat_filter_push. */
enum chat_part harmony_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown);

#endif
