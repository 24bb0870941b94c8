/* step.h - moeflux_session_step for callers inside the project: they pass the sampler itself. */
#ifndef MOEFLUX_ENGINE_RUN_STEP_H
#define MOEFLUX_ENGINE_RUN_STEP_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct moeflux_session;
struct sampler;

int step_run(struct moeflux_session *s, int32_t id, struct sampler *sampler, bool more, int32_t *next,
             struct moeflux_err *e);

#endif
