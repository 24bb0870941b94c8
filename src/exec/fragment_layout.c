#include "exec/fragment_layout.h"

#include "args.h"
#include "exec/backend.h"
#include "exec/kernel.h"

static int ask_device(struct exec *x, struct moeflux_err *e)
{
    struct exec_buffer found = {0};
    struct kernel probe;
    uint32_t answer = 0;
    int rc = exec_kernel(x, &probe, "matrices_probe_coop", sizeof(struct matrices_probe_args), NULL, 0, e);
    if (rc == 0)
        rc = exec_buffer_new(x, &found, EXEC_DEVICE, sizeof answer, e);
    if (rc == 0) {
        const struct matrices_probe_args a = {.dst = found.address};
        exec_begin(x);
        exec_dispatch(x, &probe, &a, 1, 1, 1);
        rc = exec_finish(x, e);
    }
    if (rc == 0)
        rc = exec_read(x, &found, 0, &answer, sizeof answer, e);
    exec_buffer_free(x, &found);
    return rc < 0 ? rc : answer == 1;
}

int fragment_layout_probe(struct exec *x, struct moeflux_err *e)
{
    const struct exec_caps c = exec_get_caps(x);
    enum exec_fragment_layout *known = &x->fragment_layout[c.uses_khr];
    if (!c.has_coopmat)
        return 0;
    if (*known == EXEC_LAYOUT_UNKNOWN) {
        int rc = ask_device(x, e);
        if (rc < 0)
            return rc;
        *known = rc ? EXEC_LAYOUT_YES : EXEC_LAYOUT_NO;
    }
    return *known == EXEC_LAYOUT_YES;
}
