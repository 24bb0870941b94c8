#include "ops/matvec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "args.h"
#include "ops/exec.h"

/* Rows of a subgroup on a GPU: enough subgroups to fill the device come first, then reuse of the vector. */
static uint32_t rows_for(uint32_t n_rows, uint32_t tokens)
{
    if (tokens > 1)
        return 2;
    return n_rows >= 8192 ? 4 : n_rows >= 4096 ? 2 : 1;
}

static uint32_t round_down_pow2(uint32_t n)
{
    while (n & (n - 1))
        n &= n - 1;
    return n;
}

/* Subgroups of a workgroup: they share the copy of the vector, so many; but a software device has a few cores and
 * wants several workgroups for each. Powers of two only, because every other number is a pipeline more to make. */
static uint32_t subgroups_for(bool wide, uint32_t subgroup, uint32_t n_rows, uint32_t block)
{
    if (!wide)
        return (uint32_t)size_max(1, 256 / subgroup);
    return n_rows >= 32 * block ? 8 : n_rows >= 8 * block ? 2 : 1;
}

struct matvec_plan matvec_plan_for(const struct exec *x, uint32_t n_rows, uint32_t tokens, uint32_t formats)
{
    struct exec_caps c = exec_get_caps(x);
    bool wide = c.is_cpu && c.has_int64;
    uint32_t rows = wide ? 4 : rows_for(n_rows, tokens);
    uint32_t block = rows * (wide ? c.subgroup_size : 1);
    uint32_t subgroups = (uint32_t)size_min(subgroups_for(wide, c.subgroup_size, n_rows, block),
                                            c.max_workgroup / c.subgroup_size);
    /* The tile of vectors may take half of shared memory (16 bytes hold four columns, one in 32 is padding). */
    uint32_t tile = round_down_pow2(c.max_shared_bytes / 2 / (4 * tokens) - 64 / tokens);
    return (struct matvec_plan){
        .spec = {c.subgroup_size, subgroups * c.subgroup_size, rows, tokens, tile, formats},
        .workgroup_rows = subgroups * block,
        .workgroup = subgroups * c.subgroup_size,
        .tokens = tokens,
        .wide = wide};
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
