/* answer_fields.h - the JSON fields that --json of an answer and a result of --batch have in common. */
#ifndef MOEFLUX_CLI_REPORT_ANSWER_FIELDS_H
#define MOEFLUX_CLI_REPORT_ANSWER_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answer;
struct json_t;
struct tokenizer;

/* Adds text (null without a tokenizer), thinking, tool_calls, tokens, prompt_tokens, reused_tokens,
 * stop_reason, stop_text and, if `logprobs`, logprobs to the object. */
void answer_fields_add(struct json_t *object, const struct tokenizer *t, const struct answer *a,
                       size_t n_prompt, uint32_t n_reused, bool logprobs);

#endif
