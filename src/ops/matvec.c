#include "ops/matvec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "args.h"
#include "ops/exec.h"

struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n)
{
    static const uint32_t bits[] = {[FORMAT_Q4] = 4, [FORMAT_Q8] = 8, [FORMAT_BF16] = 16, [FORMAT_F32] = 32};
    uint64_t before = (uint64_t)first * w->cols, groups = before / 64 * sizeof(uint16_t);
    struct weights rows = *w;
    rows.weight += before * bits[w->format] / 8;
    rows.scales += w->scales ? groups : 0;
    rows.biases += w->biases ? groups : 0;
    rows.rows = n;
    return rows;
}

bool weights_are_plain(const struct weights *w)
{
    return w->format == FORMAT_BF16 || w->format == FORMAT_F32;
}

static uint32_t round_down_pow2(uint32_t n)
{
    while (n & (n - 1))
        n &= n - 1;
    return n;
}

/* Rows on lanes: the subgroups of a workgroup share the copy of the vector, so many; but a software device has a few
 * cores and wants several workgroups for each. Two numbers only, because every other one is a pipeline more to make. */
static void plan_wide(struct matvec_plan *p, const struct exec_caps *c, uint32_t n_rows)
{
    uint32_t block = 4 * c->subgroup_size;
    uint32_t subgroups = n_rows >= 32 * block ? 8 : 2;
    subgroups = (uint32_t)size_min(subgroups, c->max_workgroup / c->subgroup_size);
    p->spec[MATVEC_ROWS] = 4;
    p->spec[MATVEC_SPLIT] = 1;
    /* The tile of vectors may take half of shared memory (16 bytes hold four columns, one in 32 is padding). */
    p->spec[MATVEC_TILE] = round_down_pow2(c->max_shared_bytes / 2 / (4 * p->tokens) - 64 / p->tokens);
    p->workgroup = subgroups * c->subgroup_size;
    p->workgroup_rows = subgroups * block;
}

/* Equal tiles of at most half of shared memory. */
static uint32_t tile_for(const struct exec_caps *c, uint32_t cols, uint32_t tokens)
{
    uint32_t most = (c->max_shared_bytes / 2 / tokens - 128) / 4;
    most -= most % 64;
    return (uint32_t)size_round_up(div_up(cols, div_up(cols, most)), 64);
}

/* Columns on lanes: rows that share a subgroup save reads of the vector; subgroups that share rows make up for rows
 * that are few, so that a lane has one step or two, which it keeps in flight. */
static void plan_lanes(struct matvec_plan *p, const struct exec_caps *c, uint32_t n_rows, uint32_t cols)
{
    uint32_t tile = tile_for(c, cols, p->tokens), subgroup = c->subgroup_size;
    uint32_t lanes = (uint32_t)size_min(tile > 4096 ? 512 : 256, c->max_workgroup);
    uint32_t subgroups = (uint32_t)size_max(1, round_down_pow2(lanes / subgroup));
    uint32_t rows = p->tokens > 1 ? 2 : 4 / p->matrices;
    uint32_t split = 1;
    if (n_rows < 4096 && p->tokens == 1)
        while (split < 4 && split < subgroups && split * subgroup < div_up(tile, 32))
            split *= 2;
    if (n_rows < 2048 && p->matrices == 1)
        rows = 2;
    p->spec[MATVEC_ROWS] = rows;
    p->spec[MATVEC_SPLIT] = split;
    p->spec[MATVEC_TILE] = tile;
    p->workgroup = subgroups * subgroup;
    p->workgroup_rows = subgroups / split * rows;
}

struct matvec_plan matvec_plan_for(const struct exec *x, const struct matvec_shape *shape)
{
    struct exec_caps c = exec_get_caps(x);
    struct matvec_plan p = {.tokens = shape->tokens, .matrices = shape->matrices, .wide = c.has_wide};
    if (p.wide)
        plan_wide(&p, &c, shape->rows);
    else
        plan_lanes(&p, &c, shape->rows, shape->cols);
    p.spec[MATVEC_SUBGROUP] = c.subgroup_size;
    p.spec[MATVEC_WORKGROUP] = p.workgroup;
    p.spec[MATVEC_TOKENS] = shape->tokens;
    p.spec[MATVEC_FORMATS] = shape->formats;
    return p;
}

int matvec_kernel(struct exec *x, struct kernel *k, const char *name, void (*ref)(const void *args),
                  uint32_t args_bytes, const struct matvec_plan *p, struct err *e)
{
    char wide[64];
    snprintf(wide, sizeof wide, "%s_wide", name);
    return exec_kernel(x, k, p->wide ? wide : name, ref, args_bytes, p->spec, MATVEC_N_SPEC, e);
}

static double widen_bf16(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &word, 4);
    return (double)f;
}

static void affine_row(const struct weights *at, uint32_t row, uint32_t bits, double *out)
{
    const uint32_t *words = ref_words(at->weight) + (uint64_t)row * at->cols * bits / 32;
    const uint16_t *scales = (const uint16_t *)(uintptr_t)at->scales + (uint64_t)row * (at->cols / 64);
    const uint16_t *biases = (const uint16_t *)(uintptr_t)at->biases + (uint64_t)row * (at->cols / 64);
    uint32_t per = 32 / bits, mask = (1u << bits) - 1;
    for (uint32_t c = 0; c < at->cols; c++) {
        uint32_t code = (words[c / per] >> (c % per * bits)) & mask;
        /* Rounded to float32 once, as every reader of the format sees it. */
        out[c] = (double)(float)(code * widen_bf16(scales[c / 64]) + widen_bf16(biases[c / 64]));
    }
}

void matvec_ref_row(const struct weights *at, uint32_t row, double *out)
{
    if (at->format == FORMAT_Q4 || at->format == FORMAT_Q8) {
        affine_row(at, row, at->format == FORMAT_Q4 ? 4 : 8, out);
        return;
    }
    uint64_t first = (uint64_t)row * at->cols;
    for (uint32_t c = 0; c < at->cols; c++)
        out[c] = at->format == FORMAT_BF16 ? widen_bf16(((const uint16_t *)(uintptr_t)at->weight)[first + c])
                                           : (double)ref_floats(at->weight)[first + c];
}

double matvec_ref_dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

void matvec_ref_norm(const float *x, const float *norm, uint32_t n, double eps, double *out)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    double factor = norm ? 1 / sqrt(squares / n + eps) : 1;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (double)x[i] * factor * (norm ? (double)norm[i] : 1.0);
}

double ref_sigmoid(double x)
{
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

double ref_silu(double x)
{
    return x * ref_sigmoid(x);
}
