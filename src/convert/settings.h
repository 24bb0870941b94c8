/* settings.h - the formats that the user requests of a conversion. */
#ifndef MOEFLUX_CONVERT_SETTINGS_H
#define MOEFLUX_CONVERT_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

struct config;
struct moeflux_err;

/* mlx_lm's mixes of bits: "mixed_3_6" and so on. */
enum convert_recipe {
    CONVERT_NO_RECIPE,
    CONVERT_MIXED_2_6,
    CONVERT_MIXED_3_4,
    CONVERT_MIXED_3_6,
    CONVERT_MIXED_4_6,
};

/* How numbers become codes: mlx's modes. */
enum convert_mode {
    CONVERT_MODE_DEFAULT, /* affine; experts: the mode of the rest */
    CONVERT_MODE_AFFINE,
    CONVERT_MODE_MXFP4,
    CONVERT_MODE_MXFP8,
    CONVERT_MODE_NVFP4,
};

enum convert_rule { CONVERT_RULE_DEFAULT, CONVERT_RULE_MINMAX, CONVERT_RULE_SEARCH };

/* The largest relative root mean square error of a GGUF file's numbers, unless bits are requested, or
 * `lossy`. */
#define CONVERT_MAX_LOSS 0.04

/* All zero: MLX's defaults, and a quantised source or a GGUF file's blocks are copied. */
struct convert_settings {
    uint32_t bits, group;                /* all tensors except routed experts; 0: not requested */
    uint32_t expert_bits, expert_group;  /* 0: those of the rest, if requested */
    enum convert_mode mode, expert_mode; /* modes other than affine have their own bits and groups */
    enum convert_recipe recipe;          /* replaces bits */
    enum convert_rule rule;              /* default: search if anything else is requested */
    bool half_scales;                    /* GGUF: scales that float16 does not represent are rounded to it */
    bool lossy;                          /* GGUF: the loss is not limited */
};

/* The format that is requested for a matrix: bits, and columns of a group; 0: not requested. */
struct convert_wish {
    uint32_t bits, group;
    bool has_mode;                   /* a mode is requested: format is set, bits are the mode's */
    uint32_t format;                 /* FORMAT_*, if has_mode */
    bool by_expert_bits;             /* --expert-bits or --expert-mode requests it */
    const char *asked, *asked_group; /* the flags, for messages */
};

/* Return whether anything is requested; whether a number of bits is, for some matrices. */
bool convert_settings_given(const struct convert_settings *s);
bool convert_settings_give_bits(const struct convert_settings *s);

/* Checks the settings. ERR_USAGE: bits or a group that no format has, or two flags that exclude each
 * other. */
int convert_settings_check(const struct convert_settings *s, struct moeflux_err *e);

/* Returns the request for the matrix with this canonical name, with or without the tensor's ending. */
struct convert_wish convert_settings_matrix(const struct convert_settings *s, const struct config *c,
                                            const char *name);
/* Returns the request for a layer's routed experts: gate and up, or down. */
struct convert_wish convert_settings_experts(const struct convert_settings *s, const struct config *c,
                                             uint32_t layer, bool down);

/* Returns a hash of the settings and `seed`, for the identity of a conversion. */
uint64_t convert_settings_hash(const struct convert_settings *s, uint64_t seed);

#endif
