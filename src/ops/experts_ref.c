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

static void ref_up_slot(const struct experts_shape *s, const struct experts_call *c, uint64_t slot,
                        const double *p, double *row)
{
    uint64_t expert = expert_of(c, slot);
    const struct weights gate =
                             part(expert, s->gate_w, s->gate_s, s->gate_b, s->inner, s->hidden, s->up_format),
                         up = part(expert, s->up_w, s->up_s, s->up_b, s->inner, s->hidden, s->up_format);
    for (uint32_t r = 0; r < s->inner; r++) {
        ref_row(&gate, r, row);
        double g = ref_dot(row, p, s->hidden);
        ref_row(&up, r, row);
        host_floats_mut(c->act)[slot * s->inner + r] = (float)(ref_silu(g) * ref_dot(row, p, s->hidden));
    }
}

int experts_up_ref(const void *self, const void *what, struct host *h)
{
    const struct experts_shape *s = &((const struct experts *)self)->shape;
    const struct experts_call *c = what;
    double *p = host_scratch(h, s->hidden, sizeof *p), *row = host_scratch(h, s->hidden, sizeof *row);
    for (uint32_t t = 0; p && row && t < c->n; t++) {
        ref_norm(host_floats(c->x) + (uint64_t)t * s->hidden, host_floats(c->norm), s->hidden, (double)s->eps,
                 p);
        for (uint32_t k = 0; k < s->top_k; k++)
            if (k >= 64 || !(c->skip >> k & 1))
                ref_up_slot(s, c, (uint64_t)t * s->top_k + k, p, row);
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

static void ref_down_routed(const struct experts_shape *s, const struct experts_call *c, uint64_t slot,
                            double *sum, double *in, double *row)
{
    const struct weights w =
        part(expert_of(c, slot), s->down_w, s->down_s, s->down_b, s->hidden, s->inner, s->down_format);
    for (uint32_t i = 0; i < s->inner; i++)
        in[i] = (double)host_floats(c->act)[slot * s->inner + i];
    ref_add_product(sum, &w, (double)host_floats(c->weights)[slot], in, row);
}

static void ref_down_shared(const struct experts_shape *s, const struct experts_call *c, uint32_t t,
                            double *sum, double *in, double *row)
{
    uint32_t inner = c->shared_down.cols;
    const float *from =
        host_floats(c->shared_in) + (uint64_t)t * c->shared_stride + s->n_experts + s->shared_gate;
    for (uint32_t i = 0; i < inner; i++)
        in[i] = ref_silu((double)from[i]) * (double)from[inner + i];
    ref_add_product(sum, &c->shared_down, s->shared_gate ? ref_sigmoid((double)from[-1]) : 1.0, in, row);
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
        for (uint32_t k = 0; k < s->top_k && !c->only_shared; k++)
            ref_down_routed(s, c, (uint64_t)t * s->top_k + k, sum, in, row);
        if (c->shared_down.cols)
            ref_down_shared(s, c, t, sum, in, row);
        float *x = host_floats_mut(c->x) + (uint64_t)t * s->hidden;
        for (uint32_t r = 0; r < s->hidden; r++)
            x[r] = (float)((double)x[r] + sum[r]);
    }
    return host_error(h);
}
