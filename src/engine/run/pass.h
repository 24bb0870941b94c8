/* pass.h - a chunk of tokens on its way through the layers, and what its parts have in common. */
#ifndef MOEFLUX_ENGINE_RUN_PASS_H
#define MOEFLUX_ENGINE_RUN_PASS_H

#include "engine/engine.h"

struct pass {
    struct moeflux_session *s;
    struct moeflux_model *m;
    struct stage *at; /* where it is: the functions below are of this stage and its layers */
    struct arch_chunk chunk;
    const struct moeflux_outputs *outputs;
    uint64_t start_ns; /* on this stage */
    uint32_t half;     /* of the stage's host copies of logits: the one that it writes */
    bool chooses;      /* it writes none: the logits are for a choice on the device (work.choice) */
    struct progress_at *progress; /* NULL: another thread tells of it (pipeline.h) */
    /* From where the device copies the hidden states that go into the stage, and where to those that come
     * out. NULL: the host sees the device's own */
    struct crossing_half in, out;
    bool is_watched; /* it may take long: submissions are kept short, and the caller may stop it */
};

/* Copies the output of layer `layer` (0: the embedding) if hidden states are asked for. */
void pass_copy_hidden(const struct pass *p, uint32_t layer);
/* The router's choice, where the host sees it: u32 [n][top_k]. */
uint32_t *pass_choice(const struct pass *p);
/* How many experts a token has: with a share of the weights, as few as stand before NO_EXPERT. */
uint32_t pass_n_chosen(const struct pass *p, const uint32_t *choice);
/* The predicted experts of the next layer; NULL if none were recorded. */
const uint32_t *pass_prediction(const struct pass *p);
/* The weights of the choice, where the host sees them. */
float *pass_weights(const struct pass *p);
bool pass_is_on_cpu(const struct pass *p, uint32_t layer);
/* Who computes a layer's experts. */
const struct expert_side *pass_side(const struct pass *p, uint32_t layer);
/* The batches that used experts are finished. */
void pass_release(const struct stage *at);
/* The next layer that has experts; UINT32_MAX stands before the first layer of the model. Behind the stage's
 * last layer: none. */
uint32_t pass_next_moe(const struct pass *p, uint32_t layer);
/* Whether there may be something to read for a layer with experts; one behind the stage's last is none. */
bool pass_reads_ahead(const struct pass *p, uint32_t layer);
/* Sequences of which a single token is evaluated; 0: it is a chunk of many tokens of one. */
uint32_t pass_n_decoding(const struct pass *p);
/* Whether a layer's router is applied early: for single tokens. */
bool pass_predicts(const struct pass *p, uint32_t layer);
/* Whether a token's batch goes on behind the layer without the host: all experts are where the device reads
 * them. What it chose is seen when the batch is over (stage.seen). */
bool pass_goes_on(const struct pass *p, uint32_t layer);
/* Whether it does so behind every layer. */
bool pass_is_at_once(const struct pass *p);
/* Whether experts in memory may stand in for others: of a chunk of many tokens nearly all experts are chosen
 * anyway. */
bool pass_prefers(const struct pass *p, uint32_t layer);

#endif
