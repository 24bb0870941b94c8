/* stage.h - a stage: a device and the layers that it computes. Opens and closes it, and gives its turn.
 *
 * The turn is a lock that threads get in the order in which they ask (base/turns.h). A thread must have a
 * stage's turn to touch its device, stores or counters. Evaluations of several threads pass the stages in
 * order: each takes the next stage before it gives the one that it has. So none overtakes another, and while
 * one is computed on a stage, the next is computed on the stage before. Several stages are taken in ascending
 * order. */
#ifndef MOEFLUX_ENGINE_RUN_STAGE_H
#define MOEFLUX_ENGINE_RUN_STAGE_H

#include <pthread.h>

#include "arch/arch.h"
#include "arch/host_experts.h"
#include "arch/loader.h"
#include "base/turns.h"
#include "engine/run/crossing.h"
#include "engine/run/ngram_rows.h"
#include "engine/run/rope_cache.h"
#include "exec/exec.h"
#include "experts/predictor.h"
#include "experts/store.h"

struct load_plan;
struct moeflux_model;
struct moeflux_options;
struct test_hooks;

enum { MOEFLUX_ROUND_TABLES = 16 };

/* The device that computes the routed experts of some layers, and the store that holds them. */
struct expert_side {
    struct exec *exec;
    struct expert_store *store; /* NULL: no layer is on this side */
    bool reads_ahead;           /* experts are prefetched, if there is a predictor */
    bool computes_at_once;      /* exec_caps.runs_at_once */
    /* u64 [MOEFLUX_ROUND_TABLES][n_experts]: each a table of one round's experts */
    struct exec_buffer round_tables;
};
/* SIDE_DEVICE: the stage's device; SIDE_HOST: the CPU. SIDE_PROMPT: the device, for the experts of
 * SIDE_HOST in large chunks (load_plan.prompt_from); they pass through its few slots. */
enum expert_side_kind { SIDE_DEVICE, SIDE_HOST, SIDE_PROMPT, EXPERT_SIDES };

/* The recording of one token of each of some sequences: the states that it reads and writes. */
struct recorded {
    uint32_t n; /* sequences; 0: nothing is recorded */
    /* it was submitted too, since the device itself samples the token's id; else its batch is deferred */
    bool is_in_flight;
    int32_t id;      /* the token in flight */
    uint64_t ticket; /* exec_wait's, if it is in flight */
    bool is_batched;
    bool chooses;  /* pass.chooses */
    uint32_t half; /* pass.half */
    struct arch_sequence each[MOEFLUX_MAX_PARALLEL];
    uint64_t marks[MOEFLUX_MAX_PARALLEL]; /* moeflux_session.mark */
};

enum { AHEAD_GROUPS = 4 };
/* The recording ahead on a stage (token.h). */
struct ahead {
    struct recorded next;   /* what was recorded ahead */
    struct recorded wanted; /* what to record next */
    struct {
        struct recorded next; /* the group's next tokens */
        uint32_t next_group;  /* index of the group that came after it the last time */
        uint64_t last_use;    /* `clock` when it came last */
    } groups[AHEAD_GROUPS];
    uint32_t last; /* index of the group that came last */
    uint64_t clock;
};

/* A sequence whose last choices the predictor keeps in one of its places, and its next position. If another
 * sequence takes the place, or the sequence goes on at another position, the predictor forgets them. */
struct tracked_sequence {
    uint64_t mark; /* moeflux_session.mark; 0: the place is free */
    uint32_t pos;
    uint64_t last_use; /* stage.n_tracked when it came last */
};

/* A device and the layers that it computes: all of them, or a share if there are several devices. The first
 * stage has the embedding, the last one the head. A chunk's hidden states pass from stage to stage through
 * host memory (forward.h, crossing.h). */
struct stage {
    struct turns turn; /* lock of everything below (stage.h) */
    struct exec *exec;
    struct expert_layers layers;
    struct arch *arch;
    struct arch_view view; /* `stores` has only its own layers */
    struct loader loader;
    struct expert_side sides[EXPERT_SIDES];
    bool computes_at_once; /* exec_caps.runs_at_once */
    /* arch_chunk.plan_n of batched decode in matrix arithmetic; 0: exact arithmetic */
    uint32_t batched_plan_n;
    bool maps_weights; /* load_plan.maps_weights */
    /* --gpu-memory less what the driver takes, and the plan's states: buffers that are not in the plan must
     * fit in addition to these; 0: not given */
    uint64_t most_bytes, plan_state_bytes;
    bool is_again;          /* an earlier stage is on the same device */
    struct kv_block *spare; /* blocks that no sequence has (blocks.h) */
    uint32_t n_spare;
    /* the first of its layers, or all, whose experts belong to SIDE_HOST and SIDE_PROMPT: all of them, or
     * n_cpu_each > 0 of each layer; often none. The others belong to SIDE_DEVICE */
    struct expert_layers cpu_layers;
    uint32_t n_cpu_each;
    uint32_t max_cpu_chunk, prompt_from; /* load_plan's */
    struct {                             /* SIDE_HOST */
        struct host_experts experts;
        /* host memory that the device sees: a chunk's hidden states for the CPU, the experts' sum for the
         * device */
        struct exec_buffer x, sum;
        uint64_t n_computed, ns; /* statistics */
    } host;

    struct exec_buffer ids; /* inputs of a chunk */
    struct rope_cache rope;
    struct ngram_rows ngrams;
    struct exec_buffer kept; /* the recurrent state inside a chunk; made on first use */
    /* host copy of view.idx followed by view.predicted; unused if those are mapped */
    struct exec_buffer choice;
    /* host copies of view.weights, if the host needs them, and of view.logits, two halves (forward.c);
     * unused if those are mapped */
    struct exec_buffer weights, logits;
    /* locks of the two halves of `logits`; taken while holding the stage's turn, and may be held longer */
    pthread_mutex_t reading[2];
    uint32_t last_half;
    /* u32 [n_layers][top_k], on the host: a token's choices in layers that it passed without the host
     * (CHOICE_LATER in layers.c), valid where is_seen is set. Unused if device memory is mapped */
    struct exec_buffer seen;
    bool *is_seen;             /* [n_layers] */
    struct exec_buffer hidden; /* host copies of x, [n_layers + 1][max_chunk][width]; made on first use */
    /* f32 [max_chunk][config_width]: host copies of a model's last hidden states, and of those that a
     * drafter is fed with (drafter.h); absent if not needed. The first is unused if view.x is mapped */
    struct exec_buffer last, fed;
    struct exec_buffer x; /* f32 [max_chunk][width]: host copy of view.x; unused if that is mapped */
    /* the way of a pipelined prompt's hidden states to the next stage, each half like x; only if neither
     * device's memory is mapped */
    struct crossing crossing;
    struct exec_buffer router_logits; /* host copy of view.router_logits for prefer.h; unused if mapped */

    struct ahead ahead;
    bool is_stopped; /* an evaluation was stopped here: the device may still be busy with it */

    struct predictor predictor;
    struct tracked_sequence tracked[PREDICTOR_PLACES];
    uint64_t n_tracked;           /* evaluations so far; the clock of `tracked` */
    uint32_t *wanted;             /* [n_experts]: the different experts of a round */
    uint8_t *is_wanted;           /* [n_experts] */
    uint64_t n_choices, n_chosen; /* statistics: choices that the host saw, experts in them */
    uint64_t busy_ns;             /* statistics: time of evaluations on this stage */
    uint64_t state_bytes;         /* states of all sessions */
    uint64_t drafted_bytes;       /* those of them that chains need (verify.h) */
    uint64_t checkpoint_off;      /* offset of its part in a checkpoint */
};

/* Loads the weights and opens the operations and buffers; `exec`, `layers` and `maps_weights` must be set.
 * before: bytes of weights that earlier stages have loaded. */
int stage_open(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
               const struct moeflux_options *o, uint64_t before, struct moeflux_err *e);
/* Opens the crossing to the next stage, if possible. Both stages must be open. */
void stage_open_crossing(struct stage *at);
/* Opens its experts, and the CPU that computes those of at->cpu_layers. threads_of: the CPU's
 * exec_options.shares_with. */
int stage_open_experts(struct stage *at, struct moeflux_model *m, const struct load_plan *p,
                       const struct moeflux_options *o, const struct test_hooks *h,
                       const struct exec *threads_of, struct moeflux_err *e);
/* Closes everything except the exec; the next stage's exec must be open too. The stage may be half open. */
void stage_close(struct stage *at);
/* Whether the CPU computes experts of its layers. */
bool stage_has_cpu_layers(const struct stage *at);
/* Whether each of its experts has a slot of its own. */
bool stage_holds_all(const struct stage *at);

/* Take and give back the turn. Another thread may give it back. */
static inline void stage_take(struct stage *at)
{
    turns_begin(&at->turn);
}

static inline void stage_give(struct stage *at)
{
    turns_end(&at->turn);
}

/* Releases the experts in use; the batches that used them must be finished. */
void stage_release(const struct stage *at);
/* Waits for the token in flight, if there is one, and drops its results. Must be called before any other use
 * of the stage, whose turn the caller has. */
int stage_drop_ahead(struct stage *at, struct moeflux_err *e);
/* Drops what was recorded ahead, and waits until no stopped or dropped work is in flight on the device; the
 * caller has the turn. Calls `w` meanwhile; NULL: the progress callback. ERR_INTERRUPTED. */
int stage_wait_idle(struct moeflux_model *m, struct stage *at, const struct exec_watch *w,
                    struct moeflux_err *e);
/* Runs stage_take and stage_wait_idle. On failure the caller does not have the turn. */
int stage_enter(struct moeflux_model *m, struct stage *at, struct moeflux_err *e);
/* Enters all stages. */
int stage_enter_all(struct moeflux_model *m, struct moeflux_err *e);
void stage_give_all(struct moeflux_model *m);
/* Drops what was recorded ahead and waits a moment; returns whether nothing is in flight. The caller has the
 * turn. */
bool stage_is_idle(struct stage *at);

#endif
