#include "cpu_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void *room(uint64_t bytes)
{
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    return p;
}

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)(u >> 16);
}

static double from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float v;
    memcpy(&v, &u, sizeof v);
    return (double)v;
}

const char *cpu_lab_format(enum cpu_format format)
{
    static const char *const names[] = {"q4", "q8", "bf16", "f32"};
    return names[format];
}

static uint32_t bits_of(enum cpu_format format)
{
    static const uint32_t bits[] = {4, 8, 16, 32};
    return bits[format];
}

static void fill_groups(struct cpu_lab *l, uint64_t n, struct cpu_random *r)
{
    uint16_t *scales = l->scales, *biases = l->biases;
    for (uint64_t i = 0; i < n; i++) {
        float s = 0.02f + cpu_random_float(r) * 0.01f;
        s = cpu_random_next(r) % 3 == 0 ? -s : s;
        scales[i] = to_bf16(s);
        biases[i] = to_bf16(-s * (l->w.format == CPU_Q4 ? 7.5f : 127.5f) * (1 + cpu_random_float(r) / 8));
    }
}

void cpu_lab_matrix(struct cpu_lab *l, enum cpu_format format, uint32_t rows, uint32_t cols, uint64_t seed)
{
    struct cpu_random r = {seed};
    uint64_t n = (uint64_t)rows * cols, bytes = n * bits_of(format) / 8, groups = n / CPU_BLOCK;
    *l = (struct cpu_lab){.weight = room(bytes), .scales = room(groups * 2), .biases = room(groups * 2)};
    l->w = (struct cpu_matrix){l->weight, l->scales, l->biases, rows, cols, format};
    uint8_t *codes = l->weight;
    for (uint64_t i = 0; i < bytes && format <= CPU_Q8; i++)
        codes[i] = (uint8_t)(cpu_random_next(&r) >> 20);
    for (uint64_t i = 0; i < n && format == CPU_BF16; i++)
        ((uint16_t *)l->weight)[i] = to_bf16(cpu_random_float(&r));
    for (uint64_t i = 0; i < n && format == CPU_F32; i++)
        ((float *)l->weight)[i] = cpu_random_float(&r);
    if (format <= CPU_Q8)
        fill_groups(l, groups, &r);
}

/* room gives one byte more than it is asked for. */
static const void *copy_odd(void **memory, const void *from, uint64_t bytes)
{
    *memory = room(bytes);
    return memcpy((uint8_t *)*memory + 1, from, bytes);
}

void cpu_lab_move(struct cpu_lab *to, const struct cpu_matrix *from)
{
    uint64_t n = (uint64_t)from->rows * from->cols, groups = n / CPU_BLOCK * 2;
    to->w = *from;
    to->w.weight = copy_odd(&to->weight, from->weight, n * bits_of(from->format) / 8);
    to->w.scales = copy_odd(&to->scales, from->scales, groups);
    to->w.biases = copy_odd(&to->biases, from->biases, groups);
}

void cpu_lab_free(struct cpu_lab *l)
{
    free(l->weight);
    free(l->scales);
    free(l->biases);
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

double cpu_lab_weight(const struct cpu_matrix *w, uint32_t row, uint32_t col)
{
    uint64_t i = (uint64_t)row * w->cols + col;
    if (w->format == CPU_F32)
        return (double)((const float *)w->weight)[i];
    if (w->format == CPU_BF16)
        return from_bf16(((const uint16_t *)w->weight)[i]);
    const uint8_t *codes = w->weight;
    uint32_t code = w->format == CPU_Q8 ? codes[i] : (uint32_t)codes[i / 2] >> (i % 2 * 4) & 15;
    const uint16_t *scales = w->scales, *biases = w->biases;
    return code * from_bf16(scales[i / CPU_BLOCK]) + from_bf16(biases[i / CPU_BLOCK]);
}

void cpu_lab_product(const struct cpu_matrix *w, const float *x, double *y)
{
    for (uint32_t r = 0; r < w->rows; r++) {
        y[r] = 0;
        for (uint32_t c = 0; c < w->cols; c++)
            y[r] += cpu_lab_weight(w, r, c) * (double)x[c];
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
    if (w->format > CPU_Q8)
        return v;
    uint64_t bytes = cpu_vector_bytes(w->cols);
    *memory = aligned_alloc(64, bytes);
    assert_non_null(*memory);
    memset(*memory, 0xee, bytes);
    cpu_vector_place(&v, w->cols, *memory);
    isa->quantise(&v, x);
    return v;
}
