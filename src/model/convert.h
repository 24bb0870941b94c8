/* convert.h - a checkpoint becomes a packed model directory.
 *
 * Sources: MLX 4-bit safetensors (copied), bf16 Hugging Face safetensors (quantised: group 64, 4 bits, router gates
 * 8). Streams: peak memory stays under 1 GiB whatever the model's size. Writes DST.partial and renames it to DST at
 * the end; run again after an interruption it keeps the layers that DST.partial holds completely. */
#ifndef MOEFLUX_MODEL_CONVERT_H
#define MOEFLUX_MODEL_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"

struct err;

struct convert_options {
    const char *src, *dst;
    bool verify;        /* re-read DST and compare checksums with the source's conversion */
    uint32_t n_threads; /* 0: all cores */
    struct progress progress;
};

struct convert_result {
    uint64_t bytes_read, bytes_written;
    uint32_t n_tensors, n_expert_layers;
    uint32_t n_layers_kept; /* taken over from an interrupted run */
};

/* ERR_USAGE: DST exists. ERR_NO_FIT: the disk has less room than needed (both numbers). ERR_FORMAT, ERR_UNSUPPORTED:
 * the source. ERR_INTERRUPTED: DST.partial stays for the next run. */
int convert_run(const struct convert_options *o, struct convert_result *r, struct err *e);

#endif
