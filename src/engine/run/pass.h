/* pass.h - a forward pass: a chunk of tokens on its way through a stage's layers. */
#ifndef MOEFLUX_ENGINE_RUN_PASS_H
#define MOEFLUX_ENGINE_RUN_PASS_H

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

/* Copies the output of layer `layer` (0: the embedding) if hidden states are asked for. */
void pass_copy_hidden(const struct pass *p, uint32_t layer);
/* Returns the host's copy of the router's choice, u32 [n][top_k]. */
uint32_t *pass_choice(const struct pass *p);
/* Returns the number of a token's experts. It may be less than top_k if the choice ends with NO_EXPERT
 * (--expert-share). */
uint32_t pass_n_chosen(const struct pass *p, const uint32_t *choice);
/* Returns the predicted experts of the next layer; NULL if none were recorded. */
const uint32_t *pass_prediction(const struct pass *p);
/* Returns the host's copy of the choice's weights. */
float *pass_weights(const struct pass *p);
/* Whether the CPU computes a layer's experts for this pass. */
bool pass_is_on_cpu(const struct pass *p, uint32_t layer);
/* Returns the side that computes a layer's experts. */
const struct expert_side *pass_side(const struct pass *p, uint32_t layer);
/* Releases the experts in use; the batches that used them must be finished. */
void pass_release(const struct stage *at);
/* Returns the next layer with experts after `layer` (UINT32_MAX: before the first); past the stage's last
 * layer: none. */
uint32_t pass_next_moe(const struct pass *p, uint32_t layer);
/* Whether experts of a layer may have to be read; false past the stage's last layer. */
bool pass_reads_ahead(const struct pass *p, uint32_t layer);
/* Returns the number of sequences that a single token is evaluated of; 0: a chunk of many tokens of one
 * sequence, or a batch with parts of prompts. */
uint32_t pass_n_decoding(const struct pass *p);
/* Returns arch_chunk.plan_n of batched decode of n sequences on a stage. */
uint32_t pass_plan_n(const struct stage *at, uint32_t n);
/* Returns pass_n_decoding if experts are predicted for so many sequences, else 0: many choose nearly all
 * experts anyway, and a chain's tokens are one sequence's. */
uint32_t pass_n_predicting(const struct pass *p);
/* Whether a layer's router is applied early, to predict its experts; only for single tokens. */
bool pass_predicts(const struct pass *p, uint32_t layer);
/* Whether a token's batch goes on after the layer without the host, since the device can read all experts.
 * The host sees the choice when the batch is finished (stage.seen). */
bool pass_goes_on(const struct pass *p, uint32_t layer);
/* Whether it does so after every layer. */
bool pass_is_at_once(const struct pass *p);
/* Whether resident experts may replace chosen ones (prefer.h). Not for chunks of many tokens: they choose
 * nearly all experts anyway. */
bool pass_prefers(const struct pass *p, uint32_t layer);

#endif
