#include "args.h"
#include "ops/experts.h"
#include "ops/ref.h"

/* Part of an expert at byte offsets of the shape. */
static struct weights part(uint64_t expert, uint32_t w, uint32_t s, uint32_t b, uint32_t rows, uint32_t cols,
                           uint32_t format)
{
    return (struct weights){expert + w, expert + s, expert + b, rows, cols, format};
}

static uint64_t expert_of(const struct experts_call *c, uint64_t slot)
{
    return ((const uint64_t *)host_at(c->table))[host_words(c->idx)[slot]];
}

/* The experts of a token. */
static uint32_t n_experts_of(const struct experts_shape *s, const struct experts_call *c, uint32_t t)
{
    const uint32_t *idx = host_words(c->idx) + (uint64_t)t * s->top_k;
    uint32_t n = 0;
    while (!c->only_shared && n < s->top_k && idx[n] != NO_EXPERT)
        n++;
    return n;
}

/* act of a token, or of its shared expert. */
static float *act_of(const struct experts_shape *s, const struct experts_call *c, uint32_t t, uint32_t k)
{
    return host_floats_mut(c->act) + t * experts_act_floats(s, c->shared_up != NULL) + (uint64_t)k * s->inner;
}

/* out = factor silu(gate p) * (up p) */
static void ref_gated_rows(const struct weights *gate, const struct weights *up, double factor,
                           const double *p, double *row, float *out)
{
    for (uint32_t r = 0; r < gate->rows; r++) {
        ref_row(gate, r, row);
        double g = ref_dot(row, p, gate->cols);
        ref_row(up, r, row);
        out[r] = (float)(factor * ref_silu(g) * ref_dot(row, p, up->cols));
    }
}

static double shared_weight(const struct experts_shape *s, const struct experts_call *c, uint32_t t)
{
    const float *logits = host_floats(c->shared_in) + (uint64_t)t * c->shared_stride;
    return s->shared_gate ? ref_sigmoid((double)logits[s->n_experts]) : 1;
}

static void ref_up_slot(const struct experts_shape *s, const struct experts_call *c, uint32_t t, uint32_t k,
                        const double *p, double *row)
{
    uint64_t expert = expert_of(c, (uint64_t)t * s->top_k + k);
    const struct weights gate =
                             part(expert, s->gate_w, s->gate_s, s->gate_b, s->inner, s->hidden, s->up_format),
                         up = part(expert, s->up_w, s->up_s, s->up_b, s->inner, s->hidden, s->up_format);
    ref_gated_rows(&gate, &up, 1, p, row, act_of(s, c, t, k));
}

int experts_up_ref(const void *self, const void *what, struct host *h)
{
    const struct experts_shape *s = &((const struct experts *)self)->shape;
    const struct experts_call *c = what;
    double *p = host_scratch(h, s->hidden, sizeof *p), *row = host_scratch(h, s->hidden, sizeof *row);
    for (uint32_t t = 0; p && row && t < c->n; t++) {
        ref_norm(host_floats(c->x) + (uint64_t)t * s->hidden, host_floats(c->norm), s->hidden, (double)s->eps,
                 p);
        for (uint32_t k = 0; k < n_experts_of(s, c, t); k++)
            if (k >= 64 || !(c->skip >> k & 1))
                ref_up_slot(s, c, t, k, p, row);
        if (c->shared_up && !c->skip_shared)
            ref_gated_rows(&c->shared_up->gate, &c->shared_up->up, shared_weight(s, c, t), p, row,
                           act_of(s, c, t, s->top_k));
    }
    return host_error(h);
}

/* sum += factor * W in */
static void ref_add_product(double *sum, const struct weights *w, double factor, const double *in,
                            double *row)
{
    for (uint32_t r = 0; r < w->rows; r++) {
        ref_row(w, r, row);
        sum[r] += factor * ref_dot(row, in, w->cols);
    }
}

static void ref_down_routed(const struct experts_shape *s, const struct experts_call *c, uint32_t t,
                            uint32_t k, double *sum, double *in, double *row)
{
    uint64_t slot = (uint64_t)t * s->top_k + k;
    const struct weights w =
        part(expert_of(c, slot), s->down_w, s->down_s, s->down_b, s->hidden, s->inner, s->down_format);
    for (uint32_t i = 0; i < s->inner; i++)
        in[i] = (double)act_of(s, c, t, k)[i];
    ref_add_product(sum, &w, (double)host_floats(c->weights)[slot], in, row);
}

static void ref_down_shared(const struct experts_shape *s, const struct experts_call *c, uint32_t t,
                            double *sum, double *in, double *row)
{
    uint32_t inner = c->shared_down.cols;
    const float *from =
        host_floats(c->shared_in) + (uint64_t)t * c->shared_stride + s->n_experts + s->shared_gate;
    for (uint32_t i = 0; i < inner; i++)
        in[i] = c->shared_up ? (double)act_of(s, c, t, s->top_k)[i]
                             : ref_silu((double)from[i]) * (double)from[inner + i];
    ref_add_product(sum, &c->shared_down, c->shared_up ? 1 : shared_weight(s, c, t), in, row);
}

int experts_down_ref(const void *self, const void *what, struct host *h)
{
    const struct experts_shape *s = &((const struct experts *)self)->shape;
    const struct experts_call *c = what;
    uint32_t longest = s->inner > c->shared_down.cols ? s->inner : c->shared_down.cols;
    double *sum = host_scratch(h, s->hidden, sizeof *sum);
    double *in = host_scratch(h, longest, sizeof *in), *row = host_scratch(h, longest, sizeof *row);
    for (uint32_t t = 0; sum && in && row && t < c->n; t++) {
        for (uint32_t r = 0; r < s->hidden; r++)
            sum[r] = 0;
        for (uint32_t k = 0; k < n_experts_of(s, c, t); k++)
            ref_down_routed(s, c, t, k, sum, in, row);
        if (c->shared_down.cols)
            ref_down_shared(s, c, t, sum, in, row);
        float *x = host_floats_mut(c->x) + (uint64_t)t * s->hidden;
        for (uint32_t r = 0; r < s->hidden; r++)
            x[r] = (float)((double)x[r] + sum[r]);
    }
    return host_error(h);
}
