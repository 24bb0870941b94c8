#include "generate/answer.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/progress.h"
#include "generate/generator.h"
#include "text/stops.h"
#include "text/utf8.h"

/* What the loop carries from token to token. */
struct writer {
    struct answer *answer;
    const struct generator *generator;
    const struct answer_options *options;
    struct chat_filter filter;
    struct utf8_stream utf8;
    struct stops stops;
    enum chat_part part; /* of the characters that `utf8` and `stops` hold back */
    int32_t id;          /* the sampled token that no piece has brought yet; -1: none */
    struct str shown;    /* bytes of the token at hand */
    struct str fresh;    /* whole characters that `stops` has not seen */
    struct str ready;    /* to be given out */
};

/* ---- pieces ---- */

static int give(struct writer *w, struct answer_piece p, struct moeflux_err *e)
{
    const struct answer_sink *sink = &w->options->sink;
    const struct logprobs *l = &w->answer->logprobs;
    p.id = w->id;
    if (w->id >= 0 && w->options->logprobs) {
        p.logprobs = logprobs_of(l, l->n - 1);
        p.n_top = l->n_top;
    }
    w->id = -1;
    return sink->piece ? sink->piece(sink->ctx, &p, e) : 0;
}

static struct str *part_text(struct answer *a, enum chat_part part)
{
    return part == CHAT_THINKING ? &a->thinking : &a->text;
}

/* Gives out `ready` as text of `part`. */
static int give_ready(struct writer *w, enum chat_part part, struct moeflux_err *e)
{
    struct str *all = part_text(w->answer, part);
    str_add(all, str_text(&w->ready), w->ready.len);
    if (!str_ok(all) || !str_ok(&w->ready))
        return err_set(e, ERR_MEMORY, "out of memory for the answer");
    int rc = 0;
    if (w->ready.len > 0)
        rc = give(w, (struct answer_piece){.part = part, .text = w->ready.data, .len = w->ready.len}, e);
    str_clear(&w->ready);
    return rc;
}

/* Gives out `fresh` as far as it cannot become a stop text. */
static int give_fresh(struct writer *w, enum chat_part part, struct moeflux_err *e)
{
    if (!str_ok(&w->fresh))
        return err_set(e, ERR_MEMORY, "out of memory for the answer");
    if (part == CHAT_ANSWER && !w->answer->stop_text) {
        int found = stops_push(&w->stops, str_text(&w->fresh), w->fresh.len, &w->ready);
        if (found != STOPS_NONE)
            w->answer->stop_text = w->options->stops[found];
    } else if (part != CHAT_ANSWER) {
        str_add(&w->ready, str_text(&w->fresh), w->fresh.len);
    }
    str_clear(&w->fresh);
    return give_ready(w, part, e);
}

/* A character, or a stop text, must not be put together from bytes of two parts. */
static int end_part(struct writer *w, struct moeflux_err *e)
{
    utf8_stream_end(&w->utf8, &w->fresh);
    int rc = give_fresh(w, w->part, e);
    if (rc)
        return rc;
    stops_end(&w->stops, &w->ready);
    return give_ready(w, w->part, e);
}

/* Which part the token belongs to; what is to be shown of it, in w->shown. */
static enum chat_part part_of(struct writer *w, int32_t id)
{
    const struct tokenizer *t = w->generator->tokenizer;
    const char *bytes;
    if (w->options->chat)
        return chat_filter_push(&w->filter, &w->generator->chat, id, &w->shown);
    if (t && tokenizer_is_special(t, id))
        return CHAT_CONTROL;
    size_t n = t ? tokenizer_bytes(t, id, &bytes) : 0;
    str_add(&w->shown, n ? bytes : "", n);
    return CHAT_ANSWER;
}

static int write_token(struct writer *w, int32_t id, bool is_end, struct moeflux_err *e)
{
    str_clear(&w->shown);
    enum chat_part part = is_end ? CHAT_CONTROL : part_of(w, id);
    if (part != CHAT_CONTROL && part != w->part) {
        int rc = end_part(w, e);
        if (rc)
            return rc;
        w->part = part;
    }
    if (!str_ok(&w->shown))
        return err_set(e, ERR_MEMORY, "out of memory for the answer");
    w->id = id;
    utf8_stream_push(&w->utf8, str_text(&w->shown), w->shown.len, &w->fresh);
    int rc = give_fresh(w, part, e);
    return rc || w->id < 0 ? rc : give(w, (struct answer_piece){.part = part, .text = ""}, e);
}

/* ---- tokens ---- */

/* Whether the host chooses: a device that does keeps its logits to itself. */
static bool needs_logits(const struct generator *s, const struct answer_options *o)
{
    return o->logprobs || s->evaluator.token;
}

/* The next token, from the logits of the last one. What takes part in the choice does so here. */
static int choose(struct answer *a, const struct answer_options *o, struct generator *s, int32_t *id,
                  struct moeflux_err *e)
{
    struct moeflux_err why;
    *id = sampler_pick(s->sampler, s->logits, &why);
    if (*id < 0)
        return err_set(e, why.code, "position %u: %.400s", moeflux_session_position(s->sequence) - 1,
                       why.text);
    return o->logprobs ? logprobs_add(&a->logprobs, s->logits, s->info.vocab_size, s->allowed, *id, e) : 0;
}

/* Writes a token. Returns 1 if the answer goes on; else a->stop says what ended it. */
static int take(struct writer *w, const struct generator *s, int32_t id, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    const struct answer_options *o = w->options;
    bool is_end = generator_is_eos(s, id) && !o->ignore_eos;
    int rc = token_list_add(&a->tokens, id, e);
    a->last_pending |= rc == 0;
    if (rc == 0)
        rc = write_token(w, id, is_end, e);
    if (rc)
        return rc;
    a->stop = a->stop_text                        ? ANSWER_STOP_TEXT
              : is_end                            ? ANSWER_EOS
              : a->tokens.n == (uint64_t)o->limit ? ANSWER_LENGTH
                                                  : ANSWER_CONTEXT;
    return a->stop == ANSWER_CONTEXT && moeflux_session_position(s->sequence) < s->max_context;
}

/* Evaluates the last token and chooses the next one. */
static int step(struct answer *a, const struct answer_options *o, struct generator *s, int32_t *id,
                struct moeflux_err *e)
{
    uint32_t before = moeflux_session_position(s->sequence);
    bool more = a->tokens.n + 1 != (uint64_t)o->limit;
    int rc = needs_logits(s, o) ? generator_eval(s, id, 1, NULL, e) : generator_step(s, *id, more, id, e);
    a->last_pending = moeflux_session_position(s->sequence) == before;
    a->n_decoded += !a->last_pending;
    return !rc && needs_logits(s, o) ? choose(a, o, s, id, e) : rc;
}

/* Samples until something ends the answer; a->stop says what. */
static int loop(struct writer *w, struct generator *s, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    int32_t id = -1;
    for (;;) {
        a->stop = ANSWER_INTERRUPTED;
        if (!progress_report(&s->progress, "", "tok", 0, 0))
            return 0;
        int rc = id < 0 ? choose(a, w->options, s, &id, e) : step(a, w->options, s, &id, e);
        if (rc == 0 && !a->first_token_ns)
            a->first_token_ns = clock_ns();
        rc = rc == 0 ? take(w, s, id, e) : rc;
        if (rc != 1)
            return rc;
    }
}

/* What was held back comes out, unless a stop text has ended the answer. */
static int end(struct writer *w, struct moeflux_err *e)
{
    if (w->answer->stop_text)
        return 0;
    str_clear(&w->shown);
    if (w->options->chat)
        chat_filter_end(&w->filter, &w->shown);
    utf8_stream_push(&w->utf8, str_text(&w->shown), w->shown.len, &w->fresh);
    return end_part(w, e);
}

int answer_run(struct answer *a, struct generator *s, const struct answer_options *o, struct moeflux_err *e)
{
    struct writer w = {.answer = a, .generator = s, .options = o, .part = CHAT_ANSWER, .id = -1};
    a->stop = ANSWER_LENGTH;
    a->logprobs.n_top = o->n_logprobs;
    sampler_begin_answer(s->sampler);
    if (o->limit == 0)
        return 0;
    if (o->chat) {
        chat_filter_init(&w.filter, &s->chat);
        w.part = w.filter.inside_think ? CHAT_THINKING : CHAT_ANSWER;
    }
    int rc = stops_init(&w.stops, o->stops, o->n_stops, e);
    if (!rc)
        rc = loop(&w, s, e);
    if (a->first_token_ns)
        a->decode_ns = clock_ns() - a->first_token_ns;
    if (rc == ERR_INTERRUPTED) {
        a->stop = ANSWER_INTERRUPTED;
        rc = 0;
    }
    if (!rc)
        rc = end(&w, e);
    stops_free(&w.stops);
    str_free(&w.shown);
    str_free(&w.fresh);
    str_free(&w.ready);
    return rc;
}

const char *answer_stop_name(enum answer_stop stop)
{
    static const char *const names[ANSWER_N_STOPS] = {"eos",         "length", "context",
                                                      "interrupted", "stop",   "tool_calls"};
    return names[stop];
}

void answer_free(struct answer *a)
{
    for (size_t i = 0; i < a->n_calls; i++) {
        str_free(&a->calls[i].name);
        str_free(&a->calls[i].arguments);
    }
    free(a->calls);
    str_free(&a->text);
    str_free(&a->thinking);
    token_list_free(&a->tokens);
    logprobs_free(&a->logprobs);
    *a = (struct answer){0};
}
