#include "exec/pace.h"

#include "base/mem.h"

/* An unknown kernel first runs 1 / TRY_PART of a dispatch. */
enum { TRY_PART = 16 };

void pace_init(struct pace *p, uint64_t most_ns)
{
    *p = (struct pace){.most_ns = most_ns};
}

void pace_learn(struct pace *p, uint32_t kernel, uint64_t n_groups, uint64_t ns)
{
    uint32_t k = kernel % PACE_KERNELS;
    double now = (double)ns / (double)size_max(n_groups, 1), *at = &p->kernels[k].group_ns;
    if (!p->kernels[k].has_run) {
        p->kernels[k].has_run = true;
        return;
    }
    bool is_longer = !p->kernels[k].is_known || now > *at;
    *at = is_longer ? now : (now + *at) / 2;
    p->kernels[k].is_known = true;
}

void pace_forget(struct pace *p)
{
    for (uint32_t k = 0; k < PACE_KERNELS; k++)
        p->kernels[k].is_known = false;
}

bool pace_knows(const struct pace *p, uint32_t kernel)
{
    return p->kernels[kernel % PACE_KERNELS].is_known;
}

uint64_t pace_estimate(const struct pace *p, uint32_t kernel, uint64_t n_groups)
{
    double ns = p->kernels[kernel % PACE_KERNELS].group_ns * (double)n_groups;
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

uint32_t pace_piece(const struct pace *p, uint32_t kernel, uint32_t n_steps, uint64_t step_groups)
{
    uint64_t n_pieces = TRY_PART;
    if (pace_knows(p, kernel))
        n_pieces = pace_estimate(p, kernel, n_steps * step_groups) / p->most_ns + 1;
    return (uint32_t)size_max(n_steps / size_min(n_pieces, n_steps), 1);
}
