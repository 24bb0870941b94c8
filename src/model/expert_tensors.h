/* expert_tensors.h - finds the matrices of routed experts among the tensors of a checkpoint or a GGUF file.
 * They are stacks of all experts, stacks with gate above up, or tensors of one expert each. */
#ifndef MOEFLUX_MODEL_EXPERT_TENSORS_H
#define MOEFLUX_MODEL_EXPERT_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "model/model.h"

struct moeflux_err;

enum expert_proj { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_PROJS };

/* Returns "gate_proj", "up_proj" or "down_proj". */
const char *expert_tensors_proj(enum expert_proj proj);

/* Returns the first projection that experts have. */
static inline enum expert_proj expert_tensors_first(const struct config *c)
{
    return c->gateless ? EXPERT_UP : EXPERT_GATE;
}

/* One matrix of one expert: number `at` of `of` equal blocks of a tensor. */
struct expert_tensor {
    const struct tensor *t; /* codes or numbers; NULL: there is none */
    uint64_t at, of;
};

/* Returns whether a tensor with this name holds numbers of routed experts, or their biases. */
bool expert_tensors_has(const char *name);

/* Finds an expert's matrix. ERR_FORMAT: it is missing, or has another shape or dtype than BF16, F16, F32,
 * F8_E4M3, U32 with a format, or those of GGUF files. ERR_FORMAT, ERR_UNSUPPORTED: see fp8_scales. */
int expert_tensors_find(const struct model_dir *m, uint32_t layer, uint32_t expert, enum expert_proj proj,
                        struct expert_tensor *out, struct moeflux_err *e);

/* Returns whether it is a family's transposed stack (family.h). */
bool expert_tensors_by_columns(const struct model_dir *m, const struct tensor *t);

/* Returns the .scales or .biases (tail) of a quantised weight; NULL: there are none. */
const struct tensor *expert_tensors_part(const struct model_dir *m, const struct tensor *weight,
                                         const char *tail);

#endif
