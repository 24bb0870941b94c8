#include "convert/settings.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "args.h"
#include "base/err.h"
#include "base/format.h"
#include "model/config.h"
#include "model/quant_config.h"

/* Bits of a recipe: for most matrices, and for those that it considers more sensitive. */
static const struct {
    uint32_t low, high;
} recipes[] = {
    [CONVERT_MIXED_2_6] = {2, 6},
    [CONVERT_MIXED_3_4] = {3, 4},
    [CONVERT_MIXED_3_6] = {3, 6},
    [CONVERT_MIXED_4_6] = {4, 6},
};

bool convert_settings_given(const struct convert_settings *s)
{
    return s->half_scales || s->bits || s->group || s->expert_bits || s->expert_group || s->mode ||
           s->expert_mode || s->recipe || s->rule;
}

bool convert_settings_give_bits(const struct convert_settings *s)
{
    return s->bits || s->expert_bits || s->recipe || s->mode > CONVERT_MODE_AFFINE ||
           s->expert_mode > CONVERT_MODE_AFFINE;
}

static int check_bits(const char *flag, uint32_t bits, struct moeflux_err *e)
{
    char known[FORMAT_LIST_TEXT];
    if (!bits || format_find_affine(bits, 64, SCALE_BF16) != FORMAT_NONE)
        return 0;
    return err_set(e, ERR_USAGE, "%s: expected %s, found %u", flag, format_list_bits(known), bits);
}

static int check_group(const char *flag, uint32_t group, struct moeflux_err *e)
{
    char known[FORMAT_LIST_TEXT];
    if (!group || format_has_group(group))
        return 0;
    return err_set(e, ERR_USAGE, "%s: expected %s, found %u", flag, format_list_groups(known), group);
}

_Static_assert((int)CONVERT_MODE_NVFP4 - (int)CONVERT_MODE_AFFINE == (int)QUANT_NVFP4,
               "modes in the order of QUANT_*");

static const char *mode_name(enum convert_mode mode)
{
    return quant_config_mode_name((enum quant_mode)(mode - CONVERT_MODE_AFFINE));
}

/* Checks that bits and group are not given with a mode other than affine, which has its own. */
static int check_mode(const char *flag, enum convert_mode mode, const char *other, bool has_other,
                      struct moeflux_err *e)
{
    if (mode <= CONVERT_MODE_AFFINE || !has_other)
        return 0;
    return err_set(e, ERR_USAGE, "%s %s and %s exclude each other", flag, mode_name(mode), other);
}

static int check_modes(const struct convert_settings *s, struct moeflux_err *e)
{
    int rc = check_mode("`mode`", s->mode, "`bits`", s->bits, e);
    if (rc == 0)
        rc = check_mode("`mode`", s->mode, "`group`", s->group, e);
    if (rc == 0)
        rc = check_mode("`mode`", s->mode, "`recipe`", s->recipe, e);
    if (rc == 0)
        rc = check_mode("`expert_mode`", s->expert_mode, "`expert_bits`", s->expert_bits, e);
    if (rc == 0)
        rc = check_mode("`expert_mode`", s->expert_mode, "`expert_group`", s->expert_group, e);
    return rc < 0 ? rc : check_mode("`expert_mode`", s->expert_mode, "`recipe`", s->recipe, e);
}

int convert_settings_check(const struct convert_settings *s, struct moeflux_err *e)
{
    int rc = check_bits("`bits`", s->bits, e);
    if (rc == 0)
        rc = check_bits("`expert_bits`", s->expert_bits, e);
    if (rc == 0)
        rc = check_group("`group`", s->group, e);
    if (rc == 0)
        rc = check_group("`expert_group`", s->expert_group, e);
    if (rc == 0 && s->recipe && (s->bits || s->expert_bits))
        rc =
            err_set(e, ERR_USAGE, "`recipe` and %s exclude each other", s->bits ? "`bits`" : "`expert_bits`");
    return rc < 0 ? rc : check_modes(s, e);
}

/* Returns whether a layer is in the first or last eighth, or one of every third between them. */
static bool is_sensitive_layer(const struct config *c, uint32_t layer)
{
    uint32_t eighth = c->n_layers / 8;
    return layer < eighth || layer >= 7 * c->n_layers / 8 || (layer - eighth) % 3 == 2;
}

/* Returns the bits of a matrix by mlx_lm's mixed_quant_predicate: more for lm_head, and in some layers for
 * value and down projections. */
static uint32_t recipe_bits(enum convert_recipe recipe, const struct config *c, const char *name)
{
    unsigned layer = 0;
    bool value = strstr(name, "v_proj") || strstr(name, "v_a_proj") || strstr(name, "v_b_proj");
    bool in_layer = sscanf(name, "model.layers.%u.", &layer) == 1;
    bool more = in_layer && (value || strstr(name, "down_proj")) && is_sensitive_layer(c, layer);
    return more || strstr(name, "lm_head") ? recipes[recipe].high : recipes[recipe].low;
}

static void set_mode(struct convert_wish *w, enum convert_mode mode, const char *asked)
{
    w->format = quant_config_mode_format((enum quant_mode)(mode - CONVERT_MODE_AFFINE));
    w->has_mode = true;
    w->bits = format_of(w->format)->bits;
    w->group = 0;
    w->asked = asked;
}

struct convert_wish convert_settings_matrix(const struct convert_settings *s, const struct config *c,
                                            const char *name)
{
    struct convert_wish w = {.bits = s->bits, .group = s->group, .asked = "`bits`", .asked_group = "`group`"};
    if (s->recipe) {
        w.bits = recipe_bits(s->recipe, c, name);
        w.asked = "`recipe`";
    }
    if (s->mode > CONVERT_MODE_AFFINE)
        set_mode(&w, s->mode, "`mode`");
    return w;
}

struct convert_wish convert_settings_experts(const struct convert_settings *s, const struct config *c,
                                             uint32_t layer, bool down)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%u.mlp.switch_mlp.%s", layer, down ? "down_proj" : "up_proj");
    struct convert_wish w = convert_settings_matrix(s, c, name);
    if (s->expert_bits || s->expert_group || s->expert_mode == CONVERT_MODE_AFFINE) {
        w.bits = w.has_mode ? 0 : w.bits;
        w.has_mode = false;
    }
    if (s->expert_mode > CONVERT_MODE_AFFINE) {
        set_mode(&w, s->expert_mode, "`expert_mode`");
        w.by_expert_bits = true;
    }
    if (s->expert_bits) {
        w.bits = s->expert_bits;
        w.by_expert_bits = true;
        w.asked = "`expert_bits`";
    }
    if (s->expert_group) {
        w.group = s->expert_group;
        w.asked_group = "`expert_group`";
    }
    return w;
}

uint64_t convert_settings_hash(const struct convert_settings *s, uint64_t seed)
{
    const uint32_t said[] = {
        s->bits,           s->group,          s->expert_bits,           s->expert_group, (uint32_t)s->recipe,
        (uint32_t)s->rule, (uint32_t)s->mode, (uint32_t)s->expert_mode, s->half_scales};
    return convert_settings_given(s) ? XXH3_64bits_withSeed(said, sizeof said, seed) : seed;
}
