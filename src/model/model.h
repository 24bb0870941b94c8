/* model.h - a model on disk as data: its tensors, files, expert layouts, and struct model_dir, which holds
 * them. Types alone: model_dir.h opens a model, model_dir_find.h and model_dir_read.h look into an open
 * one. */
#ifndef MOEFLUX_MODEL_MODEL_H
#define MOEFLUX_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/open_file.h"
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
    DTYPE_F8_E8M0,
    DTYPE_I64,
    DTYPE_I8,
    DTYPE_OTHER, /* known, but not supported */
    DTYPE_GGUF,  /* any type of a GGUF file; counts as float32 (convert/gguf/source.h) */
    DTYPE_BLOCKS /* a GGUF file's blocks as they lie; the format says which */
};

enum { TENSOR_MAX_DIMS = 8 };

/* How MLX quantises: codes with scales and biases, or small floats with scales alone. */
enum quant_mode { QUANT_AFFINE, QUANT_MXFP4, QUANT_MXFP8, QUANT_NVFP4 };

/* A tensor that a fused tensor of the file contains in pieces. The fused one is n_blocks blocks of `period`
 * bytes, and every run of a block is a piece. The tensor is the pieces of run 0 of all blocks, then those of
 * run 1, and so on. n_runs 0: the tensor is contiguous. */
enum { TENSOR_MAX_RUNS = 3 };
struct tensor_pieces {
    uint32_t n_runs;
    uint64_t period, n_blocks;
    struct {
        uint64_t from, bytes; /* offset in the block, length */
    } runs[TENSOR_MAX_RUNS];
};

/* What reading a vector changes in its numbers. */
enum tensor_change {
    TENSOR_AS_IS,
    TENSOR_LOG_OF_NEGATED, /* log(-x) */
    TENSOR_LOG             /* log(x) */
};

/* Which part of a GGUF file's NVFP4 blocks a tensor is (nvfp4.h). Its shape, bytes and pieces are those of
 * the codes or of the scales alone; off is that of the first block. */
enum tensor_blocks { TENSOR_NO_BLOCKS, TENSOR_BLOCK_CODES, TENSOR_BLOCK_SCALES };

/* The number by which a matrix's 8-bit scales are multiplied (nvfp4.h). It is the content of a tensor
 * .global_scale that has one. */
struct tensor_factor {
    bool is_there;
    float by;
};

struct tensor {
    char *name;         /* canonical */
    const char *source; /* a GGUF file's name for it, in the memory of `name`; NULL: there is none */
    enum dtype dtype;
    uint32_t n_dims;
    uint64_t shape[TENSOR_MAX_DIMS];
    /* quantised weights (U32) only, else 0: bits of a code; columns that share a scale */
    uint32_t bits, group;
    enum quant_mode mode; /* quantised weights only */
    /* FORMAT_* of a quantised weight, also in its scales and biases; else FORMAT_NONE */
    uint32_t format;
    uint32_t file; /* index into model_dir.files */
    /* off: from the file's start; of a tensor in pieces, where its first block begins */
    uint64_t off, bytes;
    struct tensor_pieces pieces;
    enum tensor_change change;
    enum tensor_blocks of_blocks;
    struct tensor_factor factor;
};

/* Size of the blocks of weights that share a scale in a checkpoint with 8-bit floats (fp8.h); 0 in others. */
struct fp8_blocks {
    uint32_t rows, cols;
};

struct matrix {      /* W [rows][cols]; borrowed from the model_dir */
    uint32_t format; /* FORMAT_*; FORMAT_NONE: 8-bit floats; fp8_format says what they become */
    uint32_t rows, cols;
    const struct tensor *weight;
    /* NULL where the format has none; a format with a factor has it in `biases` */
    const struct tensor *scales, *biases;
};

/* How a run of bytes in a file becomes bytes of a slot (extent_rule.h), if they are not the same. */
enum extent_change {
    EXTENT_SAME,
    EXTENT_ROWS,    /* interleaved rows of gate and up */
    EXTENT_CENTRED, /* BF16 scales of codes around 0 (packed.h); the slot has biases too */
    /* one scale for a block of rows and columns; the slot has float32 for each group of a row */
    EXTENT_BLOCKS,
    /* NVFP4 blocks; the slot has codes, scales and the factor of the expert's matrix */
    EXTENT_NVFP4,
    EXTENT_FACTOR, /* 8-bit scales, in the slot followed by the factor of the expert's matrix (format.h) */
};
struct extent_rule {
    enum extent_change change;
    uint64_t at, end; /* range of the slot that the run fills, in bytes */
    /* the second matrix's, the biases' or the factor's place in the slot; EXTENT_ROWS: a row's length */
    uint64_t second_at, row_bytes;
    uint32_t scale;       /* SCALE_* of the run's numbers; SCALE_NONE: they are codes */
    uint32_t scale_bytes; /* EXTENT_BLOCKS: bytes of a scale */
    /* EXTENT_BLOCKS: rows and columns of a block; columns of a group; shape of the weights */
    uint32_t block_rows, block_cols, group, rows, cols;
    uint64_t scales_at; /* EXTENT_NVFP4: place of the scales in the slot */
};

/* One contiguous run of an expert's bytes. */
struct extent {
    uint32_t file; /* index into model_dir.files */
    uint64_t off;  /* bytes from the file's start */
    uint64_t bytes;
    uint64_t at; /* its place in the expert's slot: bytes from the slot's start; unused with a rule */
    const struct extent_rule *rule; /* NULL: the slot gets the bytes as they are */
    uint64_t from;                  /* bytes of the run before this extent; used by a rule */
    struct tensor_factor factor;    /* used by EXTENT_FACTOR and EXTENT_NVFP4 */
};
enum { EXPERT_MAX_EXTENTS = 9 };

/* FORMAT_* of each projection. gate and up have the same format, since one operation
 * computes both. */
struct expert_formats {
    uint32_t gate, up, down;
};

/* Places of an expert's weights (_w), scales (_s) and biases (_b) in a slot, in bytes from its start. All
 * experts of a layer have the same. Formats without biases have empty ones. gate, up: [moe_inner][hidden];
 * down: [hidden][moe_inner]. */
struct expert_layout {
    struct expert_formats formats;
    uint64_t gate_w, gate_s, gate_b, up_w, up_s, up_b, down_w, down_s, down_b;
    uint64_t bytes; /* size of the whole expert */
    /* each run has whole blocks of EXPERT_BLOCK bytes to itself (expert_places.h) */
    bool owns_blocks;
};

struct model_dir {
    char *path;
    bool packed;
    bool is_drafter; /* only the checkpoint's drafter (drafter.h) */
    /* A GGUF file of the drafter alone; NULL: the model has it. Borrowed, used while the model is opened */
    const char *drafter_file;
    bool has_drafter; /* its files have one */
    bool is_gguf;
    bool is_sketch;  /* has no files (sketch.h) */
    bool is_assumed; /* a sketch whose formats are assumed */
    struct config config;
    struct fp8_blocks fp8;
    bool norms_less_one; /* norms are stored minus 1 (checkpoint.h) */
    struct open_file *files;
    uint32_t n_files;
    struct tensor *tensors; /* [n_tensors], sorted by name */
    size_t n_tensors;
    size_t n_left_out;             /* tensors of a checkpoint that are of parts that are not read: vision */
    struct expert_layout *experts; /* [n_layers]; bytes 0: a layer without experts */
    uint64_t max_expert_bytes;     /* size of the largest expert, so of a slot for any */
    char *tokenizer_path;          /* tokenizer.json, tiktoken.model or the GGUF file; NULL: none */
    uint64_t dense_bytes;          /* all tensors except the routed experts and the tables */
    uint64_t table_bytes;          /* n-gram tables, whose rows are read from disk */
    uint64_t expert_bytes;         /* all routed experts on disk */
    struct spread_dirs parts;      /* directories of the experts; plain: one */
    struct expert_place *places;   /* the layers' experts; private */
    bool has_rules;                /* some extents of experts have a rule */
    /* GGUF: experts may own blocks in a slot, and begin so many bytes after their start (expert_places.h) */
    bool may_own_blocks;
    uint32_t expert_lead;
};

#endif
