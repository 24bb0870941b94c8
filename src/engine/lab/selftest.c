/* The self-test of a device. */
#include "selftest/selftest.h"

#include "base/cores.h"
#include "base/mem.h"
#include "cpu/isa.h"
#include "engine/lab/lab.h"
#include "engine/plan/load_plan.h"

static void relay_row(void *ctx, const struct selftest_row *r)
{
    const struct lab_selftest_options *to = ctx;
    const struct lab_selftest_row row = {r->kernel, r->shape,   r->error, r->bound,
                                         r->ok,     r->skipped, r->device};
    if (to->row)
        to->row(to->ctx, &row);
}

static void relay_progress(void *ctx, uint32_t case_number, uint32_t n_cases)
{
    const struct lab_selftest_options *to = ctx;
    if (to->progress)
        to->progress(to->ctx, case_number, n_cases);
}

int lab_selftest(const struct lab_selftest_options *o, struct moeflux_err *e)
{
    /* More threads than this hold each other up in the drivers. */
    enum { MAX_THREADS = 8 };
    struct lab_selftest_options relay = *o;
    struct exec *x;
    const struct moeflux_options of = {.device = o->device, .cpu_isa = o->cpu_isa};
    struct selftest s = {.device = o->device,
                         .isa = o->cpu_isa,
                         .row = relay_row,
                         .progress = relay_progress,
                         .ctx = &relay,
                         .grid = o->full    ? SELFTEST_FULL
                                 : o->brief ? SELFTEST_SHORT
                                            : SELFTEST_FIRST,
                         .n_threads = (uint32_t)size_min(cores_useful(""), MAX_THREADS)};
    int rc = load_plan_open_exec(&x, &of, NULL, NULL, e);
    if (rc < 0)
        return rc;
    if (exec_get_caps(x).is_native)
        s.device = "cpu";
    if (o->brief && exec_get_caps(x).is_native && !s.isa)
        s.isa = cpu_isa_find(NULL, NULL)->name;
    exec_close(x);
    return selftest_run(&s, e);
}
