#include "ops/ref.h"

#include <math.h>

#include "args.h"
#include "base/f16.h"

static void affine_row(const struct weights *w, uint32_t row, uint32_t bits, double *out)
{
    const uint32_t *words = host_words(w->weight) + (uint64_t)row * w->cols * bits / 32;
    const uint16_t *scales = (const uint16_t *)(uintptr_t)w->scales + (uint64_t)row * (w->cols / 64);
    const uint16_t *biases = (const uint16_t *)(uintptr_t)w->biases + (uint64_t)row * (w->cols / 64);
    uint32_t per = 32 / bits, mask = (1u << bits) - 1;
    for (uint32_t c = 0; c < w->cols; c++) {
        uint32_t code = (words[c / per] >> (c % per * bits)) & mask;
        /* Rounded to float32 once, as every reader of the format sees it. */
        out[c] = (double)(float)(code * (double)bf16_to_float(scales[c / 64]) +
                                 (double)bf16_to_float(biases[c / 64]));
    }
}

void ref_row(const struct weights *w, uint32_t row, double *out)
{
    if (w->format == FORMAT_Q4 || w->format == FORMAT_Q8) {
        affine_row(w, row, w->format == FORMAT_Q4 ? 4 : 8, out);
        return;
    }
    uint64_t first = (uint64_t)row * w->cols;
    for (uint32_t c = 0; c < w->cols; c++)
        out[c] = w->format == FORMAT_BF16
                     ? (double)bf16_to_float(((const uint16_t *)(uintptr_t)w->weight)[first + c])
                     : (double)host_floats(w->weight)[first + c];
}

double ref_dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

void ref_norm(const float *x, const float *norm, uint32_t n, double eps, double *out)
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
