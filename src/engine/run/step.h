/* step.h - decodes a token and samples the next one: moeflux_session_step for callers inside the project,
 * which pass the sampler itself. */
#ifndef MOEFLUX_ENGINE_RUN_STEP_H
#define MOEFLUX_ENGINE_RUN_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/exec.h"
#include "ops/sample/sample.h"
#include "sample/sampler.h"

struct moeflux_err;
struct moeflux_model;
struct moeflux_session;

/* The sampling of one token, as a request to the device. */
struct choice {
    struct sampler_rule rule;
    uint32_t n_recent;
    int32_t recent[SAMPLE_MAX_RECENT]; /* sampler_recent */
};

/* The sampling of the token that comes after `id`, on the last device, if `id` passes that device without the
 * host. */
struct device_choice {
    const struct sampler *sampler;
    int32_t id; /* the token evaluated */
    bool is_made;
    uint32_t result[2]; /* sample_call.result; valid if is_made */
};

/* Buffers for decoding with sampling on the last device (step.c). What a token reads and writes there exists
 * twice, indexed by the parity of its position, since the next token may be in flight. */
struct step_room {
    struct sample sample;
    struct exec_buffer ids;     /* i32 [2]: tokens that the host knows */
    struct exec_buffer rope;    /* f32 [2], all tables of a token */
    struct exec_buffer recent;  /* i32 [2][SAMPLE_MAX_RECENT] */
    struct exec_buffer blocked; /* the device's copy of sampler_blocked; same bits as blocked_copy */
    struct exec_buffer chosen;  /* i32 [2]: ids that the device has sampled */
    struct exec_buffer results; /* u32 [2][2], on the host */
    struct exec_buffer scratch; /* sample_scratch */
    uint64_t *blocked_copy;
    const struct moeflux_session *session; /* whose next token is in flight; NULL: none */
    uint32_t pos;                          /* position of the token in flight */
    int32_t id;                            /* its id */
    struct choice asked;                   /* how the token after it is sampled */
    struct choice wanted;                  /* how the token after the current one is sampled */
    uint64_t ticket;
};

/* Runs moeflux_session_step. */
int step_run(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
             struct moeflux_err *e);

/* Open and close what sampling on the device needs. Closing a zeroed step_room is legal. */
int step_open(struct moeflux_model *m, struct moeflux_err *e);
void step_close(struct moeflux_model *m);
/* Waits for the token in flight and drops its results. Must be called before any other use of the stage,
 * whose turn the caller has. */
int step_wait_idle(struct moeflux_model *m, struct moeflux_err *e);
/* Submits the sampling after the submission that writes a token's logits to the last stage's view.logits. The
 * caller has that stage's turn. The result is valid after a wait for `ticket`. */
int step_submit_choice(struct moeflux_model *m, const struct device_choice *c, uint64_t *ticket,
                       struct moeflux_err *e);
/* Reads the result into c. */
void step_end_choice(const struct moeflux_model *m, struct device_choice *c);

#endif
