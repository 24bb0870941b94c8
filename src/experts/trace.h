/* trace.h - the router's choices of a run, as a file: what the replay (replay.h) is fed with.
 *
 * Text. A first line "moeflux trace 1 LAYERS EXPERTS TOP_K EXPERT_BYTES"; then for each layer of each
 * evaluation a line
 *     LAYER POS TOKENS EXPERT:WEIGHT EXPERT:WEIGHT ... for each of its tokens, in the order of the
 * evaluations, of the layers and of the tokens; then a line "end", so that a file that was cut is recognised.
 * POS is the token's place in its sequence, TOKENS how many tokens were evaluated together: so many lines of
 * one layer follow each other then, with ascending POS. The experts are in the router's order, at most TOP_K,
 * with the weights that their outputs got (four places behind the point; "nan": no number). EXPERT_BYTES is
 * the size of one expert. Numbers are decimal, without sign or leading zeros, with one blank between. */
#ifndef MOEFLUX_EXPERTS_TRACE_H
#define MOEFLUX_EXPERTS_TRACE_H

#include <stdint.h>

struct moeflux_err;

/* Bounds: 1 to 65536 layers and experts, at most 2^24 experts in all layers; TOP_K up to 1024 and EXPERTS. */
struct trace_shape {
    uint32_t n_layers, n_experts, top_k;
    uint64_t expert_bytes; /* the mean, where layers differ */
};

/* --- writing --- */

struct trace_writer;

/* The file appears with trace_writer_commit, whole, and replaces an old one; until then it grows beside its
 * place. ERR_IO, ERR_MEMORY.
 *  */
int trace_writer_open(struct trace_writer **out, const char *path, const struct trace_shape *s,
                      struct moeflux_err *e);
/* One layer's choice for n tokens that are evaluated together, the first at `pos`: experts and weights
 * [n][top_k]. A number that is no expert's ends a token's choice early (NO_EXPERT). The first failure sticks:
 * nothing more is written, and trace_writer_commit tells it. Allocates nothing. */
void trace_writer_add(struct trace_writer *w, uint32_t layer, uint32_t pos, uint32_t n,
                      const uint32_t *experts, const float *weights);
/* Ends the file and gives it its name. After it, or without it, nothing is added. ERR_IO: there is no new
 * file. */
int trace_writer_commit(struct trace_writer *w, struct moeflux_err *e);
/* Removes what was not committed. NULL is legal. */
void trace_writer_close(struct trace_writer *w);

/* --- reading --- */

/* What an evaluation asked of a layer: the different experts of its tokens, in the order in which they were
 * chosen first. */
struct trace_step {
    uint64_t first; /* in trace.experts */
    uint32_t n;     /* experts */
    uint32_t layer;
    uint32_t n_tokens;
};

struct trace {
    struct trace_shape shape;
    struct trace_step *steps; /* [n_steps] */
    uint64_t n_steps;
    uint16_t *experts; /* [n_uses] */
    uint64_t n_uses;
    uint64_t n_single;  /* evaluations of one token */
    uint64_t n_batched; /* tokens of larger ones, and how many those were */
    uint64_t n_chunks;
    uint32_t n_used_layers; /* layers with a choice */
};

/* ERR_IO, ERR_MEMORY; ERR_FORMAT names the line, what was expected and what was found. */
int trace_read(struct trace *t, const char *path, struct moeflux_err *e);
void trace_free(struct trace *t); /* a zeroed one is legal */

#endif
