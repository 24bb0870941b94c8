#include "ops/ref.h"

#include <math.h>

#include "base/format.h"

/* Columns at once: whole blocks of block formats. */
enum { PART = 256 };

void ref_row(const struct weights *w, uint32_t row, double *out)
{
    const struct format *f = format_of(w->format);
    for (uint32_t c = 0; c < w->cols; c += PART) {
        float part[PART];
        uint32_t n = w->cols - c < PART ? w->cols - c : PART;
        format_decode(f, host_at(w->weight), host_at(w->scales), host_at(w->biases),
                      (uint64_t)row * w->cols + c, n, part);
        for (uint32_t i = 0; i < n; i++)
            out[c + i] = (double)part[i];
    }
}

double ref_dot(const double *a, const double *b, uint32_t n)
{
    /* Four sums, so that an addition need not wait for the previous one. */
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    for (; i < n; i++)
        s0 += a[i] * b[i];
    return (s0 + s1) + (s2 + s3);
}

void ref_unit(const double *x, uint32_t n, double eps, double *out)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(squares / n + eps);
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

double ref_softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

double ref_silu(double x)
{
    return x * ref_sigmoid(x);
}

double ref_gelu(double x)
{
    const double root = 0.79788456080286535588; /* sqrt(2 / pi) */
    return x / 2 * (1 + tanh(root * (x + 0.044715 * x * x * x)));
}
