#include "ops/gating.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "base/f16.h"
#include "ops/loops.h"
#include "ops/ref.h"

static const double ALPHA = 1.702;

float gating_clamp(float clamp, bool inputs)
{
    return inputs ? -clamp * GATING_INPUTS : -clamp;
}

static bool clamps_inputs(float gating)
{
    return gating <= -GATING_INPUTS * 1e-6f;
}

/* ---- SiTU ---- */

/* A factor's code: a float16 number without its sign and its last bit. */
static uint32_t code_of(float factor)
{
    return (uint32_t)f16_from_float(factor) >> 1;
}

static float factor_of(uint32_t code)
{
    return f16_to_float((uint16_t)((code & ((1u << GATING_SITU_SHIFT) - 1)) << 1));
}

float gating_situ(float beta, float linear)
{
    uint32_t bits = GATING_SITU_BITS + (code_of(beta) << GATING_SITU_SHIFT | code_of(linear));
    float gating;
    memcpy(&gating, &bits, sizeof gating);
    return gating;
}

static bool is_situ(float gating)
{
    return gating >= GATING_SITU && gating < GATING_GELU;
}

/* Returns the factor of gates, and that of up rows; 0: none. */
static void situ_factors(float gating, float *beta, float *linear)
{
    uint32_t bits;
    memcpy(&bits, &gating, sizeof bits);
    bits -= GATING_SITU_BITS;
    *beta = factor_of(bits >> GATING_SITU_SHIFT);
    *linear = factor_of(bits);
}

static double situ_ref(float gating, double g, double u)
{
    float beta, linear;
    situ_factors(gating, &beta, &linear);
    double b = (double)beta, l = (double)linear;
    return b * tanh(g / b) * ref_sigmoid(g) * (l > 0 ? l * tanh(u / l) : u);
}

static void situ_run(const struct loops *l, float gating, const float *gate, const float *up, uint32_t n,
                     float *out)
{
    float beta, linear;
    situ_factors(gating, &beta, &linear);
    l->situ(gate, up, n, beta, linear, out);
}

/* ---- all ---- */

bool gating_has_gate(float gating)
{
    return gating < GATING_RELU;
}

double gating_ref(float gating, double g, double u)
{
    if (gating == 0)
        return ref_silu(g) * u;
    if (gating >= GATING_RELU)
        return fmax(g, 0) * u;
    if (gating >= GATING_GELU)
        return ref_gelu(g) * u;
    if (is_situ(gating))
        return situ_ref(gating, g, u);
    bool inputs = clamps_inputs(gating);
    double c = fabs((double)gating) / (inputs ? (double)GATING_INPUTS : 1), bounded = fmax(fmin(u, c), -c);
    if (inputs)
        return ref_silu(fmin(g, c)) * bounded;
    if (gating < 0)
        return fmin(ref_silu(g), c) * bounded;
    g = fmin(g, c);
    return g * ref_sigmoid(ALPHA * g) * (bounded + 1);
}

void gating_run(const struct loops *l, float gating, const float *gate, const float *up, uint32_t n,
                float *out)
{
    if (gating == 0)
        l->swiglu(gate, up, n, out);
    else if (gating >= GATING_RELU)
        l->reglu(gate, up, n, out);
    else if (gating >= GATING_GELU)
        l->geglu(gate, up, n, out);
    else if (is_situ(gating))
        situ_run(l, gating, gate, up, n, out);
    else if (gating > 0)
        l->swiglu_limited(gate, up, n, (float)ALPHA, gating, out);
    else if (clamps_inputs(gating))
        l->swiglu_clamped(gate, up, n, -gating / GATING_INPUTS, -gating / GATING_INPUTS, out);
    else
        l->swiglu_clamped(gate, up, n, INFINITY, -gating, out);
}
