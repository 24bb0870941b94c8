/* The answers and pieces of moeflux.h. */
#include "generate/answer_api.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/choice.h"
#include "generate/request.h"

_Static_assert((int)MOEFLUX_STOP_EOS == (int)ANSWER_EOS && (int)MOEFLUX_STOP_LENGTH == (int)ANSWER_LENGTH &&
                   (int)MOEFLUX_STOP_CONTEXT == (int)ANSWER_CONTEXT &&
                   (int)MOEFLUX_STOP_INTERRUPTED == (int)ANSWER_INTERRUPTED &&
                   (int)MOEFLUX_STOP_TEXT == (int)ANSWER_STOP_TEXT &&
                   (int)MOEFLUX_STOP_CALLS == (int)ANSWER_TOOLS,
               "two names of one reason");

static struct moeflux_call call_of(const struct answer_call *c)
{
    return (struct moeflux_call){c->id, str_text(&c->name), str_text(&c->arguments), c->is_cut};
}

static enum moeflux_piece_kind kind_of(const struct answer_piece *p)
{
    static const enum moeflux_piece_kind events[] = {
        [ANSWER_CALL_BEGINS] = MOEFLUX_PIECE_CALL_BEGINS,
        [ANSWER_CALL_ARGUMENTS] = MOEFLUX_PIECE_CALL_ARGUMENTS,
        [ANSWER_CALL_ENDS] = MOEFLUX_PIECE_CALL_ENDS,
        [ANSWER_CALL_FAILS] = MOEFLUX_PIECE_CALL_FAILS,
    };
    if (p->call)
        return events[p->event];
    return p->part == CHAT_THINKING  ? MOEFLUX_PIECE_THINKING
           : p->part == CHAT_CONTROL ? MOEFLUX_PIECE_CONTROL
                                     : MOEFLUX_PIECE_TEXT;
}

struct moeflux_piece answer_api_piece(const struct answer_piece *p, struct moeflux_call *call)
{
    struct moeflux_piece piece = {.kind = kind_of(p),
                                  .text = p->text,
                                  .len = p->len,
                                  .id = p->id,
                                  .logprobs = p->logprobs,
                                  .n_logprobs = p->logprobs ? p->n_top : 0};
    if (p->call) {
        *call = call_of(p->call);
        piece.call = call;
        piece.call_idx = p->call_idx;
    }
    return piece;
}

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
    if (a->own.stop_text && !(a->stop_text = mem_text(a->own.stop_text, e)))
        return ERR_MEMORY;
    if (r->skipped_tool && !(a->skipped_tool = mem_text(r->skipped_tool, e)))
        return ERR_MEMORY;
    if (n && !(a->calls = mem_new(n, sizeof *a->calls, e)))
        return ERR_MEMORY;
    for (size_t i = 0; i < n; i++)
        a->calls[i] = call_of(&a->own.calls[i]);
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
        .stop = (enum moeflux_stop)own->stop,
        .stop_text = a->stop_text,
        .skipped_tool = a->skipped_tool,
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
    bool is_known = (unsigned)stop < ANSWER_N_STOPS;
    return is_known ? answer_stop_name((enum answer_stop)stop) : "unknown";
}
