/* stop.h - asks whether work should end: after Ctrl-C, or when another thread has failed. */
#ifndef MOEFLUX_HUB_STOP_H
#define MOEFLUX_HUB_STOP_H

#include <stdbool.h>

struct stop {
    bool (*is_set)(void *ctx); /* may be called by any thread */
    void *ctx;
};

static inline bool stop_is_set(const struct stop *s)
{
    return s->is_set(s->ctx);
}

#endif
