/* gating.h - the activation between the products of a feed-forward part, from a gate's and an up row's
 * product. A single number says which, for kernels (gated() in kernels/lib/math.glsl), CPU and reference:
 *   0                  silu(g) u
 *   GATING_GELU        gelu(g) u, gelu(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
 *   GATING_RELU        max(g, 0) u with g = u, the only product: relu(u)^2 (Nemotron-3)
 *   c                  g' sigmoid(1.702 g') (u' + 1)             (gpt-oss)
 *   -c                 min(silu(g), c) u'                        (Ling-3.0)
 *   -c GATING_INPUTS   silu(g') u'                               (DeepSeek-V4)
 *   gating_situ(b, l)  b tanh(g / b) sigmoid(g) l tanh(u / l)    (Kimi-K3's SiTU; l = 0: .. u)
 * with 0 < c <= 1e6, g' = min(g, c), u' = u clamped to -c .. c. */
#ifndef MOEFLUX_OPS_GATING_H
#define MOEFLUX_OPS_GATING_H

#include <stdbool.h>
#include <stdint.h>

struct loops;

/* Returns the number of a clamp. inputs: it bounds the gate before SiLU, not after it. clamp 0: there is
 * none. */
float gating_clamp(float clamp, bool inputs);

/* Returns the number of SiTU with these factors. linear 0: up rows are as they are. Each other factor is a
 * normal float16 number whose last bit is 0. */
float gating_situ(float beta, float linear);

/* Returns whether the activation has a gate's product besides an up row's. */
bool gating_has_gate(float gating);
double gating_ref(float gating, double g, double u);
/* Computes out[c] for n channels. */
void gating_run(const struct loops *l, float gating, const float *gate, const float *up, uint32_t n,
                float *out);

#endif
