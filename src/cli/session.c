#include "cli/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cli/bar.h"
#include "cli/options.h"
#include "cli/place.h"

int session_open(struct session *s, const struct options *o, struct bar *bar, struct err *e)
{
    uint64_t start = clock_ns();
    struct moeflux_options engine = {.progress = bar_progress(bar)};
    *s = (struct session){0};
    options_engine(o, &engine);
    int rc = o->usage ? place_check("--usage", o->usage, e) : 0;
    if (!rc)
        rc = moeflux_open(&s->model, &engine, e);
    bar_end(bar);
    if (rc)
        return rc;
    s->info = moeflux_info(s->model);
    if (s->info.tokenizer_path && !(s->tokenizer = tokenizer_open(s->info.tokenizer_path, e))) {
        session_close(s);
        return (int)e->code;
    }
    if (s->tokenizer)
        tokenizer_set_progress(s->tokenizer, &engine.progress);
    s->load_ns = clock_ns() - start;
    return 0;
}

int session_use_chat(struct session *s, const struct options *o, const char *what, struct err *e)
{
    if (!s->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which %s needs (use --tokens-in)", o->model,
                       what);
    enum chat_kind kind = CHAT_QWEN35;
    int rc = chat_find_kind(s->tokenizer, &kind, e);
    if (rc == 0)
        rc = chat_init(&s->chat, s->tokenizer, kind,
                       o->think      ? CHAT_THINKING_ON
                       : o->no_think ? CHAT_THINKING_OFF
                                     : CHAT_THINKING_AUTO,
                       e);
    s->has_chat = rc == 0;
    return rc;
}

int session_encode(const struct session *s, const char *text, size_t len, enum token_specials specials,
                   struct token_list *out, size_t *n_replaced, struct err *e)
{
    int32_t bos = tokenizer_bos(s->tokenizer);
    int rc = bos >= 0 ? token_list_add(out, bos, e) : 0;
    if (rc == 0)
        rc = tokenizer_encode(s->tokenizer, text, len, specials, out, n_replaced, e);
    if (rc == 0 && bos >= 0 && out->n > 1 && out->ids[1] == bos) {
        out->n--;
        memmove(out->ids, out->ids + 1, out->n * sizeof *out->ids);
    }
    return rc;
}

/* Which ids may be sampled: padded vocabularies have rows that stand for nothing. */
static uint8_t *allowed_ids(const struct session *s, struct err *e)
{
    uint8_t *bits = mem_new(s->info.vocab_size / 8 + 1, 1, e);
    for (uint32_t id = 0; bits && id < s->info.vocab_size; id++)
        if (tokenizer_has(s->tokenizer, (int32_t)id))
            bits[id / 8] |= (uint8_t)(1u << (id % 8));
    return bits;
}

static int make_sampler(struct session *s, const struct options *o, struct err *e)
{
    uint32_t drawn = 0;
    if (o->seed < 0 && getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return err_errno(e, ERR_IO, "no random seed could be drawn (give one with -s)");
    struct sampler_options sampling = options_sampling(o, o->seed < 0 ? drawn : (uint64_t)o->seed);
    if (s->tokenizer && !(s->allowed = allowed_ids(s, e)))
        return ERR_MEMORY;
    return session_new_sampler(s, &sampling, NULL, 0, e);
}

int session_new_sampler(struct session *s, const struct sampler_options *o, const int32_t *ids, size_t n,
                        struct err *e)
{
    struct sampler *fresh = sampler_new(o, s->info.vocab_size, s->allowed, e);
    if (!fresh)
        return (int)e->code;
    sampler_free(s->sampler);
    s->sampler = fresh;
    s->seed = o->seed;
    for (size_t i = 0; i < n; i++)
        sampler_accept(fresh, ids[i]);
    return 0;
}

int session_start(struct session *s, const struct options *o, uint32_t max_context, struct err *e)
{
    uint32_t own = s->info.max_context;
    s->max_context = max_context ? max_context : OPTIONS_DEFAULT_CONTEXT;
    if (!max_context && own && own < s->max_context)
        s->max_context = own;
    int rc = moeflux_session_new(&s->sequence, s->model, s->max_context, e);
    if (rc)
        return rc;
    if (!(s->logits = mem_new(s->info.vocab_size, sizeof(float), e)))
        return ERR_MEMORY;
    return make_sampler(s, o, e);
}

static int evaluate(struct session *s, const int32_t *ids, size_t n, const struct moeflux_wish *wish,
                    struct err *e)
{
    uint32_t before = moeflux_position(s->sequence);
    int rc = moeflux_eval(s->sequence, ids, (uint32_t)n, wish, e);
    /* After an interruption the sequence has the first of them only, after a failure none. */
    uint32_t after = moeflux_position(s->sequence);
    for (uint32_t i = 0; before + i < after; i++)
        sampler_accept(s->sampler, ids[i]);
    return rc;
}

int session_eval(struct session *s, const int32_t *ids, size_t n, const struct moeflux_wish *wish,
                 struct err *e)
{
    struct moeflux_wish all = wish ? *wish : (struct moeflux_wish){0};
    all.logits = s->logits;
    return evaluate(s, ids, n, &all, e);
}

int session_feed(struct session *s, const int32_t *ids, size_t n, struct err *e)
{
    struct moeflux_wish none = {0};
    return evaluate(s, ids, n, &none, e);
}

bool session_is_eos(const struct session *s, int32_t id)
{
    for (uint32_t i = 0; i < s->info.n_eos; i++)
        if (s->info.eos[i] == id)
            return true;
    return false;
}

int session_save_usage(const struct session *s, const struct options *o, int rc, struct err *e)
{
    if (!o->usage || !s->model || (rc && rc != ERR_INTERRUPTED))
        return rc;
    int saved = moeflux_save_usage(s->model, o->usage, e);
    return saved ? saved : rc;
}

void session_close(struct session *s)
{
    free(s->logits);
    free(s->allowed);
    sampler_free(s->sampler);
    moeflux_session_free(s->sequence);
    tokenizer_free(s->tokenizer);
    moeflux_close(s->model);
    *s = (struct session){0};
}
