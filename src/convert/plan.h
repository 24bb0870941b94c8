/* plan.h - what a conversion will do: every output tensor and where its bytes come from. Writes nothing. */
#ifndef MOEFLUX_CONVERT_PLAN_H
#define MOEFLUX_CONVERT_PLAN_H

#include "base/err.h"
#include "convert/encode.h"
#include "convert/settings.h"
#include "convert/gguf/source.h"
#include "model/model_dir.h"

struct format;
struct json_t;

enum convert_step {
    CONVERT_COPY,     /* the same bytes */
    CONVERT_WIDEN,    /* BF16 or F16 becomes F32 */
    CONVERT_PLUS_ONE, /* w + 1 in the tensor's dtype: norms that are stored around 0 */
    CONVERT_QUANTISE, /* a BF16, F16, F32, F8_E4M3 or quantised matrix becomes weight, scales and biases */
    CONVERT_NARROW,   /* a GGUF file's F16 or BF16 again, of the float32 that it is read as */
    CONVERT_REPACK,   /* a GGUF file's codes and scales, exactly, become weight, scales and biases */
};

struct convert_item {
    enum convert_step step;
    const struct tensor *src;             /* borrowed from the plan */
    const struct tensor *scales, *biases; /* ... of a quantised src that is quantised anew; else NULL */
    uint64_t n;              /* of src's elements, of a quantised one the numbers that its codes stand for */
    uint32_t format;         /* when quantised or repacked: FORMAT_*, what it becomes */
    enum convert_class kind; /* when quantised */
    uint32_t n_out;          /* when quantised 3, weight, scales, biases, or 2 without biases; else 1 */
    struct tensor out[3];    /* as they will lie in model_weights.bin */
};

/* What one flag asked of a quantised source. */
struct convert_choice {
    uint32_t n_lowered;       /* matrices that get fewer bits */
    uint32_t n_fewer;         /* ... that have fewer than asked already, and stay */
    struct moeflux_err unmet; /* says it of the first that stays though it has not what was asked for */
};

struct convert_plan {
    struct convert_settings settings;
    enum convert_scales rule;
    struct convert_choice choice[2]; /* of --bits, --mode or --recipe; of --expert-bits or --expert-mode */
    struct model_dir src;            /* canonical names; for an unquantised source without expert places */
    struct gguf_source gguf;         /* where is_gguf: the source is a GGUF file, or a split set */
    bool is_gguf;
    bool quantised;        /* the source holds MLX codes already */
    bool mxfp4_experts;    /* its experts are mxfp4, and nothing else is quantised */
    bool plus_one;         /* its norms are stored around 0 */
    uint32_t bits, group;  /* of ordinary matrices */
    struct json_t *config; /* config.json, and its text */
    char *config_text;
    size_t config_len;
    struct convert_item *items;
    size_t n_items, cap_items;
    uint64_t weights_bytes; /* of model_weights.bin */
    uint64_t dense_source_bytes;
    struct expert_layout *experts; /* [n_layers]; bytes 0: a layer without experts */
    uint64_t max_expert_bytes;
    uint64_t expert_room; /* to make one: its bytes, and behind them what is read of the source as a whole */
    uint32_t n_expert_layers;
    uint64_t expert_source_bytes; /* of all layers' experts */
    uint64_t identity;            /* of the source's files and config: changes when they change */
};

/* Elements first .. first + n - 1 of a tensor: one expert's matrix in a source that is not MLX's. Of codes
 * the numbers that they stand for. */
struct convert_run {
    const struct tensor *t;
    uint64_t first, n;
    /* col_step not 0: number c of row r is element skip + row_step r + col_step c of `block` elements, the
     * first of which is `first`. */
    uint64_t cols, block, skip, row_step, col_step;
    const struct tensor *scales; /* of codes */
};

enum convert_proj { CONVERT_GATE, CONVERT_UP, CONVERT_DOWN };

/* Bytes of a layer's experts in the source. */
uint64_t convert_plan_layer_source(const struct convert_plan *p, uint32_t layer);
/* Whether a quantised source's experts of the layer become others. */
bool convert_plan_changes(const struct convert_plan *p, uint32_t layer);

/* ERR_USAGE: as convert_settings_check and choose.h. */
int convert_plan_open(struct convert_plan *p, const char *src, const struct convert_settings *s,
                      struct moeflux_err *e);
void convert_plan_close(struct convert_plan *p);

/* Bytes of n numbers of a source tensor in its file. */
uint64_t convert_plan_bytes(const struct convert_plan *p, const struct tensor *t, uint64_t n);

/* Reads elements of a source tensor, 8-bit floats as BF16, a GGUF file's as F32: convert_plan_dtype is what
 * they are afterwards. `out` has room for 4 bytes an element. */
enum dtype convert_plan_dtype(const struct tensor *t);
int convert_plan_read(const struct convert_plan *p, const struct tensor *t, uint64_t first, uint64_t n,
                      void *out, struct moeflux_err *e);

/* ERR_UNSUPPORTED: what a GGUF file's numbers lose in this format is more than is taken without being asked
 * for (settings.h). sum: of some of the tensor's numbers. */
int convert_plan_check_error(const struct convert_plan *p, const struct tensor *t, uint32_t format,
                             const struct convert_error *sum, struct moeflux_err *e);

/* Where an expert's gate, up or down matrix lies: in a fused or plain stack, or in a tensor of its own.
 * ERR_FORMAT: it is not there, or has another shape or dtype. Not of MLX's sources. */
int convert_plan_expert(const struct convert_plan *p, uint32_t layer, uint32_t expert, enum convert_proj proj,
                        struct convert_run *out, struct moeflux_err *e);

#endif
