#include "cpu_lab.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/f16.h"
#include "base/format.h"
#include "base/format_blocks.h"
#include "check.h"
#include "pages.h"
#include "selftest/random_blocks.h"

static void *room(uint64_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(p);
    return p;
}

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)(u >> 16);
}

const char *cpu_lab_format(uint32_t format, char out[CPU_LAB_NAME])
{
    snprintf(out, CPU_LAB_NAME, "%s%s", format_is_block(format) ? "g-" : "", format_of(format)->name);
    for (char *c = out; *c; c++)
        *c = (char)(*c == ' ' ? '-' : tolower(*c));
    return out;
}

static void put_scale(uint32_t scale, float v, void *to, uint64_t i)
{
    uint16_t half = scale == SCALE_F16 ? f16_from_float(v) : to_bf16(v);
    uint8_t *bytes = to;
    if (scale == SCALE_E8M0)
        bytes[i] = (uint8_t)(127 + ilogbf(v));
    else if (scale == SCALE_E4M3 || scale == SCALE_E4M3_FACTOR)
        bytes[i] = (uint8_t)((v < 0 ? 0x80 : 0) | (1 + (uint32_t)(fabsf(v) * 0x1p10f) % 100));
    else if (scale == SCALE_F32)
        memcpy(bytes + 4 * i, &v, sizeof v);
    else
        memcpy(bytes + 2 * i, &half, sizeof half);
}

static void fill_groups(struct cpu_lab *l, const struct format *f, uint64_t n, struct cpu_random *r)
{
    float middle = (float)((1u << f->bits) - 1) / 2;
    for (uint64_t i = 0; i < n; i++) {
        float s = 0.02f + cpu_random_float(r) * 0.01f;
        s = cpu_random_next(r) % 3 == 0 ? -s : s;
        put_scale(f->scale, s, l->scales, i);
        if (f->has_bias)
            put_scale(f->scale, -s * middle * (1 + cpu_random_float(r) / 8), l->biases, i);
    }
}

static void fill_numbers(uint32_t format, uint64_t bytes, void *to, struct cpu_random *r)
{
    const struct format *f = format_of(format);
    uint8_t *codes = to;
    bool is_plain = f->scheme == SCHEME_PLAIN;
    for (uint64_t i = 0; i < bytes && !is_plain; i++) {
        codes[i] = (uint8_t)(cpu_random_next(r) >> 20);
        if (f->scheme == SCHEME_E4M3 && (codes[i] & 0x7f) == 0x7f)
            codes[i] = 0; /* it would be a NaN */
    }
    for (uint64_t i = 0; i < bytes * 8 / f->bits && is_plain; i++) {
        float v = cpu_random_float(r);
        if (format == FORMAT_F32)
            ((float *)to)[i] = v;
        else
            ((uint16_t *)to)[i] = format == FORMAT_F16 ? f16_from_float(v) : to_bf16(v);
    }
}

static uint32_t next_bits(void *ctx)
{
    return (uint32_t)(cpu_random_next(ctx) >> 32);
}

void cpu_lab_matrix(struct cpu_lab *l, uint32_t format, uint32_t rows, uint32_t cols, uint64_t seed)
{
    const struct format *f = format_of(format);
    struct cpu_random r = {seed};
    uint64_t n = (uint64_t)rows * cols, bytes = format_code_bytes(f, n), groups = format_scale_bytes(f, n);
    *l = (struct cpu_lab){.weight = room(bytes), .scales = room(groups), .biases = room(groups)};
    l->w = (struct cpu_matrix){l->weight, l->scales, l->biases, rows, cols, format};
    if (format_is_block(format))
        random_blocks_fill(format, n / f->group, 0.1f, next_bits, &r, l->weight);
    else
        fill_numbers(format, bytes, l->weight, &r);
    if (f->scale_bytes > 0)
        fill_groups(l, f, n / f->group, &r);
    const float factor = 0.37f;
    if (f->has_factor)
        memcpy(l->biases, &factor, sizeof factor);
}

/* Copies bytes to an odd address; they end a page that none follows, or a byte before its end. A page before
 * them holds the size of it all. */
static const void *copy_odd(void **memory, const void *from, uint64_t bytes)
{
    size_t page = page_bytes(), n = (bytes + page) / page * page, all = n + 2 * page;
    uint8_t *start = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(start, MAP_FAILED);
    memcpy(start, &all, sizeof all);
    assert_int_equal(mprotect(start + page + n, page, PROT_NONE), 0);
    *memory = start;
    return memcpy(start + page + n - bytes - (bytes % 2 == 0), from, bytes);
}

void cpu_lab_move(struct cpu_lab *to, const struct cpu_matrix *from)
{
    const struct format *f = format_of(from->format);
    uint64_t n = (uint64_t)from->rows * from->cols, groups = format_scale_bytes(f, n);
    to->w = *from;
    to->is_moved = true;
    to->w.weight = copy_odd(&to->weight, from->weight, format_code_bytes(f, n));
    to->w.scales = copy_odd(&to->scales, from->scales, groups);
    to->w.biases = copy_odd(&to->biases, from->biases, groups);
}

void cpu_lab_free(struct cpu_lab *l)
{
    void *const memory[] = {l->weight, l->scales, l->biases};
    for (size_t i = 0; i < 3; i++) {
        size_t all;
        if (!l->is_moved) {
            free(memory[i]);
            continue;
        }
        memcpy(&all, memory[i], sizeof all);
        munmap(memory[i], all);
    }
}

float *cpu_lab_floats(uint64_t n, uint64_t seed)
{
    struct cpu_random r = {seed};
    float *v = room(n * sizeof *v);
    for (uint64_t i = 0; i < n; i++) {
        float u = 0;
        for (int k = 0; k < 6; k++)
            u += cpu_random_float(&r);
        v[i] = u / 1.4142135f * (i % 97 == 5 ? 10.0f : 1.0f);
    }
    return v;
}

float *cpu_lab_room(uint64_t n)
{
    float *v = aligned_alloc(64, (n * sizeof *v + 63) / 64 * 64 + 64);
    assert_non_null(v);
    for (uint64_t i = 0; i < n; i++)
        v[i] = NAN;
    return v;
}

/* One weight of a block, exact: format_decode would round twice. */
static double block_weight(uint32_t format, const struct format_block *b, uint32_t at)
{
    double value = b->codes[at] * (double)b->scales[at / FORMAT_BLOCK_PART];
    return format_block_has_bias(format) ? value + (double)b->biases[at / FORMAT_BLOCK_PART] : value;
}

static void unpack(const struct cpu_matrix *w, uint64_t i, struct format_block *b)
{
    const struct format *f = format_of(w->format);
    format_block_unpack(w->format, (const uint8_t *)w->weight + i / f->group * f->block_bytes, b);
}

double cpu_lab_weight(const struct cpu_matrix *w, uint32_t row, uint32_t col)
{
    const struct format *f = format_of(w->format);
    uint64_t i = (uint64_t)row * w->cols + col, g = i / f->group;
    struct format_block b;
    float value;
    if (format_is_block(w->format)) {
        unpack(w, i, &b);
        return block_weight(w->format, &b, (uint32_t)(i % f->group));
    }
    if (f->has_bias)
        return format_code(w->weight, f->bits, i) * (double)format_scale(f->scale, w->scales, g) +
               (double)format_scale(f->scale, w->biases, g);
    format_decode(f, w->weight, w->scales, w->biases, i, 1, &value);
    return (double)value;
}

void cpu_lab_product(const struct cpu_matrix *w, const float *x, double *y)
{
    const uint32_t group = format_of(w->format)->group;
    bool is_block = format_is_block(w->format);
    struct format_block b;
    for (uint32_t r = 0; r < w->rows; r++) {
        y[r] = 0;
        for (uint32_t c = 0; c < w->cols; c++) {
            if (is_block && c % group == 0)
                unpack(w, (uint64_t)r * w->cols + c, &b);
            y[r] +=
                (is_block ? block_weight(w->format, &b, c % group) : cpu_lab_weight(w, r, c)) * (double)x[c];
        }
    }
}

double cpu_lab_worst(const float *y, const double *want, uint64_t n)
{
    double worst = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = fabs((double)y[i] - want[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

double cpu_lab_rms(const double *v, uint64_t n)
{
    double squares = 0;
    for (uint64_t i = 0; i < n; i++)
        squares += v[i] * v[i];
    return sqrt(squares / (double)n);
}

struct cpu_vector cpu_lab_vector(const struct cpu_isa *isa, const struct cpu_matrix *w, const float *x,
                                 void **memory)
{
    struct cpu_vector v = {.x = x, .cols = w->cols};
    *memory = NULL;
    if (!cpu_format_takes_digits(w->format))
        return v;
    bool has_blocks = format_is_block(w->format);
    uint64_t bytes = cpu_vector_bytes(w->cols, has_blocks);
    *memory = aligned_alloc(64, bytes);
    assert_non_null(*memory);
    memset(*memory, 0xee, bytes);
    cpu_vector_place(&v, w->cols, has_blocks, *memory);
    isa->quantise(&v, x);
    return v;
}
