// streams/collapse.comp - the input of a sublayer from the residual's N_STREAMS streams, weighed by products
// with them or by those of the collapse before, and the weights of the join after the sublayer: the formulas
// of ops/streams/streams.h.
// Grid: x = pieces of STREAMS_PIECE channels, and with `joins` one workgroup for the weights of the join; y =
// tokens. That workgroup writes numbers of `low` that no other one reads. float32, sums in the order of the
// streams. Tolerance 2e-6.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;
layout(constant_id = 2) const uint N_STREAMS = 4;

const uint FOURS = STREAMS_PIECE / 4;

layout(push_constant, std430) uniform Args { streams_collapse_args a; };

// Returns logit i of token t.
float logit(uint t, uint i, float factor)
{
    uint part = min(i / N_STREAMS, 2u);
    return fma(F32s(a.low).v[t * a.stride + i] * factor, F32s(a.scale).v[part], F32s(a.base).v[i]);
}

float m[N_STREAMS][N_STREAMS];

void share_rows(float floor_)
{
    for (uint j = 0; j < N_STREAMS; j++) {
        float sum = 0.0;
        for (uint k = 0; k < N_STREAMS; k++)
            sum += m[j][k];
        for (uint k = 0; k < N_STREAMS; k++)
            m[j][k] /= sum + floor_;
    }
}

void share_columns(float floor_)
{
    for (uint k = 0; k < N_STREAMS; k++) {
        float sum = 0.0;
        for (uint j = 0; j < N_STREAMS; j++)
            sum += m[j][k];
        for (uint j = 0; j < N_STREAMS; j++)
            m[j][k] /= sum + floor_;
    }
}

// Writes the weights of the join of token t; one lane does it.
void weigh_join(uint t, float factor)
{
    for (uint j = 0; j < N_STREAMS; j++) {
        float top = logit(t, N_STREAMS * (2 + j), factor);
        for (uint k = 0; k < N_STREAMS; k++) {
            m[j][k] = logit(t, N_STREAMS * (2 + j) + k, factor);
            top = max(top, m[j][k]);
        }
        for (uint k = 0; k < N_STREAMS; k++)
            m[j][k] = exp_exact(m[j][k] - top);
    }
    share_rows(0.0);
    for (uint j = 0; j < N_STREAMS; j++)
        for (uint k = 0; k < N_STREAMS; k++)
            m[j][k] += a.floor;
    share_columns(a.floor);
    for (uint i = 1; i < a.iterations; i++) {
        share_rows(a.floor);
        share_columns(a.floor);
    }
    uint at = t * a.stride + N_STREAMS;
    for (uint s = 0; a.lagged != 0 && s < N_STREAMS; s++)
        F32s(a.kept).v[t * N_STREAMS + s] = sigmoid(logit(t, s, factor)) + a.floor;
    for (uint s = 0; s < N_STREAMS; s++)
        F32s(a.low).v[at + s] = 2.0 * sigmoid(logit(t, N_STREAMS + s, factor));
    for (uint j = 0; j < N_STREAMS; j++)
        for (uint k = 0; k < N_STREAMS; k++)
            F32s(a.low).v[at + N_STREAMS * (1 + j) + k] = m[j][k];
}

// Returns the weight of a stream in the collapse.
float weight(uint t, uint s, float factor)
{
    if (a.lagged != 0)
        return addr_is_null(a.weights) ? float(s == 0) : F32s(a.weights).v[t * N_STREAMS + s];
    return addr_is_null(a.low) ? 1.0 / float(N_STREAMS) : sigmoid(logit(t, s, factor)) + a.floor;
}

void main()
{
    uint t = gl_WorkGroupID.y, fours = a.hidden / 4, pieces = STREAMS_PIECES(a.hidden);
    float factor = 0.0;
    if (!addr_is_null(a.low)) {
        for (uint i = 0; i < pieces; i++)
            factor += F32s(a.squares).v[t * pieces + i];
        factor = inversesqrt(factor / float(N_STREAMS * a.hidden) + a.eps);
    }
    if (gl_WorkGroupID.x == pieces) {
        if (gl_LocalInvocationID.x == 0)
            weigh_join(t, factor);
        return;
    }
    float pre[N_STREAMS];
    for (uint s = 0; s < N_STREAMS; s++)
        pre[s] = weight(t, s, factor);
    uint first = gl_WorkGroupID.x * FOURS;
    for (uint i = gl_LocalInvocationID.x; i < FOURS && first + i < fours; i += WORKGROUP) {
        vec4 sum = vec4(0.0);
        for (uint s = 0; s < N_STREAMS; s++)
            sum = fma(vec4(pre[s]), F32x4s(a.x).v[(t * N_STREAMS + s) * fours + first + i], sum);
        F32x4s(a.dst).v[t * fours + first + i] = sum;
    }
}
