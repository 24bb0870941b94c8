/* expert_places.h - finds where each layer's routed experts lie on disk. An expert is one run of bytes in a
 * layer file, up to nine runs in a checkpoint's tensors, or one run in each directory that experts are spread
 * over. */
#ifndef MOEFLUX_MODEL_EXPERT_PLACES_H
#define MOEFLUX_MODEL_EXPERT_PLACES_H

#include "model/model.h"

struct moeflux_err;

/* Tensors of a GGUF file begin anywhere. Direct reads take whole blocks of the disk, so a run that does not
 * begin at a block would have to be copied to its place in a slot, a sixth of the processor's time of a token
 * whose experts are read. In the slots of such a file a run begins as many bytes after a block's start as the
 * first expert's; the rest of its first and last block is free. Formats with scales of their own have no such
 * slots: rules put their bytes there. */
enum { EXPERT_BLOCK = 512 };

/* Where the run of one expert begins: file, bytes from its start. */
struct expert_spot {
    uint32_t file;
    uint64_t off;
    struct tensor_factor factor; /* used by a run with EXTENT_FACTOR */
};

/* All experts of one layer. */
struct expert_place {
    uint32_t n_runs;  /* 0: a layer without experts */
    uint32_t n_parts; /* directories of spread experts; else 1 */
    struct expert_run {
        uint32_t file;        /* run i of expert e lies in file this + (e + i) mod n_parts */
        uint64_t off, stride; /* bytes; expert e's run starts at off + e * stride */
        uint64_t bytes, at;   /* the run's length, its place in the slot */
    } runs[EXPERT_MAX_EXTENTS];
    /* [n_experts] of a run whose experts lie anywhere, owned; then file, off and stride are unused. NULL: a
     * run with a stride */
    struct expert_spot *spots[EXPERT_MAX_EXTENTS];
    struct extent_rule rules[EXPERT_MAX_EXTENTS]; /* the runs' rules */
};

/* Returns the layout of an expert in a layer file: gate, up, down, and of each the weight, scales and biases,
 * if any. */
struct expert_layout expert_places_layout(const struct config *c, const struct expert_formats *f);

/* Allocates m->experts and m->places. */
int expert_places_begin(struct model_dir *m, struct moeflux_err *e);
/* Sets m->experts[layer] and raises max_expert_bytes. ERR_UNSUPPORTED: rows are not whole groups. */
int expert_places_lay_out(struct model_dir *m, uint32_t layer, const struct expert_formats *f,
                          struct moeflux_err *e);

/* Opens dir/layer_NN.bin for every layer with experts, in every part of m->parts (`dir` is part 0's), and
 * checks the lengths. f: [n_layers]. Fills m->experts, places, files, expert_bytes and max_expert_bytes.
 * ERR_IO: a file or part is missing. ERR_FORMAT: wrong length, or another model's part. ERR_UNSUPPORTED: rows
 * are not whole groups. */
int expert_places_from_files(struct model_dir *m, const char *dir, const struct expert_formats *f,
                             struct moeflux_err *e);

/* Fills the same from the tensors of a checkpoint or a GGUF file (expert_tensors.h). ERR_FORMAT: a tensor is
 * missing, or has another shape or dtype. ERR_UNSUPPORTED: no format serves the tensors' bytes, or rows are
 * not whole groups. */
int expert_places_from_tensors(struct model_dir *m, struct moeflux_err *e);

/* NULL is legal. */
void expert_places_free(struct expert_place *places, uint32_t n_layers);

#endif
