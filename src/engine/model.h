/* model.h - an opened model. The public interface is moeflux.h. */
#ifndef MOEFLUX_ENGINE_MODEL_H
#define MOEFLUX_ENGINE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/model_stats.h"
#include "engine/run/prefer.h"
#include "engine/run/stage.h"
#include "engine/run/token.h"
#include "experts/trace.h"
#include "model/model_dir.h"
#include "moeflux.h"

struct moeflux_model {
    struct model_dir dir;
    struct stage stages[MOEFLUX_MAX_DEVICES];
    uint32_t n_stages;
    char device_names[512];           /* names of all devices, joined by " + " */
    uint32_t n_cpu_layers;            /* load_plan_n_cpu_layers */
    float cpu_share;                  /* moeflux_options.cpu_share */
    struct moeflux_model *drafter;    /* proposes tokens (run/drafter.h); NULL: none. Owned */
    struct moeflux_model *drafts_for; /* the model whose drafter this is; NULL: none */
    bool keeps_hidden;                /* evaluations leave hidden states (drafter.h) */
    bool drafter_waits;               /* new sequences begin with DRAFTER_WAITS */
    struct prefer prefer;
    /* [n_layers], each [vocab_size][own_top_k]: experts that ids name (chosen.h); NULL: a layer without a
     * table, or no layer has one */
    uint32_t **named;
    struct trace_writer *trace; /* NULL: choices are not recorded */
    struct moeflux_progress progress;
    /* every expert is in a device slot: no layer waits for the router's choice. False with a trace */
    bool resident;
    bool computes_at_once; /* some stage's computes_at_once is set */
    uint32_t max_chunk;
    uint32_t max_batched; /* load_plan.max_batched */
    enum kv_type kv_type;
    uint32_t n_checkpoints; /* the most that a session may have */

    uint64_t recurrent_state_bytes;            /* sum over all stages */
    uint64_t checkpoint_bytes;                 /* one checkpoint; 0: sequences can be cut anywhere */
    float *inverse_frequencies;                /* [dim / 2] of each table, one after the other */
    double rope_multipliers[CONFIG_MAX_ROPES]; /* factors of cos and sin */

    struct token_room token; /* belongs to the last stage */

    _Atomic(uint64_t) step_ns; /* duration of the last finished chunk or token; UINT64_MAX: none yet */
    _Atomic(uint64_t) n_marks; /* moeflux_session.mark */

    pthread_mutex_t lock; /* lock of the fields up to to_free */
    struct work_count counts[WORK_KINDS];
    bool has_fingerprint;
    uint64_t fingerprint;
    struct moeflux_session *to_free; /* list of sessions that were closed while a device was still busy */
    /* lock of the stages' `kept`, from the evaluation that writes it until it is read (sequence.c); taken
     * before any stage */
    pthread_mutex_t keeping;
    bool has_locks;
};

struct test_hooks;

/* Opens a model (moeflux_model_open). h: NULL: no hooks. trace: file of the router's choices (lab.h); NULL:
 * none. */
int model_open(struct moeflux_model **out, const struct moeflux_options *o, const struct test_hooks *h,
               const char *trace, struct moeflux_err *e);

/* Opens m->drafter, the drafter of the model o->dir (model/drafter.h), which `m` is, on m's only device. It
 * has m's embedding and head. */
int model_open_drafter(struct moeflux_model *m, const struct moeflux_options *o, struct moeflux_err *e);

/* Returns the stage that computes a layer. */
struct stage *model_stage(struct moeflux_model *m, uint32_t layer);
const struct arch_stores *model_stores(const struct moeflux_model *m, uint32_t layer);
/* Returns rc. If there are several devices, adds the device's name to the text of ERR_DEVICE and
 * ERR_NO_FIT. */
int model_fault(const struct moeflux_model *m, const struct stage *at, int rc, struct moeflux_err *e);

/* Waits a moment for the devices after a stopped evaluation; returns whether they have finished. */
bool model_is_idle(struct moeflux_model *m);

#endif
