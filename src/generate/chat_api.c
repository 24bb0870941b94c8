/* The chats of moeflux.h: a request becomes an answer by the same steps as in the server, each on the
 * caller's thread. */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json_sent.h"
#include "base/mem.h"
#include "base/seed.h"
#include "engine/model.h"
#include "engine/sequence.h"
#include "generate/answer_api.h"
#include "generate/batcher.h"
#include "generate/chat_api.h"
#include "generate/choice.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/prefill.h"
#include "generate/prompt_cache.h"
#include "generate/request.h"
#include "generate/request_api.h"
#include "generate/tools.h"
#include "generate/turn_stops.h"
#include "generate/workers.h"
#include "moeflux_chat.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/jinja/jinja.h"

/* What a thread needs while it answers. Workers are kept: their chat templates and logits are used again. */
struct worker {
    struct generator generator;
    struct batcher_slot slot;
    uint32_t copy; /* number of its copy of the model; 0: the model itself */
    struct worker *next;
};

/* ---- a chat ---- */

/* Takes the sampling of the model's file, without the values that cannot be used. */
static int take_sampling(struct moeflux_chat *c, struct moeflux_err *e)
{
    bool skipped[MOEFLUX_N_SAMPLER_FIELDS] = {false};
    struct moeflux_err why;
    size_t bad;
    int rc;
    do {
        c->defaults = request_defaults();
        rc = moeflux_sampler_take_model(&c->defaults.sampling, skipped, c->generator.dir, &bad, &why);
        if (rc != ERR_FORMAT)
            break;
        skipped[bad] = true;
    } while ((c->bad_sampling[bad] = mem_text(why.text, &why)));
    return rc ? err_set(e, why.code, "%s", why.text) : 0;
}

static int make_batchers(struct moeflux_chat *c, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i <= c->generator.n_copies; i++)
        rc = batcher_new(&c->batchers[i], generator_copy(&c->generator, i), false, e);
    return rc;
}

static void free_batchers(struct moeflux_chat *c)
{
    for (uint32_t i = 0; i < MOEFLUX_MAX_DEVICES; i++) {
        batcher_free(c->batchers[i]);
        c->batchers[i] = NULL;
    }
}

static int prepare(struct moeflux_chat *c, struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = generator_of_models(&c->generator, &m, 1, e);
    c->version = clock_ns();
    if (!rc)
        rc = take_sampling(c, e);
    c->tokenizer.tokenizer = c->generator.tokenizer;
    if (!rc)
        generator_report(&c->generator, &m->progress);
    if (!rc)
        rc = generator_prepare(&c->generator, 0, e);
    if (!rc)
        rc = constrain_share(&c->generator, e);
    if (!rc)
        rc = make_batchers(c, e);
    if (!rc && !(c->has_lock = pthread_mutex_init(&c->lock, NULL) == 0))
        rc = err_set(e, ERR_MEMORY, "out of memory for a lock");
    return rc;
}

int moeflux_chat_open(struct moeflux_chat **out, struct moeflux_model *m, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    if (!m)
        return err_set(e, ERR_USAGE, "the model is NULL");
    struct moeflux_chat *c = mem_new(1, sizeof *c, &why);
    if (c && prepare(c, m, &why) == 0) {
        *out = c;
        return 0;
    }
    moeflux_chat_close(c);
    return err_set(e, why.code, "%s", why.text);
}

static void free_worker(struct worker *l)
{
    generator_unshare(&l->generator);
    free(l);
}

static void free_workers(struct moeflux_chat *c)
{
    for (struct worker *l = c->idle, *next; l; l = next) {
        next = l->next;
        free_worker(l);
    }
    c->idle = NULL;
}

int moeflux_template_check(const char *text, struct moeflux_err *e)
{
    int null = err_need(e, "text of the template", text);
    if (null)
        return null;
    struct moeflux_err why = {0};
    struct jinja *parsed = NULL;
    int rc = jinja_parse(&parsed, text, strlen(text), "chat template", &why);
    jinja_free(parsed);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int moeflux_chat_use_template(struct moeflux_chat *c, const char *template_text, const char *variables,
                              struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    json_error_t fault;
    json_t *read = variables ? json_sent_read(variables, strlen(variables), &fault) : NULL;
    int rc = 0;
    if (!c)
        rc = err_set(&why, ERR_USAGE, "the chat is NULL");
    else if (variables && !json_is_object(read))
        rc = err_set(&why, ERR_FORMAT, "the variables of the template: expected a JSON object");
    /* The threads of a pool keep the template that they have parsed. */
    if (!rc)
        rc = workers_check_models(&c->generator, &why);
    if (!rc)
        rc = generator_set_template(&c->generator, template_text, read, "a chat", &why);
    json_decref(read);
    if (rc)
        return err_set(e, rc, "%s", why.text);
    /* Workers keep the template that they have parsed. */
    free_workers(c);
    c->version = clock_ns();
    return 0;
}

void moeflux_chat_close(struct moeflux_chat *c)
{
    if (!c)
        return;
    free_workers(c);
    free_batchers(c);
    generator_close(&c->generator);
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++)
        free(c->bad_sampling[i]);
    if (c->has_lock)
        pthread_mutex_destroy(&c->lock);
    free(c);
}

int moeflux_chat_use_models(struct moeflux_chat *c, struct moeflux_model *const *models, uint32_t n,
                            struct moeflux_err *e)
{
    int null = err_need(e, "chat", c, "list of models", models);
    for (uint32_t i = 0; !null && i < n && i < MOEFLUX_MAX_DEVICES; i++)
        null = err_need(e, "model of the list", models[i]);
    if (null)
        return null;
    struct moeflux_err why = {0};
    if (n == 0 || n > MOEFLUX_MAX_DEVICES)
        return err_set(e, ERR_USAGE, "%u models, expected 1 to %d", n, MOEFLUX_MAX_DEVICES);
    free_workers(c);
    free_batchers(c);
    generator_set_models(&c->generator, models, n);
    int rc = make_batchers(c, &why);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int moeflux_chat_check_tools(const struct moeflux_chat *c, const char *name, struct moeflux_err *e)
{
    int null = err_need(e, "chat", c, "name", name);
    if (null)
        return null;
    return tools_check_model(&c->generator, name, e);
}

struct moeflux_model *moeflux_chat_model(const struct moeflux_chat *c)
{
    return c->generator.model;
}

const struct moeflux_tokenizer *moeflux_chat_tokenizer(const struct moeflux_chat *c)
{
    return c->generator.tokenizer ? &c->tokenizer : NULL;
}

int chat_api_share(const struct moeflux_chat *c, uint32_t copy, struct generator *g, struct moeflux_err *e)
{
    generator_share(g, &c->generator, copy);
    if ((g->logits = mem_new(c->generator.info.vocab_size, sizeof(float), e)))
        return 0;
    generator_unshare(g);
    return ERR_MEMORY;
}

uint32_t chat_api_find_copy(const struct moeflux_chat *c, const struct moeflux_session *s)
{
    uint32_t i = 0;
    while (i <= c->generator.n_copies && generator_copy(&c->generator, i) != s->model)
        i++;
    return i;
}

void chat_api_use(const struct moeflux_chat *c, struct generator *g, struct moeflux_session *s)
{
    g->sequence = s;
    g->max_context = s ? s->max_context : c->generator.info.max_context;
    g->most_prompt_bytes = s && g->tokenizer ? tokenizer_most_bytes(g->tokenizer, s->max_context) : 0;
}

/* ---- workers ---- */

static struct worker *new_worker(struct moeflux_chat *c, uint32_t copy, struct moeflux_err *e)
{
    struct worker *l = mem_new(1, sizeof *l, e);
    if (!l)
        return NULL;
    l->copy = copy;
    if (chat_api_share(c, copy, &l->generator, e)) {
        free(l);
        return NULL;
    }
    batcher_bind(c->batchers[copy], &l->slot, &l->generator);
    return l;
}

/* Returns a worker for a session; NULL: without one, to make the tokens of a prompt. Fails with NULL and `e`
 * filled. */
static struct worker *take_worker(struct moeflux_chat *c, struct moeflux_session *s, struct moeflux_err *e)
{
    uint32_t copy = s ? chat_api_find_copy(c, s) : 0;
    pthread_mutex_lock(&c->lock);
    struct worker **at = &c->idle;
    while (*at && (*at)->copy != copy)
        at = &(*at)->next;
    struct worker *l = *at;
    if (l)
        *at = l->next;
    pthread_mutex_unlock(&c->lock);
    if (!l && !(l = new_worker(c, copy, e)))
        return NULL;
    chat_api_use(c, &l->generator, s);
    return l;
}

static void put_worker(struct moeflux_chat *c, struct worker *l)
{
    l->generator.sequence = NULL;
    l->generator.progress = (struct moeflux_progress){0};
    pthread_mutex_lock(&c->lock);
    l->next = c->idle;
    c->idle = l;
    pthread_mutex_unlock(&c->lock);
}

/* ---- the prompt ---- */

/* The reading changes the fields: a copy of them is read. */
static int read_fields(const struct moeflux_chat *c, const struct moeflux_request *from, struct request *r,
                       struct moeflux_err *e)
{
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++)
        if (c->bad_sampling[i] && !json_object_get(from->fields, sampler_fields[i].name))
            return err_set(e, ERR_FORMAT, "%s", c->bad_sampling[i]);
    json_t *fields = json_deep_copy(from->fields);
    int rc = fields ? request_take(r, fields, &c->defaults, e)
                    : err_set(e, ERR_MEMORY, "out of memory for a request");
    json_decref(fields);
    return rc;
}

int chat_api_read_how(const struct moeflux_chat *c, const struct moeflux_request *from, struct request *out,
                      struct moeflux_err *e)
{
    struct moeflux_request with = {.fields = json_copy(from->fields)};
    json_object_del(with.fields, "messages");
    /* The reader wants one. */
    int bad = !with.fields || json_object_set_new(with.fields, "prompt", json_string("-"));
    int rc = bad ? err_set(e, ERR_MEMORY, "out of memory for a request") : read_fields(c, &with, out, e);
    json_decref(with.fields);
    return rc;
}

/* Reads a request whose prompt is token ids. */
static int read_ids(const struct moeflux_chat *c, const struct moeflux_request *from, struct request *r,
                    struct moeflux_err *e)
{
    struct moeflux_request raw = {.fields = json_copy(from->fields)};
    if (json_object_get(raw.fields, "prompt") || json_object_get(raw.fields, "messages")) {
        json_decref(raw.fields);
        return err_set(e, ERR_USAGE, "the request: expected either token ids, or prompt or messages");
    }
    int bad = !raw.fields || json_object_set_new(raw.fields, "raw", json_true());
    int rc = bad ? err_set(e, ERR_MEMORY, "out of memory for a request") : chat_api_read_how(c, &raw, r, e);
    json_decref(raw.fields);
    for (size_t i = 0; !rc && i < from->ids.n; i++)
        rc = token_list_add(&r->tokens, from->ids.ids[i], e);
    return rc;
}

/* Reads the fields and makes the tokens of the prompt. */
static int read_request(const struct moeflux_chat *c, const struct moeflux_request *from, struct generator *g,
                        struct request *r, struct moeflux_err *e)
{
    if (from->ids.n)
        return read_ids(c, from, r, e);
    if (!g->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a text prompt needs", g->dir);
    int rc = read_fields(c, from, r, e);
    r->counts_system = from->is_alone && from->alone.file;
    return rc ? rc : request_encode(r, g, e);
}

/* Makes r->encoded, unless it is there. */
static int encode_request(struct moeflux_chat *c, struct moeflux_request *r, struct generator *g,
                          struct moeflux_err *e)
{
    if (r->encoded && (!r->encoded_by || r->encoded_by == c->version))
        return 0;
    request_api_forget(r);
    r->encoded_by = c->version;
    if (!(r->encoded = mem_new(1, sizeof *r->encoded, e)))
        return ERR_MEMORY;
    int rc = read_request(c, r, g, &r->encoded->request, e);
    if (rc)
        request_api_forget(r);
    return rc;
}

int64_t moeflux_chat_encode(struct moeflux_chat *c, struct moeflux_request *r, int32_t *ids, size_t cap,
                            struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    if (!c || !r || (!ids && cap > 0))
        return err_set(e, ERR_USAGE, "the %s is NULL", !c ? "chat" : !r ? "request" : "room for ids");
    struct worker *l = take_worker(c, NULL, &why);
    int rc = l ? encode_request(c, r, &l->generator, &why) : ERR_MEMORY;
    if (l)
        put_worker(c, l);
    if (rc)
        return err_set(e, rc, "%s", why.text);
    const struct token_list *tokens = &r->encoded->request.tokens;
    if (cap > 0)
        memcpy(ids, tokens->ids, size_min(tokens->n, cap) * sizeof *ids);
    return (int64_t)tokens->n;
}

/* ---- for a pool ---- */

static int choose_seed(struct choice *c, struct moeflux_err *e)
{
    int64_t seed = c->request.options.seed;
    if (!c->has_seed)
        c->seed = (uint64_t)seed;
    return !c->has_seed && seed < 0 ? seed_draw(&c->seed, e) : 0;
}

/* Finds where the prompt of a choice is cut. */
static void place(struct choice *c, struct generator *g, enum chat_api_places places)
{
    const struct request *r = &c->request;
    c->stops = (struct prefix_stops){0};
    c->cuts = (struct prefix_cuts){0};
    if (places == CHAT_API_CUTS)
        turn_stops_find_cuts(r, g, &c->cuts);
    if (places != CHAT_API_TURNS)
        return;
    turn_stops_find(r, g, &c->stops);
    turn_stops_cut(r, g, &c->stops, &c->cuts);
}

int chat_api_prepare(struct moeflux_chat *c, struct moeflux_request *r, uint32_t max_context,
                     enum chat_api_places places, struct moeflux_err *e)
{
    struct choice *made = r->encoded;
    if (r->is_alone)
        return err_set(e, ERR_USAGE, "a request of a pool cannot be answered alone");
    /* Made with this context, and perhaps where no chat may be asked. */
    if (made && !r->encoded_by && (made->is_placed || places == CHAT_API_NOWHERE))
        return choose_seed(made, e);
    struct worker *l = take_worker(c, NULL, e);
    if (!l)
        return ERR_MEMORY;
    struct generator *g = &l->generator;
    g->max_context = max_context;
    g->most_prompt_bytes = g->tokenizer ? tokenizer_most_bytes(g->tokenizer, max_context) : 0;
    int rc = encode_request(c, r, g, e);
    if (!rc)
        rc = request_check_length(&r->encoded->request, max_context, e);
    if (!rc) {
        place(r->encoded, g, places);
        r->encoded->is_placed = true;
        rc = choose_seed(r->encoded, e);
    }
    put_worker(c, l);
    return rc;
}

/* ---- an answer ---- */

/* An answer that is being computed. */
struct run {
    struct moeflux_chat *chat;
    struct worker *worker;
    struct moeflux_request *asked;
    struct chat_api_watch watch;
    struct choice choice;
    struct prompt_cache cache; /* used if the request is answered alone */
    struct moeflux_answer *answer;
    bool (*piece)(void *ctx, const struct moeflux_piece *p); /* NULL: none, or it has returned false */
    void *ctx;
};

bool chat_api_go_on(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    const struct chat_api_watch *w = ctx;
    (void)what, (void)done, (void)total;
    return !atomic_load(&w->request->is_cancelled) && progress_report(&w->model->progress, "", unit, 0, 0);
}

static int give_piece(void *ctx, const struct moeflux_piece *p, struct moeflux_err *e)
{
    struct run *r = ctx;
    (void)e;
    /* After a cancel from outside, the text that was computed still arrives. */
    if (r->piece && !r->piece(r->ctx, p)) {
        r->piece = NULL;
        atomic_store(&r->asked->is_cancelled, true);
    }
    return 0;
}

/* A function for choice_call. */
static int prefill(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                   uint32_t *n_reused, struct moeflux_err *e)
{
    const struct run *r = ctx;
    struct generator *g = &r->worker->generator;
    const struct prefill p = {.ids = c->request.tokens.ids,
                              .n = (uint32_t)c->request.tokens.n,
                              .sampling = sampling,
                              .stops = c->stops,
                              .passes_above = batcher_most_prompt(r->worker->slot.batcher)};
    int rc = prefill_begin(g, &p, n_reused, e);
    return rc ? rc : prefill_run(g, &p, NULL, e);
}

/* Evaluates the prompt of an answer that is computed alone. */
static int prefill_alone(void *ctx, const struct choice *c, const struct moeflux_sampler_options *sampling,
                         uint32_t *n_reused, struct moeflux_err *e)
{
    struct run *r = ctx;
    struct generator *g = &r->worker->generator;
    const struct moeflux_alone *how = &r->asked->alone;
    r->cache.n_system = c->request.n_system;
    int rc = prompt_cache_eval(&r->cache, g, &c->request.tokens, sampling, how->outputs, e);
    *n_reused = r->cache.n_reused;
    if (!rc && how->outputs && how->outputs->logits)
        memcpy(how->outputs->logits, g->logits, g->info.vocab_size * sizeof *g->logits);
    return rc || !how->evaluated ? rc : how->evaluated(how->ctx, g->logits, e);
}

static void tell(void *ctx, const char *text)
{
    const struct moeflux_warning *w = ctx;
    if (w->tell)
        w->tell(w->ctx, text);
}

/* Computes the answer without the batcher. */
static int compute_alone(struct run *r, struct moeflux_err *e)
{
    struct generator *g = &r->worker->generator;
    struct moeflux_prompt_file *f = r->asked->alone.file;
    const struct generator_evaluator batched = g->evaluator;
    const struct choice_call call = {.generator = g,
                                     .grammars = &r->chat->generator,
                                     .sink = {give_piece, r},
                                     .prefill = prefill_alone,
                                     .ctx = r};
    int rc = 0;
    if (f) {
        const struct prompt_cache_options o = {f->path, f->read_only, f->format, tell, &f->warning};
        f->err = (struct moeflux_err){0};
        rc = prompt_cache_load(&r->cache, &o, g, e);
    }
    g->evaluator = (struct generator_evaluator){0};
    if (!rc)
        rc = choice_answer(&r->choice, &call, &r->answer->own, e);
    g->evaluator = batched;
    if (f)
        f->err = r->cache.unwritten;
    return rc;
}

/* Evaluates the prompt and decodes the answer. */
static int compute(struct run *r, struct moeflux_err *e)
{
    struct generator *g = &r->worker->generator;
    struct choice *c = &r->choice;
    const struct choice_call call = {.generator = g,
                                     .grammars = &r->chat->generator,
                                     .slot = &r->worker->slot,
                                     .sink = {give_piece, r},
                                     .prefill = prefill,
                                     .ctx = r};
    if (!chat_api_go_on(&r->watch, "", "tok", 0, 0))
        return ERR_INTERRUPTED;
    if (r->asked->is_alone)
        return compute_alone(r, e);
    /* A sequence that can be cut anywhere needs no stops. */
    if (moeflux_session_checkpoint_bytes(g->sequence))
        turn_stops_find(&c->request, g, &c->stops);
    return choice_answer(c, &call, &r->answer->own, e);
}

static int answer(struct run *r, struct moeflux_err *e)
{
    struct generator *g = &r->worker->generator;
    int rc = encode_request(r->chat, r->asked, g, e);
    if (!rc) {
        r->choice = *r->asked->encoded;
        *r->asked->encoded = (struct choice){0};
        choice_reset(&r->choice);
        request_api_forget(r->asked);
    }
    r->answer->n_prompt = (uint32_t)r->choice.request.tokens.n;
    r->answer->continues = !rc && !r->choice.request.options.new_message;
    if (!rc)
        rc = request_check_length(&r->choice.request, g->max_context, e);
    if (!rc)
        rc = choose_seed(&r->choice, e);
    r->answer->seed = r->choice.seed;
    if (rc)
        return rc;
    r->watch = (struct chat_api_watch){r->asked, g->model};
    g->progress = (struct moeflux_progress){chat_api_go_on, &r->watch};
    sequence_watch(g->sequence, &g->progress);
    rc = compute(r, e);
    sequence_watch(g->sequence, NULL);
    answer_api_count(r->answer, &r->choice.result);
    if (rc == ERR_INTERRUPTED) {
        r->answer->own.stop = MOEFLUX_STOP_INTERRUPTED;
        rc = 0;
    }
    return rc ? rc : answer_api_finish(r->answer, &r->choice.request, e);
}

int chat_api_check_session(const struct moeflux_chat *c, const struct moeflux_session *s,
                           struct moeflux_err *e)
{
    return chat_api_find_copy(c, s) <= c->generator.n_copies
               ? 0
               : err_set(e, ERR_USAGE, "the session belongs to another model than the chat");
}

static int run(struct run *r, struct moeflux_session *s, struct moeflux_err *e)
{
    int rc = chat_api_check_session(r->chat, s, e);
    if (rc)
        return rc;
    if (!(r->answer = mem_new(1, sizeof *r->answer, e)) || !(r->worker = take_worker(r->chat, s, e)))
        rc = ERR_MEMORY;
    if (!rc)
        rc = answer(r, e);
    choice_free(&r->choice);
    if (r->worker)
        put_worker(r->chat, r->worker);
    return rc;
}

/* Does the work of moeflux_chat_answer. A cancel since the caller began the answer holds. */
static int answer_request(struct moeflux_chat *c, struct moeflux_session *s, struct moeflux_request *r,
                          bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                          struct moeflux_answer **out, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    struct run of = {.chat = c, .asked = r, .piece = piece, .ctx = ctx};
    int rc = run(&of, s, &why);
    if (rc || !out)
        moeflux_answer_free(of.answer);
    if (out)
        *out = rc ? NULL : of.answer;
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

static int check_arguments(const struct moeflux_chat *c, const struct moeflux_session *s,
                           const struct moeflux_request *r, struct moeflux_err *e)
{
    const char *name = !c ? "chat" : !s ? "session" : !r ? "request" : NULL;
    return name ? err_set(e, ERR_USAGE, "the %s is NULL", name) : 0;
}

int moeflux_chat_answer(struct moeflux_chat *c, struct moeflux_session *s, struct moeflux_request *r,
                        bool (*piece)(void *ctx, const struct moeflux_piece *p), void *ctx,
                        struct moeflux_answer **out, struct moeflux_err *e)
{
    int rc = check_arguments(c, s, r, e);
    if (rc) {
        if (out)
            *out = NULL;
        return rc;
    }
    /* A cancel that came too late for the last answer must not end this one. */
    atomic_store(&r->is_cancelled, false);
    return answer_request(c, s, r, piece, ctx, out, e);
}

/* ---- several answers ---- */

/* What the threads of several tasks share. */
struct task_group {
    struct moeflux_chat *chat;
    pthread_mutex_t lock; /* held during a callback */
};

struct task_thread {
    struct task_group *group;
    struct moeflux_task *task;
    pthread_t thread;
    bool has_thread;
};

static bool give_in_turn(void *ctx, const struct moeflux_piece *p)
{
    const struct task_thread *m = ctx;
    pthread_mutex_lock(&m->group->lock);
    bool more = m->task->piece(m->task->ctx, p);
    pthread_mutex_unlock(&m->group->lock);
    return more;
}

static void *answer_task(void *ctx)
{
    struct task_thread *m = ctx;
    struct moeflux_task *t = m->task;
    answer_request(m->group->chat, t->session, t->request, t->piece ? give_in_turn : NULL, m, &t->answer,
                   &t->err);
    return NULL;
}

static int check_tasks(const struct moeflux_chat *c, const struct moeflux_task *tasks, uint32_t n,
                       struct moeflux_err *e)
{
    if (n > MOEFLUX_MAX_TASKS)
        return err_set(e, ERR_USAGE, "%u requests at the same time, expected at most %d", n,
                       MOEFLUX_MAX_TASKS);
    if (n > 0 && !tasks)
        return err_set(e, ERR_USAGE, "the list of tasks is NULL");
    for (uint32_t i = 0; i < n; i++) {
        struct moeflux_err why;
        int rc = check_arguments(c, tasks[i].session, tasks[i].request, &why);
        if (rc)
            return err_set(e, rc, "task %u: %s", i, why.text);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (tasks[i].session == tasks[k].session || tasks[i].request == tasks[k].request)
                return err_set(e, ERR_USAGE, "requests %u and %u have the same %s", k, i,
                               tasks[i].session == tasks[k].session ? "session" : "request");
    return 0;
}

int moeflux_chat_answer_all(struct moeflux_chat *c, struct moeflux_task *tasks, uint32_t n,
                            struct moeflux_err *e)
{
    struct task_group group = {.chat = c};
    struct task_thread threads[MOEFLUX_MAX_TASKS] = {0};
    int rc = check_tasks(c, tasks, n, e), n_failed = 0;
    if (rc)
        return rc;
    if (pthread_mutex_init(&group.lock, NULL) != 0)
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    for (uint32_t i = 0; i < n; i++)
        atomic_store(&tasks[i].request->is_cancelled, false);
    for (uint32_t i = 0; i < n; i++) {
        struct task_thread *m = &threads[i];
        *m = (struct task_thread){.group = &group, .task = &tasks[i]};
        tasks[i].answer = NULL;
        tasks[i].err = (struct moeflux_err){0};
        m->has_thread = pthread_create(&m->thread, NULL, answer_task, m) == 0;
        if (!m->has_thread)
            err_set(&tasks[i].err, ERR_MEMORY, "no thread could be started for the answer");
    }
    for (uint32_t i = 0; i < n; i++) {
        if (threads[i].has_thread)
            pthread_join(threads[i].thread, NULL);
        n_failed += tasks[i].err.code != 0;
    }
    pthread_mutex_destroy(&group.lock);
    return n_failed;
}

/* ---- grammars ---- */

_Static_assert((int)MOEFLUX_GRAMMAR_RULES == (int)CONSTRAIN_GRAMMAR &&
                   (int)MOEFLUX_GRAMMAR_JSON_SCHEMA == (int)CONSTRAIN_JSON_SCHEMA &&
                   (int)MOEFLUX_GRAMMAR_JSON_OBJECT == (int)CONSTRAIN_JSON_OBJECT &&
                   (int)MOEFLUX_GRAMMAR_REGEX == (int)CONSTRAIN_REGEX,
               "two names of one kind");
_Static_assert((int)MOEFLUX_MAX_GRAMMAR == (int)GRAMMAR_MAX_BYTES, "two names of one limit");

struct moeflux_grammar {
    struct constraint *constraint;
};

static int check_kind(enum moeflux_grammar_kind kind, const char *text, struct moeflux_err *e)
{
    if (kind < MOEFLUX_GRAMMAR_RULES || kind > MOEFLUX_GRAMMAR_REGEX)
        return err_set(e, ERR_USAGE, "no kind of grammar has the number %d", (int)kind);
    return text || kind == MOEFLUX_GRAMMAR_JSON_OBJECT
               ? 0
               : err_set(e, ERR_USAGE, "the text of the grammar is NULL");
}

int moeflux_grammar_rules(char **out, enum moeflux_grammar_kind kind, const char *text, size_t len,
                          const char *name, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    struct str rules = {0};
    *out = NULL;
    int rc = check_kind(kind, text, &why);
    if (!rc)
        rc = err_need(&why, "name of the grammar", name);
    if (!rc)
        rc = constrain_grammar((enum constrain_kind)kind, text, len, name, &rules, &why);
    if (!rc && !(*out = mem_text(str_text(&rules), &why)))
        rc = ERR_MEMORY;
    str_free(&rules);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

static int begin_grammar(struct moeflux_grammar *g, struct moeflux_chat *c, enum moeflux_grammar_kind kind,
                         const char *text, struct moeflux_err *e)
{
    static const char *const names[] = {"the grammar", "the schema", "the object", "the expression"};
    struct str rules = {0};
    int rc =
        constrain_grammar((enum constrain_kind)kind, text, text ? strlen(text) : 0, names[kind], &rules, e);
    if (!rc)
        rc = constrain_begin(&c->generator, str_text(&rules), &g->constraint, e);
    str_free(&rules);
    return rc;
}

int moeflux_grammar_new(struct moeflux_grammar **out, struct moeflux_chat *c, enum moeflux_grammar_kind kind,
                        const char *text, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    *out = NULL;
    int rc = c ? check_kind(kind, text, e) : err_set(e, ERR_USAGE, "the chat is NULL");
    if (rc)
        return rc;
    struct moeflux_grammar *g = *out = mem_new(1, sizeof *g, &why);
    if (g && begin_grammar(g, c, kind, text, &why) == 0)
        return 0;
    moeflux_grammar_free(g);
    *out = NULL;
    return err_set(e, why.code, "%s", why.text);
}

void moeflux_grammar_free(struct moeflux_grammar *g)
{
    if (g)
        constraint_free(g->constraint);
    free(g);
}

int moeflux_grammar_next(struct moeflux_grammar *g, const uint64_t **ids, struct moeflux_err *e)
{
    int null = err_need(e, "grammar", g, "place of the ids", ids);
    if (null)
        return null;
    struct moeflux_err why = {0};
    int rc = constraint_mask(g->constraint, ids, &why);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int moeflux_grammar_accept(struct moeflux_grammar *g, int32_t id, struct moeflux_err *e)
{
    int null = err_need(e, "grammar", g);
    if (null)
        return null;
    struct moeflux_err why = {0};
    int rc = constraint_accept(g->constraint, id, &why);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

bool moeflux_grammar_may_end(const struct moeflux_grammar *g)
{
    return constraint_may_end(g->constraint);
}
