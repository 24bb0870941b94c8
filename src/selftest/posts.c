/* The self-test's cases of norms after parts and of bounded logits. */
#include <stdio.h>

#include "ops/normed_add.h"
#include "ops/softcap.h"
#include "selftest/kernel_test.h"

static const double BOUND = 2e-6;

/* The terms that a call has. */
struct terms {
    bool add, outer, base, factor;
};

static void normed_add_case(struct kernel_test *l, uint32_t cols, uint32_t n, struct terms has)
{
    if (!kt_takes(l, l->is_rest))
        return;
    uint64_t all = (uint64_t)n * cols;
    struct test_buffer *y = kt_floats(l, all, -2, 2), *norm = kt_floats(l, cols, 0.5f, 1.5f),
                       *add = kt_floats(l, all, -2, 2), *outer = kt_floats(l, cols, 0.5f, 1.5f),
                       *x = kt_floats(l, all, -2, 2), *factor = kt_floats(l, 1, 0.5f, 2),
                       *dst = kt_bytes(l, NULL, 4 * all);
    struct test_buffer *to = has.base ? x : dst; /* the residual is updated in place */
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct normed_add op;
        if (normed_add_open(&op, l->side[s], cols, 1e-6f, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        normed_add_run(&op, l->side[s],
                       &(struct normed_add_call){.y = y->on[s].address,
                                                 .norm = norm->on[s].address,
                                                 .add = has.add ? add->on[s].address : 0,
                                                 .outer = has.outer ? outer->on[s].address : 0,
                                                 .base = has.base ? x->on[s].address : 0,
                                                 .factor = has.factor ? factor->on[s].address : 0,
                                                 .dst = to->on[s].address,
                                                 .n = n});
        kt_finish(l, s);
    }
    char text[96];
    snprintf(text, sizeof text, "%u, %u token%s%s%s%s%s", cols, n, n > 1 ? "s" : "", has.add ? ", sum" : "",
             has.outer ? ", two norms" : "", has.base ? ", in place" : "", has.factor ? ", factor" : "");
    kt_report(l, "normed_add", text, kt_error(l, to, all), BOUND);
}

static void softcap_case(struct kernel_test *l, uint32_t n, float cap, float largest)
{
    if (!kt_takes(l, l->is_rest))
        return;
    struct test_buffer *x = kt_floats(l, n, -largest, largest);
    for (int s = 0; s < kt_n_sides(l) && !l->err.code; s++) {
        struct softcap op;
        if (softcap_open(&op, l->side[s], cap, &l->err) < 0)
            break;
        exec_begin(l->side[s]);
        softcap_run(&op, l->side[s], &(struct softcap_call){.x = x->on[s].address, .n = n});
        kt_finish(l, s);
    }
    char text[64];
    snprintf(text, sizeof text, "%u up to %g, cap %g", n, (double)largest, (double)cap);
    kt_report(l, "softcap", text, kt_error(l, x, n), BOUND);
}

void selftest_posts_cases(struct kernel_test *l)
{
    normed_add_case(l, 64, 1, (struct terms){.base = true});
    normed_add_case(l, 192, 5, (struct terms){0});
    normed_add_case(l, 2816, 3, (struct terms){true, true, true, true});
    normed_add_case(l, 1092, 40, (struct terms){.add = true, .outer = true, .base = true});
    normed_add_case(l, 68, 2, (struct terms){.base = true, .factor = true});
    softcap_case(l, 1, 30, 10);
    softcap_case(l, 20003, 30, 200);
    softcap_case(l, 515, 0.5f, 0.25f);
}
