#include "model/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/fp8.h"
#include "model/model.h"
#include "model/names.h"
#include "model/tensor.h"

/* A stack [n_experts][rows]: gate and up rows interleaved, beginning with gate, or down's rows. */
static const struct stack {
    const char *tail, *names[2];
    uint32_t n_dims;
} stacks[] = {
    {".gate_up_proj_blocks", {".gate_proj.weight", ".up_proj.weight"}, 4},
    {".gate_up_proj_scales", {".gate_proj.scales", ".up_proj.scales"}, 3},
    {".gate_up_proj_bias", {".gate_proj.bias", ".up_proj.bias"}, 2},
    {".down_proj_blocks", {".down_proj.weight", NULL}, 4},
    {".down_proj_scales", {".down_proj.scales", NULL}, 3},
    {".down_proj_bias", {".down_proj.bias", NULL}, 2},
};
enum { N_STACKS = sizeof stacks / sizeof *stacks, BLOCK_BYTES = 16, BLOCK_COLS = 32 };

static int check_stack(const struct tensor *t, const struct stack *s, const char *where,
                       struct moeflux_err *e)
{
    char found[TENSOR_SHAPE_TEXT];
    uint32_t n_parts = s->names[1] ? 2 : 1;
    bool is_block = s->n_dims == 4;
    bool ok = t->n_dims == s->n_dims && t->bytes > 0 && t->shape[1] % n_parts == 0 &&
              (s->n_dims == 2 || t->dtype == DTYPE_U8) && (!is_block || t->shape[3] == BLOCK_BYTES);
    tensor_shape_text(t, found);
    return ok ? 0
              : err_set(e, ERR_FORMAT, "%s: tensor %s: %s %s, expected %s of %u dimensions", where, t->name,
                        tensor_dtype_name(t->dtype), found,
                        is_block         ? "U8, blocks of 16 bytes"
                        : s->n_dims == 3 ? "U8"
                                         : "numbers",
                        s->n_dims);
}

/* Takes the gate rows (part 0), the up rows (part 1), or all rows of down. */
static int take_rows(const struct tensor *whole, const struct stack *s, uint32_t part, struct tensor *out,
                     struct moeflux_err *e)
{
    uint64_t n_parts = s->names[1] ? 2 : 1, n_rows = whole->shape[0] * whole->shape[1],
             row_bytes = whole->bytes / n_rows;
    size_t stem = strlen(whole->name) - strlen(s->tail);
    *out = *whole;
    out->shape[1] /= n_parts;
    out->bytes /= n_parts;
    if (s->n_dims == 4) { /* MLX has the same bytes as words */
        out->dtype = DTYPE_U32;
        out->n_dims = 3;
        out->shape[2] *= BLOCK_BYTES / sizeof(uint32_t);
        out->mode = QUANT_MXFP4;
        out->bits = 4;
        out->group = BLOCK_COLS;
    }
    if (n_parts == 2)
        out->pieces = (struct tensor_pieces){1, 2 * row_bytes, n_rows / 2, {{part * row_bytes, row_bytes}}};
    out->name = names_replace_end(whole->name, strlen(whole->name) - stem, s->names[part], e);
    return out->name ? 0 : ERR_MEMORY;
}

static int split_stack(struct tensor_list *l, size_t at, const struct stack *s, const char *where,
                       struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    int rc = check_stack(&whole, s, where, e);
    for (uint32_t i = 0; rc == 0 && i < 2 && s->names[i]; i++) {
        struct tensor part;
        rc = take_rows(&whole, s, i, &part, e);
        if (rc == 0 && i > 0)
            rc = tensor_list_add(l, &part, e);
        else if (rc == 0)
            l->items[at] = part;
    }
    if (l->items[at].name != whole.name)
        free(whole.name);
    return rc;
}

int stacks_split(struct tensor_list *l, const char *where, struct moeflux_err *e)
{
    size_t n = l->n; /* up rows are appended after these */
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        for (int k = 0; k < N_STACKS; k++)
            if (str_ends_with(l->items[i].name, stacks[k].tail)) {
                rc = split_stack(l, i, &stacks[k], where, e);
                break;
            }
    return rc;
}

/* ---- stacks of 8-bit floats ---- */

static const char STACK[] = ".switch_mlp.";

/* Takes expert i of a stack. */
static int take_expert(const struct tensor *whole, uint32_t i, struct tensor *out, struct moeflux_err *e)
{
    const char *at = strstr(whole->name, STACK), *proj = at + strlen(STACK);
    size_t n = strlen(whole->name) + sizeof ".experts.4294967295.";
    char *name = mem_new(n, 1, e);
    if (!name)
        return ERR_MEMORY;
    snprintf(name, n, "%.*s.experts.%u.%s", (int)(at - whole->name), whole->name, i, proj);
    *out = *whole;
    out->name = name;
    out->n_dims = 2;
    out->shape[0] = whole->shape[1];
    out->shape[1] = whole->shape[2];
    out->bytes = whole->bytes / whole->shape[0];
    out->off += i * out->bytes;
    return 0;
}

static int split_experts(struct tensor_list *l, size_t at, struct moeflux_err *e)
{
    const struct tensor whole = l->items[at];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < whole.shape[0]; i++) {
        struct tensor part;
        rc = take_expert(&whole, i, &part, e);
        if (rc == 0 && i > 0)
            rc = tensor_list_add(l, &part, e);
        else if (rc == 0)
            l->items[at] = part;
    }
    if (l->items[at].name != whole.name)
        free(whole.name);
    return rc;
}

int stacks_split_fp8(struct tensor_list *l, struct moeflux_err *e)
{
    size_t n = l->n;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct tensor *t = &l->items[i];
        bool is_codes = t->dtype == DTYPE_F8_E4M3 && str_ends_with(t->name, ".weight");
        if ((is_codes || fp8_is_scales(t)) && t->n_dims == 3 && t->bytes > 0 && strstr(t->name, STACK))
            rc = split_experts(l, i, e);
    }
    return rc;
}
