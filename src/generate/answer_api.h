/* answer_api.h - the answer of moeflux.h: what the loop of answer.h has left, and how the prompt went. */
#ifndef MOEFLUX_GENERATE_ANSWER_API_H
#define MOEFLUX_GENERATE_ANSWER_API_H

#include <stdint.h>

#include "generate/answer.h"
#include "moeflux_chat.h"

struct choice_result;
struct request;

struct moeflux_answer {
    struct answer own;
    struct moeflux_call *calls;     /* [own.n_calls]; NULL: not made yet, or none */
    char *stop_text, *skipped_tool; /* NULL: none */
    uint64_t seed, start_ns, prompt_ns;
    uint32_t n_prompt, n_reused; /* tokens */
    bool has_logprobs;           /* they were asked for */
    bool tools_are_unseen;       /* request.tools_are_unseen */
    bool continues;              /* it continues the last message of the request */
};

/* Takes over how the prompt went. */
void answer_api_count(struct moeflux_answer *a, const struct choice_result *r);

/* Frees what it has; the struct stays. */
void answer_api_clear(struct moeflux_answer *a);

/* Completes an answer that has ended: its strings no longer depend on the request `r`. ERR_MEMORY. */
int answer_api_finish(struct moeflux_answer *a, const struct request *r, struct moeflux_err *e);

#endif
