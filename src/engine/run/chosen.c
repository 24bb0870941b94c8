#include "engine/run/chosen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model/part_tensors.h"
#include "model/schema.h"

/* The most experts of a round: enough to keep a device busy, few enough to be loaded soon. The most round
 * tables in use. */
enum { ROUND_EXPERTS = 32, ROUND_TABLES = MOEFLUX_ROUND_TABLES };

/* ---- experts that ids name ---- */

static int read_table(struct moeflux_model *m, uint32_t layer, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    struct part_tensor t[PART_MAX_TENSORS];
    const struct tensor *at;
    char name[SCHEMA_NAME];
    part_tensors(c, config_part(c, layer, c->layers[layer].n_blocks - 1), t);
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, t[EXPERTS_OF_TOKENS].name);
    int rc = model_dir_ids(&m->dir, name, t[EXPERTS_OF_TOKENS].cols, &at, e);
    if (rc < 0)
        return rc;
    uint32_t *table = mem_new(t[EXPERTS_OF_TOKENS].cols, sizeof(uint64_t), e);
    m->named[layer] = table;
    return table ? model_dir_read_ids(&m->dir, at, c->own_top_k, c->n_experts, table, e) : ERR_MEMORY;
}

int chosen_open(struct moeflux_model *m, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    int rc = 0;
    if (!config_routes_by_token(c))
        return 0;
    m->named = mem_new(c->n_layers, sizeof *m->named, e);
    if (!m->named)
        return ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < c->n_layers; i++)
        if (config_is_by_token(c, i))
            rc = read_table(m, i, e);
    return rc;
}

void chosen_close(struct moeflux_model *m)
{
    for (uint32_t i = 0; m->named && i < m->dir.config.n_layers; i++)
        free(m->named[i]);
    free(m->named);
    m->named = NULL;
}

/* ---- what is predicted ---- */

/* Returns the next layer with experts after `layer` (UINT32_MAX: before the first); past the stage's last
 * layer: none. */
static uint32_t next_of(const struct pass *p, uint32_t layer)
{
    uint32_t next = layer + 1;
    while (next < p->at->layers.end && !config_has_experts(&p->m->dir.config, next))
        next++;
    return next;
}

/* Whether experts of a layer may have to be read; false past the stage's last layer. */
static bool reads_ahead_of(const struct pass *p, uint32_t layer)
{
    return p->at->predictor.kind != PREDICT_NONE && layer < p->at->layers.end &&
           pass_side(p, layer)->reads_ahead && !expert_store_holds_all(pass_side(p, layer)->store);
}

/* Returns pass_n_decoding if experts are predicted for so many sequences, else 0: many choose nearly all
 * experts anyway, and a chain's tokens are one sequence's. */
static uint32_t n_predicting(const struct pass *p)
{
    uint32_t n = p->chunk.is_chain ? 0 : pass_n_decoding(p);
    return n <= EXEC_MAX_INVARIANT ? n : 0;
}

/* Whether a layer's router is applied early. */
static bool predicts(const struct pass *p, uint32_t layer)
{
    return n_predicting(p) > 0 && (p->at->predictor.kind & PREDICT_ROUTER) && reads_ahead_of(p, layer);
}

bool chosen_predict_next(const struct pass *p, uint32_t layer)
{
    uint32_t next = next_of(p, layer);
    bool does = predicts(p, next);
    if (does)
        arch_predict_experts(p->at->arch, &p->chunk, next);
    return does;
}

/* Returns the host's copy of the predicted experts. */
static const uint32_t *prediction(const struct pass *p)
{
    const uint8_t *copied = p->at->choice.host ? p->at->choice.host + p->at->view.idx.bytes : NULL;
    return (const uint32_t *)(const void *)(p->at->view.predicted.host ? p->at->view.predicted.host : copied);
}

/* Returns the place of a sequence, or that of the least recently seen one. */
static uint32_t find_place(const struct stage *at, uint64_t mark)
{
    const struct tracked_sequence *f = at->tracked;
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < PREDICTOR_PLACES; i++) {
        if (f[i].mark == mark)
            return i;
        if (f[i].last_use < f[oldest].last_use)
            oldest = i;
    }
    return oldest;
}

void chosen_track(const struct work *w, struct stage *at)
{
    uint32_t places[EXEC_MAX_INVARIANT];
    bool is_apart = w->is_batched && !w->is_chain;
    uint32_t n = is_apart ? w->n : 1, here = is_apart ? 1 : w->n_all;
    uint64_t now = ++at->n_tracked;
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_session *s = w->list[i];
        struct tracked_sequence *f = &at->tracked[places[i] = find_place(at, s->mark)];
        if (f->mark != s->mark || f->pos != s->pos)
            predictor_forget(&at->predictor, places[i]);
        *f = (struct tracked_sequence){s->mark, s->pos + here, now};
    }
    predictor_select(&at->predictor, places, n);
}

/* Lists the experts of some tokens, each once. Returns how many they are. */
static uint32_t list(const uint32_t *table, uint32_t row, const int32_t *ids, uint32_t n_tokens,
                     uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t k = 0; k < row; k++) {
            uint32_t expert = table[(uint64_t)ids[t] * row + k], i = 0;
            while (i < n && out[i] != expert)
                i++;
            out[i] = expert;
            n += i == n;
        }
    return n;
}

void chosen_prefetch_named(const struct pass *p, const int32_t *ids)
{
    const struct moeflux_model *m = p->m;
    uint32_t n = pass_n_decoding(p), row = m->dir.config.own_top_k, *wanted = p->at->wanted;
    for (uint32_t i = p->at->layers.first; n > 0 && i < p->at->layers.end; i++)
        if (m->named[i] && reads_ahead_of(p, i))
            expert_store_prefetch(pass_side(p, i)->store, i, wanted, list(m->named[i], row, ids, n, wanted),
                                  false);
}

/* ---- what was chosen ---- */

/* Collects the different experts of tokens from `from` on, for as many tokens as the slots allow. Returns the
 * number of tokens. */
static uint32_t gather_round(const struct pass *p, const struct expert_side *side, uint32_t from,
                             uint32_t *n_wanted)
{
    struct moeflux_model *m = p->m;
    uint32_t top_k = m->dir.config.top_k, slots = expert_store_n_free_slots(side->store), t = from;
    *n_wanted = 0;
    for (; t < p->chunk.n; t++) {
        const uint32_t *choice = pass_choice(p) + (uint64_t)t * top_k;
        uint32_t before = *n_wanted, n = pass_n_chosen(p, choice);
        for (uint32_t k = 0; k < n; k++)
            if (!p->at->is_wanted[choice[k]]) {
                p->at->is_wanted[choice[k]] = 1;
                p->at->wanted[(*n_wanted)++] = choice[k];
            }
        if (*n_wanted <= slots)
            continue;
        while (*n_wanted > before)
            p->at->is_wanted[p->at->wanted[--*n_wanted]] = 0;
        break;
    }
    for (uint32_t i = 0; i < *n_wanted; i++)
        p->at->is_wanted[p->at->wanted[i]] = 0;
    return t - from;
}

/* Returns the experts of tokens from .. from + n - 1, with the side's table. */
static struct arch_experts part_of(const struct expert_side *side, uint32_t layer, uint32_t from, uint32_t n)
{
    return (struct arch_experts){
        .layer = layer, .table = expert_store_table(side->store, layer), .from = from, .n = n};
}

static struct host_chunk host_chunk_of(const struct pass *p)
{
    return (struct host_chunk){.x = (const float *)(const void *)p->at->host.x.host,
                               .weights = pass_weights(p),
                               .idx = pass_choice(p),
                               .sum = (float *)(void *)p->at->host.sum.host,
                               .n = p->chunk.n};
}

static void run_up(const struct pass *p, const struct arch_experts *x)
{
    const struct host_chunk here = host_chunk_of(p);
    if (pass_is_on_cpu(p, x->layer))
        host_experts_up(&p->at->host.experts, &here, x);
    else
        arch_experts_up(p->at->arch, &p->chunk, x);
}

static void run_down(const struct pass *p, const struct arch_experts *x)
{
    const struct host_chunk here = host_chunk_of(p);
    if (pass_is_on_cpu(p, x->layer))
        host_experts_down(&p->at->host.experts, &here, x);
    else
        arch_experts_down(p->at->arch, &p->chunk, x);
}

/* Ends the batch and releases the experts that it used. */
static int finish_round(const struct expert_side *side, struct moeflux_err *e)
{
    int rc = exec_finish(side->exec, e);
    expert_store_release(side->store);
    exec_begin(side->exec);
    return rc;
}

static int bring(const struct expert_side *side, uint32_t layer, const uint32_t *experts, uint32_t n,
                 enum expert_use use, struct moeflux_err *e)
{
    int rc = expert_store_want(side->store, layer, experts, n, use, NULL, e);
    return rc < 0 ? rc : expert_store_await(side->store, e);
}

/* Collects the different experts of the chunk. Cached ones come first, so that they are used before they
 * could be evicted. */
static uint32_t gather_all(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    const struct expert_store *store = pass_side(p, layer)->store;
    uint32_t n_pairs = p->chunk.n * m->dir.config.top_k, n = 0;
    for (uint32_t i = 0; i < n_pairs; i++)
        if (pass_choice(p)[i] != NO_EXPERT)
            p->at->is_wanted[pass_choice(p)[i]] = 1;
    for (int there = 1; there >= 0; there--)
        for (uint32_t x = 0; x < m->dir.config.n_experts; x++)
            if (p->at->is_wanted[x] && expert_store_has(store, layer, x) == there) {
                p->at->is_wanted[x] = 0;
                p->at->wanted[n++] = x;
            }
    return n;
}

/* Makes a table with the addresses of only this round's experts. */
static uint64_t round_table(const struct pass *p, uint32_t round_idx, uint32_t layer, const uint32_t *experts,
                            uint32_t n)
{
    const struct moeflux_model *m = p->m;
    const struct expert_side *side = pass_side(p, layer);
    uint64_t off = (uint64_t)(round_idx % ROUND_TABLES) * m->dir.config.n_experts * sizeof(uint64_t);
    uint64_t *table = (uint64_t *)(void *)(side->round_tables.host + off);
    memset(table, 0, m->dir.config.n_experts * sizeof *table);
    for (uint32_t i = 0; i < n; i++)
        table[experts[i]] = expert_store_address(side->store, layer, experts[i]);
    return side->round_tables.address + off;
}

/* Reads all experts of the next layer while this layer's experts and the next layer's mixer compute: a chunk
 * of many tokens chooses nearly every expert. */
static int read_ahead_of_chunk(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint32_t next = next_of(p, layer), n_experts = m->dir.config.n_experts;
    uint64_t n_pairs = (uint64_t)p->chunk.n * m->dir.config.top_k;
    if (n_pairs < 4 * (uint64_t)n_experts || !reads_ahead_of(p, next))
        return 0;
    for (uint32_t i = 0; i < n_experts; i++)
        p->at->wanted[i] = i;
    expert_store_prefetch(pass_side(p, next)->store, next, p->at->wanted, n_experts, true);
    return expert_store_promote(pass_side(p, next)->store, next, p->at->wanted, n_experts, e);
}

/* Computes the experts of many tokens: each is loaded once and multiplied with all its tokens. While one
 * round computes, the next one is read. A round waits for earlier ones only if slots run out. */
static int expert_rounds(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    const struct expert_side *side = pass_side(p, layer);
    uint32_t n_all = gather_all(p, layer), slots = expert_store_n_free_slots(side->store), n_held = 0,
             round_idx = 0;
    uint32_t most = (uint32_t)size_max(size_min(slots / 2, ROUND_EXPERTS), m->dir.config.top_k);
    struct arch_experts x = part_of(side, layer, 0, p->chunk.n);
    int rc = 0;
    for (uint32_t from = 0, n; rc == 0 && from < n_all; from += n, round_idx++) {
        uint64_t ticket;
        n = (uint32_t)size_min(most, n_all - from);
        if (n_held + n > slots || (round_idx > 0 && round_idx % ROUND_TABLES == 0)) {
            rc = finish_round(side, e);
            n_held = 0;
        }
        if (rc == 0)
            rc = bring(side, layer, p->at->wanted + from, n, USE_CHUNK, e);
        if (rc < 0)
            return rc;
        n_held += n;
        x.table = round_table(p, round_idx, layer, p->at->wanted + from, n);
        x.more_rounds = from + n < n_all;
        run_up(p, &x);
        run_down(p, &x);
        if (x.more_rounds) {
            rc = exec_submit(side->exec, &ticket, e);
            exec_begin(side->exec);
        }
    }
    if (rc == 0) /* the disk is idle until the next layer */
        rc = read_ahead_of_chunk(p, layer, e);
    return rc;
}

/* Prefetches the likeliest predicted experts of a layer, `each` for each sequence. */
static void read_ahead(const struct pass *p, uint32_t layer, uint32_t each)
{
    uint32_t n = n_predicting(p);
    if (n == 0 || !reads_ahead_of(p, layer))
        return;
    predictor_predict(&p->at->predictor, layer, predicts(p, layer) ? prediction(p) : NULL, n);
    expert_store_prefetch(pass_side(p, layer)->store, layer, p->at->predictor.named,
                          (uint32_t)size_min(p->at->predictor.n_named, (uint64_t)n * each), false);
}

/* Prefetches experts of the next layer, to keep the disk busy while those of `layer` compute. */
static void read_ahead_of_next(const struct pass *p, uint32_t layer)
{
    uint32_t next = next_of(p, layer);
    bool comes_again = p->at->computes_at_once && predicts(p, next);
    read_ahead(p, next, comes_again ? div_up(p->m->dir.config.top_k, 2) : UINT32_MAX);
}

void chosen_predict_again(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    if (!config_has_experts(&m->dir.config, layer) || !predicts(p, layer))
        return;
    bool is_first = layer == next_of(p, UINT32_MAX);
    arch_predict_experts(p->at->arch, &p->chunk, layer);
    read_ahead(p, layer, div_up(m->dir.config.top_k, is_first ? 4 : 2));
}

/* Selects the wanted experts whose bits `which` has, for up: by their indices in the choice of one token, by
 * a table for several tokens. */
static void name_part(const struct pass *p, struct arch_experts *x, uint64_t which)
{
    const uint32_t *wanted = p->at->wanted;
    uint32_t some[64], n = 0;
    if (x->n == 1) {
        x->skip = ~which;
        return;
    }
    for (uint32_t i = 0; which; i++, which >>= 1)
        if (which & 1)
            some[n++] = wanted[i];
    x->table = round_table(p, 0, x->layer, some, n);
}

/* Submits up for the experts that are resident, in a batch of its own so that it begins now. */
static int submit_up(const struct pass *p, const struct expert_side *side, struct arch_experts *x,
                     uint64_t which, struct moeflux_err *e)
{
    uint64_t ticket;
    name_part(p, x, which);
    run_up(p, x);
    x->skip_shared = true; /* this call computed it */
    int rc = exec_submit(side->exec, &ticket, e);
    exec_begin(side->exec);
    return rc;
}

/* Computes each expert as soon as it is read, on a host backend: its cores are idle, and less is left to
 * compute when the last expert arrives. *done: bits of the experts computed. */
static int up_as_they_come(const struct pass *p, const struct expert_side *side, struct arch_experts *x,
                           uint64_t all, uint64_t *done, struct moeflux_err *e)
{
    uint64_t present = *done;
    int rc = 0;
    while (rc == 0 && present != all) {
        rc = expert_store_await_some(side->store, &present, e);
        if (rc == 0 && present != *done && present != all)
            rc = submit_up(p, side, x, present & ~*done, e);
        if (rc == 0 && present != all)
            *done = present;
    }
    return rc;
}

/* Computes up for the wanted experts that are resident and waits for the others. The experts that are left
 * for down's batch are selected in x. */
static int up_in_parts(const struct pass *p, const struct expert_side *side, struct arch_experts *x,
                       uint64_t all, uint64_t done, struct moeflux_err *e)
{
    int rc = done ? submit_up(p, side, x, done, e) : 0;
    if (rc == 0 && side->computes_at_once)
        rc = up_as_they_come(p, side, x, all, &done, e);
    int arrived = expert_store_await(side->store, rc < 0 ? NULL : e);
    if (rc < 0 || arrived < 0)
        return rc < 0 ? rc : arrived;
    if (done)
        name_part(p, x, all & ~done);
    return 0;
}

/* Computes the experts of some tokens, n different ones in p->at->wanted. Cached ones are computed while the
 * others are read; with several tokens only on a host backend. Each expert writes its own part of the
 * activations, and the parts are summed afterwards in the router's order. So the result does not depend on
 * the order of arrival. */
static int wanted_experts(const struct pass *p, struct arch_experts *x, uint32_t n, struct moeflux_err *e)
{
    const struct expert_side *side = pass_side(p, x->layer);
    uint64_t all = n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX, present = 0, table = x->table;
    enum expert_use use = p->chunk.n == 1 ? USE_TOKEN : USE_TOKENS;
    int rc = expert_store_want(side->store, x->layer, p->at->wanted, n, use, &present, e);
    if (rc < 0)
        return rc;
    if (x->from + x->n == p->chunk.n)
        read_ahead_of_next(p, x->layer);
    if (n <= 64 && (x->n == 1 || side->computes_at_once))
        rc = up_in_parts(p, side, x, all, present != all ? present : 0, e);
    else
        rc = expert_store_await(side->store, e);
    if (rc < 0)
        return rc;
    run_up(p, x);
    x->table = table;
    run_down(p, x);
    return 0;
}

/* Computes the experts of a few tokens, for as many tokens at once as the slots allow. */
static int token_rounds(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    const struct expert_side *side = pass_side(p, layer);
    int rc = 0;
    for (uint32_t from = 0; rc == 0 && from < p->chunk.n;) {
        uint32_t n_wanted, n = gather_round(p, side, from, &n_wanted);
        struct arch_experts x = part_of(side, layer, from, n);
        if (from > 0) /* the previous round still uses its slots */
            rc = finish_round(side, e);
        if (rc == 0)
            rc = wanted_experts(p, &x, n_wanted, e);
        from += n;
    }
    return rc;
}

/* Whether the chunk is divided into rounds of experts, not of tokens. */
static bool takes_rounds(const struct pass *p, uint32_t layer)
{
    if (pass_n_decoding(p) > 0 && (p->at->batched_plan_n == 0 || pass_is_on_cpu(p, layer)))
        return false;
    return pass_is_on_cpu(p, layer) ? host_experts_takes_rounds(&p->at->host.experts, p->chunk.n)
                                    : arch_takes_rounds(p->at->arch, &p->chunk);
}

uint64_t chosen_n_all(const struct pass *p)
{
    const struct moeflux_model *m = p->m;
    uint64_t n = 0;
    for (uint32_t t = 0; t < p->chunk.n; t++)
        n += pass_n_chosen(p, pass_choice(p) + (uint64_t)t * m->dir.config.top_k);
    return n;
}

void chosen_count(const struct pass *p)
{
    p->at->n_choices += p->chunk.n;
    p->at->n_chosen += chosen_n_all(p);
}

/* Replaces chosen experts by resident ones if the scores are close. */
static void prefer_experts(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint32_t *choice = pass_choice(p);
    bool is_changed = prefer_choose(p, pass_side(p, layer)->store, layer, pass_n_chosen(p, choice), choice,
                                    pass_weights(p));
    if (!is_changed || pass_is_on_cpu(p, layer) || p->at->view.idx.host)
        return;
    exec_copy(p->at->exec, &p->at->view.idx, 0, &p->at->choice, 0, m->dir.config.top_k * sizeof *choice);
    exec_copy(p->at->exec, &p->at->view.weights, 0, &p->at->weights, 0, m->dir.config.top_k * sizeof(float));
}

int chosen_run(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    if (pass_prefers(p, layer))
        prefer_experts(p, layer);
    chosen_count(p);
    if (m->trace)
        trace_writer_add(m->trace, layer, p->chunk.of.pos, p->chunk.n, pass_choice(p), pass_weights(p));
    /* The token that comes next follows the last one of a chunk. */
    uint32_t n = n_predicting(p) > 0 ? p->chunk.n : 1;
    if (pass_n_decoding(p) <= EXEC_MAX_INVARIANT && !p->chunk.batch.n_prompts)
        predictor_observe(&p->at->predictor, layer,
                          pass_choice(p) + (uint64_t)(p->chunk.n - n) * m->dir.config.top_k, n);
    return takes_rounds(p, layer) ? expert_rounds(p, layer, e) : token_rounds(p, layer, e);
}
