#include "device.h"

#include "engine/model.h"
#include "engine/test_hooks.h"
#include "exec/shelf.h"

static struct exec_shelf *shelf;

static void close_all(void)
{
    exec_shelf_free(shelf);
    shelf = NULL;
}

/* Handlers run in reverse order of registration. A driver may have registered its own when it was loaded;
 * this one, registered later, runs before it. The first call closes the shelf, the others find nothing. */
static void close_at_exit(void)
{
    atexit(close_all);
}

bool device_is_software(void)
{
    enum { MOST = 16 };
    struct moeflux_device all[MOST];
    struct moeflux_err e = {0};
    const char *name = device_name();
    int n = device_is_vulkan() ? moeflux_list_devices(all, MOST, &e) : 0;
    for (int i = 0; i < n && i < MOST; i++)
        if (strcmp(all[i].option, name) == 0 || strstr(all[i].name, name))
            return strcmp(all[i].kind, "software") == 0;
    return false;
}

struct exec_shelf *device_shelf(void)
{
    if (!shelf)
        shelf = exec_shelf_new(&(struct moeflux_err){0});
    close_at_exit();
    return shelf;
}

int device_open_traced(struct moeflux_model **out, const struct moeflux_options *o, bool staged,
                       const char *trace, struct moeflux_err *e)
{
    const struct test_hooks hooks = {.staged = staged, .shelf = device_shelf()};
    int rc = model_open(out, o, &hooks, trace, e);
    close_at_exit();
    return rc;
}

int device_open_staged(struct moeflux_model **out, const struct moeflux_options *o, bool staged,
                       struct moeflux_err *e)
{
    return device_open_traced(out, o, staged, NULL, e);
}

int device_plan_staged(const struct moeflux_options *o, bool staged, struct moeflux_plan *out,
                       struct moeflux_err *e)
{
    const struct test_hooks hooks = {.staged = staged, .shelf = device_shelf()};
    int rc = test_hooks_make_plan(o, &hooks, out, e);
    close_at_exit();
    return rc;
}

int device_open_model(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e)
{
    return device_open_staged(out, o, false, e);
}

int device_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct moeflux_err *e)
{
    return device_plan_staged(o, false, out, e);
}
