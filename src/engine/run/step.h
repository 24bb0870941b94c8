/* step.h - decodes a token and samples the next one: on the last stage's device, so that the logits need not
 * cross to the host, or from the logits.
 *
 * A token may be in flight while the host still waits for the one before (work.h). So what a token's
 * sampling reads and writes on the device exists twice, indexed by the token's half (pass.half). Only the
 * thread with the stage's turn uses it. */
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
struct step_rule {
    struct sampler_rule rule;
    uint32_t n_recent;
    int32_t recent[SAMPLE_MAX_RECENT]; /* sampler_recent */
};

struct step_room { /* zeroed: the last device does not sample */
    struct sample sample;
    struct exec_buffer recent;  /* i32 [2][SAMPLE_MAX_RECENT] */
    struct exec_buffer blocked; /* the device's copy of sampler_blocked; same bits as blocked_copy */
    struct exec_buffer chosen;  /* i32 [2]: ids that the device has sampled */
    struct exec_buffer results; /* u32 [2][2], on the host */
    struct exec_buffer scratch; /* sample_scratch */
    uint64_t *blocked_copy;
    struct step_rule now, next; /* after the current token, and after the token in flight */
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

int step_open(struct moeflux_model *m, struct moeflux_err *e);
void step_close(struct moeflux_model *m); /* zeroed is legal */

/* Whether the last device can sample for the sampler. */
bool step_takes(const struct moeflux_model *m, const struct sampler *sampler);
/* Must be called before the functions below: notes how the sampler samples now. */
void step_begin(struct moeflux_model *m, const struct device_choice *c);
/* Whether the sampling recorded by step_record_next is the one that step_begin has noted. */
bool step_is_next(const struct moeflux_model *m, const struct device_choice *c);
/* Records the sampling from the last stage's view.logits. No token may be in flight. */
void step_record(struct moeflux_model *m, const struct device_choice *c, uint32_t half);
/* Records the sampling after the token that is sampled in half 1 - `half`. */
void step_record_next(struct moeflux_model *m, const struct device_choice *c, uint32_t half);
/* Returns the address of the id that is sampled in a half. */
uint64_t step_id(const struct moeflux_model *m, uint32_t half);
/* Reads the result of a half, whose batch is finished, into c. */
void step_end(const struct moeflux_model *m, struct device_choice *c, uint32_t half);

/* Records the sampling of n sequences from view.logits, and reads the results. Those without a sampler are
 * left out. */
void step_record_each(struct moeflux_model *m, const struct device_choice *c, uint32_t n);
void step_end_each(const struct moeflux_model *m, struct device_choice *c, uint32_t n);

/* Adds the position of the session's last token to why no id can be chosen; returns the code. */
int step_refuse(const struct moeflux_session *s, const struct moeflux_err *why, struct moeflux_err *e);
/* Takes the id that a device has sampled after the session's last token. */
int step_take(const struct moeflux_session *s, struct sampler *sampler, const uint32_t result[2],
              int32_t *next, struct moeflux_err *e);
/* Does the work of moeflux_session_step for callers inside the project, which pass the sampler itself. */
int step_run(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
             struct moeflux_err *e);

#endif
