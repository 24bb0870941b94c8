/* model_dir.h - a model directory as it lies on disk: its config, its named tensors, its experts' extents.
 *
 * Two layouts open alike:
 *   packed: model_weights.json (manifest) + model_weights.bin + packed_experts/layer_NN.bin; with spread.json
 *           the experts lie in other directories too (spread.h) plain: config.json + *.safetensors in MLX
 *           names (sharded or not); an expert is up to nine extents in the shards Everything is checked
 *           against the files at open: offsets, sizes, dtypes, shapes, bits, layer files' lengths. Tensor
 *           contents are read on request. Names are canonical: model.X and lm_head.X. */
#ifndef MOEFLUX_MODEL_MODEL_DIR_H
#define MOEFLUX_MODEL_MODEL_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/config.h"
#include "model/spread.h"

struct moeflux_err;

enum dtype {
    DTYPE_U32,
    DTYPE_BF16,
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_I32,
    DTYPE_F8_E4M3,
    DTYPE_U8,
    DTYPE_OTHER, /* well formed, but nothing here reads it */
    DTYPE_GGUF,  /* of a GGUF file, whatever its type there; counts as float32 (convert/gguf/source.h) */
};

enum { TENSOR_MAX_DIMS = 8 };

/* How MLX quantises: codes with scales and biases, or small floats with scales alone. */
enum quant_mode { QUANT_AFFINE, QUANT_MXFP4, QUANT_MXFP8, QUANT_NVFP4 };

/* A tensor that a file holds in pieces: blocks of `period` bytes, of which each run is a piece. All blocks'
 * pieces of the first run come first, then those of the next. n_runs 0: the tensor is contiguous. */
enum { TENSOR_MAX_RUNS = 3 };
struct tensor_pieces {
    uint32_t n_runs;
    uint64_t period, n_blocks;
    struct {
        uint64_t from, bytes; /* in the block */
    } runs[TENSOR_MAX_RUNS];
};

struct tensor {
    char *name; /* canonical */
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[TENSOR_MAX_DIMS];
    uint32_t bits, group; /* of a quantised weight (U32): of a code, and columns that share a scale; else 0 */
    enum quant_mode mode; /* of a quantised weight */
    uint32_t format;      /* FORMAT_* of a quantised weight, and of its scales and biases; else FORMAT_NONE */
    uint32_t file;        /* index into model_dir.files */
    uint64_t off, bytes;  /* in pieces: off is where the first block begins */
    struct tensor_pieces pieces;
};

struct model_file {
    char *path;
    int fd;
    uint64_t bytes;
};

/* Weights that share a scale in a checkpoint with 8-bit floats (fp8.h); zero in every other. */
struct fp8_blocks {
    uint32_t rows, cols;
};

struct matrix {      /* W [rows][cols]; borrowed from the model_dir */
    uint32_t format; /* FORMAT_*; FORMAT_NONE: 8-bit floats (fp8.h), which are converted before they run */
    uint32_t rows, cols;
    const struct tensor *weight;
    const struct tensor *scales, *biases; /* NULL where the format has none */
};

/* One contiguous run of an expert's bytes. */
struct extent {
    uint32_t file; /* index into model_dir.files */
    uint64_t off;  /* in the file */
    uint64_t bytes;
    uint64_t at; /* where it belongs in the expert's slot */
};
enum { EXPERT_MAX_EXTENTS = 9 };

/* FORMAT_* of each projection, quantised ones. gate and up are one operation and have one format. */
struct expert_formats {
    uint32_t gate, up, down;
};

/* Where the parts of an expert lie in a slot (bytes from its start); the same for every expert of a layer.
 * Formats without biases have none there. gate, up: [moe_inner][hidden]; down: [hidden][moe_inner]. */
struct expert_layout {
    struct expert_formats formats;
    uint64_t gate_w, gate_s, gate_b, up_w, up_s, up_b, down_w, down_s, down_b;
    uint64_t bytes; /* of the whole expert */
};

struct model_dir {
    char *path;
    bool packed;
    bool is_sketch, is_assumed; /* there are no files (sketch.h); its formats are assumed */
    struct config config;
    struct fp8_blocks fp8;
    struct model_file *files;
    uint32_t n_files;
    struct tensor *tensors; /* [n_tensors], sorted by name */
    size_t n_tensors;
    struct expert_layout *experts; /* [n_layers]; bytes 0: a layer without experts */
    uint64_t max_expert_bytes;     /* of the largest: what a slot for any of them needs */
    char *tokenizer_path;          /* tokenizer.json or tiktoken.model; NULL when the directory has none */
    uint64_t dense_bytes;          /* all tensors but the routed experts */
    uint64_t expert_bytes;         /* all routed experts on disk */
    struct spread_dirs parts;      /* where the experts lie; plain: one part */
    struct expert_place *places;   /* the layers' experts; private */
};

/* Opens and checks `path`. On failure nothing stays open.
 * The error names the file, the tensor, what was expected and what was found. */
int model_dir_open(struct model_dir *m, const char *path, struct moeflux_err *e);
void model_dir_close(struct model_dir *m);

/* NULL when there is no such tensor. */
const struct tensor *model_dir_find(const struct model_dir *m, const char *name);

/* A matrix by its base name ("model.layers.0.mlp.gate"): quantised (weight, scales, biases) or plain
 * BF16/F16/F32 (weight). Checks presence, dtypes, shapes [rows][cols] and bits. */
int model_dir_matrix(const struct model_dir *m, const char *base, uint32_t rows, uint32_t cols,
                     struct matrix *out, struct moeflux_err *e);

/* A BF16, F16 or F32 tensor with exactly n elements, whatever its dimensions ("[C,4,1]"). */
int model_dir_vector(const struct model_dir *m, const char *name, uint64_t n, const struct tensor **out,
                     struct moeflux_err *e);

/* Reads a tensor's bytes [from, from + n) into dst. Scales and biases (names ending in .scales or .biases)
 * are checked to be finite as they pass. */
int model_dir_read(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n, void *dst,
                   struct moeflux_err *e);

/* The check of model_dir_read, of whole scales or biases from anywhere in `t`. */
bool model_dir_check_bytes(const struct tensor *t, const uint8_t *bytes, uint64_t n);
/* The same of a tensor that is in memory already. */
int model_dir_check_tensor(const struct model_dir *m, const struct tensor *t, const uint8_t *bytes,
                           struct moeflux_err *e);

/* Reads n BF16, F16 or F32 elements and widens them to float; non-finite values are ERR_FORMAT. */
int model_dir_read_f32(const struct model_dir *m, const struct tensor *t, float *dst, struct moeflux_err *e);

/* The extents of one expert, in ascending slot order, neighbours merged (packed: one in each part). Returns
 * their number, or 0 for a layer without experts. `out` has room for EXPERT_MAX_EXTENTS. */
uint32_t model_dir_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, struct extent *out);

/* Reads bytes [at, at + n) of an expert, wherever they lie. Not checked to be finite. */
int model_dir_read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, uint64_t at, uint64_t n,
                          uint8_t *dst, struct moeflux_err *e);

/* Checks the scales and biases of an expert that was read whole into `slot`: ERR_FORMAT names layer, expert,
 * part. */
int model_dir_check_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, const uint8_t *slot,
                           struct moeflux_err *e);
/* The same of its bytes [from, to), which hold whole numbers. */
int model_dir_check_expert_part(const struct model_dir *m, uint32_t layer, uint32_t expert,
                                const uint8_t *slot, uint64_t from, uint64_t to, struct moeflux_err *e);

#endif
