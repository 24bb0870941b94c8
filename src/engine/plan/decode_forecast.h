/* decode_forecast.h - how long a part of a token should take, by bytes and waits. */
#ifndef MOEFLUX_ENGINE_PLAN_DECODE_FORECAST_H
#define MOEFLUX_ENGINE_PLAN_DECODE_FORECAST_H

#include <stdint.h>

struct moeflux_device_speeds;
struct moeflux_speeds;

/* Some layers of a token on one device. */
struct forecast_part {
    double device_bytes, cpu_bytes;  /* weights that the device multiplies, that the CPU does beside it */
    double copied_bytes, disk_bytes; /* of them: to the device first, from disk */
    double n_waits;                  /* of the host for the device */
    uint32_t n_layers;
};

/* Of the machine only the disk and the CPU count. A speed that was not measured takes no time. */
double forecast_part_s(const struct forecast_part *p, const struct moeflux_device_speeds *device,
                       const struct moeflux_speeds *machine);

#endif
