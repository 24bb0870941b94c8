/* pass.h - what is evaluated on one stage (a work), and a forward pass: its tokens on their way through the
 * stage's layers. */
#ifndef MOEFLUX_ENGINE_RUN_PASS_H
#define MOEFLUX_ENGINE_RUN_PASS_H

#include "engine/plan/load_plan.h"
#include "engine/session.h"

/* An evaluation: n tokens of one sequence, or a batch of several sequences, or a chain: n tokens of one
 * sequence that are computed as if they were of n. */
struct work {
    struct moeflux_model *m;
    struct moeflux_session *const *list;
    const int32_t *ids; /* [n] */
    uint32_t n;
    uint32_t n_all;          /* n, and the tokens of the chunks that follow at once */
    uint32_t n_after;        /* tokens that will follow the work's; their ids follow its own */
    uint32_t keep;           /* arch_chunk.keep */
    struct arch_batch batch; /* zeroed without is_batched, and for a chain */
    bool is_batched, is_watched;
    bool is_chain; /* and is_batched */
    /* one device holds all experts and samples: the token after it may be in flight (token.h) */
    bool runs_on;
    bool is_last; /* outputs->logits are those of this chunk */
    /* the recurrent states move with each chunk (forward.h), not with the sequences' positions */
    bool is_moving;
    uint32_t ahead; /* positions between the sequence's end and the first token */
    uint32_t flips; /* evaluations between the sequence's end and this one */
    const struct moeflux_outputs *outputs;
    /* sampling on the device: [n_single] in batched decode, a chain's [n], else 1; NULL: the host gets the
     * logits */
    struct device_choice *choice;
};

/* Whether a pass was recorded ahead (token.h): its batch is deferred, or it was submitted too. */
enum pass_ahead { PASS_NOT_AHEAD, PASS_DEFERRED, PASS_IN_FLIGHT };

struct pass {
    struct moeflux_model *m;
    struct stage *at; /* the stage that the pass is on; the functions below concern this stage's layers */
    struct arch_chunk chunk;
    const struct moeflux_outputs *outputs;
    uint64_t start_ns; /* when it came to this stage */
    enum pass_ahead ahead;
    uint32_t half;                /* which of the stage's two host copies of logits it writes */
    bool chooses;                 /* it writes none: the device samples from the logits (work.choice) */
    struct progress_at *progress; /* NULL: another thread reports it (forward.h) */
    /* source and target of the copies of the hidden states that enter and leave the stage; NULL: the device's
     * own are mapped */
    struct crossing_half in, out;
    bool awaits_rows;  /* its n-gram rows are being read (ngram_rows.h) */
    bool is_in_pieces; /* it is recorded now: the device starts while its later layers are recorded */
    bool is_watched;   /* it may take long: submissions are kept short, and the caller may stop it */
};

/* Returns the position of sequence i of the work, and its state on the stage. Work that may be stopped, or
 * has a token after it in flight, does not change the recurrent state in place. The KV cache needs no copy:
 * the next chunk writes the same positions again. */
static inline struct arch_sequence pass_sequence(const struct work *w, uint32_t i, const struct stage *at)
{
    const struct moeflux_session *s = w->list[i];
    const struct stage_state *on = &s->on[at - w->m->stages];
    bool moves = w->is_batched || w->is_watched || w->runs_on;
    bool is_swapped = moves && !w->is_moving && w->flips % 2 != 0;
    return (struct arch_sequence){.pos = s->pos + w->ahead,
                                  .parity = s->parity ^ (w->flips & 1),
                                  .kv_blocks = on->tables[ARCH_ROWS].table.address,
                                  .ring_blocks = on->tables[ARCH_WINDOW].table.address,
                                  .recurrent = (is_swapped ? on->recurrent_next : on->recurrent).address,
                                  .recurrent_out =
                                      (moves && !is_swapped ? on->recurrent_next : on->recurrent).address};
}

static inline bool pass_is_last(const struct pass *p)
{
    return p->at == &p->m->stages[p->m->n_stages - 1];
}

/* Returns the bytes of n tokens' hidden states. */
static inline uint64_t pass_hidden_bytes(const struct moeflux_model *m, uint32_t n)
{
    return (uint64_t)n * config_width(&m->dir.config) * sizeof(float);
}

/* Where the weights of a lagged mix begin after the hidden states, and the bytes of n tokens' weights: what a
 * stage hands to the next with hidden states. */
static inline uint64_t pass_lagged_off(const struct moeflux_model *m)
{
    return pass_hidden_bytes(m, m->max_chunk);
}

static inline uint64_t pass_lagged_bytes(const struct moeflux_model *m, uint32_t n)
{
    return (uint64_t)n * config_lagged(&m->dir.config) * sizeof(float);
}

/* Returns how many tokens, the first ones, have logits: a batch's parts of prompts have none. */
static inline uint32_t pass_n_rows(const struct pass *p)
{
    const struct arch_chunk *c = &p->chunk;
    return c->each && !c->is_chain ? c->batch.n_single : c->n;
}

/* Returns the number of sequences that a single token is evaluated of; 0: a chunk of many tokens of one
 * sequence, or a batch with parts of prompts. */
static inline uint32_t pass_n_decoding(const struct pass *p)
{
    bool is_one_each = p->chunk.each ? p->chunk.is_chain || !p->chunk.batch.n_prompts : p->chunk.n == 1;
    return is_one_each ? p->chunk.n : 0;
}

/* Returns arch_chunk.plan_n of batched decode of n sequences on a stage. */
static inline uint32_t pass_plan_n(const struct stage *at, uint32_t n)
{
    return at->batched_plan_n ? at->batched_plan_n : n < EXEC_MAX_INVARIANT ? n : EXEC_MAX_INVARIANT;
}

/* Returns the host's copy of the router's choice, u32 [n][top_k]. */
static inline uint32_t *pass_choice(const struct pass *p)
{
    return (uint32_t *)(void *)(p->at->view.idx.host ? p->at->view.idx.host : p->at->choice.host);
}

/* Returns the number of a token's experts. It may be less than top_k if the choice ends with NO_EXPERT
 * (--expert-share). */
static inline uint32_t pass_n_chosen(const struct pass *p, const uint32_t *choice)
{
    uint32_t n = p->m->dir.config.top_k;
    while (n > 0 && choice[n - 1] == NO_EXPERT)
        n--;
    return n;
}

/* Returns the host's copy of the choice's weights. */
static inline float *pass_weights(const struct pass *p)
{
    return (float *)(void *)(p->at->view.weights.host ? p->at->view.weights.host : p->at->weights.host);
}

static inline bool pass_is_cpu(const struct pass *p, const struct expert_side *side)
{
    return side == &p->at->sides[SIDE_HOST];
}

enum { PASS_MAX_SIDES = 2 };
/* Fills in the sides that compute a layer's experts for this pass: one, or the device and then another if the
 * CPU has a part of each layer's. Returns their number. */
static inline uint32_t pass_sides(const struct pass *p, uint32_t layer,
                                  const struct expert_side *out[PASS_MAX_SIDES])
{
    const struct stage *at = p->at;
    bool is_cpus = layer < at->cpu_layers.end, has_device = !is_cpus || at->n_cpu_each > 0;
    bool goes = !p->chunk.each && at->sides[SIDE_PROMPT].store && p->chunk.n >= at->prompt_from;
    uint32_t n = 0;
    if (has_device)
        out[n++] = &at->sides[SIDE_DEVICE];
    if (is_cpus)
        out[n++] = &at->sides[goes ? SIDE_PROMPT : SIDE_HOST];
    return n;
}

/* Whether the CPU computes experts of a layer for this pass: all of them, or a part. */
static inline bool pass_uses_cpu(const struct pass *p, uint32_t layer)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    return pass_is_cpu(p, sides[pass_sides(p, layer, sides) - 1]);
}

/* Whether the CPU computes a part of a layer's experts and the device the others. */
static inline bool pass_is_split(const struct pass *p, uint32_t layer)
{
    return p->at->n_cpu_each > 0 && pass_uses_cpu(p, layer);
}

/* Returns the part of a layer's experts that the CPU computes, or that the device does. */
static inline struct expert_part pass_part(const struct pass *p, uint32_t layer, bool on_cpu)
{
    return pass_is_split(p, layer) ? (struct expert_part){p->at->n_cpu_each, on_cpu}
                                   : (struct expert_part){0};
}

/* Whether resident experts may replace chosen ones (prefer.h). Not for chunks of many tokens: they choose
 * nearly all experts anyway. */
static inline bool pass_prefers(const struct pass *p, uint32_t layer)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    bool holds_all = true;
    if (p->chunk.n > 1 || !(p->m->prefer.margin > 0) || config_is_by_token(&p->m->dir.config, layer))
        return false;
    for (uint32_t i = pass_sides(p, layer, sides); i > 0; i--)
        holds_all = holds_all && expert_store_holds_all(sides[i - 1]->store);
    return !holds_all;
}

#endif
