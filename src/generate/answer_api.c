/* The answers and pieces of moeflux.h. */
#include "generate/answer_api.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/choice.h"
#include "generate/request.h"

void answer_api_count(struct moeflux_answer *a, const struct choice_result *r)
{
    a->n_reused = r->n_reused;
    a->start_ns = r->start_ns;
    a->prompt_ns = r->prefill_ns;
}

int answer_api_finish(struct moeflux_answer *a, const struct request *r, struct moeflux_err *e)
{
    size_t n = a->own.n_calls;
    a->has_logprobs = r->options.logprobs != REQUEST_NO_LOGPROBS;
    a->tools_are_unseen = r->tools_are_unseen;
    if (a->own.stop_text && !(a->stop_text = mem_text(a->own.stop_text, e)))
        return ERR_MEMORY;
    if (r->skipped_tool && !(a->skipped_tool = mem_text(r->skipped_tool, e)))
        return ERR_MEMORY;
    if (n && !(a->calls = mem_new(n, sizeof *a->calls, e)))
        return ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        a->calls[i] = answer_call_of(&a->own.calls[i]);
    return 0;
}

struct moeflux_answer_info moeflux_answer_get_info(const struct moeflux_answer *a)
{
    static const struct moeflux_logprob no_logprobs = {.id = -1};
    const struct answer *own = &a->own;
    return (struct moeflux_answer_info){
        .text = str_text(&own->text),
        .thinking = str_text(&own->thinking),
        .text_len = own->text.len,
        .thinking_len = own->thinking.len,
        .calls = a->calls,
        .n_calls = (uint32_t)own->n_calls,
        .stop = own->stop,
        .stop_text = a->stop_text,
        .skipped_tool = a->skipped_tool,
        .tools_are_unseen = a->tools_are_unseen,
        .seed = a->seed,
        .n_prompt = a->n_prompt,
        .n_reused = a->n_reused,
        .n_tokens = (uint32_t)own->tokens.n,
        .tokens = own->tokens.ids,
        .logprobs = !a->has_logprobs      ? NULL
                    : own->logprobs.items ? own->logprobs.items
                                          : &no_logprobs,
        .n_logprobs = own->logprobs.n_top,
        .n_decoded = own->n_decoded,
        .n_drafted = own->drafts.n_drafted,
        .n_accepted = own->drafts.n_accepted,
        .n_evaluations = own->drafts.n_runs,
        .prompt_ns = a->prompt_ns,
        .first_ns = own->first_token_ns && a->start_ns ? own->first_token_ns - a->start_ns : 0,
        .decode_ns = own->decode_ns};
}

void answer_api_clear(struct moeflux_answer *a)
{
    answer_free(&a->own);
    free(a->calls);
    free(a->stop_text);
    free(a->skipped_tool);
    *a = (struct moeflux_answer){0};
}

void moeflux_answer_free(struct moeflux_answer *a)
{
    if (a)
        answer_api_clear(a);
    free(a);
}

const char *moeflux_stop_name(enum moeflux_stop stop)
{
    static const char *const names[] = {"eos", "length", "context", "interrupted", "stop", "tool_calls"};
    return (size_t)stop < sizeof names / sizeof *names ? names[stop] : "unknown";
}
