#include "ops/ref.h"

#include <math.h>

#include "base/f16.h"
#include "base/format.h"

static void affine_row(const struct weights *w, uint32_t row, double *out)
{
    const struct format *f = format_of(w->format);
    uint64_t first = (uint64_t)row * w->cols;
    const uint8_t *codes = (const uint8_t *)host_at(w->weight) + format_code_bytes(f, first);
    const uint16_t *scales = (const uint16_t *)host_at(w->scales) + first / f->group;
    const uint16_t *biases = (const uint16_t *)host_at(w->biases) + first / f->group;
    for (uint32_t c = 0; c < w->cols; c++) {
        double scale = (double)bf16_to_float(scales[c / f->group]),
               bias = (double)bf16_to_float(biases[c / f->group]);
        /* Rounded to float32 once, as every reader of the format sees it. */
        out[c] = (double)(float)(format_code(codes, f->bits, c) * scale + bias);
    }
}

static void plain_row(const struct weights *w, uint32_t row, double *out)
{
    uint64_t first = (uint64_t)row * w->cols;
    const uint16_t *bf16 = host_at(w->weight);
    for (uint32_t c = 0; c < w->cols; c++)
        out[c] = w->format == FORMAT_BF16 ? (double)bf16_to_float(bf16[first + c])
                                          : (double)host_floats(w->weight)[first + c];
}

void ref_row(const struct weights *w, uint32_t row, double *out)
{
    if (weights_are_plain(w))
        plain_row(w, row, out);
    else
        affine_row(w, row, out);
}

double ref_dot(const double *a, const double *b, uint32_t n)
{
    /* Four sums: an addition need not wait for the one before. */
    double sum[4] = {0};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++)
            sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
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
