/* answer_json.h - parts of an answer as JSON, in the form of OpenAI's chat completions. The caller owns the
 * results; NULL: no memory. */
#ifndef MOEFLUX_GENERATE_ANSWER_JSON_H
#define MOEFLUX_GENERATE_ANSWER_JSON_H

#include <stddef.h>
#include <stdint.h>

struct answer_call;
struct json_t;
struct moeflux_logprob;
struct tokenizer;

/* Returns one token: {"id", "token", "logprob", "bytes", "top_logprobs": [the same without the last]}.
 * of: [1 + n_top]. t: NULL: the texts are empty. A probability of 0 has the logarithm -9999. */
struct json_t *answer_json_logprob(const struct tokenizer *t, const struct moeflux_logprob *of,
                                   uint32_t n_top);

/* Returns {"id", "type": "function", "function": {"name", "arguments": a string}}. */
struct json_t *answer_json_call(const struct answer_call *c);

#endif
