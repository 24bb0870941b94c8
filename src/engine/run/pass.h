/* pass.h - a forward pass: a chunk of tokens on its way through a stage's layers. */
#ifndef MOEFLUX_ENGINE_RUN_PASS_H
#define MOEFLUX_ENGINE_RUN_PASS_H

#include "engine/plan/load_plan.h"
#include "engine/session.h"

/* Whether a pass was recorded ahead (work.h): its batch is deferred, or it was submitted too. */
enum pass_ahead { PASS_NOT_AHEAD, PASS_DEFERRED, PASS_IN_FLIGHT };

struct pass {
    struct moeflux_session *s;
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

static inline bool pass_is_last(const struct pass *p)
{
    return p->at == &p->m->stages[p->m->n_stages - 1];
}

/* Returns the bytes of n tokens' hidden states. */
static inline uint64_t pass_hidden_bytes(const struct moeflux_model *m, uint32_t n)
{
    return (uint64_t)n * config_width(&m->dir.config) * sizeof(float);
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
    while (n > 1 && choice[n - 1] == NO_EXPERT)
        n--;
    return n;
}

/* Returns the host's copy of the choice's weights. */
static inline float *pass_weights(const struct pass *p)
{
    return (float *)(void *)(p->at->view.weights.host ? p->at->view.weights.host : p->at->weights.host);
}

/* Returns the side that computes a layer's experts. */
static inline const struct expert_side *pass_side(const struct pass *p, uint32_t layer)
{
    const struct expert_side *sides = p->at->sides;
    if (layer >= p->at->cpu_layers.end)
        return &sides[SIDE_DEVICE];
    bool goes =
        !p->chunk.each && sides[SIDE_PROMPT].store && load_plan_takes_device(&p->m->dir.config, p->chunk.n);
    return &sides[goes ? SIDE_PROMPT : SIDE_HOST];
}

/* Whether the CPU computes a layer's experts for this pass. */
static inline bool pass_is_on_cpu(const struct pass *p, uint32_t layer)
{
    return pass_side(p, layer) == &p->at->sides[SIDE_HOST];
}

/* Whether resident experts may replace chosen ones (prefer.h). Not for chunks of many tokens: they choose
 * nearly all experts anyway. */
static inline bool pass_prefers(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && p->m->prefer.margin > 0 && !config_is_by_token(&p->m->dir.config, layer) &&
           !expert_store_holds_all(pass_side(p, layer)->store);
}

#endif
