/* session.h - a sequence: its states on the stages, its tokens and checkpoints. The public interface is
 * moeflux.h. */
#ifndef MOEFLUX_ENGINE_SESSION_H
#define MOEFLUX_ENGINE_SESSION_H

#include "engine/model.h"
#include "engine/run/drafter.h"
#include "engine/run/verify.h"
#include "engine/state/checkpoints.h"

/* The state of an evaluation for the progress callback: tokens before this chunk, in it, in all; the current
 * layer. */
struct progress_at {
    uint32_t before, here, total, layer;
    uint32_t from;    /* tokens before the pipelined chunks that this one belongs to (forward.h) */
    const char *what; /* name in progress reports */
    bool is_stopped;  /* the callback said stop */
};

/* Rows of consecutive positions, of one sequence or of several with the same first tokens (blocks.h). */
struct kv_block {
    struct exec_buffer buffer;
    uint32_t n_users;      /* sequences; a block of several is not written. The stage's turn protects it */
    struct kv_block *next; /* the stage's spare blocks are a list */
};

/* Blocks of rows. The table has an address for every block of the context, that of blocks[i % n]. */
struct block_table {
    struct kv_block **blocks; /* [n], made when the sequence reaches them; NULL: not yet */
    uint32_t n;
    struct exec_buffer table; /* u64 [max_blocks] */
};

/* The state of a sequence on one stage. */
struct stage_state {
    struct exec_buffer recurrent; /* arch_view.sizes.recurrent */
    /* the state after the next tokens is written here; the two are swapped when the tokens are accepted */
    struct exec_buffer recurrent_next;
    /* earlier states (forward.h); made on first use */
    struct exec_buffer older[MOEFLUX_MAX_DEVICES - 1];
    /* states after each token of a chain (verify.h); made on first use */
    struct exec_buffer drafted[VERIFY_ROWS];
    struct block_table tables[2]; /* [ARCH_ROWS], [ARCH_WINDOW] */
};

struct moeflux_session {
    struct moeflux_model *model;
    uint32_t max_context, pos;
    uint32_t parity;               /* which of the double-buffered states is current */
    struct stage_state *on;        /* [n_stages] */
    uint32_t n_blocks, max_blocks; /* entries of the block tables: in use, in all */
    uint32_t n_shared;             /* the first blocks of rows, which may have other users, too */
    uint32_t window_from;          /* windows have no rows of earlier positions (stores_window_from) */
    bool is_stopped;               /* a chunk was stopped: the device may still write to recurrent_next */
    int32_t *history;              /* [max_context]: the tokens' ids, -1: not known */
    float *logits; /* [vocab_size]: for sampling on the host (sequence_step); made on first use */
    struct device_choice *choice; /* sampling after the current token; NULL: its logits go to the host */
    struct checkpoints checkpoints;
    uint32_t checkpoint_every; /* tokens; 0: never */
    uint32_t checkpoint_at;    /* a position that the next evaluation passes; 0: none */
    /* unique number of the sequence's content: no other sequence has it, and going back gives a new one */
    uint64_t mark;
    /* progress of the current evaluation; in batched decode the first sequence's is used */
    struct progress_at progress_at;
    struct moeflux_progress watcher; /* asked, too, while several tokens are evaluated; zeroed: none */
    /* called once when the evaluation has left the first stage, then cleared; may be NULL */
    void (*left)(void *ctx);
    void *left_ctx;
    /* a failure left an invalid recurrent state, and pos is 0; sequence_make_ready clears the sequence */
    bool needs_clear;
    struct verified verified; /* tokens whose logits are known already */
    struct drafter_rows drafter;
    struct moeflux_session *next_to_free;
};

#endif
