#include "model/rope.h"

#include <math.h>

#include "base/real.h"

/* The published code divides by this if the correction range is empty. */
static const double TWO_PI = 6.28318530717958647692, EMPTY_RANGE = 0.001;

uint32_t rope_floats(const struct config *c, uint32_t n)
{
    uint32_t floats = 0;
    for (uint32_t i = 0; i < n; i++)
        floats += c->ropes[i].dim;
    return floats;
}

/* Returns the dimension whose wave makes n turns within the original context. */
static double correction(const struct rope_config *r, double n)
{
    return r->dim * real_log(r->original_context / (n * TWO_PI)) / (2 * real_log(r->theta));
}

void rope_frequencies(const struct rope_config *r, float *out)
{
    double low = 0, high = 0;
    if (r->yarn) {
        low = correction(r, r->beta_fast);
        high = correction(r, r->beta_slow);
        low = fmax(r->truncate ? floor(low) : low, 0);
        high = fmin(r->truncate ? ceil(high) : high, r->dim - 1.0);
    }
    double slow = !r->yarn && r->factor > 0 ? r->factor : 1;
    double range = high != low ? high - low : EMPTY_RANGE;
    for (uint32_t i = 0; i < r->dim / 2; i++) {
        if (r->n_pairs && i >= r->n_pairs) {
            out[i] = 0;
            continue;
        }
        double wave = real_pow(r->theta, 2.0 * i / r->dim) * slow;
        if (r->n_divisors)
            wave *= r->divisors[i];
        double ramp = fmin(fmax((i - low) / range, 0), 1);
        out[i] = r->none ? 0 : (float)(r->yarn ? (1 - ramp) / wave + ramp / (r->factor * wave) : 1 / wave);
    }
}

static double magnitude(const struct rope_config *r, double k)
{
    return r->factor > 1 ? 0.1 * k * real_log(r->factor) + 1 : 1;
}

double rope_multiplier(const struct rope_config *r)
{
    if (!r->yarn)
        return 1;
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return magnitude(r, r->mscale) / magnitude(r, r->mscale_all_dim);
    return magnitude(r, 1);
}

double rope_softmax_scale(const struct rope_config *r, uint32_t key_dim)
{
    double scale = 1 / sqrt(key_dim);
    double m = r->yarn && r->mscale_all_dim > 0 ? magnitude(r, r->mscale_all_dim) : 1;
    return scale * m * m;
}
