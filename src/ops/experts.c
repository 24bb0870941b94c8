#include "ops/experts.h"

#include <stdlib.h>

#include "args.h"
#include "base/err.h"
#include "base/mem.h"

static uint64_t ref_expert(uint64_t table, uint64_t idx, uint64_t slot)
{
    return ((const uint64_t *)(uintptr_t)table)[ref_words(idx)[slot]];
}

static void ref_up_slot(const struct expert_up_args *a, uint64_t slot, const double *p, double *row)
{
    uint64_t expert = ref_expert(a->table, a->idx, slot);
    const struct weights gate = {expert + a->gate_w, expert + a->gate_s, expert + a->gate_b,
                                 a->inner,           a->hidden,          a->format};
    const struct weights up = {expert + a->up_w, expert + a->up_s, expert + a->up_b,
                               a->inner,         a->hidden,        a->format};
    for (uint32_t r = 0; r < a->inner; r++) {
        matvec_ref_row(&gate, r, row);
        double g = matvec_ref_dot(row, p, a->hidden);
        matvec_ref_row(&up, r, row);
        ref_floats_mut(a->act)[slot * a->inner + r] =
            (float)(ref_silu(g) * matvec_ref_dot(row, p, a->hidden));
    }
}

static void up_ref(const void *args)
{
    const struct expert_up_args *a = args;
    uint64_t skip = (uint64_t)a->skip_high << 32 | a->skip_low;
    double *p = calloc(a->hidden, sizeof *p), *row = calloc(a->hidden, sizeof *row);
    for (uint32_t t = 0; p && row && t < a->n; t++) {
        matvec_ref_norm(ref_floats(a->x) + (uint64_t)t * a->hidden, ref_floats(a->norm), a->hidden,
                        (double)a->eps, p);
        for (uint32_t k = 0; k < a->top_k; k++)
            if (k >= 64 || !(skip >> k & 1))
                ref_up_slot(a, (uint64_t)t * a->top_k + k, p, row);
    }
    free(p);
    free(row);
}

/* sum += factor * W in */
static void ref_add_product(double *sum, const struct weights *w, double factor, const double *in,
                            double *row)
{
    for (uint32_t r = 0; r < w->rows; r++) {
        matvec_ref_row(w, r, row);
        sum[r] += factor * matvec_ref_dot(row, in, w->cols);
    }
}

static void ref_down_routed(const struct expert_down_args *a, uint64_t slot, double *sum, double *in,
                            double *row)
{
    uint64_t expert = ref_expert(a->table, a->idx, slot);
    const struct weights w = {expert + a->down_w, expert + a->down_s, expert + a->down_b,
                              a->hidden,          a->inner,           a->format};
    for (uint32_t i = 0; i < a->inner; i++)
        in[i] = (double)ref_floats(a->act)[slot * a->inner + i];
    ref_add_product(sum, &w, (double)ref_floats(a->weights)[slot], in, row);
}

static void ref_down_shared(const struct expert_down_args *a, uint32_t t, double *sum, double *in,
                            double *row)
{
    const struct weights w = {a->shared_w, a->shared_s,     a->shared_b,
                              a->hidden,   a->shared_inner, a->shared_format};
    const float *from = ref_floats(a->shared_in) + (uint64_t)t * a->shared_stride + a->shared_at;
    for (uint32_t i = 0; i < a->shared_inner; i++)
        in[i] = ref_silu((double)from[i]) * (double)from[a->shared_inner + i];
    ref_add_product(sum, &w, a->is_gated ? ref_sigmoid((double)from[-1]) : 1.0, in, row);
}

static void down_ref(const void *args)
{
    const struct expert_down_args *a = args;
    uint32_t longest = a->inner > a->shared_inner ? a->inner : a->shared_inner;
    double *sum = calloc(a->hidden, sizeof *sum);
    double *in = calloc(longest, sizeof *in), *row = calloc(longest, sizeof *row);
    for (uint32_t t = 0; sum && in && row && t < a->n; t++) {
        for (uint32_t r = 0; r < a->hidden; r++)
            sum[r] = 0;
        for (uint32_t k = 0; k < a->top_k; k++)
            ref_down_routed(a, (uint64_t)t * a->top_k + k, sum, in, row);
        ref_down_shared(a, t, sum, in, row);
        float *x = ref_floats_mut(a->x) + (uint64_t)t * a->hidden;
        for (uint32_t r = 0; r < a->hidden; r++)
            x[r] = (float)((double)x[r] + sum[r]);
    }
    free(sum);
    free(in);
    free(row);
}

int experts_open(struct experts *op, struct exec *x, const struct experts_shape *s, struct err *e)
{
    if (s->hidden % 64 || s->inner % 64 || s->inner == 0 || s->hidden == 0)
        return err_set(e, ERR_UNSUPPORTED, "experts: hidden %u and inner %u, expected multiples of 64",
                       s->hidden, s->inner);
    const struct matvec_shape up_shape = {s->inner * s->top_k, s->hidden, 1, 1u << s->format, 2};
    const struct matvec_shape down_shape = {s->hidden, (s->top_k + 1) * s->inner, 1, s->formats, 1};
    struct matvec_plan up = matvec_plan_for(x, &up_shape), down = matvec_plan_for(x, &down_shape);
    *op = (struct experts){.shape = *s, .up_rows = up.workgroup_rows, .down_rows = down.workgroup_rows};
    int rc = matvec_kernel(x, &op->up, "expert_up", up_ref, sizeof(struct expert_up_args), &up, e);
    if (rc == 0)
        rc = matvec_kernel(x, &op->down, "expert_down", down_ref, sizeof(struct expert_down_args), &down, e);
    return rc < 0 ? rc : experts_many_open(&op->many, x, s, e);
}

bool experts_takes_waves(const struct experts *op, uint32_t chunk)
{
    return chunk >= op->many.from;
}

void experts_run_up(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    const struct experts_shape *s = &op->shape;
    if (experts_many_takes(&op->many, call)) {
        experts_many_up(&op->many, x, s, call);
        return;
    }
    const struct expert_up_args a = {.x = call->x,
                                     .norm = call->norm,
                                     .table = call->table,
                                     .idx = call->idx,
                                     .act = call->act,
                                     .n = call->n,
                                     .top_k = s->top_k,
                                     .hidden = s->hidden,
                                     .inner = s->inner,
                                     .format = s->format,
                                     .gate_w = s->gate_w,
                                     .gate_s = s->gate_s,
                                     .gate_b = s->gate_b,
                                     .up_w = s->up_w,
                                     .up_s = s->up_s,
                                     .up_b = s->up_b,
                                     .skip_low = (uint32_t)call->skip,
                                     .skip_high = (uint32_t)(call->skip >> 32),
                                     .eps = s->eps};
    exec_run(x, &op->up, &a, div_up(s->inner, op->up_rows), s->top_k, call->n);
}

void experts_run_down(const struct experts *op, struct exec *x, const struct experts_call *call)
{
    const struct experts_shape *s = &op->shape;
    if (experts_many_takes(&op->many, call)) {
        experts_many_down(&op->many, x, s, call);
        return;
    }
    const struct expert_down_args a = {.act = call->act,
                                       .table = call->table,
                                       .idx = call->idx,
                                       .weights = call->weights,
                                       .shared_in = call->shared_in,
                                       .shared_w = call->shared_down.weight,
                                       .shared_s = call->shared_down.scales,
                                       .shared_b = call->shared_down.biases,
                                       .x = call->x,
                                       .n = call->n,
                                       .top_k = s->top_k,
                                       .hidden = s->hidden,
                                       .inner = s->inner,
                                       .format = s->format,
                                       .down_w = s->down_w,
                                       .down_s = s->down_s,
                                       .down_b = s->down_b,
                                       .shared_at = s->n_experts + s->shared_gate,
                                       .is_gated = s->shared_gate,
                                       .shared_inner = call->shared_down.cols,
                                       .shared_format =
                                           call->shared_down.cols ? call->shared_down.format : s->format,
                                       .shared_stride = call->shared_stride};
    exec_run(x, &op->down, &a, div_up(s->hidden, op->down_rows), call->n, 1);
}
