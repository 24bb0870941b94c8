#include "generate/answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"
#include "generate/channels.h"
#include "generate/generator.h"
#include "text/grammar/constraint.h"
#include "text/stops.h"
#include "text/chat/tool_calls.h"
#include "text/utf8.h"

/* The limit of the thinking, and the tokens that end it. */
struct closing {
    struct token_list ids;
    size_t n_tag;       /* the first of them, which end the thinking */
    size_t at, n;       /* next one to write; how many are written this time */
    uint64_t n_thought; /* tokens of thinking so far */
    bool was_used;
};

/* What the loop carries from token to token. */
struct writer {
    struct answer *answer;
    const struct generator *generator;
    const struct answer_options *options;
    struct chat_filter filter;
    struct utf8_stream utf8;
    struct tool_calls tools;
    struct stops stops;
    uint32_t n_begun;    /* tool calls, also failed ones */
    enum chat_part part; /* part of the characters that utf8, tools and stops hold back */
    int32_t id;          /* sampled token that is in no piece yet; -1: none */
    struct str shown;    /* bytes of the current token */
    struct str fresh;    /* whole characters that neither `tools` nor `stops` has seen */
    struct str ready;    /* text of the next piece */
    struct channels channels;
    bool is_free;    /* the answer is thinking: the constraint has not begun */
    bool may_think;  /* the next token may be the one that opens the thinking */
    bool has_called; /* the call that ends the answer is complete */
    /* the stop that is the last token's text, borrowed from the options; NULL: none */
    const char *stop_token;
    struct closing closing;
};

/* ---- pieces ---- */

static int give(struct writer *w, struct moeflux_piece p, struct moeflux_err *e)
{
    const struct answer_sink *sink = &w->options->sink;
    const struct logprobs *l = &w->answer->logprobs;
    p.id = w->id;
    if (w->id >= 0 && w->options->logprobs) {
        p.logprobs = logprobs_of(l, l->n - 1);
        p.n_logprobs = l->n_top;
    }
    w->id = -1;
    return sink->piece ? sink->piece(sink->ctx, &p, e) : 0;
}

static enum moeflux_piece_kind kind_of(enum chat_part part)
{
    return part == CHAT_THINKING  ? MOEFLUX_PIECE_THINKING
           : part == CHAT_CONTROL ? MOEFLUX_PIECE_CONTROL
                                  : MOEFLUX_PIECE_TEXT;
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
        rc = give(
            w, (struct moeflux_piece){.kind = kind_of(part), .text = w->ready.data, .len = w->ready.len}, e);
    str_clear(&w->ready);
    return rc;
}

/* Gives out text of the answer. Holds back an end that may become a stop text. */
static int give_answer(struct writer *w, const char *bytes, size_t n, struct moeflux_err *e)
{
    int found = stops_push(&w->stops, bytes, n, &w->ready);
    if (found != STOPS_NONE) {
        w->answer->stop_text = w->options->stops[found];
        str_add_text(&w->ready, w->options->keep_stop ? w->answer->stop_text : "");
    }
    return give_ready(w, CHAT_ANSWER, e);
}

/* Gives out what was held back: text that follows can no longer complete a stop text. */
static int end_stops(struct writer *w, struct moeflux_err *e)
{
    stops_end(&w->stops, &w->ready);
    return give_ready(w, CHAT_ANSWER, e);
}

/* ---- calls of tools ---- */

/* Sets the call's id: the model's own if it is the first call with it, else one that is the same for
 * the same call of the same answer. */
static void name_call(const struct writer *w, struct answer_call *c)
{
    const struct str *own = &w->tools.id;
    bool is_new = own->len > 0 && own->len < sizeof c->id;
    for (size_t i = 0; is_new && i < w->answer->n_calls; i++)
        is_new = strcmp(w->answer->calls[i].id, own->data) != 0;
    if (is_new) {
        memcpy(c->id, own->data, own->len + 1);
        return;
    }
    const uint64_t of[] = {w->generator->seed, moeflux_session_position(w->generator->sequence), w->n_begun};
    snprintf(c->id, sizeof c->id, "call_%016" PRIx64, XXH3_64bits(of, sizeof of));
}

static int add_call(struct writer *w, const char *name, size_t len, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    int rc = mem_grow((void **)&a->calls, &a->calls_cap, a->n_calls + 1, sizeof *a->calls, e);
    if (rc)
        return rc;
    struct answer_call *c = &a->calls[a->n_calls];
    *c = (struct answer_call){0};
    str_add(&c->name, name, len);
    name_call(w, c);
    a->n_calls++;
    w->n_begun++;
    return str_ok(&c->name) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a tool's call");
}

static void drop_call(struct answer *a)
{
    struct answer_call *c = &a->calls[--a->n_calls];
    str_free(&c->name);
    str_free(&c->arguments);
}

static int give_call(struct writer *w, enum moeflux_piece_kind kind, const char *bytes, size_t n,
                     struct moeflux_err *e)
{
    struct answer *a = w->answer;
    struct answer_call *c = &a->calls[a->n_calls - 1];
    str_add(&c->arguments, bytes, n);
    if (!str_ok(&c->arguments))
        return err_set(e, ERR_MEMORY, "out of memory for a tool's call");
    const struct moeflux_call call = answer_call_of(c);
    return give(w,
                (struct moeflux_piece){
                    .kind = kind, .text = bytes, .len = n, .call = &call, .call_idx = w->n_begun - 1},
                e);
}

static int on_tool_event(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e)
{
    struct writer *w = ctx;
    int rc = 0;
    /* Nothing after a stop text is shown. */
    if (w->answer->stop_text || w->has_called)
        return 0;
    switch (event) {
    case TOOL_TEXT:
        if (w->part == CHAT_ANSWER)
            return give_answer(w, bytes, n, e);
        str_add(&w->ready, bytes, n);
        return give_ready(w, w->part, e);
    case TOOL_BEGINS:
        rc = end_stops(w, e);
        if (!rc)
            rc = add_call(w, bytes, n, e);
        return rc ? rc : give_call(w, MOEFLUX_PIECE_CALL_BEGINS, "", 0, e);
    case TOOL_ARGUMENTS:
        return give_call(w, MOEFLUX_PIECE_CALL_ARGUMENTS, bytes, n, e);
    case TOOL_ENDS:
        w->has_called = w->options->one_call;
        /* A call ends the thinking that it is in. */
        w->part = CHAT_ANSWER;
        w->filter.inside_think = false;
        return give_call(w, MOEFLUX_PIECE_CALL_ENDS, "", 0, e);
    case TOOL_BREAKS:
        w->answer->calls[w->answer->n_calls - 1].is_cut = true;
        return give_call(w, MOEFLUX_PIECE_CALL_ENDS, "", 0, e);
    case TOOL_FAILS:
        rc = give_call(w, MOEFLUX_PIECE_CALL_FAILS, "", 0, e);
        drop_call(w->answer);
        return rc;
    }
    return rc;
}

/* ---- tokens to pieces ---- */

/* Gives out `fresh`, except an end that may still become a call or a stop text. */
static int give_fresh(struct writer *w, enum chat_part part, struct moeflux_err *e)
{
    int rc = 0;
    if (!str_ok(&w->fresh))
        return err_set(e, ERR_MEMORY, "out of memory for the answer");
    if (part != CHAT_CONTROL)
        rc = tool_calls_push(&w->tools, str_text(&w->fresh), w->fresh.len, e);
    str_clear(&w->fresh);
    return rc;
}

/* Ends a part: a character, a call or a stop text must not join bytes of two parts. */
static int end_part(struct writer *w, struct moeflux_err *e)
{
    utf8_stream_end(&w->utf8, &w->fresh);
    int rc = give_fresh(w, w->part, e);
    if (!rc)
        rc = tool_calls_end(&w->tools, e);
    return rc || w->answer->stop_text ? rc : end_stops(w, e);
}

/* Begins a part, if it is another one. */
static int begin_part(struct writer *w, enum chat_part part, struct moeflux_err *e)
{
    int rc = part == w->part ? 0 : end_part(w, e);
    w->part = part;
    w->tools.is_thinking = part == CHAT_THINKING;
    return rc;
}

/* Returns whether a control token is a tag of a tool call, or inside of a call, where it counts as text. */
static bool is_tool_tag(const struct writer *w, int32_t id)
{
    const struct chat *chat = &w->generator->chat;
    const char *bytes;
    if (!w->tools.form || (w->options->chat && chat->sections.is_used))
        return false;
    bool is_control = tokenizer_is_special(w->generator->tokenizer, id) ||
                      (id >= 0 && (id == chat->think_open || id == chat->think_close));
    if (!is_control)
        return false;
    if (w->part == CHAT_ANSWER && tool_calls_is_open(&w->tools) && !tool_form_is_message(w->tools.form))
        return true;
    size_t n = tokenizer_bytes(w->generator->tokenizer, id, &bytes);
    return tool_form_has_tag(w->tools.form, bytes, n);
}

/* Returns the part that the token belongs to; w->shown gets the bytes to show. */
static enum chat_part part_of(struct writer *w, int32_t id)
{
    const struct tokenizer *t = w->generator->tokenizer;
    const char *bytes;
    bool is_tag = is_tool_tag(w, id);
    /* Newlines after a tag are kept, unlike those after a think block. */
    w->filter.at_start &= !is_tag;
    if (w->options->chat && !is_tag)
        return chat_filter_push(&w->filter, &w->generator->chat, id, &w->shown);
    if (!is_tag && t && tokenizer_is_special(t, id))
        return CHAT_CONTROL;
    size_t n = t ? tokenizer_bytes(t, id, &bytes) : 0;
    chat_filter_show(&w->filter, n ? bytes : "", n, &w->shown);
    return is_tag && w->filter.inside_think ? CHAT_THINKING : CHAT_ANSWER;
}

static int write_token(struct writer *w, int32_t id, bool is_end, struct moeflux_err *e)
{
    str_clear(&w->shown);
    enum chat_part part = is_end ? CHAT_CONTROL : part_of(w, id);
    int rc = part == CHAT_CONTROL ? 0 : begin_part(w, part, e);
    if (rc)
        return rc;
    if (!str_ok(&w->shown))
        return err_set(e, ERR_MEMORY, "out of memory for the answer");
    w->id = id;
    utf8_stream_push(&w->utf8, str_text(&w->shown), w->shown.len, &w->fresh);
    rc = give_fresh(w, part, e);
    return rc || w->id < 0 ? rc : give(w, (struct moeflux_piece){.kind = kind_of(part), .text = ""}, e);
}

/* ---- the constraint ---- */

/* Returns whether the thinking continues after the token that was written. */
static bool is_thinking(struct writer *w, int32_t id)
{
    const struct chat *chat = &w->generator->chat;
    return w->options->chat && (w->filter.inside_think || (w->may_think && id == chat->think_open));
}

/* Advances the constraint by the token that was written. */
static int follow(struct writer *w, int32_t id, struct moeflux_err *e)
{
    struct constraint *c = w->options->constraint;
    bool was_free = w->is_free;
    if (channels_are_used(&w->channels)) {
        int rc = channels_accept(&w->channels, id, e);
        w->is_free = w->channels.at == CHANNELS_THINKING;
        return rc;
    }
    w->is_free = is_thinking(w, id);
    w->may_think = false;
    if (!was_free && !w->is_free)
        return constraint_accept(c, id, e);
    if (w->is_free || w->part != CHAT_ANSWER)
        return 0;
    /* Text after </think> within the same token. */
    return constraint_accept_bytes(c, str_text(&w->shown), w->shown.len, e);
}

/* Returns the only id of a mask; -1: there are several, or none. */
static int32_t only_id(const uint64_t *mask, uint32_t n_ids)
{
    int32_t id = -1;
    for (uint32_t i = 0; i < n_ids; i += 64) {
        uint64_t word = mask[i / 64];
        if (word == 0)
            continue;
        if (id >= 0 || (word & (word - 1)))
            return -1;
        id = (int32_t)(i + (uint32_t)__builtin_ctzll(word));
    }
    return id;
}

/* Restricts the sampler to the tokens that may come next. *forced: the only such token, which needs no
 * sampling; -1: there are several, or its probability is asked for. */
static int constrain(struct writer *w, struct generator *s, int32_t *forced, struct moeflux_err *e)
{
    const uint64_t *mask = NULL;
    int rc = channels_are_used(&w->channels) ? channels_mask(&w->channels, &mask, e)
             : w->is_free                    ? 0
                                             : constraint_mask(w->options->constraint, &mask, e);
    if (rc)
        return rc;
    if (mask && !w->may_think && !w->options->logprobs)
        *forced = only_id(mask, s->info.vocab_size);
    /* Newlines at the beginning belong to the grammar. */
    w->filter.at_start = w->filter.at_start && w->is_free;
    sampler_set_mask(s->sampler, mask);
    if (w->may_think)
        sampler_allow(s->sampler, s->chat.think_open);
    if (!sampler_can_pick(s->sampler))
        return err_set(e, ERR_UNSUPPORTED, "no token that the grammar allows here may be chosen");
    return 0;
}

/* Advances the constraint after a token. Returns 1 if the answer continues. */
static int go_on(struct writer *w, const struct generator *s, int32_t id, struct moeflux_err *e)
{
    int rc = follow(w, id, e);
    if (rc)
        return rc;
    /* A model without an end-of-text token ends where the grammar does. */
    bool ends = !w->is_free && s->info.n_eos == 0 && constraint_must_end(w->options->constraint);
    if (ends)
        w->answer->stop = MOEFLUX_STOP_EOS;
    return !ends;
}

/* Decides where the constraint begins: a model that opens its thinking itself may do so first. */
static int begin_constraint(struct writer *w, const struct generator *s, struct moeflux_err *e)
{
    if (!w->options->chat)
        return 0;
    w->is_free = w->filter.inside_think;
    w->may_think = s->chat.may_open && !w->options->continues;
    int rc = channels_open(&w->channels, s, w->options, &w->filter, e);
    if (rc == 0 && channels_are_used(&w->channels))
        w->is_free = w->channels.at == CHANNELS_THINKING;
    return rc;
}

/* ---- the limit of the thinking ---- */

static int begin_closing(struct writer *w, const struct generator *s, struct moeflux_err *e)
{
    if (!w->options->chat || !w->options->limits_thinking)
        return 0;
    return chat_close_thinking(&s->chat, &w->closing.ids, &w->closing.n_tag, e);
}

/* Returns whether the next token may belong to the thinking. */
static bool thinks(const struct writer *w)
{
    return w->options->chat && chat_filter_is_thinking(&w->filter, &w->generator->chat);
}

/* Returns the next token that ends the thinking; -1: the model chooses. */
static int32_t next_closing(struct writer *w)
{
    struct closing *c = &w->closing;
    if (c->at == c->n && c->ids.n > 0 && thinks(w) && c->n_thought >= w->options->think_budget) {
        /* White space after the tag belongs to the constraint. A call may follow in gpt-oss's form, unless
         * the model thinks again. */
        bool tag_only = w->options->constraint || (w->options->tools && !c->was_used);
        c->at = 0;
        c->n = tag_only ? c->n_tag : c->ids.n;
        c->was_used = true;
    }
    return c->at < c->n ? c->ids.ids[c->at++] : -1;
}

/* ---- tokens ---- */

/* Samples the next token from the logits of the last one, and records their log-probabilities. */
static int choose(struct answer *a, const struct answer_options *o, struct generator *s, int32_t *id,
                  struct moeflux_err *e)
{
    int rc = generator_choose(s, id, e);
    return rc == 0 && o->logprobs
               ? logprobs_add(&a->logprobs, s->logits, s->info.vocab_size, s->allowed, *id, e)
               : rc;
}

/* Returns the stop that is the text of an added token and no tag of a call; NULL: none. */
static const char *find_stop_token(const struct writer *w, int32_t id)
{
    const struct tokenizer *t = w->generator->tokenizer;
    const char *bytes;
    bool may_be = w->options->n_stops > 0 && t && tokenizer_is_added(t, id) && !is_tool_tag(w, id);
    size_t n = may_be ? tokenizer_bytes(t, id, &bytes) : 0;
    for (size_t i = 0; n > 0 && i < w->options->n_stops; i++)
        if (strlen(w->options->stops[i]) == n && memcmp(w->options->stops[i], bytes, n) == 0)
            return w->options->stops[i];
    return NULL;
}

/* Writes a token. Returns 1 if the answer continues; else a->stop is what ended it. */
static int take(struct writer *w, const struct generator *s, int32_t id, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    const struct answer_options *o = w->options;
    bool is_end = generator_is_eos(s, id) && !o->ignore_eos;
    int rc = token_list_add(&a->tokens, id, e);
    a->n_pending += rc == 0;
    w->closing.n_thought += thinks(w);
    w->stop_token = is_end ? NULL : find_stop_token(w, id);
    if (rc == 0)
        rc = write_token(w, id, is_end || w->stop_token, e);
    if (rc)
        return rc;
    a->stop = a->stop_text || w->stop_token       ? MOEFLUX_STOP_TEXT
              : w->has_called                     ? MOEFLUX_STOP_CALLS
              : is_end                            ? MOEFLUX_STOP_EOS
              : a->tokens.n == (uint64_t)o->limit ? MOEFLUX_STOP_LENGTH
                                                  : MOEFLUX_STOP_CONTEXT;
    return a->stop == MOEFLUX_STOP_CONTEXT &&
           moeflux_session_position(s->sequence) + a->n_pending <= s->max_context;
}

/* Notes which of the pending tokens were evaluated. before: the position before that. */
static void count_evaluated(struct answer *a, const struct generator *s, uint32_t before)
{
    uint32_t done = moeflux_session_position(s->sequence) - before;
    a->n_pending -= done;
    a->n_decoded += done;
}

/* Evaluates the pending tokens on the host, which gets the logits. */
static int evaluate(struct answer *a, struct generator *s, struct moeflux_err *e)
{
    uint32_t before = moeflux_session_position(s->sequence), n = a->n_pending;
    int rc = n ? generator_eval(s, a->tokens.ids + a->tokens.n - n, n, NULL, e) : 0;
    count_evaluated(a, s, before);
    return rc;
}

/* Evaluates the pending tokens (several after forced ones, else one) and samples the next one. If several
 * are pending or logprobs are wanted, the host samples; a device that samples does not return its logits. */
static int step(struct writer *w, struct generator *s, int32_t *id, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    const struct answer_options *o = w->options;
    if (a->n_pending > 1 || o->logprobs) {
        int rc = evaluate(a, s, e);
        return rc ? rc : choose(a, o, s, id, e);
    }
    /* A constraint knows the allowed next tokens only once this one is known. Tokens that end the thinking
     * may follow the next one. */
    bool more = a->tokens.n + 1 != (uint64_t)o->limit && !o->constraint &&
                (w->closing.ids.n == 0 || w->closing.n_thought + 1 < o->think_budget);
    uint32_t before = moeflux_session_position(s->sequence);
    int rc = generator_step(s, *id, more, id, e);
    count_evaluated(a, s, before);
    return rc;
}

/* Takes a token that needs no sampling. */
static int force(struct writer *w, struct generator *s, int32_t id, struct moeflux_err *e)
{
    sampler_skip(s->sampler);
    if (!w->options->logprobs)
        return 0;
    int rc = evaluate(w->answer, s, e);
    return rc ? rc : logprobs_add(&w->answer->logprobs, s->logits, s->info.vocab_size, s->allowed, id, e);
}

/* Chooses the next token. *id: in: the last one, -1 before the first; out: the next one. */
static int next(struct writer *w, struct generator *s, int32_t *id, struct moeflux_err *e)
{
    int32_t forced = -1;
    int rc = w->options->constraint ? constrain(w, s, &forced, e) : 0;
    if (rc)
        return rc;
    if (forced < 0)
        forced = next_closing(w);
    if (forced < 0)
        return *id < 0 ? choose(w->answer, w->options, s, id, e) : step(w, s, id, e);
    *id = forced;
    return force(w, s, forced, e);
}

/* Samples until something ends the answer; a->stop is what. */
static int loop(struct writer *w, struct generator *s, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    int32_t id = -1;
    for (;;) {
        a->stop = MOEFLUX_STOP_INTERRUPTED;
        if (!progress_report(&s->progress, "", "tok", 0, 0))
            return 0;
        int rc = next(w, s, &id, e);
        if (rc == 0 && !a->first_token_ns)
            a->first_token_ns = clock_ns();
        rc = rc == 0 ? take(w, s, id, e) : rc;
        if (rc == 1 && w->options->constraint)
            rc = go_on(w, s, id, e);
        if (rc != 1)
            return rc;
    }
}

/* Returns whether a call is complete: only the last one may be cut. */
static bool has_complete_call(const struct answer *a)
{
    return a->n_calls > 1 || (a->n_calls == 1 && !a->calls[0].is_cut);
}

/* Gives out what was held back, unless a stop text or a call has ended the answer. */
static int end(struct writer *w, struct moeflux_err *e)
{
    if (w->answer->stop_text || w->has_called)
        return 0;
    str_clear(&w->shown);
    enum chat_part part = w->part;
    if (w->options->chat)
        part = chat_filter_end(&w->filter, &w->generator->chat, &w->shown);
    int rc = w->shown.len ? begin_part(w, part, e) : 0;
    utf8_stream_push(&w->utf8, str_text(&w->shown), w->shown.len, &w->fresh);
    utf8_stream_end(&w->utf8, &w->fresh);
    rc = rc ? rc : give_fresh(w, w->part, e);
    /* A call in thinking that has ended is thinking. */
    if (!rc && w->part == CHAT_THINKING && !w->filter.inside_think)
        rc = tool_calls_end(&w->tools, e);
    rc = rc ? rc : tool_calls_finish(&w->tools, e);
    return rc || w->answer->stop_text ? rc : end_stops(w, e);
}

/* Names what has ended the answer, once everything is given out: what was held back may have been a stop
 * text, and a complete call counts for more than the token that ends it. */
static int name_stop(struct writer *w, struct moeflux_err *e)
{
    struct answer *a = w->answer;
    bool is_token = w->stop_token && !a->stop_text;
    if (is_token) {
        a->stop_text = w->stop_token;
        str_add_text(&w->ready, w->options->keep_stop ? a->stop_text : "");
    }
    if ((is_token || a->stop == MOEFLUX_STOP_EOS) && has_complete_call(a))
        a->stop = MOEFLUX_STOP_CALLS;
    else if (a->stop_text)
        a->stop = MOEFLUX_STOP_TEXT;
    return is_token ? give_ready(w, CHAT_ANSWER, e) : 0;
}

/* Finds where the prompt leaves the answer, and prepares its readers. */
static int begin(struct writer *w, const struct generator *s, struct moeflux_err *e)
{
    const struct answer_options *o = w->options;
    if (o->chat && o->continues)
        chat_filter_continue(&w->filter, &s->chat, o->continues_thinking);
    else if (o->chat)
        chat_filter_init(&w->filter, &s->chat);
    w->part = o->chat && w->filter.inside_think ? CHAT_THINKING : CHAT_ANSWER;
    const struct tool_form *form = NULL;
    if (o->tools && s->tokenizer)
        form = tool_form_of(s->tokenizer, s->info.chat_template);
    tool_calls_init(&w->tools, form, o->tools, (struct tool_sink){on_tool_event, w});
    w->tools.is_thinking = w->part == CHAT_THINKING;
    w->filter.has_calls = form != NULL;
    int rc = begin_constraint(w, s, e);
    if (!rc && o->constraint && o->continues && !o->continues_thinking)
        rc = constraint_accept_bytes(o->constraint, o->continues, strlen(o->continues), e);
    if (!rc)
        rc = begin_closing(w, s, e);
    return rc ? rc : stops_init(&w->stops, o->stops, o->n_stops, e);
}

static void free_writer(struct writer *w)
{
    channels_free(&w->channels);
    tool_calls_free(&w->tools);
    stops_free(&w->stops);
    token_list_free(&w->closing.ids);
    str_free(&w->shown);
    str_free(&w->fresh);
    str_free(&w->ready);
}

int answer_run(struct answer *a, struct generator *s, const struct answer_options *o, struct moeflux_err *e)
{
    struct writer w = {.answer = a, .generator = s, .options = o, .id = -1};
    a->stop = MOEFLUX_STOP_LENGTH;
    a->logprobs.n_top = o->n_logprobs;
    sampler_begin_answer(s->sampler);
    if (o->limit == 0)
        return 0;
    int rc = begin(&w, s, e);
    struct draft_options draft = o->draft;
    draft.needs_logits = o->constraint || o->logprobs;
    if (!rc)
        rc = draft_new(&s->draft, &draft, s, e);
    if (!rc)
        rc = loop(&w, s, e);
    a->drafts = draft_counts_of(s->draft);
    draft_free(s->draft);
    s->draft = NULL;
    if (o->constraint)
        sampler_set_mask(s->sampler, NULL);
    if (a->first_token_ns)
        a->decode_ns = clock_ns() - a->first_token_ns;
    if (rc == ERR_INTERRUPTED) {
        a->stop = MOEFLUX_STOP_INTERRUPTED;
        rc = 0;
    }
    if (!rc)
        rc = end(&w, e);
    if (!rc)
        rc = name_stop(&w, e);
    free_writer(&w);
    return rc;
}

struct moeflux_call answer_call_of(const struct answer_call *c)
{
    return (struct moeflux_call){c->id, str_text(&c->name), str_text(&c->arguments), c->is_cut};
}

void answer_free(struct answer *a)
{
    while (a->n_calls > 0)
        drop_call(a);
    free(a->calls);
    str_free(&a->text);
    str_free(&a->thinking);
    token_list_free(&a->tokens);
    logprobs_free(&a->logprobs);
    *a = (struct answer){0};
}
