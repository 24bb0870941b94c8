/* model_dir_read.h - reads the contents of an open model's tensors and experts, and checks that scales are
 * finite. */
#ifndef MOEFLUX_MODEL_MODEL_DIR_READ_H
#define MOEFLUX_MODEL_MODEL_DIR_READ_H

#include "model/model.h"

struct moeflux_err;
struct part_tensor;

/* Reads a tensor's bytes [from, from + n) into dst. ERR_FORMAT: a scale or bias (names ending in .scales or
 * .biases) is not finite. ERR_USAGE: the tensor has fewer bytes. */
int model_dir_read(const struct model_dir *m, const struct tensor *t, uint64_t from, uint64_t n, void *dst,
                   struct moeflux_err *e);

/* Returns whether n bytes, which are whole scales or biases from anywhere in `t`, are finite. */
bool model_dir_check_bytes(const struct tensor *t, const uint8_t *bytes, uint64_t n);
/* Checks a whole tensor that is in memory as model_dir_read does. */
int model_dir_check_tensor(const struct model_dir *m, const struct tensor *t, const uint8_t *bytes,
                           struct moeflux_err *e);

/* Reads a BF16, F16 or F32 tensor and widens it to float. Adds 1 to norms that are stored minus 1.
 * ERR_FORMAT: a value is not finite. */
int model_dir_read_f32(const struct model_dir *m, const struct tensor *t, float *dst, struct moeflux_err *e);

/* Reads a vector of a layer (part_tensors.h) as model_dir_read_f32 does. */
int model_dir_read_vector(const struct model_dir *m, uint32_t layer, const struct part_tensor *t, float *dst,
                          struct moeflux_err *e);

/* Reads experts by token, rows of `row` whole numbers (model_dir_ids). dst has room for 8 bytes a number.
 * ERR_FORMAT: a row names an expert twice, or one from n_experts on. */
int model_dir_read_ids(const struct model_dir *m, const struct tensor *t, uint32_t row, uint32_t n_experts,
                       uint32_t *dst, struct moeflux_err *e);

/* Lists the extents of one expert in ascending slot order, adjacent ones merged (packed: one in each part).
 * Returns their number; 0: a layer without experts. out: [EXPERT_MAX_EXTENTS]. */
uint32_t model_dir_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, struct extent *out);

/* Reads bytes [at, at + n) of an expert, from all its extents. Does not check that scales are finite. */
int model_dir_read_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, uint64_t at, uint64_t n,
                          uint8_t *dst, struct moeflux_err *e);

/* Checks the scales and biases of a whole expert in `slot`. ERR_FORMAT names layer, expert and part. */
int model_dir_check_expert(const struct model_dir *m, uint32_t layer, uint32_t expert, const uint8_t *slot,
                           struct moeflux_err *e);
/* Checks those in the expert's bytes [from, to), which hold whole numbers. */
int model_dir_check_expert_part(const struct model_dir *m, uint32_t layer, uint32_t expert,
                                const uint8_t *slot, uint64_t from, uint64_t to, struct moeflux_err *e);

#endif
