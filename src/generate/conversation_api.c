/* The conversations of moeflux.h: turns (conversation.h), the session that has them, what answers them. */
#include <inttypes.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/seed.h"
#include "engine/sequence.h"
#include "engine/state/rewind.h"
#include "generate/answer_api.h"
#include "generate/chat_api.h"
#include "generate/choice.h"
#include "generate/conversation.h"
#include "generate/conversation_json.h"
#include "generate/prefill.h"
#include "generate/request_api.h"
#include "sample/sampler_fields.h"

struct moeflux_conversation {
    struct conversation own;
    struct conversation_model saved; /* the model of a conversation that was read */
    struct moeflux_chat *chat;       /* NULL: it is not attached */
    struct generator generator;
    struct moeflux_request *asked; /* has a copy of the fields of moeflux_conversation_use */
    struct request how;            /* these fields, read */
    /* [vocab_size] logits after the last question, used for another answer; NULL: none */
    float *first_logits;
    uint32_t first_at; /* position of first_logits and of a checkpoint; 0: they are not valid */
    uint64_t seed;
    bool is_reseeded; /* the sampler must be made again with the seed */
    bool is_again;    /* the next answer is another one to the last question */
    /* the answer that is being computed */
    struct moeflux_answer *answer;
    bool (*piece)(void *ctx, const struct moeflux_piece *p);
    void *ctx;
};

/* ---- the object ---- */

int moeflux_conversation_new(struct moeflux_conversation **out, struct moeflux_err *e)
{
    *out = mem_new(1, sizeof **out, e);
    return *out ? 0 : ERR_MEMORY;
}

/* Lets go of the chat and the session. */
static void detach(struct moeflux_conversation *v)
{
    if (v->chat)
        generator_unshare(&v->generator);
    v->chat = NULL;
    free(v->first_logits);
    v->first_logits = NULL;
    v->first_at = 0;
}

void moeflux_conversation_free(struct moeflux_conversation *v)
{
    if (!v)
        return;
    detach(v);
    request_free(&v->how);
    moeflux_request_free(v->asked);
    conversation_model_free(&v->saved);
    conversation_free(&v->own);
    free(v);
}

static int need_chat(const struct moeflux_conversation *v, struct moeflux_err *e)
{
    return v->chat ? 0 : err_set(e, ERR_USAGE, "the conversation is not attached to a session");
}

/* Reads the fields that say how questions are answered. */
static int read_how(const struct moeflux_conversation *v, const struct moeflux_request *r,
                    struct request *how, struct moeflux_err *e)
{
    struct moeflux_request of = {.fields = json_copy(r->fields)};
    json_object_del(of.fields, "raw");
    json_object_del(of.fields, "tools");
    int rc = of.fields ? chat_api_read_how(v->chat, &of, how, e)
                       : err_set(e, ERR_MEMORY, "out of memory for a request");
    json_decref(of.fields);
    return rc;
}

static bool has_same_sampling(const struct moeflux_sampler_options *a,
                              const struct moeflux_sampler_options *b)
{
    bool same = a->n_dry_sequence_breakers == b->n_dry_sequence_breakers && a->n_bias == b->n_bias;
    for (uint32_t i = 0; same && i < a->n_dry_sequence_breakers; i++)
        same = strcmp(a->dry_sequence_breakers[i], b->dry_sequence_breakers[i]) == 0;
    for (uint32_t i = 0; same && i < a->n_bias; i++)
        same = a->bias[i].id == b->bias[i].id && a->bias[i].value == b->bias[i].value;
    for (size_t i = 0; same && i < MOEFLUX_N_SAMPLER_FIELDS; i++)
        same = sampler_fields[i].kind == MOEFLUX_SAMPLER_LIST ||
               moeflux_sampler_get(a, &sampler_fields[i]) == moeflux_sampler_get(b, &sampler_fields[i]);
    return same;
}

int moeflux_conversation_use(struct moeflux_conversation *v, const struct moeflux_request *r,
                             struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v, "request", r);
    if (null)
        return null;
    struct moeflux_err why = {0}, ignored;
    struct request how = {0};
    struct generator *g = &v->generator;
    int rc = need_chat(v, &why);
    if (!rc)
        rc = read_how(v, r, &how, &why);
    /* Not the request's own: what the template cannot do is found out for each answer. */
    struct request_options tried = how.options;
    if (!rc && (rc = request_use_chat(&tried, g, "a conversation", &why))) {
        tried = v->how.options;
        request_use_chat(&tried, g, "a conversation", &ignored);
    }
    if (rc) {
        request_free(&how);
        return err_set(e, rc, "%s", why.text);
    }
    int64_t seed = how.options.seed;
    if (seed >= 0 && (!v->how.fields || seed != v->how.options.seed)) {
        v->seed = (uint64_t)seed;
        v->is_reseeded = true;
    }
    v->is_reseeded |= !has_same_sampling(&how.options.sampling, &v->how.options.sampling);
    request_free(&v->how);
    v->how = how;
    return 0;
}

int moeflux_conversation_attach(struct moeflux_conversation *v, struct moeflux_chat *c,
                                struct moeflux_session *s, const struct moeflux_request *r,
                                struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v, "chat", c, "session", s, "request", r);
    if (null)
        return null;
    struct moeflux_err why = {0};
    const struct turn *last = conversation_last(&v->own);
    detach(v);
    int rc = chat_api_check_session(c, s, &why);
    if (!rc && !c->generator.tokenizer)
        rc = err_set(&why, ERR_USAGE, "%s has no tokenizer.json, which a conversation needs",
                     c->generator.dir);
    if (!rc && last && last->asked > s->max_context)
        rc = err_set(&why, ERR_NO_FIT, "the conversation has %u tokens, the session holds %u", last->asked,
                     s->max_context);
    for (size_t i = 0; !rc && i < v->own.tokens.n; i++)
        if ((uint32_t)v->own.tokens.ids[i] >= c->generator.info.vocab_size)
            rc = err_set(&why, ERR_FORMAT, "token %zu is %" PRIi32 ", expected less than %u", i,
                         v->own.tokens.ids[i], c->generator.info.vocab_size);
    if (!rc)
        rc = chat_api_share(c, chat_api_find_copy(c, s), &v->generator, &why);
    if (!rc) {
        v->chat = c;
        chat_api_use(c, &v->generator, s);
        rc = moeflux_conversation_use(v, r, &why);
    }
    if (!rc && !v->asked)
        rc = moeflux_request_new(&v->asked, &why);
    if (rc)
        detach(v);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

/* ---- turns ---- */

size_t moeflux_conversation_list(const struct moeflux_conversation *v, struct moeflux_turn *out, size_t cap)
{
    const struct conversation *c = &v->own;
    for (size_t i = 0; i < c->n_turns && i < cap; i++) {
        const struct turn *t = &c->turns[i];
        out[i] = (struct moeflux_turn){.question = str_text(&t->question),
                                       .thinking = t->thinking.len ? str_text(&t->thinking) : NULL,
                                       .answer = t->answered ? str_text(&t->answer) : NULL,
                                       .stop = (enum moeflux_stop)t->stop,
                                       .n_before = t->at,
                                       .n_asked = t->asked};
    }
    return c->n_turns;
}

struct moeflux_conversation_info moeflux_conversation_get_info(const struct moeflux_conversation *v)
{
    const struct conversation *c = &v->own;
    return (struct moeflux_conversation_info){.system = c->system.len ? str_text(&c->system) : NULL,
                                              .n_turns = c->n_turns,
                                              .tokens = c->tokens.ids,
                                              .n_tokens = c->tokens.n,
                                              .model = v->saved.dir,
                                              .fingerprint = v->saved.fingerprint};
}

/* Works on a copy: a question that does not fit changes nothing. */
static int put_question(struct moeflux_conversation *v, const char *text, bool instead, struct moeflux_err *e)
{
    struct conversation next;
    size_t n_replaced = 0;
    struct generator *g = &v->generator;
    struct request_options how = v->how.options;
    int rc = request_use_chat(&how, g, "a conversation", e);
    if (!rc)
        rc = conversation_copy(&next, &v->own, e);
    if (rc)
        return rc;
    if (instead)
        conversation_undo(&next);
    rc = conversation_ask(&next, &g->chat, text, &n_replaced, e);
    if (!rc)
        rc = generator_check_ids(g, &next.tokens, e);
    if (!rc && next.tokens.n > g->max_context)
        rc =
            err_set(e, ERR_NO_FIT, "with this question the conversation has %zu tokens, the context holds %u",
                    next.tokens.n, g->max_context);
    struct conversation old = rc ? next : v->own;
    if (!rc)
        v->own = next;
    conversation_free(&old);
    return rc;
}

int moeflux_conversation_ask(struct moeflux_conversation *v, const char *text, bool instead,
                             struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v);
    if (null)
        return null;
    struct moeflux_err why = {0};
    int rc = text ? need_chat(v, &why) : err_set(&why, ERR_USAGE, "the question is NULL");
    if (!rc)
        rc = put_question(v, text, instead, &why);
    if (rc)
        return err_set(e, rc, "%s", why.text);
    v->is_again = false;
    return 0;
}

void moeflux_conversation_unanswer(struct moeflux_conversation *v)
{
    conversation_unanswer(&v->own);
    v->is_again = true;
}

void moeflux_conversation_undo(struct moeflux_conversation *v)
{
    conversation_undo(&v->own);
    v->is_again = false;
}

int moeflux_conversation_clear(struct moeflux_conversation *v, const char *system, struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v);
    if (null)
        return null;
    conversation_clear(&v->own);
    str_clear(&v->own.system);
    str_add_text(&v->own.system, system ? system : "");
    v->first_at = 0;
    v->is_again = false;
    if (!str_ok(&v->own.system))
        return err_set(e, ERR_MEMORY, "out of memory for the system text");
    if (!v->chat)
        return 0;
    if (v->generator.sampler)
        sampler_reset(v->generator.sampler);
    return moeflux_session_clear(v->generator.sequence, e);
}

/* ---- evaluation ---- */

static int new_sampler(struct moeflux_conversation *v, uint32_t n, struct moeflux_err *e)
{
    const struct moeflux_sampler_options sampling = request_sampling(&v->how.options, v->seed);
    v->is_reseeded = false;
    return generator_new_sampler(&v->generator, &sampling, v->own.tokens.ids, n, e);
}

/* Goes back to what the sequence has of the tokens. The sampler stays, unless the text was another one. */
static int begin(struct moeflux_conversation *v, const struct prefill *p, uint32_t *n_reused,
                 struct moeflux_err *e)
{
    struct generator *g = &v->generator;
    uint32_t before = moeflux_session_position(g->sequence);
    int rc = prefill_begin(g, p, n_reused, e);
    bool keeps = g->sampler && *n_reused == before && !v->is_reseeded;
    return rc || keeps ? rc : new_sampler(v, *n_reused, e);
}

/* Keeps the logits after the question and a checkpoint, so that another answer need not evaluate it again. */
static int keep_first(struct moeflux_conversation *v, struct moeflux_err *e)
{
    struct generator *g = &v->generator;
    if (!v->first_logits && !(v->first_logits = mem_new(g->info.vocab_size, sizeof(float), e)))
        return ERR_MEMORY;
    int rc = moeflux_session_checkpoint(g->sequence, e);
    if (rc)
        return rewind_lacks_memory(rc) ? 0 : rc;
    memcpy(v->first_logits, g->logits, g->info.vocab_size * sizeof(float));
    v->first_at = moeflux_session_position(g->sequence);
    return 0;
}

/* Evaluates the part of the conversation, up to the last question's end, that the sequence lacks; a function
 * for choice_call. */
static int evaluate(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                    uint32_t *n, struct moeflux_err *e)
{
    struct moeflux_conversation *v = ctx;
    (void)c, (void)sampling;
    struct generator *g = &v->generator;
    struct prefill p = {.ids = v->own.tokens.ids, .n = conversation_last(&v->own)->asked};
    uint32_t old_first = v->first_at;
    /* The next question's prompt will differ from this one there. */
    if (g->chat.n_opening > 0 && g->chat.n_opening < p.n)
        prefix_stop_at(&p.stops, p.n - g->chat.n_opening, 1);
    v->first_at = 0;
    int rc = begin(v, &p, n, e);
    /* Only the last question can be answered again; undoing goes to the checkpoint before the question. */
    if (!rc && old_first && old_first != *n)
        moeflux_session_drop_checkpoint(g->sequence, old_first, NULL);
    prefix_stop_at(&p.stops, *n, 1);
    if (!rc)
        rc = prefill_run(g, &p, NULL, e);
    return rc ? rc : keep_first(v, e);
}

/* Goes back to the last question's end without evaluating it; likewise. */
static int stay(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                uint32_t *n, struct moeflux_err *e)
{
    struct moeflux_conversation *v = ctx;
    (void)c, (void)sampling;
    *n = v->first_at;
    return new_sampler(v, v->first_at, e);
}

/* Restores the checkpoint at the last question's end. False: there is none. */
static bool restore_question(struct moeflux_conversation *v)
{
    struct generator *g = &v->generator;
    uint32_t at = v->first_at;
    if (!at || at != conversation_last(&v->own)->asked || moeflux_session_restore(g->sequence, at, NULL))
        return false;
    memcpy(g->logits, v->first_logits, g->info.vocab_size * sizeof(float));
    return true;
}

/* Evaluates the answer so far, of which the sequence mostly has all but the last token; likewise. */
static int evaluate_rest(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                         uint32_t *n, struct moeflux_err *e)
{
    struct moeflux_conversation *v = ctx;
    (void)c, (void)sampling;
    struct prefill p = {.ids = v->own.tokens.ids, .n = (uint32_t)v->own.tokens.n};
    int rc = begin(v, &p, n, e);
    v->first_at = *n < v->first_at ? 0 : v->first_at;
    return rc ? rc : prefill_run(&v->generator, &p, NULL, e);
}

/* ---- answers ---- */

static int give_piece(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e)
{
    struct moeflux_conversation *v = ctx;
    (void)e;
    if (v->piece && !v->piece(v->ctx, p)) {
        v->piece = NULL;
        moeflux_request_cancel(v->asked);
    }
    return 0;
}

/* Computes an answer, after the text `continues`; NULL: it begins. n_prompt: tokens before it. */
static int compute(struct moeflux_conversation *v,
                   int (*prefill)(void *ctx, const struct choice *c,
                                  const struct moeflux_sampler_options *sampling, uint32_t *n_reused,
                                  struct moeflux_err *e),
                   const char *continues, bool in_thinking, struct moeflux_err *e)
{
    struct generator *g = &v->generator;
    struct chat_api_watch watch = {v->asked, g->model};
    struct choice choice = {.request.options = v->how.options, .seed = v->seed};
    struct request_options *o = &choice.request.options;
    o->continues = continues;
    o->continues_thinking = in_thinking;
    int rc = request_use_chat(o, g, "a conversation", e);
    if (rc)
        return rc;
    const struct choice_call call = {.generator = g,
                                     .grammars = &v->chat->generator,
                                     .sink = {give_piece, v},
                                     .prefill = prefill,
                                     .ctx = v};
    atomic_store(&v->asked->is_cancelled, false);
    g->progress = (struct moeflux_progress){chat_api_go_on, &watch};
    sequence_watch(g->sequence, &g->progress);
    rc = choice_answer(&choice, &call, &v->answer->own, e);
    sequence_watch(g->sequence, NULL);
    g->progress = (struct moeflux_progress){0};
    v->answer->seed = v->seed;
    v->answer->n_prompt = continues ? (uint32_t)v->own.tokens.n : conversation_last(&v->own)->asked;
    answer_api_count(v->answer, &choice.result);
    if (rc == ERR_INTERRUPTED) {
        v->answer->own.stop = MOEFLUX_STOP_INTERRUPTED;
        rc = 0;
    }
    return rc ? rc : answer_api_finish(v->answer, &choice.request, e);
}

/* Chooses the seed of the next answer. */
static int choose_seed(struct moeflux_conversation *v, struct moeflux_err *e)
{
    v->seed += v->is_again;
    v->is_reseeded |= v->is_again;
    if (v->how.options.seed >= 0)
        return 0;
    v->is_reseeded = true;
    return seed_draw(&v->seed, e);
}

static int answer_last(struct moeflux_conversation *v, struct moeflux_err *e)
{
    struct generator *g = &v->generator;
    struct request_options how = v->how.options;
    int rc = choose_seed(v, e);
    if (!rc && v->is_again)
        rc = request_use_chat(&how, g, "a conversation", e);
    if (!rc && v->is_again)
        rc = conversation_ask_again(&v->own, &g->chat, e);
    bool is_there = !rc && v->is_again && restore_question(v);
    v->is_again = false;
    if (!rc)
        rc = compute(v, is_there ? stay : evaluate, NULL, false, e);
    if (!rc && v->answer->own.tokens.n)
        rc = conversation_answer(&v->own, g, &v->answer->own, e);
    return rc;
}

static int continue_last(struct moeflux_conversation *v, struct moeflux_err *e)
{
    struct moeflux_err closing;
    bool in_thinking;
    if (!conversation_reopen(&v->own, &v->generator.chat, &in_thinking))
        return 1;
    char *text = mem_text(str_text(&conversation_last(&v->own)->answer), e);
    int rc = text ? compute(v, evaluate_rest, text, in_thinking, e) : ERR_MEMORY;
    free(text);
    /* Without more tokens it is closed as it was. */
    int closed = conversation_continue(&v->own, &v->generator, &v->answer->own, rc ? &closing : e);
    return rc ? rc : closed;
}

static int take_answer(struct moeflux_conversation *v, int rc, struct moeflux_answer **out)
{
    v->piece = NULL;
    if (!rc && out)
        *out = v->answer;
    else
        moeflux_answer_free(v->answer);
    v->answer = NULL;
    return rc;
}

static int begin_answer(struct moeflux_conversation *v,
                        bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                        struct moeflux_answer **out, struct moeflux_err *e)
{
    if (out)
        *out = NULL;
    int rc = need_chat(v, e);
    if (!rc && !(v->answer = mem_new(1, sizeof *v->answer, e)))
        rc = ERR_MEMORY;
    v->piece = piece;
    v->ctx = ctx;
    if (!rc)
        v->answer->own.stop = MOEFLUX_STOP_INTERRUPTED;
    return rc;
}

int moeflux_conversation_answer(struct moeflux_conversation *v,
                                bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                                struct moeflux_answer **out, struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v);
    if (null)
        return null;
    struct moeflux_err why = {0};
    const struct turn *last = conversation_last(&v->own);
    int rc = begin_answer(v, piece, ctx, out, &why);
    if (!rc && (!last || last->answered))
        rc = err_set(&why, ERR_USAGE, "the conversation has no question without an answer");
    if (!rc)
        rc = answer_last(v, &why);
    rc = take_answer(v, rc, out);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int moeflux_conversation_continue(struct moeflux_conversation *v,
                                  bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                                  struct moeflux_answer **out, struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v);
    if (null)
        return null;
    struct moeflux_err why = {0};
    int rc = begin_answer(v, piece, ctx, out, &why);
    if (!rc)
        rc = continue_last(v, &why);
    rc = take_answer(v, rc, out);
    return rc < 0 ? err_set(e, rc, "%s", why.text) : rc;
}

/* ---- as text ---- */

int moeflux_conversation_write(const struct moeflux_conversation *v, char **out, struct moeflux_err *e)
{
    int null = err_need(e, "conversation", v, "place of the text", out);
    if (null)
        return null;
    struct moeflux_err why = {0};
    uint64_t fingerprint = 0;
    *out = NULL;
    int rc = need_chat(v, &why);
    if (!rc)
        rc = moeflux_model_fingerprint(v->generator.model, &fingerprint, &why);
    if (!rc && !(*out = conversation_json_write(&v->own, v->generator.dir, fingerprint)))
        rc = err_set(&why, ERR_MEMORY, "out of memory for the text of a conversation");
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int moeflux_conversation_read(struct moeflux_conversation **out, const char *text, size_t len,
                              const char *name, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    int rc = err_need(&why, "text of the conversation", text, "name of the text", name);
    if (!rc)
        rc = moeflux_conversation_new(out, &why);
    if (!rc)
        rc = conversation_json_read(&(*out)->own, &(*out)->saved, text, len, name, &why);
    if (!rc)
        return 0;
    moeflux_conversation_free(*out);
    *out = NULL;
    return err_set(e, rc, "%s", why.text);
}
