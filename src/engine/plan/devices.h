/* devices.h - the devices that a model runs on, and which layers each of them gets. */
#ifndef MOEFLUX_ENGINE_PLAN_DEVICES_H
#define MOEFLUX_ENGINE_PLAN_DEVICES_H

#include "exec/exec.h"
#include "experts/store.h"
#include "moeflux.h"

struct config;
struct test_hooks;

struct devices {
    uint32_t n;
    char names[MOEFLUX_MAX_DEVICES][256]; /* names for exec_options.device; "": the default device */
    struct exec *execs[MOEFLUX_MAX_DEVICES];
};

/* Parses moeflux_options.device: a device's exact name first, else it is split at commas; "all" means the
 * usable GPUs. Opens nothing, and loads Vulkan only if a name or "all" is given. ERR_USAGE; ERR_DEVICE:
 * "all", and there is no GPU. */
int devices_parse(struct devices *out, const char *option, struct moeflux_err *e);
/* Opens all devices. On failure none is open; the text names the one at fault. */
int devices_open(struct devices *d, const struct moeflux_options *o, const struct test_hooks *h,
                 const struct exec *threads_of, struct moeflux_err *e);
/* Whether the two are the same device, whatever their names. */
bool devices_are_one(const struct exec_caps *a, const struct exec_caps *b);
/* Returns the first device that is the cpu, whose threads other execs of the cpu share; NULL: none is
 * open. */
const struct exec *devices_cpu(const struct devices *d);
void devices_close(struct devices *d);
/* Checks whether the options can divide n_layers layers among n devices. ERR_USAGE: more devices than layers,
 * a wrong number of shares or memory sizes, invalid shares. */
int devices_check_shares(const struct moeflux_options *o, uint32_t n, uint32_t n_layers,
                         struct moeflux_err *e);
/* Divides the layers by moeflux_options.tensor_split, else by total memory. Each device gets at least one
 * layer, and no device begins with a layer that uses the choice of a layer before it. Errors: those of
 * devices_check_shares; ERR_USAGE: more devices than layers that one can begin with. */
int devices_share_layers(const struct moeflux_options *o, const struct exec_caps *caps, uint32_t n,
                         const struct config *c, struct expert_layers *out, struct moeflux_err *e);

#endif
