#include "exec/pace.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* An unknown kernel first runs 1 / TRY_PART of a dispatch. */
enum { TRY_PART = 16 };

void pace_init(struct pace *p, uint64_t most_ns)
{
    *p = (struct pace){.most_ns = most_ns};
}

void pace_close(struct pace *p)
{
    free(p->kernels);
    *p = (struct pace){0};
}

int pace_reserve(struct pace *p, uint32_t n, struct moeflux_err *e)
{
    void *grown = p->kernels;
    size_t before = p->cap;
    int rc = mem_grow(&grown, &p->cap, n, sizeof *p->kernels, e);
    p->kernels = grown;
    if (p->cap > before)
        memset(p->kernels + before, 0, (p->cap - before) * sizeof *p->kernels);
    return rc;
}

static struct pace_kernel *kernel_of(const struct pace *p, uint32_t kernel)
{
    assert(kernel < p->cap);
    return &p->kernels[kernel];
}

void pace_learn(struct pace *p, uint32_t kernel, uint64_t n_groups, uint64_t ns)
{
    struct pace_kernel *k = kernel_of(p, kernel);
    double now = (double)ns / (double)size_max(n_groups, 1);
    if (!k->has_run) {
        k->has_run = true;
        return;
    }
    bool is_longer = !k->is_known || now > k->group_ns;
    k->group_ns = is_longer ? now : (now + k->group_ns) / 2;
    k->is_known = true;
}

void pace_forget(struct pace *p)
{
    for (size_t k = 0; k < p->cap; k++)
        p->kernels[k].is_known = false;
}

bool pace_knows(const struct pace *p, uint32_t kernel)
{
    return kernel_of(p, kernel)->is_known;
}

uint64_t pace_estimate(const struct pace *p, uint32_t kernel, uint64_t n_groups)
{
    double ns = kernel_of(p, kernel)->group_ns * (double)n_groups;
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

uint32_t pace_piece(const struct pace *p, uint32_t kernel, uint32_t n_steps, uint64_t step_groups)
{
    uint64_t n_pieces = TRY_PART;
    if (pace_knows(p, kernel))
        n_pieces = pace_estimate(p, kernel, n_steps * step_groups) / p->most_ns + 1;
    return (uint32_t)size_max(n_steps / size_min(n_pieces, n_steps), 1);
}
