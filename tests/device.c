#include "device.h"

#include "engine/test_hooks.h"
#include "exec/shelf.h"

static struct exec_shelf *shelf;

static void close_all(void)
{
    exec_shelf_free(shelf);
    shelf = NULL;
}

/* Handlers run last one first. A driver may have its own, from when it was loaded; one of ours that was registered later
 * comes before it. The first call to close finds the shelf, the others nothing. */
static void close_at_exit(void)
{
    atexit(close_all);
}

struct exec_shelf *device_shelf(void)
{
    if (!shelf)
        shelf = exec_shelf_new(&(struct moeflux_err){0});
    close_at_exit();
    return shelf;
}

int device_open_model(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e)
{
    int rc = test_hooks_open(out, o, &(struct test_hooks){.shelf = device_shelf()}, e);
    close_at_exit();
    return rc;
}

int device_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct moeflux_err *e)
{
    int rc = test_hooks_make_plan(o, &(struct test_hooks){.shelf = device_shelf()}, out, e);
    close_at_exit();
    return rc;
}
