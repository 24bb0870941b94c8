/* answer_fields.h - the JSON fields that --json of an answer and a result of --batch have in common. */
#ifndef MOEFLUX_CLI_REPORT_ANSWER_FIELDS_H
#define MOEFLUX_CLI_REPORT_ANSWER_FIELDS_H

#include "moeflux_chat.h"

struct json_t;

/* Adds text (null without a tokenizer), thinking, tool_calls, tokens, prompt_tokens, reused_tokens,
 * stop_reason, stop_text and, if there are any, logprobs to the object. */
void answer_fields_add(struct json_t *object, const struct moeflux_tokenizer *t,
                       const struct moeflux_answer_info *a);
/* Returns {"id", "type": "function", "function": {"name", "arguments": a string}}, owned by the caller; NULL:
 * no memory. */
struct json_t *answer_fields_call(const struct moeflux_call *c);

#endif
