/* devices.h - the devices that a model runs on, and which layers each of them gets. */
#ifndef MOEFLUX_ENGINE_PLAN_DEVICES_H
#define MOEFLUX_ENGINE_PLAN_DEVICES_H

#include "exec/exec.h"
#include "experts/store.h"
#include "moeflux.h"

struct test_hooks;

struct devices {
    uint32_t n;
    char names[MOEFLUX_MAX_DEVICES][256]; /* as exec_options.device takes them; "": the default one */
    struct exec *execs[MOEFLUX_MAX_DEVICES];
};

/* Takes moeflux_options.device apart: a device's exact name first, else it is split at commas; "all" means
 * the usable GPUs. Opens nothing, and asks the Vulkan loader only where a name or "all" is among them.
 * ERR_USAGE; ERR_DEVICE: "all", and there is no GPU. */
int devices_parse(struct devices *out, const char *option, struct moeflux_err *e);
/* Opens them all. On failure none is open; the text names the one at fault. */
int devices_open(struct devices *d, const struct moeflux_options *o, const struct test_hooks *h,
                 struct moeflux_err *e);
/* Whether two are one device, by whatever names. */
bool devices_are_one(const struct exec_caps *a, const struct exec_caps *b);
/* The first that is the cpu: others that compute there do it with its threads (exec_options.beside). NULL:
 * none is open. */
const struct exec *devices_cpu(const struct devices *d);
void devices_close(struct devices *d);
/* Whether n_layers layers can be shared out to n devices as the options say. ERR_USAGE: more devices than
 * layers, shares or sizes of memory of another number than devices, bad ones. */
int devices_check_shares(const struct moeflux_options *o, uint32_t n, uint32_t n_layers,
                         struct moeflux_err *e);
/* Shares them out: by moeflux_options.tensor_split, else by total memory. Each device gets a layer at least.
 * The errors of devices_check_shares. */
int devices_share_layers(const struct moeflux_options *o, const struct exec_caps *caps, uint32_t n,
                         uint32_t n_layers, struct expert_layers *out, struct moeflux_err *e);

#endif
