/* settings.h - the formats that a conversion shall write, as the user asks for them. */
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
    CONVERT_MODE_DEFAULT, /* affine; of the experts that of the rest */
    CONVERT_MODE_AFFINE,
    CONVERT_MODE_MXFP4,
    CONVERT_MODE_MXFP8,
    CONVERT_MODE_NVFP4,
};

enum convert_rule { CONVERT_RULE_DEFAULT, CONVERT_RULE_MINMAX, CONVERT_RULE_SEARCH };

/* The relative root mean square error that a GGUF file's numbers may get unless bits are asked for, or
 * `lossy`. */
#define CONVERT_MAX_LOSS 0.04

/* All zero: as MLX quantises by itself, and a quantised source is copied. */
struct convert_settings {
    uint32_t bits, group;                /* of all but the routed experts; 0: not said */
    uint32_t expert_bits, expert_group;  /* 0: as those of the rest, where they are said */
    enum convert_mode mode, expert_mode; /* others than affine have their own bits and groups */
    enum convert_recipe recipe;          /* in place of bits */
    enum convert_rule rule;              /* default: search where anything else is said */
    bool half_scales; /* of a GGUF file: scales that float16 does not hold are rounded to it */
    bool lossy;       /* of a GGUF file: what is lost is not limited */
};

/* Bits and columns of a group for a matrix; 0: not said. */
struct convert_wish {
    uint32_t bits, group;
    bool has_mode; /* then FORMAT_* follows from it, and its bits */
    uint32_t format;
    bool by_expert_bits;             /* --expert-bits or --expert-mode says it */
    const char *asked, *asked_group; /* the flags, for messages */
};

/* Whether anything is said; whether of some matrices how many bits. */
bool convert_settings_given(const struct convert_settings *s);
bool convert_settings_give_bits(const struct convert_settings *s);

/* ERR_USAGE: bits or a group that no format has, or two flags that exclude each other. */
int convert_settings_check(const struct convert_settings *s, struct moeflux_err *e);

/* For the matrix with this canonical name: the tensor's, without the ending or with it. */
struct convert_wish convert_settings_matrix(const struct convert_settings *s, const struct config *c,
                                            const char *name);
/* For a layer's routed experts: gate and up, or down. */
struct convert_wish convert_settings_experts(const struct convert_settings *s, const struct config *c,
                                             uint32_t layer, bool down);

/* Mixed into the identity of a conversion: another number for other settings. */
uint64_t convert_settings_hash(const struct convert_settings *s, uint64_t seed);

#endif
