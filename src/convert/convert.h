/* convert.h - a checkpoint becomes a packed model directory.
 *
 * Sources: MLX safetensors quantised in any of its formats (copied, or with settings brought to fewer bits);
 * bf16, f16 or f32 Hugging Face safetensors (quantised: group 64, 4 bits, Qwen's router gates 8); DeepSeek's
 * fp8 safetensors (rounded to bf16 and quantised as those); gpt-oss's own; a GGUF file or the first of a
 * split set (convert/gguf/source.h). Streams: peak memory stays under 1 GiB whatever the model's size. Writes
 * DST.partial and renames it to DST at the end; run again after an interruption it keeps the layers that
 * DST.partial holds completely.
 *
 * DST: model_weights.bin and .json, packed_experts/layer_NN.bin and layout.json, config.json, the tokenizer's
 * and template's files where the source has them (of a GGUF file made of its metadata), checksums.json
 * (XXH3-64 of every file but spread.json). With `spread` it has spread.json too, and each of the other
 * directories packed_experts/layer_NN.bin, part.json and checksums.json; they are written beside their places
 * and renamed like DST. */
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
    struct convert_settings settings; /* bits and groups; zero: 4 bits, and quantised sources are copied */
    bool verify; /* read everything back before the rename: checksums, and some experts with the source */
    uint32_t n_threads; /* 0: all cores */
    struct moeflux_progress progress;
};

struct convert_result {
    uint64_t bytes_read, bytes_written;
    uint32_t n_tensors, n_expert_layers;
    uint32_t n_layers_kept; /* taken over from an interrupted run */
    uint32_t n_parts;       /* directories with experts */
    uint32_t n_fewer; /* matrices of a quantised source that have fewer bits than asked and were copied */
    struct convert_errors errors; /* with settings: of what was quantised in this run */
};

/* What is said of DST and DST.partial holds for the directories of `spread` too. Progress comes in steps
 * "converting" and "verifying", from the worker threads, one at a time. ERR_USAGE: settings that no format
 * has or that do not go with this source; DST exists, or DST.partial belongs to another source, other
 * settings, another program or a running conversion. ERR_NO_FIT: the disk has less room than needed (both
 * numbers). ERR_FORMAT, ERR_UNSUPPORTED: the source. ERR_IO: reading, writing, or a verification that failed
 * (the file is named and will be made again). ERR_INTERRUPTED: progress said so. After any failure DST does
 * not exist and DST.partial stays for the next run. */
int convert_run(const struct convert_options *o, struct convert_result *r, struct moeflux_err *e);

#endif
