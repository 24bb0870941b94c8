/* trace.h - writes and reads files of the router's choices in a run; replay.h evaluates them.
 *
 * A text file. The first line is "moeflux trace 1 LAYERS EXPERTS TOP_K EXPERT_BYTES". Each token of each
 * layer of each evaluation has a line
 *
 *     LAYER POS TOKENS EXPERT:WEIGHT EXPERT:WEIGHT ...
 *
 * in the order of the evaluations, layers and tokens. The last line is "end", so that a cut file is
 * recognised. POS is the token's place in its sequence. TOKENS is the number of tokens in the evaluation: as
 * many lines of one layer are consecutive, with ascending POS. The experts, at most TOP_K, are in the
 * router's order, with the weights of their outputs (four decimals; "nan": no number). EXPERT_BYTES is the
 * size of one expert. Numbers are decimal, without sign or leading zeros, with one blank between. */
#ifndef MOEFLUX_EXPERTS_TRACE_H
#define MOEFLUX_EXPERTS_TRACE_H

#include <stdint.h>

struct moeflux_err;

/* Limits: 1 to 65536 layers and experts, 2^24 experts in all layers, top_k of 1024 and of n_experts. */
struct trace_shape {
    uint32_t n_layers, n_experts, top_k;
    uint64_t expert_bytes; /* the mean if layers differ */
};

/* --- writing --- */

struct trace_writer;

/* Starts a file next to its place. trace_writer_commit makes it appear whole and replaces an old one. ERR_IO,
 * ERR_MEMORY. */
int trace_writer_open(struct trace_writer **out, const char *path, const struct trace_shape *s,
                      struct moeflux_err *e);
/* Adds one layer's choice for the n tokens of an evaluation, the first at `pos`: experts and weights
 * [n][top_k]. A number that is no expert's ends a token's choice early (NO_EXPERT). The first failure sticks:
 * nothing more is written, and trace_writer_commit returns it. Allocates nothing. */
void trace_writer_add(struct trace_writer *w, uint32_t layer, uint32_t pos, uint32_t n,
                      const uint32_t *experts, const float *weights);
/* Ends the file and gives it its name. Nothing may be added afterwards. ERR_IO: there is no new file. */
int trace_writer_commit(struct trace_writer *w, struct moeflux_err *e);
/* Removes what was not committed. NULL is legal. */
void trace_writer_close(struct trace_writer *w);

/* --- reading --- */

/* What an evaluation requested of a layer: the different experts of its tokens, in the order of their first
 * choice. */
struct trace_step {
    uint64_t first; /* index of the first one in trace.experts */
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
    uint64_t n_single;      /* evaluations of one token */
    uint64_t n_batched;     /* tokens in evaluations of several */
    uint64_t n_chunks;      /* evaluations of several tokens */
    uint32_t n_used_layers; /* layers with a choice */
};

/* ERR_IO, ERR_MEMORY; ERR_FORMAT names the line, what was expected and what was found. */
int trace_read(struct trace *t, const char *path, struct moeflux_err *e);
void trace_free(struct trace *t); /* a zeroed one is legal */

#endif
