/* doctor_device.h - a device in the page of `moeflux doctor`: limits, memory, the choice of kernels, speeds,
 * self-test. */
#ifndef MOEFLUX_CLI_REPORT_DOCTOR_DEVICE_H
#define MOEFLUX_CLI_REPORT_DOCTOR_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/lab/lab.h"

struct facts;
struct moeflux_err;
struct options;
struct term;

struct doctor_device {
    struct lab_device about;
    struct lab_device_speeds speeds;
    bool measured, tested;
    uint32_t n_cases, n_failed, n_skipped;
    char first_failed[160]; /* kernel, shape, error and bound; "": none failed */
    char fault[512];        /* why it could not be measured or tested; "": it could */
};

/* Fills everything except `about`, which the caller has filled. Errors: the first fault; ERR_DEVICE: cases of
 * the self-test failed. */
int doctor_device_measure(struct doctor_device *d, const struct options *o,
                          const struct moeflux_options *engine, const struct term *t, struct moeflux_err *e);
void doctor_device_report(const struct doctor_device *d, const struct facts *f);

#endif
