/* names.h - gives the tensors of every checkpoint canonical names: model.X and lm_head.X. */
#ifndef MOEFLUX_MODEL_NAMES_H
#define MOEFLUX_MODEL_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* Gives the canonical form of a checkpoint's tensor name in *out (caller frees). *out is NULL for a tensor
 * that is not part of the text model: vision tower, multi-token prediction (also layers >= n_layers), rotary
 * tables. is_bare: names that begin with neither model. nor lm_head. get model. before them. ERR_MEMORY. */
int names_canonical(const char *source, uint32_t n_layers, bool is_bare, char **out, struct moeflux_err *e);

/* Replaces the first occurrence of each part of a family's list (family.h) in *name. *name is the caller's,
 * and may be reallocated. ERR_MEMORY. */
int names_rename(char **name, const char *const (*renamed)[2], struct moeflux_err *e);
/* A table for it: the names of Mixtral's experts, which other models have, too. */
extern const char *const names_of_mixtral[][2];

/* Returns `name` with its last `cut` characters replaced by `tail`, in fresh memory; NULL with `e` filled. */
char *names_replace_end(const char *name, size_t cut, const char *tail, struct moeflux_err *e);

#endif
