#include "engine/run/chosen.h"

#include <assert.h>
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

/* Whether experts of a side may have to be read, and are read early then. */
static bool side_reads_ahead(const struct pass *p, const struct expert_side *side)
{
    return p->at->predictor.kind != PREDICT_NONE && side->reads_ahead && !expert_store_holds_all(side->store);
}

/* Fills in those sides of a layer. Returns their number; 0 past the stage's last layer. */
static uint32_t sides_to_read(const struct pass *p, uint32_t layer,
                              const struct expert_side *out[PASS_MAX_SIDES])
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    uint32_t n_all = layer < p->at->layers.end ? pass_sides(p, layer, sides) : 0, n = 0;
    for (uint32_t i = 0; i < n_all; i++)
        if (side_reads_ahead(p, sides[i]))
            out[n++] = sides[i];
    return n;
}

/* Whether experts of a layer may have to be read; false past the stage's last layer. */
static bool reads_ahead_of(const struct pass *p, uint32_t layer)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    return sides_to_read(p, layer, sides) > 0;
}

/* Begins to read those of a layer's experts that no side has. */
static void prefetch(const struct pass *p, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    for (uint32_t i = sides_to_read(p, layer, sides); i > 0; i--)
        expert_store_prefetch(sides[i - 1]->store, layer, experts, n, false);
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
            prefetch(p, i, wanted, list(m->named[i], row, ids, n, wanted));
}

/* ---- what was chosen ---- */

/* The experts of a layer that one side computes. */
struct share {
    const struct pass *p;
    const struct expert_side *side;
    uint32_t layer;
    struct expert_part part; /* arch_experts.part */
    bool is_last;            /* no side of the layer follows */
    bool goes_on;            /* the same device computes another side's afterwards */
};

static bool provides(const struct share *s, uint32_t expert)
{
    return expert_store_provides(s->side->store, s->layer, expert);
}

/* Returns the token's choice. */
static const uint32_t *choice_of(const struct share *s, uint32_t token)
{
    return pass_choice(s->p) + (uint64_t)token * s->p->m->dir.config.top_k;
}

/* Collects the different experts of tokens from `from` on, for as many tokens as the slots allow. Returns the
 * number of tokens. */
static uint32_t gather_round(const struct share *of, uint32_t from, uint32_t *n_wanted)
{
    const struct pass *p = of->p;
    uint32_t slots = expert_store_n_free_slots(of->side->store), t = from;
    *n_wanted = 0;
    for (; t < p->chunk.n; t++) {
        const uint32_t *choice = choice_of(of, t);
        uint32_t before = *n_wanted, n = pass_n_chosen(p, choice);
        for (uint32_t k = 0; k < n; k++)
            if (provides(of, choice[k]) && !p->at->is_wanted[choice[k]]) {
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
static struct arch_experts part_of(const struct share *s, uint32_t from, uint32_t n)
{
    return (struct arch_experts){.layer = s->layer,
                                 .table = expert_store_table(s->side->store, s->layer),
                                 .from = from,
                                 .n = n,
                                 .part = s->part};
}

static struct host_chunk host_chunk_of(const struct pass *p)
{
    return (struct host_chunk){.x = (const float *)(const void *)p->at->host.x.host,
                               .weights = pass_weights(p),
                               .idx = pass_choice(p),
                               .sum = (float *)(void *)p->at->host.sum.host,
                               .n = p->chunk.n};
}

static void run_up(const struct share *s, const struct arch_experts *x)
{
    const struct host_chunk here = host_chunk_of(s->p);
    if (pass_is_cpu(s->p, s->side))
        host_experts_up(&s->p->at->host.experts, &here, x);
    else
        arch_experts_up(s->p->at->arch, &s->p->chunk, x);
}

static void run_down(const struct share *s, const struct arch_experts *x)
{
    const struct host_chunk here = host_chunk_of(s->p);
    if (pass_is_cpu(s->p, s->side))
        host_experts_down(&s->p->at->host.experts, &here, x);
    else
        arch_experts_down(s->p->at->arch, &s->p->chunk, x);
}

/* Ends the batch and releases the experts that it used. */
static int finish_round(const struct expert_side *side, struct moeflux_err *e)
{
    int rc = exec_finish(side->exec, e);
    expert_store_release(side->store);
    exec_begin(side->exec);
    return rc;
}

static int bring(const struct share *s, const uint32_t *experts, uint32_t n, struct moeflux_err *e)
{
    int rc = expert_store_want(s->side->store, s->layer, experts, n, USE_CHUNK, NULL, e);
    return rc < 0 ? rc : expert_store_await(s->side->store, e);
}

/* Collects the different experts of the chunk. Cached ones come first, so that they are used before they
 * could be evicted. */
static uint32_t gather_all(const struct share *s)
{
    const struct pass *p = s->p;
    struct moeflux_model *m = p->m;
    const struct expert_store *store = s->side->store;
    uint32_t n_pairs = p->chunk.n * m->dir.config.top_k, n = 0;
    for (uint32_t i = 0; i < n_pairs; i++)
        if (pass_choice(p)[i] != NO_EXPERT)
            p->at->is_wanted[pass_choice(p)[i]] = 1;
    for (int there = 1; there >= 0; there--)
        for (uint32_t x = 0; x < m->dir.config.n_experts; x++)
            if (p->at->is_wanted[x] && provides(s, x) && expert_store_has(store, s->layer, x) == there) {
                p->at->is_wanted[x] = 0;
                p->at->wanted[n++] = x;
            }
    memset(p->at->is_wanted, 0, m->dir.config.n_experts * sizeof *p->at->is_wanted);
    return n;
}

/* Makes a table with the addresses of only this round's experts. */
static uint64_t round_table(const struct share *s, uint32_t round_idx, const uint32_t *experts, uint32_t n)
{
    uint32_t n_experts = s->p->m->dir.config.n_experts;
    uint64_t off = (uint64_t)(round_idx % ROUND_TABLES) * n_experts * sizeof(uint64_t);
    uint64_t *table = (uint64_t *)(void *)(s->side->round_tables.host + off);
    memset(table, 0, n_experts * sizeof *table);
    for (uint32_t i = 0; i < n; i++)
        table[experts[i]] = expert_store_address(s->side->store, s->layer, experts[i]);
    return s->side->round_tables.address + off;
}

/* Reads all experts of the next layer while this layer's experts and the next layer's mixer compute: a chunk
 * of many tokens chooses nearly every expert. */
static int read_ahead_of_chunk(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    const struct expert_side *sides[PASS_MAX_SIDES];
    uint32_t next = next_of(p, layer), n_experts = m->dir.config.n_experts;
    uint64_t n_pairs = (uint64_t)p->chunk.n * m->dir.config.top_k;
    uint32_t n_sides = n_pairs < 4 * (uint64_t)n_experts ? 0 : sides_to_read(p, next, sides);
    int rc = 0;
    for (uint32_t i = 0; n_sides > 0 && i < n_experts; i++)
        p->at->wanted[i] = i;
    for (uint32_t i = 0; rc == 0 && i < n_sides; i++) {
        expert_store_prefetch(sides[i]->store, next, p->at->wanted, n_experts, true);
        rc = expert_store_promote(sides[i]->store, next, p->at->wanted, n_experts, e);
    }
    return rc;
}

/* Computes the experts of many tokens: each is loaded once and multiplied with all its tokens. While one
 * round computes, the next one is read. A round waits for earlier ones only if slots run out. If no token
 * chose an expert of the side, there is a round without experts. */
static int expert_rounds(const struct share *s, struct moeflux_err *e)
{
    const struct pass *p = s->p;
    const struct expert_side *side = s->side;
    uint32_t n_all = gather_all(s), slots = expert_store_n_free_slots(side->store), n_held = 0, round_idx = 0;
    uint32_t most = (uint32_t)size_max(size_min(slots / 2, ROUND_EXPERTS), p->m->dir.config.top_k), from = 0;
    struct arch_experts x = part_of(s, 0, p->chunk.n);
    int rc = 0;
    do {
        uint64_t ticket;
        uint32_t n = (uint32_t)size_min(most, n_all - from);
        if (n_held + n > slots || (round_idx > 0 && round_idx % ROUND_TABLES == 0)) {
            rc = finish_round(side, e);
            n_held = 0;
        }
        if (rc == 0)
            rc = bring(s, p->at->wanted + from, n, e);
        if (rc < 0)
            return rc;
        n_held += n;
        x.table = round_table(s, round_idx, p->at->wanted + from, n);
        x.more_rounds = from + n < n_all || s->goes_on;
        run_up(s, &x);
        run_down(s, &x);
        if (x.more_rounds) {
            rc = exec_submit(side->exec, &ticket, e);
            exec_begin(side->exec);
        }
        from += n;
        round_idx++;
    } while (rc == 0 && from < n_all);
    if (rc == 0 && s->is_last) /* the disk is idle until the next layer */
        rc = read_ahead_of_chunk(p, s->layer, e);
    return rc;
}

/* Prefetches the likeliest predicted experts of a layer, `each` for each sequence. */
static void read_ahead(const struct pass *p, uint32_t layer, uint32_t each)
{
    uint32_t n = n_predicting(p);
    if (n == 0 || !reads_ahead_of(p, layer))
        return;
    predictor_predict(&p->at->predictor, layer, predicts(p, layer) ? prediction(p) : NULL, n);
    prefetch(p, layer, p->at->predictor.named,
             (uint32_t)size_min(p->at->predictor.n_named, (uint64_t)n * each));
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

/* Returns arch_experts.skip for a token of whose wanted experts only those are computed whose bits `which`
 * has. */
static uint64_t others_of(const struct share *s, uint32_t token, uint64_t which)
{
    const uint32_t *choice = choice_of(s, token);
    uint32_t n = pass_n_chosen(s->p, choice), i = 0;
    uint64_t skip = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (!provides(s, choice[k]))
            continue;
        skip |= (which >> i & 1) ? 0 : (uint64_t)1 << k;
        i++;
    }
    return skip;
}

/* Selects the wanted experts whose bits `which` has, for up: by their indices in the choice of one token, by
 * a table for several tokens. */
static void name_part(const struct share *s, struct arch_experts *x, uint64_t which)
{
    const uint32_t *wanted = s->p->at->wanted;
    uint32_t some[64], n = 0;
    if (x->n == 1) {
        x->skip = others_of(s, x->from, which);
        return;
    }
    for (uint32_t i = 0; which; i++, which >>= 1)
        if (which & 1)
            some[n++] = wanted[i];
    x->table = round_table(s, 0, some, n);
}

/* Submits up for the experts that are resident, in a batch of its own so that it begins now. */
static int submit_up(const struct share *s, struct arch_experts *x, uint64_t which, struct moeflux_err *e)
{
    uint64_t ticket;
    name_part(s, x, which);
    run_up(s, x);
    x->skip_shared = true; /* this call computed it */
    int rc = exec_submit(s->side->exec, &ticket, e);
    exec_begin(s->side->exec);
    return rc;
}

/* Computes each expert as soon as it is read, on a host backend: its cores are idle, and less is left to
 * compute when the last expert arrives. *done: bits of the experts computed. */
static int up_as_they_come(const struct share *s, struct arch_experts *x, uint64_t all, uint64_t *done,
                           struct moeflux_err *e)
{
    uint64_t present = *done;
    int rc = 0;
    while (rc == 0 && present != all) {
        rc = expert_store_await_some(s->side->store, &present, e);
        if (rc == 0 && present != *done && present != all)
            rc = submit_up(s, x, present & ~*done, e);
        if (rc == 0 && present != all)
            *done = present;
    }
    return rc;
}

/* Computes up for the wanted experts that are resident and waits for the others. The experts that are left
 * for down's batch are selected in x. */
static int up_in_parts(const struct share *s, struct arch_experts *x, uint64_t all, uint64_t done,
                       struct moeflux_err *e)
{
    int rc = done ? submit_up(s, x, done, e) : 0;
    if (rc == 0 && s->side->computes_at_once)
        rc = up_as_they_come(s, x, all, &done, e);
    int arrived = expert_store_await(s->side->store, rc < 0 ? NULL : e);
    if (rc < 0 || arrived < 0)
        return rc < 0 ? rc : arrived;
    if (done)
        name_part(s, x, all & ~done);
    return 0;
}

/* Computes the experts of some tokens, n different ones in p->at->wanted. Cached ones are computed while the
 * others are read; with several tokens only on a host backend. Each expert writes its own part of the
 * activations, and the parts are summed afterwards in the router's order. So the result does not depend on
 * the order of arrival. */
static int wanted_experts(const struct share *s, struct arch_experts *x, uint32_t n, struct moeflux_err *e)
{
    const struct pass *p = s->p;
    const struct expert_side *side = s->side;
    uint64_t all = n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX, present = 0, table = x->table;
    enum expert_use use = p->chunk.n == 1 ? USE_TOKEN : USE_TOKENS;
    int rc = expert_store_want(side->store, x->layer, p->at->wanted, n, use, &present, e);
    if (rc < 0)
        return rc;
    if (s->is_last && x->from + x->n == p->chunk.n)
        read_ahead_of_next(p, x->layer);
    bool has_bits = (x->n == 1 ? p->m->dir.config.top_k : n) <= 64;
    if (has_bits && (x->n == 1 || side->computes_at_once))
        rc = up_in_parts(s, x, all, present != all ? present : 0, e);
    else
        rc = expert_store_await(side->store, e);
    if (rc < 0)
        return rc;
    run_up(s, x);
    x->table = table;
    run_down(s, x);
    return 0;
}

/* Computes the experts of a few tokens, for as many tokens at once as the slots allow. */
static int token_rounds(const struct share *s, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t from = 0; rc == 0 && from < s->p->chunk.n;) {
        uint32_t n_wanted, n = gather_round(s, from, &n_wanted);
        struct arch_experts x = part_of(s, from, n);
        if (from > 0) /* the previous round still uses its slots */
            rc = finish_round(s->side, e);
        if (rc == 0)
            rc = wanted_experts(s, &x, n_wanted, e);
        from += n;
    }
    return rc;
}

/* Whether the chunk is divided into rounds of experts, not of tokens. */
static bool takes_rounds(const struct share *s)
{
    const struct pass *p = s->p;
    bool is_cpu = pass_is_cpu(p, s->side);
    if (pass_n_decoding(p) > 0 && (p->at->batched_plan_n == 0 || is_cpu))
        return false;
    return is_cpu ? host_experts_takes_rounds(&p->at->host.experts, p->chunk.n)
                  : arch_takes_rounds(p->at->arch, &p->chunk);
}

uint64_t chosen_n_all(const struct pass *p, const struct expert_part *part)
{
    const struct config *c = &p->m->dir.config;
    uint64_t n = 0;
    for (uint64_t i = 0; i < (uint64_t)p->chunk.n * c->top_k; i++)
        n += pass_choice(p)[i] != NO_EXPERT && expert_part_has(part, c->n_experts, pass_choice(p)[i]);
    return n;
}

void chosen_count(const struct pass *p)
{
    p->at->n_choices += p->chunk.n;
    p->at->n_chosen += chosen_n_all(p, &(struct expert_part){0});
}

/* Replaces chosen experts by resident ones if the scores are close. */
static void prefer_experts(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint32_t *choice = pass_choice(p);
    bool is_changed = prefer_choose(p, layer, pass_n_chosen(p, choice), choice, pass_weights(p)),
         is_cpus = pass_uses_cpu(p, layer) && !pass_is_split(p, layer);
    if (!is_changed || is_cpus || p->at->view.idx.host)
        return;
    exec_copy(p->at->exec, &p->at->view.idx, 0, &p->at->choice, 0, m->dir.config.top_k * sizeof *choice);
    exec_copy(p->at->exec, &p->at->view.weights, 0, &p->at->weights, 0, m->dir.config.top_k * sizeof(float));
}

void chosen_see(const struct pass *p, uint32_t layer)
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
}

int chosen_run(const struct pass *p, uint32_t layer, bool on_cpu, struct moeflux_err *e)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    uint32_t n = pass_sides(p, layer, sides);
    int rc = 0;
    const struct expert_side *last = sides[n - 1];
    /* What the CPU will need is read while the device's are awaited. */
    if (!on_cpu && p->chunk.n == 1 && pass_is_cpu(p, last) && side_reads_ahead(p, last))
        expert_store_prefetch(last->store, layer, pass_choice(p), pass_n_chosen(p, pass_choice(p)), false);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const struct share s = {.p = p,
                                .side = sides[i],
                                .layer = layer,
                                .part = pass_part(p, layer, on_cpu),
                                .is_last = i + 1 == n,
                                .goes_on = i + 1 < n && pass_is_cpu(p, sides[i + 1]) == on_cpu};
        if (pass_is_cpu(p, sides[i]) != on_cpu)
            continue;
        assert(!s.goes_on || takes_rounds(&s));
        rc = takes_rounds(&s) ? expert_rounds(&s, e) : token_rounds(&s, e);
    }
    return rc;
}
