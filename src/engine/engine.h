/* engine.h - the insides that the engine's files share. The outside is moeflux.h. */
#ifndef MOEFLUX_ENGINE_ENGINE_H
#define MOEFLUX_ENGINE_ENGINE_H

#include "arch/arch.h"
#include "arch/loader.h"
#include "engine/checkpoints.h"
#include "experts/predictor.h"
#include "experts/supply.h"
#include "model/model_dir.h"
#include "moeflux.h"
#include "ops/exec.h"

enum { MOEFLUX_WAVE_TABLES = 16 };

struct moeflux {
    struct model_dir dir;
    struct exec *exec;
    struct arch *arch;
    struct arch_view view;
    struct loader loader;
    struct supply *supply;
    struct predictor predictor;
    struct progress progress;
    bool resident;         /* every expert is in a slot: no layer waits for the router's choice */
    bool computes_at_once; /* the reference backend: nothing can be recorded ahead */
    uint32_t max_chunk;
    enum kv_type kv_type;
    uint32_t n_checkpoints; /* the most that a session may have */

    struct exec_buffer ids, rope; /* inputs of a chunk */
    /* host copy of view.idx, behind it of view.guess; unused where those are mapped */
    struct exec_buffer choice;
    struct exec_buffer logits;  /* host copy of view.logits; likewise */
    struct exec_buffer hidden;  /* host copies of x, [n_layers + 1][max_chunk][hidden]; made on first use */
    float *inverse_frequencies; /* [rotary_dim / 2] */
    double rope_multiplier;     /* of cos and sin */
    struct exec_buffer waves;   /* u64 [MOEFLUX_WAVE_TABLES][n_experts]: tables of one wave of experts each */
    uint32_t *wanted;           /* [n_experts]: the different experts of a wave */
    uint8_t *is_wanted;         /* [n_experts] */

    /* Where the predictor's last token stands: another sequence or place has nothing to do with it. */
    const struct moeflux_session *predicted_of;
    uint32_t predicted_pos;

    /* The next token's batch that is recorded ahead (exec_is_parked): whose, and for which position. */
    const struct moeflux_session *ahead_of;
    uint32_t ahead_pos;

    bool has_fingerprint;
    uint64_t fingerprint;
    /* The evaluation under way, for the progress callback: tokens before this chunk, in it, in all; its layer. */
    struct {
        uint32_t before, here, total, layer;
        const char *what; /* the work's name in reports */
    } stand;
    uint64_t step_ns; /* that the last chunk or token took; at first: very long */
    bool is_stopped;  /* the progress callback said stop; the device may still be at work */

    uint64_t state_bytes; /* of all sessions */
    uint64_t n_prefill_tokens, prefill_ns, n_decode_tokens, decode_ns;
};

struct moeflux_session {
    struct moeflux *model;
    uint32_t max_context, pos;
    uint32_t parity;            /* which of the double-buffered states is current */
    struct exec_buffer fixed;   /* arch_view.fixed_bytes */
    struct exec_buffer kept;    /* its copy from before a chunk that may be stopped */
    bool is_torn;               /* a chunk was stopped: `kept` has what `fixed` should be */
    struct exec_buffer *blocks; /* KV cache, [n_blocks] */
    uint32_t n_blocks, max_blocks;
    struct exec_buffer table; /* u64 [max_blocks]: the blocks' addresses */
    int32_t *history;         /* [max_context]: the tokens' ids, -1: not known */
    struct checkpoints checkpoints;
    uint32_t checkpoint_every; /* tokens; 0: never by itself */
    /* A failure left a fixed state that belongs to no position; pos is 0. Nothing may use it before session_ready. */
    bool is_stale;
};

/* Fills what moeflux_get_needs tells from an open directory. */
void moeflux_needs_of(const struct model_dir *d, struct moeflux_needs *out);

/* Makes room for positions below `end`. ERR_NO_FIT; what was there stays. */
int session_reserve(struct moeflux_session *s, uint32_t end, struct err *e);

/* Mends a sequence that was stopped and clears one that a failure left stale. Every use of the states begins with it. */
int session_ready(struct moeflux_session *s, struct err *e);

/* The sequence has `pos` tokens now: drops the checkpoints behind them, and what was recorded or predicted for it. */
void session_moved(struct moeflux_session *s, uint32_t pos, uint32_t parity);

/* After a chunk at s->pos failed: back to there if the states can be, else to the newest checkpoint. */
void session_fall_back(struct moeflux_session *s);

/* Appends n tokens in chunks, as moeflux_eval does; there is room for them. `what` names the work in progress reports.
 * ids may be the place in s->history where they belong. */
int session_evaluate(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                     const struct moeflux_wish *wish, const char *what, struct err *e);
/* Waits for a device that is still at work on an evaluation that was stopped, and puts the session's states back that
 * were torn by it. Asks the progress callback meanwhile: ERR_INTERRUPTED. */
int session_mend(struct moeflux_session *s, struct err *e);
/* As long as is worth waiting when things are given back: whether the device has finished. */
bool model_is_idle(struct moeflux *m);

/* Evaluates one chunk of n <= max_chunk tokens at s->pos and advances it. `last`: the end of the prompt, where
 * wish->logits are due. On failure the session's states are undefined, but ERR_INTERRUPTED with m->is_stopped leaves
 * them to session_mend. */
int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, bool last,
                  const struct moeflux_wish *wish, struct err *e);

#endif
