#include "engine/plan/devices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/plan/load_plan.h"
#include "model/config.h"

/* The most devices of one machine that are looked at. */
enum { MAX_LISTED = 64 };

static int add(struct devices *d, const char *name, size_t len, struct moeflux_err *e)
{
    if (d->n == MOEFLUX_MAX_DEVICES)
        return err_set(e, ERR_USAGE, "`device` names more than %d devices", MOEFLUX_MAX_DEVICES);
    if (len == 0)
        return err_set(e, ERR_USAGE, "`device`: device %u has no name, expected names between commas",
                       d->n + 1);
    if (len == 3 && memcmp(name, "all", len) == 0)
        return err_set(e, ERR_USAGE,
                       "`device`: all stands for every GPU, no other device can be named with it");
    if (len >= sizeof d->names[0])
        return err_set(e, ERR_USAGE, "`device`: a name of %zu bytes, expected less than %zu", len,
                       sizeof d->names[0]);
    memcpy(d->names[d->n], name, len);
    d->names[d->n++][len] = '\0';
    return 0;
}

static bool is_gpu(const struct moeflux_device *d)
{
    return d->usable && strcmp(d->kind, "cpu") != 0 && strcmp(d->kind, "software") != 0;
}

/* Adds all GPUs if is_all is set; else adds `option` if the whole of it is a device's exact name. */
static int add_listed(struct devices *d, const char *option, bool is_all, struct moeflux_err *e)
{
    struct moeflux_device *list = mem_new(MAX_LISTED, sizeof *list, e);
    if (!list)
        return ERR_MEMORY;
    int n = moeflux_list_devices(list, MAX_LISTED, e), rc = n < 0 ? n : 0;
    for (int i = 0; rc == 0 && i < n && i < MAX_LISTED; i++) {
        const struct moeflux_device *one = &list[i];
        if (is_all && is_gpu(one))
            rc = add(d, one->option, strlen(one->option), e);
        else if (!is_all && d->n == 0 && strcmp(one->name, option) == 0)
            rc = add(d, option, strlen(option), e);
    }
    free(list);
    if (rc == 0 && is_all && d->n == 0)
        return err_set(e, ERR_DEVICE, "`device` all: there is no GPU");
    return rc;
}

/* Whether an item is not a Vulkan device's name but a host backend or an index. */
static bool is_plain(const char *item, size_t len)
{
    static const char *const hosts[] = {"cpu", "reference", "auto"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (strlen(hosts[i]) == len && memcmp(item, hosts[i], len) == 0)
            return true;
    return strspn(item, "0123456789") >= len;
}

/* Whether the whole option may be one device's name, with its commas. If not, Vulkan is not loaded: that
 * takes a slow driver half a second, and the cpu does not need it. */
static bool may_be_a_name(const char *option)
{
    for (const char *at = option; at;) {
        size_t len = strcspn(at, ",");
        if (!is_plain(at, len))
            return true;
        at = at[len] ? at + len + 1 : NULL;
    }
    return false;
}

int devices_parse(struct devices *out, const char *option, struct moeflux_err *e)
{
    *out = (struct devices){0};
    bool is_all = option && strcmp(option, "all") == 0;
    if (!option || !*option) {
        out->n = 1;
        return 0;
    }
    int rc =
        is_all || (strchr(option, ',') && may_be_a_name(option)) ? add_listed(out, option, is_all, e) : 0;
    if (rc < 0 || out->n > 0)
        return rc;
    for (const char *at = option; rc == 0; at++) {
        size_t len = strcspn(at, ",");
        rc = add(out, at, len, e);
        at += len;
        if (!*at)
            break;
    }
    return rc;
}

int devices_open(struct devices *d, const struct moeflux_options *o, const struct test_hooks *h,
                 const struct exec *threads_of, struct moeflux_err *e)
{
    struct moeflux_options one = *o;
    bool has_cpu = false;
    int rc = 0;
    for (uint32_t i = 0; i < d->n; i++)
        has_cpu = has_cpu || strcmp(d->names[i], "cpu") == 0;
    for (uint32_t i = 0; rc == 0 && i < d->n; i++) {
        one.device = d->names[i][0] ? d->names[i] : NULL;
        /* The instruction set applies only to the cpu. */
        one.cpu_isa = d->n > 1 && has_cpu && strcmp(d->names[i], "cpu") != 0 ? NULL : o->cpu_isa;
        rc = load_plan_open_device(&d->execs[i], &one, h, threads_of ? threads_of : devices_cpu(d), e);
    }
    if (rc < 0)
        devices_close(d);
    return rc;
}

bool devices_are_one(const struct exec_caps *a, const struct exec_caps *b)
{
    return a->is_host == b->is_host && a->index == b->index;
}

const struct exec *devices_cpu(const struct devices *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->execs[i] && exec_get_caps(d->execs[i]).is_native)
            return d->execs[i];
    return NULL;
}

void devices_close(struct devices *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        exec_close(d->execs[i]);
        d->execs[i] = NULL;
    }
}

int devices_check_shares(const struct moeflux_options *o, uint32_t n, uint32_t n_layers,
                         struct moeflux_err *e)
{
    if (o->n_tensor_split && o->n_tensor_split != n)
        return err_set(e, ERR_USAGE, "`tensor_split` has %u share%s, expected %u: one for each device",
                       o->n_tensor_split, o->n_tensor_split == 1 ? "" : "s", n);
    if (o->n_gpu_memory && o->n_gpu_memory != n)
        return err_set(e, ERR_USAGE,
                       "`gpu_memory_each` has %u sizes, expected one, or %u: one for each device",
                       o->n_gpu_memory, n);
    if (n > n_layers)
        return err_set(e, ERR_USAGE, "`device` names %u devices, the model has %u layers to share out", n,
                       n_layers);
    for (uint32_t i = 0; i < o->n_tensor_split; i++)
        if (!(o->tensor_split[i] > 0) || !isfinite(o->tensor_split[i]))
            return err_set(e, ERR_USAGE, "`tensor_split`: share %u is %g, expected a number above 0", i + 1,
                           (double)o->tensor_split[i]);
    return 0;
}

/* Returns the layers from `layer` on that a device can begin with. */
static uint32_t n_beginnings(const struct config *c, uint32_t layer)
{
    uint32_t n = 0;
    for (; layer < c->n_layers; layer++)
        n += !config_needs_choice(c, layer);
    return n;
}

/* Returns the boundary nearest to `wanted` after layer `first`, with n_after devices after it. */
static uint32_t boundary(const struct config *c, double wanted, uint32_t first, uint32_t n_after)
{
    uint32_t best = 0;
    for (uint32_t i = first + 1; i < c->n_layers && n_beginnings(c, i) >= n_after; i++)
        if (!config_needs_choice(c, i) && (!best || fabs(i - wanted) <= fabs(best - wanted)))
            best = i;
    return best;
}

/* Each boundary is at the rounded sum of the shares before it, or at the nearest layer from which on none
 * uses an indexer before it, with at least one layer on both of its sides. */
int devices_share_layers(const struct moeflux_options *o, const struct exec_caps *caps, uint32_t n,
                         const struct config *c, struct expert_layers *out, struct moeflux_err *e)
{
    double before = 0, all = 0;
    int rc = devices_check_shares(o, n, c->n_layers, e);
    if (rc < 0)
        return rc;
    if (n > n_beginnings(c, 0))
        return err_set(
            e, ERR_USAGE,
            "`device` names %u devices, the model has %u groups of layers that share an indexer or "
            "rows, expected at most one device for each",
            n, n_beginnings(c, 0));
    for (uint32_t i = 0; i < n; i++)
        all += o->n_tensor_split ? (double)o->tensor_split[i] : (double)caps[i].total_bytes;
    for (uint32_t i = 0, first = 0; i < n; first = out[i++].end) {
        before += o->n_tensor_split ? (double)o->tensor_split[i] : (double)caps[i].total_bytes;
        uint32_t even = c->n_layers * (i + 1) / n;
        double wanted = all > 0 ? before / all * c->n_layers : even;
        uint32_t n_after = n - 1 - i, end = n_after ? boundary(c, wanted, first, n_after) : c->n_layers;
        out[i] = (struct expert_layers){first, end};
    }
    return 0;
}
