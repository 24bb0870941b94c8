/* forecast.h - estimates how long a part of a token takes, from bytes and waits. */
#ifndef MOEFLUX_ENGINE_LAB_FORECAST_H
#define MOEFLUX_ENGINE_LAB_FORECAST_H

#include <stdint.h>

struct lab_device_speeds;
struct lab_speeds;

/* The work of some layers on one device for a token. */
struct forecast_part {
    double device_bytes, cpu_bytes;  /* weights that the device multiplies, and that the CPU multiplies */
    double copied_bytes, disk_bytes; /* weights that are copied to the device first, and read from disk */
    double n_waits;                  /* waits of the host for the device */
    uint32_t n_layers;
    /* The CPU multiplies this share of each layer's experts while the device multiplies own_bytes (of
     * device_bytes) and copies; top_k experts are chosen. 0: not at the same time. */
    double cpu_share, own_bytes;
    uint32_t top_k;
};

/* Returns seconds. machine: only its disk and CPU count. A speed that was not measured takes no time. */
double forecast_part_s(const struct forecast_part *p, const struct lab_device_speeds *device,
                       const struct lab_speeds *machine);

#endif
