#include "ops/swiglu.h"

#include "args.h"
#include "base/mem.h"
#include "ops/matvec.h"

static void swiglu_ref(const void *args)
{
    const struct swiglu_args *a = args;
    for (uint32_t t = 0; t < a->n; t++) {
        const float *gate = ref_floats(a->src) + 2 * (uint64_t)t * a->inner, *up = gate + a->inner;
        float *dst = ref_floats_mut(a->dst) + (uint64_t)t * a->inner;
        for (uint32_t c = 0; c < a->inner; c++)
            dst[c] = (float)(ref_silu((double)gate[c]) * (double)up[c]);
    }
}

int swiglu_open(struct swiglu *op, struct exec *x, struct moeflux_err *e)
{
    *op = (struct swiglu){.group = (uint32_t)size_min(256, exec_get_caps(x).max_workgroup)};
    return exec_kernel(x, &op->kernel, "swiglu", swiglu_ref, sizeof(struct swiglu_args), &op->group, 1, e);
}

void swiglu_run(const struct swiglu *op, struct exec *x, uint64_t src, uint64_t dst, uint32_t n,
                uint32_t inner)
{
    const struct swiglu_args a = {.src = src, .dst = dst, .n = n, .inner = inner};
    exec_run(x, &op->kernel, &a, div_up(inner, 4 * op->group), n, 1);
}
