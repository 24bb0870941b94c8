#include "model/quant_groups.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "args.h"
#include "base/err.h"
#include "base/json.h"

enum { PATTERN = 256, NVFP4_BITS = 4, NVFP4_GROUP = 16, FP8_BITS = 8, MAX_BLOCK = 1 << 20 };

void quant_groups_find(struct quant_groups *g, struct json_view *block, uint32_t all)
{
    const json_t *ignore = json_view_get(block, "ignore");
    const json_t *groups = json_view_get(block, "config_groups");
    if (!ignore)
        ignore = json_view_get(block, "exclude_modules");
    g->groups = json_is_object(groups) ? groups : NULL;
    g->ignore = json_is_array(ignore) ? ignore : NULL;
    g->all = all;
}

bool quant_groups_say(const struct quant_groups *g)
{
    return g->groups || (g->ignore && g->all != FORMAT_NONE);
}

/* --- forms --- */

/* The weights of a group. */
struct form {
    const char *format, *type, *strategy;
    uint32_t bits, group;
    bool is_symmetric;
};

static struct form read_form(const json_t *group, struct json_view *block, struct json_view *weights)
{
    struct json_view own = json_view_of(group, block->where, block->e);
    const char *shared = json_view_text_or(block, "format", "none");
    struct form f = {.format = json_view_text_or(&own, "format", shared),
                     .type = json_view_text_or(weights, "type", "none"),
                     .strategy = json_view_text_or(weights, "strategy", "none"),
                     .bits = json_view_u32_or(weights, "num_bits", 0, 1, 64),
                     .group = json_view_u32_or(weights, "group_size", 0, 1, MAX_BLOCK),
                     .is_symmetric = json_view_bool_or(weights, "symmetric", true)};
    weights->rc = own.rc < 0 ? own.rc : weights->rc;
    return f;
}

static bool is_float(const struct form *f, uint32_t bits)
{
    return !strcmp(f->type, "float") && f->bits == bits && f->is_symmetric;
}

static bool is_nvfp4(const struct form *f)
{
    return is_float(f, NVFP4_BITS) && f->group == NVFP4_GROUP;
}

/* Reads the blocks of 8-bit floats. Returns false if there are none, or if another group has others. */
static bool read_blocks(const json_t *weights, struct fp8_blocks *fp8)
{
    const json_t *size = json_object_get(weights, "block_structure");
    json_int_t rows = json_integer_value(json_array_get(size, 0)),
               cols = json_integer_value(json_array_get(size, 1));
    if (json_array_size(size) != 2 || rows < 1 || cols < 1 || rows > MAX_BLOCK || cols > MAX_BLOCK)
        return false;
    struct fp8_blocks found = {(uint32_t)rows, (uint32_t)cols};
    bool is_same = !fp8->rows || (fp8->rows == found.rows && fp8->cols == found.cols);
    *fp8 = found;
    return is_same;
}

static int check_group(const char *name, const json_t *group, struct json_view *block, struct fp8_blocks *fp8)
{
    const json_t *weights = json_object_get(group, "weights");
    if (!json_is_object(weights)) /* null: it stays unquantised */
        return 0;
    struct json_view w = json_view_of(weights, block->where, block->e);
    const struct form f = read_form(group, block, &w);
    bool is_fp8 = is_float(&f, FP8_BITS) && !strcmp(f.format, "float-quantized");
    bool has_blocks = is_fp8 && !strcmp(f.strategy, "block") && read_blocks(weights, fp8);
    bool has_scales = !strcmp(f.strategy, "tensor") || !strcmp(f.strategy, "channel");
    if (w.rc < 0 || (is_fp8 && (has_scales || has_blocks)) ||
        (is_nvfp4(&f) && !strcmp(f.format, "nvfp4-pack-quantized")))
        return w.rc;
    return err_set(
        block->e, ERR_UNSUPPORTED,
        "%s: compressed-tensors: %.64s: format %.32s, type %.32s, %u bits, group of %u, strategy %.32s%s; "
        "expected nvfp4-pack-quantized: float, 4 bits, group of 16; or float-quantized: float, 8 bits, "
        "strategy tensor, channel or block with one block_structure",
        block->where, name, f.format, f.type, f.bits, f.group, f.strategy,
        f.is_symmetric ? "" : ", not symmetric");
}

int quant_groups_check(const struct quant_groups *g, struct json_view *block, struct fp8_blocks *fp8)
{
    const char *name;
    const json_t *group;
    json_object_foreach((json_t *)(uintptr_t)g->groups, name, group)
    {
        int rc = check_group(name, group, block, fp8);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- names --- */

/* Returns whether a pattern with `*` and `?` matches the whole name. Only the last star is tried again, which
 * suffices. */
static bool matches_pattern(const char *pattern, const char *name)
{
    const char *star = NULL, *from = NULL;
    while (*name)
        if (*pattern == '*') {
            star = ++pattern;
            from = name;
        } else if (*pattern == *name || (*pattern == '?' && *name)) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++from;
        } else {
            return false;
        }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

/* Writes a regular expression as a pattern. Returns false if it has more than patterns have. */
static bool pattern_of(const char *re, char out[PATTERN])
{
    size_t n = 0;
    bool has_end = false;
    re += *re == '^';
    for (; *re && !has_end && n + 2 < PATTERN; re++) {
        if (strchr("()[]{}|+*?", *re) || (*re == '\\' && re[1] != '.'))
            return false;
        if (re[0] == '.' && re[1] == '*') {
            out[n++] = '*';
            re++;
        } else if (*re == '\\') {
            out[n++] = *++re;
        } else if (*re == '$') {
            has_end = true;
        } else if (*re == '.') {
            out[n++] = '?';
        } else {
            out[n++] = *re;
        }
    }
    if (!has_end)
        out[n++] = '*';
    out[n] = '\0';
    return *re == '\0';
}

static bool matches_target(const char *target, const char *name)
{
    char pattern[PATTERN];
    if (strncmp(target, "re:", 3) != 0)
        return matches_pattern(target, name);
    return pattern_of(target + 3, pattern) && matches_pattern(pattern, name);
}

/* Returns whether an entry of the list matches the name. Models with other parts have more before it. */
static bool matches(const json_t *list, const char *name)
{
    static const char *const parts[] = {"model.", "model.language_model.", "language_model.model."};
    char other[PATTERN];
    size_t k;
    const json_t *target;
    bool is_inner = !strncmp(name, parts[0], strlen(parts[0]));
    json_array_foreach((json_t *)(uintptr_t)list, k, target)
    {
        const char *text = json_string_value(target);
        if (text && matches_target(text, name))
            return true;
        for (int i = 0; text && i < 3; i++) {
            snprintf(other, sizeof other, "%s%s", is_inner ? parts[i] : "language_model.",
                     is_inner ? name + strlen(parts[0]) : name);
            if (matches_target(text, other))
                return true;
        }
    }
    return false;
}

/* Returns whether the list names any matrix. */
static bool has_linear(const json_t *list)
{
    size_t k;
    const json_t *target;
    json_array_foreach((json_t *)(uintptr_t)list, k, target) if (json_is_text(target, "Linear")) return true;
    return false;
}

static uint32_t format_of_group(const json_t *group)
{
    struct moeflux_err ignored = {0};
    const json_t *weights = json_object_get(group, "weights");
    struct json_view block = json_view_of(NULL, "", &ignored), w = json_view_of(weights, "", &ignored);
    if (!json_is_object(weights))
        return FORMAT_BF16;
    const struct form f = read_form(group, &block, &w);
    return is_nvfp4(&f) ? FORMAT_NVFP4_FACTOR : is_float(&f, FP8_BITS) ? FORMAT_FP8 : FORMAT_NONE;
}

uint32_t quant_groups_format(const struct quant_groups *g, const char *name)
{
    const char *key;
    const json_t *group;
    if (!quant_groups_say(g))
        return FORMAT_NONE;
    if (matches(g->ignore, name))
        return FORMAT_BF16;
    if (!g->groups)
        return g->all;
    for (int is_linear = 0; is_linear < 2; is_linear++) /* names before classes */
        json_object_foreach((json_t *)(uintptr_t)g->groups, key, group)
        {
            const json_t *targets = json_object_get(group, "targets");
            if (is_linear ? has_linear(targets) : matches(targets, name))
                return format_of_group(group);
        }
    return FORMAT_BF16;
}
