// ngram/gate.comp - the gate of n-gram rows for one stream of the residual, and the input of their
// convolution (ops/ngram/ngram.h): with k and v times `scale`
//   gate = sum(rms(x) * x_norm * rms(k) * k_norm) / sqrt(hidden)
//   g = sigmoid(sign(gate) sqrt(max(|gate|, 1e-6)))
//   gates[t][s] = g * scale;  u[t][s] = rms(g v) * u_norm, if there is a norm
// Grid: x = streams, y = tokens. All four sums run in one pass: rms(g v) follows from the sum of v's squares.
// float32; the order of the sums depends on the workgroup alone. Tolerance 1e-5.
#version 460
#include "lib/memory.glsl"
#include "lib/math.glsl"

layout(local_size_x_id = 1) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint WORKGROUP = 256;

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

layout(push_constant, std430) uniform Args { ngram_gate_args a; };

shared vec4 sums[SUBGROUPS];

// Returns the sums over the workgroup.
vec4 workgroup_sums(vec4 sum)
{
    sum = subgroupAdd(sum);
    if (gl_SubgroupInvocationID == 0)
        sums[gl_SubgroupID] = sum;
    barrier();
    sum = vec4(0.0);
    for (uint i = 0; i < SUBGROUPS; i++)
        sum += sums[i];
    return sum;
}

void main()
{
    uint s = gl_WorkGroupID.x, t = gl_WorkGroupID.y, fours = a.hidden / 4;
    uint row = (t * a.n_streams + s) * fours, proj = t * a.stride / 4, norm = s * fours;
    vec4 sum = vec4(0.0); // x * x, k * k, v * v, x * x_norm * k * k_norm
    for (uint c = gl_LocalInvocationID.x; c < fours; c += WORKGROUP) {
        vec4 x = F32x4s(a.x).v[row + c], k = F32x4s(a.proj).v[proj + norm + c] * a.scale;
        vec4 v = F32x4s(a.proj).v[proj + a.n_streams * fours + c] * a.scale;
        vec4 both = F32x4s(a.x_norm).v[norm + c] * F32x4s(a.k_norm).v[norm + c];
        sum += vec4(dot(x, x), dot(k, k), dot(v, v), dot(x * both, k));
    }
    sum = workgroup_sums(sum);
    float n = float(a.hidden);
    float gate = sum.w * inversesqrt(sum.x / n + a.eps) * inversesqrt(sum.y / n + a.eps) * inversesqrt(n);
    float g = sigmoid(sign(gate) * sqrt(max(abs(gate), 1e-6)));
    float by = g * a.scale * inversesqrt(g * g * sum.z / n + a.eps);
    for (uint c = gl_LocalInvocationID.x; !addr_is_null(a.u_norm) && c < fours; c += WORKGROUP)
        F32x4s(a.u).v[row + c] =
            F32x4s(a.proj).v[proj + a.n_streams * fours + c] * by * F32x4s(a.u_norm).v[norm + c];
    if (gl_LocalInvocationID.x == 0)
        F32s(a.gates).v[t * a.n_streams + s] = g * a.scale;
}
