/* samplers.h - a sampler and its draws. Everything asserts. */
#ifndef MOEFLUX_TESTS_SAMPLERS_H
#define MOEFLUX_TESTS_SAMPLERS_H

#include "check.h"
#include "sample/sampler.h"

static inline struct sampler *samplers_new(const struct moeflux_sampler_options *o, uint32_t n_ids,
                                           const uint8_t *allowed)
{
    struct moeflux_err e = {0};
    struct sampler *s = sampler_new(o, NULL, n_ids, allowed, &e);
    if (!s)
        fail_msg("%s", e.text);
    return s;
}

static inline int32_t samplers_pick(struct sampler *s, const float *logits)
{
    struct moeflux_err e = {0};
    int32_t id = sampler_pick(s, logits, &e);
    if (id < 0)
        fail_msg("%s", e.text);
    return id;
}

#endif
