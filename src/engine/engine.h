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

enum { MOEFLUX_ROUND_TABLES = 16, MOEFLUX_MAX_BATCHED = 8 };

/* The device that computes the routed experts of some layers, and the store that holds them. */
struct expert_side {
    struct exec *exec;
    struct expert_store *store; /* NULL: no layer is on this side */
    bool reads_ahead;           /* experts are prefetched, if there is a predictor */
    bool computes_at_once;      /* a host backend: recording an operation runs it */
    /* u64 [MOEFLUX_ROUND_TABLES][n_experts]: each a table of one round's experts */
    struct exec_buffer round_tables;
};
/* SIDE_DEVICE: the stage's device; SIDE_HOST: the CPU. SIDE_PROMPT: the device, for large chunks in the
 * layers of SIDE_HOST (load_plan_takes_device); experts pass through its few slots. */
enum expert_side_kind { SIDE_DEVICE, SIDE_HOST, SIDE_PROMPT, EXPERT_SIDES };

/* The recording of one token of each of some sequences: the states that it reads and writes. */
struct recorded {
    uint32_t n; /* sequences; 0: nothing is recorded */
    bool is_batched;
    bool chooses;  /* pass.chooses */
    uint32_t half; /* pass.half */
    struct arch_sequence each[MOEFLUX_MAX_BATCHED];
    uint64_t marks[MOEFLUX_MAX_BATCHED]; /* moeflux_session.mark */
};

enum { AHEAD_GROUPS = 4 };
/* The recording ahead on a stage (ahead.h). */
struct ahead {
    struct recorded deferred; /* what the deferred batch (exec_is_deferred) has recorded */
    struct recorded wanted;   /* what to record next */
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
 * host memory (stage_run.h, crossing.h). */
struct stage {
    struct turns turn; /* lock of everything below (stage_turn.h) */
    struct exec *exec;
    struct expert_layers layers;
    struct arch *arch;
    struct arch_view view; /* `states` has only its own layers */
    struct loader loader;
    struct expert_side sides[EXPERT_SIDES];
    bool computes_at_once; /* a host backend: nothing can be recorded ahead */
    bool maps_weights;     /* load_plan.maps_weights */
    bool is_again;         /* an earlier stage is on the same device */
    /* the first of its layers, whose experts belong to SIDE_HOST and SIDE_PROMPT; often none. The experts of
     * the others belong to SIDE_DEVICE */
    struct expert_layers cpu_layers;
    uint32_t max_cpu_chunk; /* load_plan.max_cpu_chunk */
    struct {                /* SIDE_HOST */
        struct host_experts experts;
        /* host memory that the device sees: a chunk's hidden states for the CPU, the experts' sum for the
         * device */
        struct exec_buffer x, sum;
        uint64_t n_computed, ns; /* statistics */
    } host;

    struct exec_buffer ids; /* inputs of a chunk */
    struct rope_cache rope;
    struct exec_buffer kept; /* the recurrent state inside a chunk; made on first use */
    /* host copy of view.idx followed by view.predicted; unused if those are mapped */
    struct exec_buffer choice;
    /* host copies of view.weights, if the host needs them, and of view.logits, two halves (stage_run.h);
     * unused if those are mapped */
    struct exec_buffer weights, logits;
    /* locks of the two halves of `logits`; taken while holding the stage's turn, and may be held longer */
    pthread_mutex_t reading[2];
    uint32_t last_half;
    /* u32 [n_layers][top_k], on the host: a token's choices in layers that it passed without the host
     * (pass_goes_on), valid where is_seen is set. Unused if device memory is mapped */
    struct exec_buffer seen;
    bool *is_seen;             /* [n_layers] */
    struct exec_buffer hidden; /* host copies of x, [n_layers + 1][max_chunk][hidden]; made on first use */
    struct exec_buffer x;      /* f32 [max_chunk][hidden]: host copy of view.x; unused if that is mapped */
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
    uint64_t recurrent_off;       /* offset of its part in a checkpoint */
};

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
    struct exec_buffer rope;    /* f32 [2][rotary_dim] */
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

/* The state of an evaluation for the progress callback: tokens before this chunk, in it, in all; the current
 * layer. */
struct progress_at {
    uint32_t before, here, total, layer;
    uint32_t from;    /* tokens before the pipelined chunks that this one belongs to (pipeline.h) */
    const char *what; /* name in progress reports */
    bool is_stopped;  /* the callback said stop */
};

/* Tokens evaluated, and the time during which at least one evaluation was in flight. */
struct work_count {
    uint64_t n_tokens, ns;
    uint64_t since, n_since; /* the time since which one is in flight, and n_tokens at that time */
    uint32_t n_in_flight;
};
enum work_kind { WORK_PREFILL, WORK_DECODE, WORK_ANY, WORK_KINDS };

struct moeflux_model {
    struct model_dir dir;
    struct stage stages[MOEFLUX_MAX_DEVICES];
    uint32_t n_stages;
    char device_names[512]; /* names of all devices, joined by " + " */
    uint32_t n_cpu_layers;  /* moeflux_options.n_cpu_layers, at most all */
    struct prefer prefer;
    struct trace_writer *trace; /* NULL: choices are not recorded */
    struct moeflux_progress progress;
    /* every expert is in a device slot: no layer waits for the router's choice. False with a trace */
    bool resident;
    bool computes_at_once; /* some stage's computes_at_once is set */
    uint32_t max_chunk;
    enum kv_type kv_type;
    uint32_t n_checkpoints; /* the most that a session may have */

    uint64_t recurrent_state_bytes; /* sum over all stages */
    float *inverse_frequencies;     /* [rotary_dim / 2] */
    double rope_multiplier;         /* factor of cos and sin */

    struct step_room step; /* belongs to the last stage; only the thread with its turn uses it */

    _Atomic(uint64_t) step_ns; /* duration of the last chunk or token; UINT64_MAX before the first */
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

/* The state of a sequence on one stage. */
struct stage_state {
    struct exec_buffer recurrent; /* arch_view.recurrent_state_bytes */
    /* the state after the next tokens is written here; the two are swapped when the tokens are accepted */
    struct exec_buffer recurrent_next;
    /* earlier states (pipeline.h); made on first use */
    struct exec_buffer older[MOEFLUX_MAX_DEVICES - 1];
    struct exec_buffer *blocks; /* KV cache, [n_blocks] */
    struct exec_buffer table;   /* u64 [max_blocks]: the blocks' addresses */
};

struct moeflux_session {
    struct moeflux_model *model;
    uint32_t max_context, pos;
    uint32_t parity;               /* which of the double-buffered states is current */
    struct stage_state *on;        /* [n_stages] */
    uint32_t n_blocks, max_blocks; /* KV cache blocks on each stage */
    bool is_stopped;               /* a chunk was stopped: the device may still write to recurrent_next */
    int32_t *history;              /* [max_context]: the tokens' ids, -1: not known */
    float *logits;                 /* [vocab_size]: for sampling on the host (step.c); made on first use */
    struct device_choice *choice;  /* sampling after the current token; NULL: its logits go to the host */
    struct checkpoints checkpoints;
    uint32_t checkpoint_every; /* tokens; 0: never */
    uint32_t checkpoint_at;    /* a position that the next evaluation passes; 0: none */
    /* unique number of the sequence's content: no other sequence has it, and going back gives a new one */
    uint64_t mark;
    /* progress of the current evaluation; in batched decode the first sequence's is used */
    struct progress_at progress_at;
    /* called once when the evaluation has left the first stage, then cleared; may be NULL */
    void (*left)(void *ctx);
    void *left_ctx;
    /* a failure left an invalid recurrent state, and pos is 0; sequence_make_ready clears the sequence */
    bool needs_clear;
    struct moeflux_session *next_to_free;
};

/* Does what moeflux_get_needs does for an open directory. */
void model_info_needs(const struct model_dir *d, struct moeflux_needs *out);

/* Checks whether n tokens can be appended. ERR_USAGE. */
int sequence_check(const struct moeflux_session *s, const int32_t *ids, uint32_t n, struct moeflux_err *e);
/* Allocates the KV cache for positions below `end`. ERR_NO_FIT: the sequence does not change. */
int sequence_reserve(struct moeflux_session *s, uint32_t end, struct moeflux_err *e);

/* Makes a checkpoint at `pos` of the recurrent state, or of the stages' `kept`. One that exists already is
 * marked as used. ERR_MEMORY, ERR_DEVICE. */
int sequence_checkpoint(struct moeflux_session *s, bool kept, uint32_t pos, uint32_t parity,
                        struct moeflux_err *e);

/* Recovers a sequence that was stopped, and clears one with needs_clear. Must be called before any use of the
 * states. */
int sequence_make_ready(struct moeflux_session *s, struct moeflux_err *e);

/* Makes recurrent_next the current recurrent state. */
void sequence_swap_states(struct moeflux_session *s);
/* Does the same and appends the token whose evaluation wrote recurrent_next. */
void sequence_accept(struct moeflux_session *s, int32_t id);

/* Sets the number of tokens to `pos`. Drops later checkpoints, and what was recorded or predicted for the
 * sequence. */
void sequence_set_position(struct moeflux_session *s, uint32_t pos, uint32_t parity);

/* Restores the states of s->pos after a chunk there failed, if possible; else goes to the newest
 * checkpoint. */
void sequence_roll_back(struct moeflux_session *s);

/* Appends n tokens in chunks, as moeflux_session_eval does. The caller has reserved memory for them. what:
 * name in progress reports. ids may point into s->history, where these ids belong. */
int sequence_run(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                 const struct moeflux_outputs *outputs, const char *what, struct moeflux_err *e);
/* Waits for the devices after a stopped evaluation and restores the recurrent state from its backup. Calls
 * the progress callback meanwhile. ERR_INTERRUPTED. */
int sequence_recover(struct moeflux_session *s, struct moeflux_err *e);
/* Frees the sessions that were closed while a device was busy, unless one still is. Waits a moment for that
 * if there are any. */
void sequence_free_closed(struct moeflux_model *m);
/* Waits a moment for the devices after a stopped evaluation; returns whether they have finished. */
bool model_is_idle(struct moeflux_model *m);

/* Evaluates one chunk of n <= max_chunk tokens at s->pos and advances it. last: outputs->logits are those of
 * this chunk. keep: the recurrent state after so many of its tokens goes to the stages' `kept`; 0: it is not
 * kept (arch_chunk). On failure the session's states are undefined; after ERR_INTERRUPTED with
 * s->progress_at.is_stopped, sequence_recover restores them. */
int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e);

/* Evaluates ids[i] at the position of list[i] for n <= MOEFLUX_MAX_BATCHED sequences and writes logits[i].
 * The sequences do not advance; their new recurrent states are in recurrent_next. */
int forward_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                    struct moeflux_err *e);

/* Single tokens that take longer than this can be stopped, like chunks. */
#define QUICK_NS ((uint64_t)250000000)

/* Returns the stage that computes a layer. */
struct stage *model_stage(struct moeflux_model *m, uint32_t layer);
const struct arch_state *model_state(const struct moeflux_model *m, uint32_t layer);
/* Returns rc. If there are several devices, adds the device's name to the text of ERR_DEVICE and
 * ERR_NO_FIT. */
int model_fault(const struct moeflux_model *m, const struct stage *at, int rc, struct moeflux_err *e);

/* Count the begin of an evaluation (not WORK_ANY), and its end with the number of its tokens; 0: it
 * failed. */
void model_count_begin(struct moeflux_model *m, enum work_kind kind);
void model_count_end(struct moeflux_model *m, enum work_kind kind, uint32_t n_tokens);

/* Checks the mapped files of weights and experts; every evaluation does it first. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e);
/* Records one token, from its id to its logits in view.logits, in a batch of its own. All experts must be
 * resident, and there must be one stage. */
int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e);

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
