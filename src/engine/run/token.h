/* token.h - decodes a token of each of some sequences on a stage whose experts the device can read, and
 * samples the next ones on the last device, so that the logits need not cross to the host. The next tokens
 * are recorded while the device computes ("ahead").
 *
 * The commands of a token do not depend on its id, so they can be ready before the id is known. Then they
 * are deferred, and submitted when the host knows the id. If groups of sequences alternate on several
 * devices, the next group is guessed: the one that came after this group the last time. A wrong guess costs
 * the recording.
 *
 * If one device holds all experts and samples (work.runs_on), the id stays on the device: the next token
 * reads it there. So it is submitted as soon as it is recorded, and is in flight while the host follows one
 * token later. If the host wants no more tokens, or another one, the token in flight is wasted. Its row of
 * the KV cache is overwritten. Its recurrent state is in the buffer that becomes the current one only when
 * the token is accepted. What the sampling of a token reads and writes on the device exists twice, indexed
 * by the token's half (pass.half). */
#ifndef MOEFLUX_ENGINE_RUN_TOKEN_H
#define MOEFLUX_ENGINE_RUN_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"
#include "ops/sample/sample.h"
#include "sample/sampler.h"

struct moeflux_err;
struct moeflux_model;
struct pass;
struct stage;
struct work;

/* The sampling of one token, as a request to the device. */
struct token_rule {
    struct sampler_rule rule;
    uint32_t n_recent;
    int32_t recent[SAMPLE_MAX_RECENT]; /* sampler_recent */
};

struct token_room { /* zeroed: the last device does not sample */
    struct sample sample;
    struct exec_buffer recent;  /* i32 [2][SAMPLE_MAX_RECENT] */
    struct exec_buffer blocked; /* the device's copy of sampler_blocked; same bits as blocked_copy */
    struct exec_buffer chosen;  /* i32 [2]: ids that the device has sampled */
    struct exec_buffer results; /* u32 [2][2], on the host */
    struct exec_buffer scratch; /* sample_scratch */
    uint64_t *blocked_copy;
    struct token_rule now, next; /* after the current token, and after the token in flight */
    /* Batched decode, for each of the model's max_batched sequences. No token is in flight there. */
    struct {
        struct exec_buffer recent;  /* i32 [n][SAMPLE_MAX_RECENT] */
        struct exec_buffer blocked; /* [n][like blocked] */
        struct exec_buffer chosen, results;
        struct exec_buffer scratch; /* sample_scratch of SAMPLE_CONCURRENT sequences, or of all */
        uint8_t *blocked_copy;
    } each;
};

/* The sampling of the token that comes after `id`, if `id` passes the last device without the host. */
struct device_choice {
    const struct sampler *sampler; /* NULL, in batched decode: the host gets the logits */
    int32_t id;                    /* the token evaluated */
    bool more;      /* the sampled token will probably be evaluated, and there is room for it */
    uint32_t ahead; /* picks of tokens before this one that the sampler has not made yet (verify.h) */
    bool is_made;
    uint32_t result[2]; /* sample_call.result; valid if is_made */
};

/* Open and close m->token. */
int token_open(struct moeflux_model *m, struct moeflux_err *e);
void token_close(struct moeflux_model *m); /* zeroed is legal */

/* Whether the last device can sample for the sampler. */
bool token_takes(const struct moeflux_model *m, const struct sampler *sampler);
/* The functions below need the stage's turn.
 *
 * Must be called when a work comes to a stage: notes how its sampler samples now. Returns whether the work's
 * token is in flight there; then the stage need not be idle. */
bool token_is_in_flight(const struct work *w, struct stage *at);
/* Fills in whether the pass of a work was recorded ahead, in which half then, and whether the device
 * samples. */
void token_find(const struct work *w, struct pass *p);
/* Computes the pass, whose inputs are filled in unless it is in flight, and records the next tokens
 * meanwhile. */
int token_decode(const struct work *w, const struct pass *p, struct moeflux_err *e);

#endif
