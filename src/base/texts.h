/* texts.h - a short list of texts that somebody else owns. */
#ifndef MOEFLUX_BASE_TEXTS_H
#define MOEFLUX_BASE_TEXTS_H

#include <stdint.h>

enum { TEXTS_MAX = 15 };

struct texts {
    uint32_t n;
    const char *values[TEXTS_MAX]; /* borrowed, not empty */
};

#endif
