/* harmony.h - gpt-oss's format of an answer: messages, each with a channel, between control tokens.
 *
 *   <|channel|>analysis<|message|>thinking<|end|><|start|>assistant
 *   <|channel|>final<|message|>answer<|return|>
 *   ... <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
 *
 * Messages of the analysis channel are thinking, those of other channels are the answer. A message for a
 * function is a tool call; it is shown as HARMONY_CALL, the recipient, HARMONY_MESSAGE and the text, the
 * form that tool_calls.h reads. Messages for other recipients, such as python, and calls of an answer that
 * may make none are thinking; those for assistant, user or all have no recipient. An empty line is shown
 * between two messages of the same kind.
 *
 * A channel's token always begins a header. A text that is too long for a header, or that ends the answer
 * without one, is the answer. */
#ifndef MOEFLUX_TEXT_CHAT_HARMONY_H
#define MOEFLUX_TEXT_CHAT_HARMONY_H

#include <stdbool.h>
#include <stdint.h>

#include "text/chat/chat.h"

struct json_t;
struct moeflux_err;

#define HARMONY_CHANNEL  "<|channel|>"
#define HARMONY_MESSAGE  "<|message|>"
#define HARMONY_FORM     "<|constrain|>" /* precedes the format of a call's text */
#define HARMONY_CALL_END "<|call|>"
#define HARMONY_CALL     HARMONY_CHANNEL "commentary to="
/* ends a message of thinking; the first token does */
#define HARMONY_ANSWER "<|end|><|start|>assistant" HARMONY_CHANNEL "final" HARMONY_MESSAGE

/* Finds the control tokens. Returns false if the tokenizer lacks some, or if the template does not write
 * them. */
bool harmony_find(struct harmony *h, const struct tokenizer *t, const char *chat_template);

/* Returns a copy of the messages as templates of this format expect them: with reasoning_content also as
 * `thinking`, and without content that is null. The caller releases it; NULL: no memory. */
struct json_t *harmony_messages(const struct json_t *messages);
/* Returns a copy of the tools, with an empty description where there is none: the published template
 * refuses such tools, which clients send. The caller releases it; NULL: no memory. */
struct json_t *harmony_tools(const struct json_t *tools);

/* Starts an answer. prompt_end: the last bytes of its prompt. */
void harmony_begin(struct chat_filter *f, const char *prompt_end);
/* Does what chat_filter_push does. */
enum chat_part harmony_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown);
/* Does what chat_filter_end does. */
enum chat_part harmony_end(struct chat_filter *f, struct str *shown);

#endif
