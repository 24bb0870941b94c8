/* convert.h - converts a checkpoint to a packed model directory.
 *
 * Sources: MLX safetensors in any of its formats (copied, or reduced to fewer bits if settings say so); bf16,
 * f16 or f32 Hugging Face safetensors (quantised: 4 bits in groups of 64, Qwen's router gates 8 bits);
 * DeepSeek's fp8 safetensors (rounded to bf16, then quantised); gpt-oss and Kimi-K2.5 as published; a GGUF
 * file or the first of a split set (convert/gguf/source.h).
 *
 * Conversion streams: peak memory stays under 1 GiB for models of any size. It writes DST.partial and renames
 * it to DST at the end. A run after an interruption keeps the complete layers of DST.partial.
 *
 * DST has:
 *   model_weights.bin, model_weights.json, config.json, packed_experts/layer_NN.bin and layout.json
 *   the files of tokenizer and template if the source has them (made from a GGUF file's metadata)
 *   checksums.json: XXH3-64 of every file except spread.json
 *   spread.json with `spread`
 *   mtp/ if the source has a layer of multi-token prediction that is supported (model/drafter.h): the same
 *     files for the layer, without embedding, head and tokenizer; matrices of more than 8 bits get 8
 *
 * Each directory of `spread` has packed_experts/layer_NN.bin, part.json and checksums.json. It too is written
 * as DIR.partial and renamed. */
#ifndef MOEFLUX_CONVERT_CONVERT_H
#define MOEFLUX_CONVERT_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "convert/errors.h"
#include "convert/settings.h"

struct moeflux_err;

struct convert_options {
    const char *src, *dst; /* src: a directory, or a GGUF file */
    /* directories on other disks, "DIR2,DIR3", that share the experts with DST; NULL: none */
    const char *spread;
    /* bits and groups; zero: 4 bits, and quantised sources and a GGUF file's blocks are copied */
    struct convert_settings settings;
    bool no_drafter;          /* leaves a layer of multi-token prediction out */
    const char *drafter_file; /* a GGUF file that has this layer alone; NULL: src has it, or there is none */
    bool verify; /* reads all back before the rename; compares checksums, and some experts with the source */
    uint32_t n_threads; /* 0: all cores */
    struct moeflux_progress progress;
};

struct convert_result {
    uint64_t bytes_read, bytes_written;
    uint32_t n_tensors, n_expert_layers;
    uint32_t n_left_out;    /* tensors of the source that are of its other parts, vision for example */
    bool has_drafter;       /* DST has a layer of multi-token prediction */
    uint32_t n_layers_kept; /* layers kept from an interrupted run */
    uint32_t n_parts;       /* directories with experts */
    uint32_t n_fewer; /* matrices of a quantised source with fewer bits than requested, which were copied */
    struct convert_errors errors; /* errors of what was quantised in this run; zero without settings */
};

/* Converts. DST and DST.partial below also mean the directories of `spread`. Progress comes in steps
 * "converting" and "verifying", from the worker threads, one at a time. After any failure DST does not exist,
 * and DST.partial stays for the next run. ERR_USAGE: settings that no format has or that do not go with this
 * source; DST exists; or DST.partial belongs to another source, other settings, another program or a running
 * conversion. ERR_NO_FIT: the disk has less room than needed (with both numbers). ERR_FORMAT,
 * ERR_UNSUPPORTED: the source. ERR_IO: reading or writing failed, or verification found a bad file, which is
 * named and will be written again. ERR_INTERRUPTED: progress asked to stop. */
int convert_run(const struct convert_options *o, struct convert_result *r, struct moeflux_err *e);

#endif
