/* The reference implementation of experts.h. */
#include <math.h>
#include <stddef.h>

#include "args.h"
#include "ops/experts/experts.h"
#include "ops/gating.h"
#include "ops/ref.h"

/* Returns the part of an expert at the shape's byte offsets. */
static struct weights part(uint64_t expert, uint32_t w, uint32_t s, uint32_t b, uint32_t rows, uint32_t cols,
                           uint32_t format)
{
    return (struct weights){expert + w, expert + s, expert + b, rows, cols, format};
}

static uint64_t expert_of(const struct experts_call *c, uint64_t slot)
{
    return ((const uint64_t *)host_at(c->table))[host_words(c->idx)[slot]];
}

/* Returns whether the call computes a slot's expert. */
static bool takes(const struct experts_shape *s, const struct experts_call *c, uint64_t slot)
{
    uint32_t expert = host_words(c->idx)[slot];
    return !c->only_shared && expert != NO_EXPERT && expert_part_has(&c->part, s->n_experts, expert);
}

/* Returns act of a token's k-th expert; k = top_k: of its shared expert. */
static float *act_of(const struct experts_shape *s, const struct experts_call *c, uint32_t t, uint32_t k)
{
    return host_floats_mut(c->act) + t * experts_act_floats(s, c->shared_up != NULL) + (uint64_t)k * s->inner;
}

/* One row of each expert's matrix as doubles. Tokens that share an expert share the row, because widening
 * takes longer than a product. */
struct widened {
    double *rows;   /* [n_experts][cols] */
    uint32_t *made; /* [n_experts]: 1 + index of the widened row; 0: none */
    uint32_t cols;
};

static bool make_room(struct widened *w, struct host *h, uint32_t n_experts, uint32_t cols)
{
    *w = (struct widened){.rows = host_scratch(h, (uint64_t)n_experts * cols, sizeof *w->rows),
                          .made = host_scratch(h, n_experts, sizeof *w->made),
                          .cols = cols};
    for (uint32_t i = 0; w->made && i < n_experts; i++)
        w->made[i] = 0;
    return w->rows && w->made;
}

/* Returns row r of an expert's matrix. */
static const double *widen(struct widened *w, uint32_t expert, const struct weights *matrix, uint32_t r)
{
    double *row = w->rows + (uint64_t)expert * w->cols;
    if (w->made[expert] != r + 1)
        ref_row(matrix, r, row);
    w->made[expert] = r + 1;
    return row;
}

static double shared_weight(const struct experts_shape *s, const struct experts_call *c, uint32_t t)
{
    const float *logits = host_floats(c->shared_in) + (uint64_t)t * c->shared_stride;
    return s->shared_gate ? ref_sigmoid((double)logits[s->n_experts]) : 1;
}

static double bias_at(const struct experts_shape *s, uint64_t biases, uint64_t i)
{
    return s->biased ? (double)host_floats(biases)[i] : 0;
}

/* Computes row r of a token's experts. p: the token's vector. */
static void ref_up_token(const struct experts_shape *s, const struct experts_call *c, uint32_t t, uint32_t r,
                         const double *p, struct widened *gates, struct widened *ups)
{
    for (uint32_t k = 0; k < s->top_k; k++) {
        uint64_t slot = (uint64_t)t * s->top_k + k;
        if (!takes(s, c, slot) || (k < 64 && c->skip >> k & 1) || expert_of(c, slot) == 0)
            continue;
        uint64_t expert = expert_of(c, slot);
        uint32_t idx = host_words(c->idx)[slot];
        const struct weights gate = part(expert, s->gate_w, s->gate_s, s->gate_b, s->inner, s->hidden,
                                         s->gate_format),
                             up = part(expert, s->up_w, s->up_s, s->up_b, s->inner, s->hidden, s->up_format);
        double g = ref_dot(widen(gates, idx, &gate, r), p, s->hidden) +
                   bias_at(s, c->biases.gate_up, (uint64_t)idx * s->inner + r);
        double u = ref_dot(widen(ups, idx, &up, r), p, s->hidden) +
                   bias_at(s, c->biases.gate_up, ((uint64_t)s->n_experts + idx) * s->inner + r);
        act_of(s, c, t, k)[r] = (float)gating_ref(s->gating, g, u);
    }
}

/* Computes row r of the shared expert for all tokens: factor * act(gate p, up p). */
static void ref_up_shared(const struct experts_shape *s, const struct experts_call *c, uint32_t r,
                          const double *p, double *gate, double *up)
{
    ref_row(&c->shared_up->gate, r, gate);
    ref_row(&c->shared_up->up, r, up);
    for (uint32_t t = 0; t < c->n; t++, p += s->hidden)
        act_of(s, c, t, s->top_k)[r] =
            (float)(shared_weight(s, c, t) *
                    gating_ref(s->shared_gating, ref_dot(gate, p, s->hidden), ref_dot(up, p, s->hidden)));
}

int experts_up_ref(const void *self, const void *what, struct host *h)
{
    const struct experts_shape *s = &((const struct experts *)self)->shape;
    const struct experts_call *c = what;
    uint32_t shared = c->shared_up && !c->skip_shared ? c->shared_up->gate.rows : 0;
    double *p = host_scratch(h, (uint64_t)c->n * s->hidden, sizeof *p);
    double *gate = host_scratch(h, s->hidden, sizeof *gate), *up = host_scratch(h, s->hidden, sizeof *up);
    struct widened gates, ups;
    if (!make_room(&gates, h, s->n_experts, s->hidden) || !make_room(&ups, h, s->n_experts, s->hidden) ||
        !p || !gate || !up)
        return host_error(h);
    for (uint32_t t = 0; t < c->n; t++)
        ref_norm(host_floats(c->x) + (uint64_t)t * s->hidden, host_floats(c->norm), s->hidden, (double)s->eps,
                 p + (uint64_t)t * s->hidden);
    for (uint32_t r = 0; r < s->inner; r++)
        for (uint32_t t = 0; t < c->n; t++)
            ref_up_token(s, c, t, r, p + (uint64_t)t * s->hidden, &gates, &ups);
    for (uint32_t r = 0; r < shared; r++)
        ref_up_shared(s, c, r, p, gate, up);
    return 0;
}

/* The inputs of a down projection as doubles. */
struct down_inputs {
    double *routed; /* [n][top_k][inner] */
    double *shared; /* [n][shared_inner] */
};

static void widen_inputs(const struct experts_shape *s, const struct experts_call *c, uint32_t t,
                         const struct down_inputs *in)
{
    uint32_t inner = c->shared_down.cols;
    for (uint32_t k = 0; k < s->top_k; k++) {
        uint64_t slot = (uint64_t)t * s->top_k + k;
        for (uint32_t i = 0; i < s->inner; i++)
            in->routed[slot * s->inner + i] = takes(s, c, slot) ? (double)act_of(s, c, t, k)[i] : 0;
    }
    if (inner == 0)
        return;
    double *shared = in->shared + (uint64_t)t * inner;
    const float *rows =
        host_floats(c->shared_in) + (uint64_t)t * c->shared_stride + s->n_experts + s->shared_gate;
    const float *ups = experts_are_gateless(s) ? rows : rows + inner;
    for (uint32_t i = 0; i < inner; i++)
        shared[i] = c->shared_up ? (double)act_of(s, c, t, s->top_k)[i]
                                 : gating_ref(s->shared_gating, (double)rows[i], (double)ups[i]);
}

/* Returns row r of a token's routed experts, weighted and added up. */
static double ref_down_token(const struct experts_shape *s, const struct experts_call *c, uint32_t t,
                             uint32_t r, const double *in, struct widened *rows)
{
    double sum = 0;
    for (uint32_t k = 0; k < s->top_k; k++) {
        uint64_t slot = (uint64_t)t * s->top_k + k;
        if (!takes(s, c, slot))
            continue;
        const struct weights w =
            part(expert_of(c, slot), s->down_w, s->down_s, s->down_b, s->hidden, s->inner, s->down_format);
        uint32_t idx = host_words(c->idx)[slot];
        double part = ref_dot(widen(rows, idx, &w, r), in + slot * s->inner, s->inner) +
                      bias_at(s, c->biases.down, (uint64_t)idx * s->hidden + r);
        sum += (double)host_floats(c->weights)[slot] * part;
    }
    return sum;
}

int experts_down_ref(const void *self, const void *what, struct host *h)
{
    const struct experts_shape *s = &((const struct experts *)self)->shape;
    const struct experts_call *c = what;
    uint32_t inner = c->shared_down.cols;
    const struct down_inputs in = {
        .routed = host_scratch(h, (uint64_t)c->n * s->top_k * s->inner, sizeof *in.routed),
        .shared = host_scratch(h, (uint64_t)c->n * inner, sizeof *in.shared)};
    double *row = host_scratch(h, inner, sizeof *row);
    struct widened rows;
    if (!make_room(&rows, h, s->n_experts, s->inner) || !in.routed || !in.shared || !row)
        return host_error(h);
    for (uint32_t t = 0; t < c->n; t++)
        widen_inputs(s, c, t, &in);
    for (uint32_t r = 0; r < s->hidden; r++) {
        if (inner)
            ref_row(&c->shared_down, r, row);
        for (uint32_t t = 0; t < c->n; t++) {
            double sum = ref_down_token(s, c, t, r, in.routed, &rows);
            if (inner)
                sum += (c->shared_up ? 1 : shared_weight(s, c, t)) *
                       ref_dot(row, in.shared + (uint64_t)t * inner, inner);
            float *x = host_floats_mut(c->x) + (uint64_t)t * s->hidden + r;
            *x = (float)((double)*x + sum);
        }
    }
    return 0;
}
