#include "selftest/kernel_test.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/f16.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/product.h"
#include "ops/linear/gemm_plan.h"
#include "selftest/random_blocks.h"

void kt_lock(struct kernel_test *l)
{
    if (l->share)
        pthread_mutex_lock(&l->share->lock);
}

void kt_unlock(struct kernel_test *l)
{
    if (l->share)
        pthread_mutex_unlock(&l->share->lock);
}

/* splitmix64 */
uint64_t kt_random(struct kernel_test *l)
{
    uint64_t z = (l->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float kt_uniform(struct kernel_test *l, float low, float high)
{
    return low + (high - low) * (float)(kt_random(l) >> 40) * 0x1p-24f;
}

struct test_buffer *kt_bytes(struct kernel_test *l, const void *bytes, uint64_t n)
{
    static struct test_buffer nothing; /* what a failed lab hands out; never written */
    if (l->err.code || l->n_buffers == KT_MAX_BUFFERS) {
        if (!l->err.code)
            err_set(&l->err, ERR_MEMORY, "selftest: more than %d buffers in one case", KT_MAX_BUFFERS);
        return &nothing;
    }
    struct test_buffer *t = &l->buffers[l->n_buffers++];
    void *zeros = bytes ? NULL : mem_new(n, 1, &l->err);
    for (int s = 0; s < KT_SIDES && !l->err.code; s++)
        if (exec_buffer_new(l->side[s], &t->on[s], EXEC_DEVICE, n, &l->err) == 0)
            exec_write(l->side[s], &t->on[s], 0, bytes ? bytes : zeros, n, &l->err);
    free(zeros);
    return t;
}

struct test_buffer *kt_floats(struct kernel_test *l, uint64_t n, float low, float high)
{
    float *v = mem_new(n, sizeof *v, &l->err);
    for (uint64_t i = 0; v && i < n; i++)
        v[i] = kt_uniform(l, low, high);
    struct test_buffer *t = kt_bytes(l, v, v ? n * sizeof *v : 0);
    free(v);
    return t;
}

/* The blocks of q8_0 have scales that differ much. */
static void random_row(struct kernel_test *l, enum kv_type type, uint32_t dim, float *row)
{
    float most = 1;
    for (uint32_t i = 0; i < dim; i++) {
        if (type == KV_TYPE_Q8_0 && i % KV_Q8_BLOCK == 0)
            most = kt_uniform(l, 0.1f, 1);
        row[i] = kt_uniform(l, -most, most);
    }
}

static uint64_t cache_bytes(const struct kt_rows *r)
{
    return r->off + r->n * kv_row_bytes(r->type, r->dim) + r->n_values * kv_row_bytes(r->type, r->value_dim);
}

struct test_buffer *kt_cache(struct kernel_test *l, const struct kt_rows *r)
{
    float *row = mem_new(size_max(r->dim, r->value_dim), sizeof *row, &l->err);
    uint8_t *all = mem_new(cache_bytes(r), 1, &l->err), *to = all ? all + r->off : NULL;
    for (uint64_t i = 0; row && all && i < r->n + r->n_values; i++) {
        uint32_t dim = i < r->n ? r->dim : r->value_dim;
        random_row(l, r->type, dim, row);
        kv_row_put(r->type, row, dim, to);
        to += kv_row_bytes(r->type, dim);
    }
    struct test_buffer *t = kt_bytes(l, all, all ? cache_bytes(r) : 0);
    free(row);
    free(all);
    return t;
}

static void put_scale(uint32_t scale, float x, void *scales, uint64_t i)
{
    uint16_t half = scale == SCALE_F16 ? f16_from_float(x) : bf16_from_float(x);
    uint8_t byte = (uint8_t)(127 + ilogbf(x)); /* E8M0 */
    int exponent = ilogbf(x) + 10;
    bool is_e4m3 = scale == SCALE_E4M3 || scale == SCALE_E4M3_FACTOR;
    if (is_e4m3)
        byte = (uint8_t)((exponent > 1 ? exponent : 1) * 8 + (int)(i % 8)); /* scales near 2^-3 */
    uint64_t bytes = scale == SCALE_F32 ? 4 : scale == SCALE_E8M0 || is_e4m3 ? 1 : 2;
    const void *from = bytes == 4 ? (const void *)&x : bytes == 1 ? (const void *)&byte : (const void *)&half;
    memcpy((uint8_t *)scales + i * bytes, from, bytes);
}

/* Scales, and biases that centre codes of `bits` bits around 0, for values with about 1 / sqrt(cols) of
 * spread. Affine scales have both signs. */
static void random_groups(struct kernel_test *l, const struct format *f, uint8_t *scales, uint8_t *biases,
                          uint64_t n, uint32_t cols)
{
    float top = f->has_bias ? (float)((1u << f->bits) - 1) : f->scheme == SCHEME_E2M1 ? 12 : 896;
    for (uint64_t i = 0; i < n; i++) {
        float s = kt_uniform(l, 0.5f, 1.5f) * 3.4f / (top * sqrtf((float)cols));
        if (f->has_bias && kt_random(l) & 1)
            s = -s;
        put_scale(f->scale, s, scales, i);
        if (f->has_bias)
            put_scale(f->scale, -s * top / 2, biases, i);
    }
}

/* Writes the matrix's factor, with which scales keep their size. */
static void random_factor(struct kernel_test *l, uint8_t *to)
{
    float factor = kt_uniform(l, 0.5f, 1.5f);
    memcpy(to, &factor, sizeof factor);
}

/* Codes at random, of 8-bit floats no NaN; plain numbers with 1 / sqrt(cols) of spread. */
static void random_numbers(struct kernel_test *l, uint32_t format, uint8_t *to, uint64_t bytes, uint32_t cols)
{
    const struct format *f = format_of(format);
    for (uint64_t i = 0; i < bytes / 2; i++) {
        float x = f->scheme == SCHEME_PLAIN ? kt_uniform(l, -1.7f, 1.7f) / sqrtf((float)cols) : 0;
        uint16_t half = format == FORMAT_BF16 ? bf16_from_float(x) : f16_from_float(x);
        if (f->scheme != SCHEME_PLAIN)
            half = (uint16_t)kt_random(l);
        if (f->scheme == SCHEME_E4M3)
            half &= 0xfbfb;
        memcpy(to + 2 * i, &half, 2);
    }
}

static uint32_t next_bits(void *ctx)
{
    return (uint32_t)kt_random(ctx);
}

/* Writes n bytes of a matrix on both sides, if it has such a part: to a buffer of its own, or to the case's
 * buffer of all matrices. at: the part's addresses. */
static void place_part(struct kernel_test *l, const void *bytes, uint64_t n, uint64_t at[KT_SIDES])
{
    uint64_t off = 0;
    if (l->err.code || n == 0)
        return;
    if (l->is_near && !l->near)
        l->near = kt_bytes(l, NULL, KT_NEAR_BYTES);
    const struct test_buffer *t = l->is_near ? l->near : kt_bytes(l, bytes, n);
    if (l->is_near) {
        off = l->near_used;
        l->near_used += size_round_up(n, 256);
        assert(l->near_used <= KT_NEAR_BYTES);
    }
    for (int s = 0; s < KT_SIDES && !l->err.code; s++) {
        if (l->is_near)
            exec_write(l->side[s], &t->on[s], off, bytes, n, &l->err);
        at[s] = t->on[s].address + off;
    }
}

/* Makes a matrix that is not of float32 numbers. */
static void random_parts(struct kernel_test *l, uint32_t format, uint64_t n, uint32_t cols,
                         uint64_t at[3][KT_SIDES])
{
    const struct format *f = format_of(format);
    uint64_t codes = format_code_bytes(f, n), scales = format_scale_bytes(f, n);
    uint64_t biases = format_bias_bytes(f, n);
    uint8_t *raw = mem_new(codes + scales + biases, 1, &l->err);
    if (!raw)
        return;
    if (format_is_block(format))
        random_blocks_fill(format, n / f->group, 1 / sqrtf((float)cols), next_bits, l, raw);
    else
        random_numbers(l, format, raw, codes, cols);
    if (scales)
        random_groups(l, f, raw + codes, raw + codes + scales, n / f->group, cols);
    if (f->has_factor)
        random_factor(l, raw + codes + scales);
    place_part(l, raw, codes, at[0]);
    place_part(l, raw + codes, scales, at[1]);
    place_part(l, raw + codes + scales, biases, at[2]);
    free(raw);
}

const char *kt_gating_name(float gating)
{
    if (gating == 0)
        return "";
    if (gating > 0)
        return gating >= GATING_RELU   ? ", ReLU"
               : gating >= GATING_GELU ? ", GELU"
               : gating >= GATING_SITU ? ", SiTU"
                                       : ", limited";
    return gating < -1e6f ? ", inputs clamped" : ", clamped";
}

void kt_matrix(struct kernel_test *l, uint32_t rows, uint32_t cols, uint32_t format,
               struct weights at[KT_SIDES])
{
    float most = 1.7f / sqrtf((float)cols);
    uint64_t parts[3][KT_SIDES] = {0};
    assert(!l->is_near || format != FORMAT_F32);
    if (format == FORMAT_F32) {
        const struct test_buffer *t = kt_floats(l, (uint64_t)rows * cols, -most, most);
        for (int side = 0; side < KT_SIDES; side++)
            parts[0][side] = t->on[side].address;
    } else {
        random_parts(l, format, (uint64_t)rows * cols, cols, parts);
    }
    for (int side = 0; side < KT_SIDES; side++)
        at[side] = (struct weights){.weight = parts[0][side],
                                    .scales = parts[1][side],
                                    .biases = parts[2][side],
                                    .rows = rows,
                                    .cols = cols,
                                    .format = format};
}

struct test_buffer *kt_lists(struct kernel_test *l, const struct kv_choice *choice, uint32_t pos, uint32_t n)
{
    uint64_t numbers = (uint64_t)n * kv_choice_stride(choice);
    uint32_t *lists = choice->ratio ? mem_new(numbers, sizeof *lists, &l->err) : NULL, *to = lists;
    uint32_t n_lists = kv_choice_n_lists(choice);
    if (!lists)
        return kt_bytes(l, NULL, 4);
    memset(lists, 0xff, numbers * sizeof *lists);
    for (uint32_t i = 0; i < n * n_lists; i++, to += choice->budget + 1) {
        uint32_t t = i / n_lists, left = choice->budget;
        if (pos + t < kv_choice_from(choice))
            continue;
        uint32_t n_blocks = kv_choice_n_ranked(choice, pos + t);
        for (uint32_t b = 0; b < n_blocks; b++)
            if (kt_random(l) % (n_blocks - b) < left)
                to[choice->budget - left--] = b;
        to[choice->budget] = n_blocks;
    }
    struct test_buffer *chosen = kt_bytes(l, lists, numbers * sizeof *lists);
    free(lists);
    return chosen;
}

struct test_buffer *kt_table(struct kernel_test *l, struct test_buffer *const *buffers, uint32_t n)
{
    struct test_buffer *t = kt_bytes(l, NULL, 8 * (uint64_t)n);
    for (int s = 0; s < KT_SIDES; s++)
        for (uint32_t i = 0; i < n && !l->err.code; i++)
            if (buffers[i])
                exec_write(l->side[s], &t->on[s], 8 * (uint64_t)i, &buffers[i]->on[s].address, 8, &l->err);
    return t;
}

bool kt_is_brief(const struct kernel_test *l)
{
    return l->request->grid != SELFTEST_FULL;
}

void kt_begin_group(struct kernel_test *l, uint32_t group)
{
    l->group = group;
    l->n_in_group = 0;
}

static bool takes_first(struct kernel_test *l, uint32_t at)
{
    struct kt_share *share = l->share;
    if (!share)
        return true;
    if (at >= share->n_cases || atomic_exchange(&share->taken[at], 1))
        return false;
    kt_lock(l);
    share->n_taken++;
    if (l->request->progress)
        l->request->progress(l->request->ctx, share->n_taken, share->n_cases);
    kt_unlock(l);
    return true;
}

bool kt_takes(struct kernel_test *l, bool is_rest)
{
    const enum selftest_grid grid = l->request->grid;
    const bool is_first = grid == SELFTEST_FIRST || grid == SELFTEST_SHORT;
    if (l->err.code || (is_first && is_rest) || (grid == SELFTEST_REST && !is_rest) ||
        (grid == SELFTEST_SHORT && l->is_long))
        return false;
    const uint32_t at = l->n_seen++;
    l->rng = 20250607 + ((uint64_t)l->group << 32) + l->n_in_group++;
    return !l->only_counts && takes_first(l, at);
}

int kt_n_sides(const struct kernel_test *l)
{
    return l->pass == KT_RECALL ? KT_REFERENCE : KT_SIDES;
}

void kt_finish(struct kernel_test *l, int side)
{
    if (l->err.code)
        exec_abandon(l->side[side]);
    else
        exec_finish(l->side[side], &l->err);
}

static int keep(struct kernel_test *l, const void *bytes, uint64_t n)
{
    if (mem_grow((void **)&l->kept, &l->room, l->n_kept + 1, sizeof *l->kept, &l->err) < 0)
        return ERR_MEMORY;
    void *copy = mem_new(n, 1, &l->err);
    if (!copy)
        return ERR_MEMORY;
    memcpy(copy, bytes, n);
    l->kept[l->n_kept++] = (struct kt_result){copy, n};
    return 0;
}

static int recall(struct kernel_test *l, void *bytes, uint64_t n)
{
    /* The cases of a host device depend on nothing but the seed. */
    assert(l->next < l->n_kept && l->kept[l->next].n_bytes == n);
    memcpy(bytes, l->kept[l->next++].bytes, n);
    return 0;
}

static int read_reference(struct kernel_test *l, const struct test_buffer *t, uint64_t n, void *bytes)
{
    if (l->pass == KT_RECALL)
        return recall(l, bytes, n);
    int rc = exec_read(l->side[KT_REFERENCE], &t->on[KT_REFERENCE], 0, bytes, n, &l->err);
    return rc == 0 && l->pass == KT_KEEP ? keep(l, bytes, n) : rc;
}

static int read_both(struct kernel_test *l, const struct test_buffer *t, uint64_t bytes, void *device,
                     void *reference)
{
    if (l->err.code || !device || !reference)
        return ERR_DEVICE;
    int rc = exec_read(l->side[KT_DEVICE], &t->on[KT_DEVICE], 0, device, bytes, &l->err);
    return rc < 0 ? rc : read_reference(l, t, bytes, reference);
}

double kt_error(struct kernel_test *l, const struct test_buffer *t, uint64_t n)
{
    float *a = mem_new(n, sizeof *a, &l->err), *b = mem_new(n, sizeof *b, &l->err);
    double worst = INFINITY, largest = 0;
    if (read_both(l, t, n * sizeof *a, a, b) == 0) {
        worst = 0;
        for (uint64_t i = 0; i < n; i++) {
            double d = fabs((double)a[i] - (double)b[i]);
            worst = isnan(worst) || d <= worst ? worst : d; /* a NaN wins, and stays */
            largest = fmax(largest, fabs((double)b[i]));
        }
        if (isnan(worst))
            worst = INFINITY;
    }
    free(a);
    free(b);
    return worst / (largest > 0 ? largest : 1);
}

/* Compares what two rows of q8_0 have in units of the reference's scales. Adds up the differences. A block
 * that is NaN on both sides has none. */
static double q8_row_error(const void *a, const void *b, uint32_t dim, double *sum)
{
    double worst = 0;
    for (uint32_t i = 0; i < dim; i++) {
        double unit = (double)kv_row_scale(b, dim, i / KV_Q8_BLOCK);
        double d =
            fabs((double)kv_row_get(KV_TYPE_Q8_0, a, dim, i) - (double)kv_row_get(KV_TYPE_Q8_0, b, dim, i));
        d = d == 0 || (isnan(unit) && isnan(kv_row_scale(a, dim, i / KV_Q8_BLOCK))) ? 0 : d / unit;
        worst = isnan(worst) || d <= worst ? worst : d; /* a NaN wins, and stays */
        *sum += d;
    }
    return worst;
}

static double row_error(enum kv_type type, uint32_t dim, const void *a, const void *b)
{
    double worst = 0;
    for (uint32_t i = 0; i < dim; i++) {
        double want = (double)kv_row_get(type, b, dim, i);
        double d = fabs((double)kv_row_get(type, a, dim, i) - want) / fmax(fabs(want), 1);
        worst = isnan(worst) || d <= worst ? worst : d;
    }
    return worst;
}

double kt_cache_error(struct kernel_test *l, const struct test_buffer *t, const struct kt_rows *r)
{
    uint64_t numbers = r->n * r->dim + r->n_values * r->value_dim, bytes = cache_bytes(r);
    if (r->type == KV_TYPE_F32)
        return kt_error(l, t, r->off / sizeof(float) + numbers);
    uint8_t *a = mem_new(bytes, 1, &l->err), *b = mem_new(bytes, 1, &l->err);
    double worst = INFINITY, sum = 0;
    if (read_both(l, t, bytes, a, b) == 0) {
        worst = memcmp(a, b, r->off) == 0 ? 0 : INFINITY;
        for (uint64_t i = 0, at = r->off; i < r->n + r->n_values; i++) {
            uint32_t dim = i < r->n ? r->dim : r->value_dim;
            double d = r->type == KV_TYPE_Q8_0 ? q8_row_error(a + at, b + at, dim, &sum)
                                               : row_error(r->type, dim, a + at, b + at);
            worst = isnan(worst) || d <= worst ? worst : d;
            at += kv_row_bytes(r->type, dim);
        }
        double mean = KT_MEAN_CODES * sum / (double)numbers;
        worst = isnan(worst) ? INFINITY : fmax(worst, mean);
    }
    free(a);
    free(b);
    return worst;
}

double kt_f16_error(struct kernel_test *l, const struct test_buffer *t, uint64_t n)
{
    return kt_cache_error(l, t, &(struct kt_rows){.n = n, .dim = 1, .type = KV_TYPE_F16});
}

double kt_difference(struct kernel_test *l, const struct test_buffer *t, uint64_t n)
{
    uint32_t *a = mem_new(n, sizeof *a, &l->err), *b = mem_new(n, sizeof *b, &l->err);
    double error = 1;
    if (read_both(l, t, n * sizeof *a, a, b) == 0)
        error = memcmp(a, b, n * sizeof *a) == 0 ? 0 : 1;
    free(a);
    free(b);
    return error;
}

void kt_clear(struct kernel_test *l)
{
    for (uint32_t i = 0; i < l->n_buffers; i++)
        for (int s = 0; s < KT_SIDES; s++)
            exec_buffer_free(l->side[s], &l->buffers[i].on[s]);
    l->n_buffers = 0;
    l->near = NULL;
    l->near_used = 0;
    l->is_near = false;
}

void kt_forget(struct kernel_test *l)
{
    for (size_t i = 0; i < l->n_kept; i++)
        free(l->kept[i].bytes);
    free(l->kept);
    l->kept = NULL;
    l->n_kept = l->room = 0;
}

static const char *device_name(const struct kernel_test *l)
{
    return l->heading[0] ? l->heading : exec_get_caps(l->side[KT_DEVICE]).name;
}

static void report_row(struct kernel_test *l, const struct selftest_row *row)
{
    if (!l->request->row)
        return;
    kt_lock(l);
    l->request->row(l->request->ctx, row);
    kt_unlock(l);
}

void kt_row(struct kernel_test *l, const char *kernel, const char *shape, double error, double bound)
{
    if (l->err.code)
        return;
    const struct selftest_row row = {kernel, shape, error, bound, error <= bound, false, device_name(l)};
    l->n_failed += !row.ok;
    report_row(l, &row);
}

void kt_report(struct kernel_test *l, const char *kernel, const char *shape, double error, double bound)
{
    kt_row(l, kernel, shape, error, bound);
    kt_clear(l);
}

void kt_skip(struct kernel_test *l, const char *kernel, const char *shape)
{
    const struct selftest_row row = {kernel, shape, 0, 0, true, true, device_name(l)};
    if (!l->err.code && !l->is_again)
        report_row(l, &row);
    kt_clear(l);
}

const uint32_t kt_formats[KT_N_FORMATS] = {FORMAT_Q4,
                                           FORMAT_Q8,
                                           FORMAT_BF16,
                                           FORMAT_F32,
                                           FORMAT_Q2,
                                           FORMAT_Q3,
                                           FORMAT_Q5,
                                           FORMAT_Q6,
                                           FORMAT_MXFP4,
                                           FORMAT_MXFP8,
                                           FORMAT_NVFP4,
                                           FORMAT_F16,
                                           FORMAT_Q2 + FORMAT_GROUP_128 + FORMAT_SCALE_F32,
                                           FORMAT_Q3 + FORMAT_GROUP_32 + FORMAT_SCALE_F16,
                                           FORMAT_Q4 + FORMAT_GROUP_32,
                                           FORMAT_Q4 + FORMAT_GROUP_128 + FORMAT_SCALE_F16,
                                           FORMAT_Q5 + FORMAT_GROUP_32 + FORMAT_SCALE_F32,
                                           FORMAT_Q6 + FORMAT_GROUP_128,
                                           FORMAT_Q8 + FORMAT_GROUP_32,
                                           FORMAT_Q8 + FORMAT_SCALE_F32,
                                           FORMAT_FP8,
                                           FORMAT_FP8_32,
                                           FORMAT_NVFP4_FACTOR};

const char *kt_format_name(uint32_t format)
{
    return format == FORMAT_G_MXFP4   ? "MXFP4 block"
           : format == FORMAT_G_NVFP4 ? "NVFP4 block"
                                      : format_of(format)->name;
}

bool kt_has_kernels(const struct kernel_test *l)
{
    return !exec_get_caps(l->side[KT_DEVICE]).is_host;
}

double kt_product_bound(const struct kernel_test *l, uint32_t n, uint32_t from)
{
    return n >= from && gemm_has_f16(l->side[KT_DEVICE]) ? KT_F16_BOUND : KT_PRODUCT_BOUND;
}

double kt_int16_bound(const struct kernel_test *l, uint32_t format, uint32_t n, double bound)
{
    bool is_int16 = exec_get_caps(l->side[KT_DEVICE]).has_int16 && n > CPU_FEW_TOKENS;
    return is_int16 && cpu_format_takes_int16(format) ? KT_INT16_BOUND : bound;
}
