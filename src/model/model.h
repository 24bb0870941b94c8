/* model.h - a model on disk as data: its tensors, files, expert layouts, and struct model_dir, which holds
 * them. Types alone: model_dir.h opens a model, model_dir_find.h and model_dir_read.h look into an open one.
 * */
#ifndef MOEFLUX_MODEL_MODEL_H
#define MOEFLUX_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/config.h"
#include "model/spread.h"

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

#endif
