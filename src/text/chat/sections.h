/* sections.h - Kimi-K3's format of an answer: sections between tags of control tokens.
 *
 *   thinking<|close|>think<|sep|><|open|>response<|sep|>answer<|close|>response<|sep|>
 *   <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>
 *   <|open|>argument key="p" type="string"<|sep|>value<|close|>argument<|sep|><|close|>call<|sep|>
 *   <|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>
 *
 * The prompt has opened the first section. The tags of think, response and message are not shown; those of
 * calls are shown as they are written, which is the form that tool_calls.h reads. Text between sections
 * counts as the answer's, except white space. Thinking ends where another section begins, too. */
#ifndef MOEFLUX_TEXT_CHAT_SECTIONS_H
#define MOEFLUX_TEXT_CHAT_SECTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "text/chat/chat.h"

#define SECTIONS_OPEN  "<|open|>"
#define SECTIONS_CLOSE "<|close|>"
#define SECTIONS_SEP   "<|sep|>"
#define SECTIONS_END   "<|end_of_msg|>"
/* What an answer with thinking has before its text, and before its calls. */
#define SECTIONS_ANSWER SECTIONS_OPEN "response" SECTIONS_SEP
#define SECTIONS_EMPTY  SECTIONS_CLOSE "response" SECTIONS_SEP

/* Finds the control tokens. Returns false if the tokenizer lacks some, or if the template does not write
 * them. */
bool sections_find(struct sections *s, const struct tokenizer *t, const char *chat_template);

/* Starts an answer. in_thinking: the prompt has opened its thinking. */
void sections_begin(struct chat_filter *f, bool in_thinking);
/* Does what chat_filter_push does. */
enum chat_part sections_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown);
/* Does what chat_filter_end does. */
enum chat_part sections_end(struct chat_filter *f, struct str *shown);

#endif
