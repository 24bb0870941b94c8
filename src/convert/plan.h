/* plan.h - plans a conversion: every output tensor and where its bytes come from. Writes nothing. */
#ifndef MOEFLUX_CONVERT_PLAN_H
#define MOEFLUX_CONVERT_PLAN_H

#include "base/err.h"
#include "convert/encode.h"
#include "convert/settings.h"
#include "convert/gguf/source.h"
#include "model/expert_tensors.h"
#include "model/model_dir.h"

struct format;
struct json_t;

enum convert_step {
    CONVERT_COPY,     /* the same bytes; 8-bit floats become BF16, except those of a table */
    CONVERT_WIDEN,    /* BF16 or F16 becomes F32 */
    CONVERT_PLUS_ONE, /* w + 1 in the tensor's dtype: norms that are stored minus 1 */
    CONVERT_QUANTISE, /* a BF16, F16, F32, F8_E4M3 or quantised matrix becomes weight, scales and biases */
    CONVERT_NARROW,   /* a GGUF file's F16 or BF16, read as float32, becomes F16 or BF16 again */
    CONVERT_REPACK,   /* a GGUF file's codes and scales become weight, scales and biases, exactly */
    CONVERT_BLOCKS,   /* a GGUF file's blocks stay */
};

struct convert_item {
    enum convert_step step;
    const struct tensor *src; /* borrowed from the plan */
    /* borrowed: those of a quantised src that is requantised; else NULL */
    const struct tensor *scales, *biases;
    uint64_t n;              /* number of weights in src */
    uint32_t format;         /* CONVERT_QUANTISE, CONVERT_REPACK, CONVERT_BLOCKS: the new FORMAT_* */
    enum convert_class kind; /* CONVERT_QUANTISE only */
    uint32_t n_out;          /* quantised: weight, scales, and biases or a factor if there are any; else 1 */
    struct tensor out[3];    /* the tensors in model_weights.bin */
};

/* The effect of one flag on a quantised source. */
struct convert_choice {
    uint32_t n_lowered;       /* matrices that get fewer bits */
    uint32_t n_fewer;         /* matrices that have fewer bits than requested already, and stay */
    struct moeflux_err unmet; /* message about the first matrix that stays, although it is not as requested */
};

struct convert_plan {
    struct convert_settings settings;
    bool drafts; /* the source is a checkpoint's drafter (model/drafter.h), without embedding and head */
    const char *drafter_file; /* that of convert_options; borrowed */
    enum convert_scales rule;
    /* [0]: --bits, --mode or --recipe; [1]: --expert-bits or --expert-mode */
    struct convert_choice choice[2];
    struct model_dir src;    /* canonical names; an unquantised source has no expert places */
    struct gguf_source gguf; /* valid if src.is_gguf: the source is a GGUF file, or a split set */
    bool quantised;          /* the source holds MLX codes already */
    uint32_t expert_format;  /* FORMAT_* of its experts, if they alone have codes; else FORMAT_NONE */
    bool is_packed;          /* they are in the form of model/packed.h */
    uint32_t bits, group;    /* format of most matrices */
    struct json_t *config;   /* config.json, and its text */
    char *config_text;
    size_t config_len;
    struct convert_item *items;
    size_t n_items, cap_items;
    uint64_t weights_bytes; /* size of model_weights.bin */
    uint64_t dense_source_bytes;
    struct expert_layout *experts; /* [n_layers]; bytes 0: a layer without experts */
    uint64_t max_expert_bytes;
    uint64_t expert_room; /* bytes to make an expert: its own, then what is read whole from the source */
    uint32_t n_expert_layers;
    uint64_t expert_source_bytes; /* size of all layers' experts in the source */
    uint64_t identity;            /* a hash of the source's files and config */
};

/* Elements [first, first + n) of a tensor: one expert's matrix in a source that is not MLX's. Codes count by
 * the weights they stand for. */
struct convert_run {
    const struct tensor *t;
    uint64_t first, n;
    /* col_step > 0: column c of row r is element skip + row_step r + col_step c of `block` elements that
     * begin at `first`. */
    uint64_t cols, block, skip, row_step, col_step;
    const struct tensor *scales; /* if t has codes */
};

/* Returns the bytes of a layer's experts in the source. */
uint64_t convert_plan_layer_source(const struct convert_plan *p, uint32_t layer);
/* Returns whether the layer's experts of a quantised source change. */
bool convert_plan_changes(const struct convert_plan *p, uint32_t layer);

/* Opens the source and plans. ERR_USAGE: as for convert_settings_check and choose.h. */
int convert_plan_open(struct convert_plan *p, const char *src, const struct convert_settings *s,
                      struct moeflux_err *e);
/* Plans the conversion of its drafter: matrices that have more than 8 bits get 8. ERR_UNSUPPORTED: it has
 * none. */
int convert_plan_open_drafter(struct convert_plan *p, const char *src, const char *file,
                              struct moeflux_err *e);
/* Checks that nobody has written the source's files in place since they were opened. ERR_IO names one. */
int convert_plan_check_source(const struct convert_plan *p, struct moeflux_err *e);
void convert_plan_close(struct convert_plan *p);

/* Returns the bytes of n numbers of a source tensor in its file. */
uint64_t convert_plan_bytes(const struct convert_plan *p, const struct tensor *t, uint64_t n);

/* Reads elements of a source tensor. 8-bit floats become BF16, those of a GGUF file F32; convert_plan_dtype
 * returns the resulting dtype. `out` has room for 4 bytes per element. */
enum dtype convert_plan_dtype(const struct tensor *t);
int convert_plan_read(const struct convert_plan *p, const struct tensor *t, uint64_t first, uint64_t n,
                      void *out, struct moeflux_err *e);

/* Checks the loss of a GGUF file's numbers in this format. sum: errors of some of the tensor's numbers.
 * ERR_UNSUPPORTED: the loss is above the limit without --lossy or requested bits (settings.h). */
int convert_plan_check_error(const struct convert_plan *p, const struct tensor *t, uint32_t format,
                             const struct convert_error *sum, struct moeflux_err *e);

/* Finds an expert's gate, up or down matrix in a source that is not MLX's: in a fused or plain stack, or in a
 * tensor of its own. ERR_FORMAT: it is missing, or has another shape or dtype. */
int convert_plan_expert(const struct convert_plan *p, uint32_t layer, uint32_t expert, enum expert_proj proj,
                        struct convert_run *out, struct moeflux_err *e);

#endif
