#include "ops/gating.h"

#include <math.h>

#include "args.h"
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
    else if (gating > 0)
        l->swiglu_limited(gate, up, n, (float)ALPHA, gating, out);
    else if (clamps_inputs(gating))
        l->swiglu_clamped(gate, up, n, -gating / GATING_INPUTS, -gating / GATING_INPUTS, out);
    else
        l->swiglu_clamped(gate, up, n, INFINITY, -gating, out);
}
