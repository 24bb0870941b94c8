/* expert_places.h - where each layer's routed experts lie: one run per expert in a layer file, up to nine in
 * stacks, or one in each of the parts that they are spread over. */
#ifndef MOEFLUX_MODEL_EXPERT_PLACES_H
#define MOEFLUX_MODEL_EXPERT_PLACES_H

#include "model/model.h"

struct moeflux_err;

struct expert_place { /* of one layer */
    uint32_t n_runs;  /* 0: a layer without experts */
    uint32_t n_parts; /* of spread experts; else 1 */
    struct expert_run {
        uint32_t file;        /* run i of expert e: this + (e + i) mod n_parts */
        uint64_t off, stride; /* expert e's bytes start at off + e * stride */
        uint64_t bytes, at;   /* their number, and where they belong in the slot */
    } runs[EXPERT_MAX_EXTENTS];
};

/* The slot of an expert: gate, up, down, each weight, scales, biases where there are some. */
struct expert_layout expert_places_layout(const struct config *c, const struct expert_formats *f);

/* Opens dir/layer_NN.bin for every layer with experts, in every part of m->parts (`dir` is part 0's), and
 * checks the lengths; f: [n_layers]. Fills m->experts, places, files, expert_bytes and max_expert_bytes.
 * ERR_IO: a file or part is missing; ERR_FORMAT: wrong length, or another model's part. ERR_UNSUPPORTED: gate
 * and up differ. */
int expert_places_from_files(struct model_dir *m, const char *dir, const struct expert_formats *f,
                             struct moeflux_err *e);

/* The same from m's switch_mlp tensors (already checked against each other). */
int expert_places_from_stacks(struct model_dir *m, struct moeflux_err *e);

#endif
