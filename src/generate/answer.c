#include "generate/answer.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/progress.h"
#include "generate/generator.h"
#include "text/constraint.h"

/* What the loop carries from token to token. */
struct writer {
    struct answer *answer;
    const struct generator *generator;
    const struct answer_options *options;
    struct chat_filter filter;
    struct utf8_stream utf8;
    enum chat_part part; /* of the characters that `utf8` holds back */
    struct str shown;    /* bytes of the token at hand */
    struct str fresh;    /* whole characters not given out yet */
    bool is_free;        /* the answer thinks: its constraint has not begun */
    bool may_think;      /* the next token may be the one that opens the thinking */
};

static struct str *part_text(struct answer *a, enum chat_part part)
{
    return part == CHAT_THINKING ? &a->thinking : &a->text;
}

/* Gives out `fresh` as text of `part`. */
static int give(struct writer *w, int32_t id, enum chat_part part, struct moeflux_err *e)
{
    const struct answer_sink *sink = &w->options->sink;
    struct str *all = part_text(w->answer, part);
    str_add(all, str_text(&w->fresh), w->fresh.len);
    if (!str_ok(all) || !str_ok(&w->fresh))
        return err_set(e, ERR_MEMORY, "out of memory for the answer");
    int rc = sink->token ? sink->token(sink->ctx, id, part, str_text(&w->fresh), w->fresh.len, e) : 0;
    str_clear(&w->fresh);
    return rc;
}

/* A character must not be put together from bytes of two parts. */
static int end_part(struct writer *w, struct moeflux_err *e)
{
    utf8_stream_end(&w->utf8, &w->fresh);
    return w->fresh.len ? give(w, -1, w->part, e) : 0;
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
    utf8_stream_push(&w->utf8, str_text(&w->shown), w->shown.len, &w->fresh);
    return give(w, id, part, e);
}

/* ---- the constraint ---- */

/* Whether the template's thinking goes on, behind the token that was written. */
static bool is_thinking(struct writer *w, int32_t id)
{
    const struct chat *chat = &w->generator->chat;
    return w->options->chat && (w->filter.inside_think || (w->may_think && id == chat->think_open));
}

/* Tells the constraint of the token that was written. */
static int follow(struct writer *w, int32_t id, struct moeflux_err *e)
{
    struct constraint *c = w->options->constraint;
    bool was_free = w->is_free;
    w->is_free = is_thinking(w, id);
    w->may_think = false;
    if (!was_free && !w->is_free)
        return constraint_accept(c, id, e);
    if (w->is_free || w->part != CHAT_ANSWER)
        return 0;
    /* What stands behind </think> in its own token. */
    return constraint_accept_bytes(c, str_text(&w->shown), w->shown.len, e);
}

/* Leaves the sampler the tokens that may come next. */
static int constrain(struct writer *w, struct generator *s, struct moeflux_err *e)
{
    const uint64_t *mask = NULL;
    int rc = w->is_free ? 0 : constraint_mask(w->options->constraint, &mask, e);
    if (rc)
        return rc;
    /* Newlines at the beginning are the grammar's. */
    w->filter.at_start = w->filter.at_start && w->is_free;
    sampler_set_mask(s->sampler, mask);
    if (w->may_think)
        sampler_allow(s->sampler, s->chat.think_open);
    return 0;
}

/* Behind a token that was written. Returns 1 if the answer goes on. */
static int go_on(struct writer *w, const struct generator *s, int32_t id, struct moeflux_err *e)
{
    int rc = follow(w, id, e);
    if (rc)
        return rc;
    /* A model that has no token for the end. */
    bool ends = !w->is_free && s->info.n_eos == 0 && constraint_must_end(w->options->constraint);
    if (ends)
        w->answer->stop = ANSWER_EOS;
    return !ends;
}

/* Where the constraint begins: a model that opens its thinking itself may do so first. */
static void begin_constraint(struct writer *w, const struct generator *s)
{
    if (!w->options->chat)
        return;
    w->is_free = w->filter.inside_think;
    w->may_think = s->chat.thinking && !w->is_free && s->chat.think_open >= 0;
}

/* ---- the loop ---- */

/* The first token, from the logits that the prompt left. */
static int pick_first(struct generator *s, int32_t *id, struct moeflux_err *e)
{
    struct moeflux_err why;
    *id = sampler_pick(s->sampler, s->logits, &why);
    return *id < 0 ? err_set(e, why.code, "position %u: %.400s", moeflux_session_position(s->sequence) - 1,
                             why.text)
                   : 0;
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
    a->stop = is_end ? ANSWER_EOS : a->tokens.n == (uint64_t)o->limit ? ANSWER_LENGTH : ANSWER_CONTEXT;
    return a->stop == ANSWER_CONTEXT && moeflux_session_position(s->sequence) < s->max_context;
}

/* Evaluates the last token and chooses the next one. */
static int step(struct answer *a, const struct answer_options *o, struct generator *s, int32_t *id,
                struct moeflux_err *e)
{
    uint32_t before = moeflux_session_position(s->sequence);
    /* A constraint knows what the next token may be only when there is this one. */
    bool more = a->tokens.n + 1 != (uint64_t)o->limit && !o->constraint;
    int rc = generator_step(s, *id, more, id, e);
    a->last_pending = moeflux_session_position(s->sequence) == before;
    a->n_decoded += !a->last_pending;
    return rc;
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
        int rc = w->options->constraint ? constrain(w, s, e) : 0;
        if (rc == 0)
            rc = id < 0 ? pick_first(s, &id, e) : step(a, w->options, s, &id, e);
        if (rc == 0 && !a->first_token_ns)
            a->first_token_ns = clock_ns();
        rc = rc == 0 ? take(w, s, id, e) : rc;
        if (rc == 1 && w->options->constraint)
            rc = go_on(w, s, id, e);
        if (rc != 1)
            return rc;
    }
}

int answer_run(struct answer *a, struct generator *s, const struct answer_options *o, struct moeflux_err *e)
{
    struct writer w = {.answer = a, .generator = s, .options = o, .part = CHAT_ANSWER};
    a->stop = ANSWER_LENGTH;
    if (o->limit == 0)
        return 0;
    if (o->chat) {
        chat_filter_init(&w.filter, &s->chat);
        w.part = w.filter.inside_think ? CHAT_THINKING : CHAT_ANSWER;
    }
    begin_constraint(&w, s);
    int rc = loop(&w, s, e);
    if (o->constraint)
        sampler_set_mask(s->sampler, NULL);
    if (a->first_token_ns)
        a->decode_ns = clock_ns() - a->first_token_ns;
    if (rc == ERR_INTERRUPTED) {
        a->stop = ANSWER_INTERRUPTED;
        rc = 0;
    }
    str_clear(&w.shown);
    if (o->chat)
        chat_filter_end(&w.filter, &w.shown);
    utf8_stream_push(&w.utf8, str_text(&w.shown), w.shown.len, &w.fresh);
    if (!rc)
        rc = end_part(&w, e);
    str_free(&w.shown);
    str_free(&w.fresh);
    return rc;
}

const char *answer_stop_name(enum answer_stop stop)
{
    static const char *const names[] = {"eos", "length", "context", "interrupted"};
    return names[stop];
}

void answer_free(struct answer *a)
{
    str_free(&a->text);
    str_free(&a->thinking);
    token_list_free(&a->tokens);
    *a = (struct answer){0};
}
