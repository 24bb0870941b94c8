/* engine.h - the private structs of models and sessions. The public interface is moeflux.h. */
#ifndef MOEFLUX_ENGINE_ENGINE_H
#define MOEFLUX_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "arch/arch.h"
#include "arch/host_experts.h"
#include "arch/loader.h"
#include "base/turns.h"
#include "engine/state/checkpoints.h"
#include "engine/run/crossing.h"
#include "engine/run/prefer.h"
#include "engine/run/rope_cache.h"
#include "experts/predictor.h"
#include "experts/store.h"
#include "experts/trace.h"
#include "model/model_dir.h"
#include "moeflux.h"
#include "exec/exec.h"
#include "ops/sample/sample.h"

enum { MOEFLUX_WAVE_TABLES = 16, MOEFLUX_MOST_TOGETHER = 8 };

/* Who computes the routed experts of some layers, and where those live. */
struct expert_side {
    struct exec *exec;
    struct expert_store *store; /* NULL: no layer is on this side */
    bool reads_ahead;           /* experts are prefetched, if there is a predictor */
    bool computes_at_once;      /* an operation that was recorded is over */
    struct exec_buffer waves;   /* u64 [MOEFLUX_WAVE_TABLES][n_experts]: tables of one wave of experts each */
};
/* SIDE_PROMPT: the device too, for large chunks of the layers that are otherwise SIDE_HOST's
 * (load_plan_takes_device). Its few slots are for experts on their way through. */
enum expert_side_kind { SIDE_DEVICE, SIDE_HOST, SIDE_PROMPT, EXPERT_SIDES };

/* A token of each of some sequences: what it reads and writes of them. */
struct recorded {
    uint32_t n; /* 0: of none */
    bool is_batched;
    bool chooses;  /* pass.chooses */
    uint32_t half; /* pass.half */
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER];
    uint64_t marks[MOEFLUX_MOST_TOGETHER]; /* moeflux_session.mark */
};

enum { AHEAD_GROUPS = 4 };
/* ahead.h */
struct ahead {
    struct recorded parked; /* the batch that is recorded (exec_is_deferred) */
    struct recorded wanted; /* that is to be */
    struct {
        struct recorded next; /* its next tokens */
        uint32_t follower;    /* the group that came behind it */
        uint64_t came;
    } groups[AHEAD_GROUPS];
    uint32_t last; /* of the groups: the one that came last */
    uint64_t clock;
};

/* A sequence that a predictor has a place for, and where it goes on. For any other, or elsewhere, it must
 * forget. */
struct followed {
    uint64_t mark; /* 0: none */
    uint32_t pos;
    uint64_t came;
};

/* A device and the layers that it computes: all of them, or a share where there are several devices. The
 * first stage embeds, the last one has the head. What crosses is a chunk's hidden states, through host memory
 * (stage_run.h, crossing.h). */
struct stage {
    struct turns turn; /* stage_turn.h: all that follows is of the thread that has it */
    struct exec *exec;
    struct expert_layers layers;
    struct arch *arch;
    struct arch_view view; /* states: of its layers alone */
    struct loader loader;
    struct expert_side sides[EXPERT_SIDES];
    bool computes_at_once; /* a host backend: nothing can be recorded ahead */
    bool maps_weights;     /* load_plan.maps_weights */
    bool is_again;         /* an earlier stage is on the same device */
    /* The first of its layers are SIDE_HOST's (SIDE_PROMPT's), the others SIDE_DEVICE's. Often none */
    struct expert_layers cpu_layers;
    uint32_t max_cpu_chunk; /* load_plan.max_cpu_chunk */
    struct {                /* SIDE_HOST */
        struct host_experts experts;
        /* Chunks on their way between the two, in host memory that the device sees: hidden states, the
         * experts' sum. */
        struct exec_buffer x, sum;
        uint64_t n_computed, ns; /* statistics */
    } host;

    struct exec_buffer ids; /* inputs of a chunk */
    struct rope_cache rope;
    struct exec_buffer kept; /* the recurrent state inside a chunk; made on first use */
    /* host copy of view.idx followed by view.predicted; unused where those are mapped */
    struct exec_buffer choice;
    /* host copies of view.weights, where the host wants them, and of view.logits, twice (stage_run.h);
     * likewise */
    struct exec_buffer weights, logits;
    pthread_mutex_t
        reading[2]; /* who has the logits of a half; taken with the turn, and may be kept after it */
    uint32_t last_half;
    /* u32 [n_layers][top_k], on the host: what a token chose in the layers that it passed without the host
     * (pass_goes_on), where is_seen. Unused where device memory is mapped. */
    struct exec_buffer seen;
    bool *is_seen;             /* [n_layers] */
    struct exec_buffer hidden; /* host copies of x, [n_layers + 1][max_chunk][hidden]; made on first use */
    struct exec_buffer x; /* f32 [max_chunk][hidden]: a copy of view.x on the host, where it is not mapped */
    /* Into the next stage, of a prompt that goes through all at once; halves like x. Where neither device's
     * memory is mapped */
    struct crossing crossing;
    struct exec_buffer router_logits; /* host copy of view.router_logits, for prefer.h; likewise */

    struct ahead ahead;
    bool is_stopped; /* an evaluation was given up here: the device may still be at work on it */

    struct predictor predictor;
    struct followed followed[PREDICTOR_PLACES];
    uint64_t n_followed;          /* evaluations */
    uint32_t *wanted;             /* [n_experts]: the different experts of a wave */
    uint8_t *is_wanted;           /* [n_experts] */
    uint64_t n_choices, n_chosen; /* statistics: choices that the host saw, experts in them */
    uint64_t busy_ns;             /* statistics: evaluations were here */
    uint64_t state_bytes;         /* of all sessions */
    uint64_t recurrent_off;       /* of its part in a checkpoint */
};

/* A choice of a token as the device is asked for it. */
struct choice {
    struct sampler_rule rule;
    uint32_t n_recent;
    int32_t recent[SAMPLE_MAX_RECENT]; /* sampler_recent */
};

/* A choice that the last device makes behind a token, where the token passes it without the host. */
struct device_choice {
    const struct sampler *sampler;
    int32_t id; /* the token */
    bool is_made;
    uint32_t result[2]; /* sample_call.result; only if it is made */
};

/* Decoding with choices on the last device (step.c). Whatever a token reads and writes there is twice, by the
 * token's position, since the next token may be under way. */
struct step_room {
    struct sample sample;
    struct exec_buffer ids;     /* i32 [2]: tokens that the host knows */
    struct exec_buffer rope;    /* f32 [2][rotary_dim] */
    struct exec_buffer recent;  /* i32 [2][SAMPLE_MAX_RECENT] */
    struct exec_buffer blocked; /* sampler_blocked, of blocked_copy's bits */
    struct exec_buffer chosen;  /* i32 [2] */
    struct exec_buffer results; /* u32 [2][2], on the host */
    struct exec_buffer scratch; /* sample_scratch */
    uint64_t *blocked_copy;
    const struct moeflux_session *session; /* whose next token is under way; NULL: none */
    uint32_t pos;                          /* its place, */
    int32_t id;                            /* the token itself, */
    struct choice asked;                   /* what it is to choose by, */
    struct choice wanted;                  /* and what the token at hand is */
    uint64_t ticket;
};

/* How far an evaluation is, for the progress callback: tokens before this chunk, in it, in all; the current
 * layer. */
struct progress_at {
    uint32_t before, here, total, layer;
    uint32_t from;    /* tokens before the run of chunks that this one is of (pipeline.h) */
    const char *what; /* name in progress reports */
    bool is_stopped;  /* the callback said stop */
};

/* Tokens evaluated, and the time in which at least one evaluation of them was under way. */
struct work_count {
    uint64_t n_tokens, ns;
    uint64_t since, n_since; /* since when one is under way, and n_tokens then */
    uint32_t n_under_way;
};
enum work_kind { WORK_PREFILL, WORK_DECODE, WORK_ANY, WORK_KINDS };

struct moeflux_model {
    struct model_dir dir;
    struct stage stages[MOEFLUX_MAX_DEVICES];
    uint32_t n_stages;
    char device_names[512]; /* of several devices, joined by " + " */
    uint32_t n_cpu_layers;  /* of the options, at most all */
    struct prefer prefer;
    struct trace_writer *trace; /* NULL: choices are not recorded */
    struct moeflux_progress progress;
    /* Every expert is in a device slot: no layer waits for the router's choice. Not with a trace. */
    bool resident;
    bool computes_at_once; /* some stage does */
    uint32_t max_chunk;
    enum kv_type kv_type;
    uint32_t n_checkpoints; /* the most that a session may have */

    uint64_t recurrent_state_bytes; /* of all stages */
    float *inverse_frequencies;     /* [rotary_dim / 2] */
    double rope_multiplier;         /* of cos and sin */

    struct step_room step; /* of the last stage, and of the thread that has it */

    _Atomic(uint64_t) step_ns; /* duration of the last chunk or token; UINT64_MAX before the first */
    _Atomic(uint64_t) n_marks; /* moeflux_session.mark */

    pthread_mutex_t lock; /* of what follows */
    struct work_count counts[WORK_KINDS];
    bool has_fingerprint;
    uint64_t fingerprint;
    struct moeflux_session *to_free; /* a list: closed while a device was still at work on what was stopped */
    /* The stages' `kept`, from the evaluation that writes it until it is read (sequence.c). Taken before any
     * stage. */
    pthread_mutex_t keeping;
    bool has_locks;
};

/* What a sequence has on one stage. */
struct stage_state {
    struct exec_buffer recurrent; /* arch_view.recurrent_state_bytes */
    /* where the next tokens' state goes; the two change places when it is accepted */
    struct exec_buffer recurrent_next;
    struct exec_buffer older[MOEFLUX_MAX_DEVICES - 1]; /* pipeline.h; made on first use */
    struct exec_buffer *blocks;                        /* KV cache, [n_blocks] */
    struct exec_buffer table;                          /* u64 [max_blocks]: the blocks' addresses */
};

struct moeflux_session {
    struct moeflux_model *model;
    uint32_t max_context, pos;
    uint32_t parity;               /* which of the double-buffered states is current */
    struct stage_state *on;        /* [n_stages] */
    uint32_t n_blocks, max_blocks; /* on each stage */
    bool is_stopped;               /* a chunk was: the device may still write to recurrent_next */
    int32_t *history;              /* [max_context]: the tokens' ids, -1: not known */
    float *logits;                 /* [vocab_size]: where the host chooses (step.c); made on first use */
    struct device_choice *choice;  /* behind the token at hand; NULL: its logits go to the host */
    struct checkpoints checkpoints;
    uint32_t checkpoint_every; /* tokens; 0: never */
    uint32_t checkpoint_at;    /* a position that the next evaluation passes; 0: none */
    uint64_t mark;             /* of no other sequence, nor of this one since it went back */
    /* of the evaluation at hand, of several sequences together the first one's */
    struct progress_at progress_at;
    /* Called once when that has left the first stage, and cleared; NULL: not. */
    void (*left)(void *ctx);
    void *left_ctx;
    /* A failure left an invalid recurrent state; pos is 0. sequence_make_ready clears it. */
    bool needs_clear;
    struct moeflux_session *next_to_free;
};

/* moeflux_get_needs for an open directory. */
void model_info_needs(const struct model_dir *d, struct moeflux_needs *out);

/* Whether n tokens can be appended. ERR_USAGE. */
int sequence_check(const struct moeflux_session *s, const int32_t *ids, uint32_t n, struct moeflux_err *e);
/* Allocates the KV cache for positions below `end`. ERR_NO_FIT: the sequence does not change. */
int sequence_reserve(struct moeflux_session *s, uint32_t end, struct moeflux_err *e);

/* Checkpoints at `pos` the recurrent state, or what the stages' `kept` have; one that is there already counts
 * as used. ERR_MEMORY, ERR_DEVICE. */
int sequence_checkpoint(struct moeflux_session *s, bool kept, uint32_t pos, uint32_t parity,
                        struct moeflux_err *e);

/* Recovers a sequence that was stopped, and clears one with needs_clear. Must be called before any use of the
 * states. */
int sequence_make_ready(struct moeflux_session *s, struct moeflux_err *e);

/* What is in recurrent_next becomes the current recurrent state. */
void sequence_swap_states(struct moeflux_session *s);
/* The same with the token whose evaluation left it there, which is appended. */
void sequence_accept(struct moeflux_session *s, int32_t id);

/* The sequence has `pos` tokens now. Drops later checkpoints, and what was recorded or predicted for it. */
void sequence_set_position(struct moeflux_session *s, uint32_t pos, uint32_t parity);

/* After a chunk at s->pos failed: restores the states of s->pos if possible, else goes to the newest
 * checkpoint. */
void sequence_roll_back(struct moeflux_session *s);

/* Appends n tokens in chunks, as moeflux_session_eval does. The caller has reserved memory for them. `what`
 * names the work in progress reports. ids may point into s->history, to the place where the ids belong. */
int sequence_run(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                 const struct moeflux_outputs *outputs, const char *what, struct moeflux_err *e);
/* After a stopped evaluation: waits for the devices and restores the recurrent state from its backup. Calls
 * the progress callback meanwhile. ERR_INTERRUPTED. */
int sequence_recover(struct moeflux_session *s, struct moeflux_err *e);
/* Frees the sessions that were closed while a device might still write to their memory, unless one still
 * might. Waits a moment for that if there are any. */
void sequence_free_closed(struct moeflux_model *m);
/* Waits a moment for the device after a stopped evaluation; whether it has finished. */
bool model_is_idle(struct moeflux_model *m);

/* Evaluates one chunk of n <= max_chunk tokens at s->pos and advances it. last: outputs->logits are those of
 * this chunk. keep: so many of its tokens leave their recurrent state in the stages' `kept`, 0: none do
 * (arch_chunk). On failure the session's states are undefined; after ERR_INTERRUPTED with
 * s->progress_at.is_stopped, sequence_recover restores them. */
int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e);

/* Evaluates ids[i] at the position of list[i] for n <= MOEFLUX_MOST_TOGETHER sequences; the logits after it
 * go to logits[i]. Their states stay; the new recurrent ones are in recurrent_next. */
int forward_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                    struct moeflux_err *e);

/* Single tokens that take longer than this can be stopped, as chunks can. */
#define QUICK_NS ((uint64_t)250000000)

/* The stage that a layer is on. */
struct stage *model_stage(struct moeflux_model *m, uint32_t layer);
const struct arch_state *model_state(const struct moeflux_model *m, uint32_t layer);
/* Returns rc. With several devices, the text of one that failed or has too little memory says which it is. */
int model_fault(const struct moeflux_model *m, const struct stage *at, int rc, struct moeflux_err *e);

/* An evaluation of a kind (but WORK_ANY) begins, and ends with so many tokens: 0 if it failed. */
void model_count_begin(struct moeflux_model *m, enum work_kind kind);
void model_count_end(struct moeflux_model *m, enum work_kind kind, uint32_t n_tokens);

/* What evaluations share. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e);
/* Records one token from its id to its logits in view.logits, in a batch of its own. All experts are
 * resident, and there is one stage. */
int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e);

/* What choices on the device need: at open. step_close: a zeroed room is legal. */
int step_open(struct moeflux_model *m, struct moeflux_err *e);
void step_close(struct moeflux_model *m);
/* Waits for a token that is under way; its results are dropped. Before any other use of the stage, whose turn
 * the caller has. */
int step_wait_idle(struct moeflux_model *m, struct moeflux_err *e);
/* With the turn of the last stage, behind the submission that leaves a token's logits in its view.logits:
 * submits the choice. Its result is there when `ticket` has been waited for. */
int step_submit_choice(struct moeflux_model *m, const struct device_choice *c, uint64_t *ticket,
                       struct moeflux_err *e);
void step_end_choice(const struct moeflux_model *m, struct device_choice *c);

#endif
