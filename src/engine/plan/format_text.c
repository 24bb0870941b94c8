#include "engine/plan/format_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "model/expert_tensors.h"
#include "model/fp8.h"
#include "model/model_dir.h"
#include "model/names.h"
#include "model/tensor.h"

enum { NAME = 32, MOST_SHARES = 4 };

/* Appends to the text in out, which has room for n characters; a text that does not fit is cut. */
__attribute__((format(printf, 3, 4))) static void add(char *out, size_t n, const char *format, ...)
{
    size_t at = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + at, n - at, format, args);
    va_end(args);
}

static const char *name_of(const struct model_dir *d, uint32_t format, char out[NAME])
{
    static const char *const scales[] = {[SCALE_F16] = " f16", [SCALE_F32] = " f32"};
    const struct format *f = format_of(format);
    bool has_scale = f->scheme == SCHEME_AFFINE && f->scale != SCALE_BF16;
    if (f->scheme == SCHEME_AFFINE) {
        snprintf(out, NAME, "%u bits g%u%s", f->bits, f->group, has_scale ? scales[f->scale] : "");
        return out;
    }
    if (format == FORMAT_FP8) {
        snprintf(out, NAME, d->fp8.rows ? "fp8 %ux%u" : "fp8", d->fp8.rows, d->fp8.cols);
        return out;
    }
    snprintf(out, NAME, "%s", f->name);
    for (char *c = out; *c && f->scheme != SCHEME_BLOCK; c++) /* ggml's own names stay */
        *c = (char)(*c == '_' ? ' ' : tolower((unsigned char)*c));
    return out;
}

static uint32_t largest(const uint64_t amounts[FORMAT_END])
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < FORMAT_END; i++)
        best = amounts[i] > amounts[best] ? i : best;
    return best;
}

/* Adds ", down 6 bits g64 in 12 of 40 layers" for each format that some layers have. */
static void add_layers(const struct model_dir *d, char *out, size_t n, const char *what,
                       const uint64_t layers[FORMAT_END], uint32_t n_layers)
{
    char name[NAME];
    for (uint32_t i = 0; i < FORMAT_END; i++)
        if (layers[i] > 0)
            add(out, n, ", %s%s in %" PRIu64 " of %u layers", what, name_of(d, i, name), layers[i], n_layers);
}

/* The two formats of 8-bit floats differ in memory only. Those of NVFP4 differ by a factor of the matrix, and
 * a GGUF file's have another order of codes on disk. */
static uint32_t format_on_disk(const struct model_dir *d, uint32_t format)
{
    if (format == FORMAT_NVFP4_FACTOR)
        return d->is_gguf ? FORMAT_G_NVFP4 : FORMAT_NVFP4;
    return format == FORMAT_FP8_32 ? FORMAT_FP8 : format;
}

void format_text_experts(const struct model_dir *d, char *out, size_t n)
{
    uint64_t gate[FORMAT_END] = {0}, up[FORMAT_END] = {0}, down[FORMAT_END] = {0};
    uint32_t n_layers = 0;
    char name[NAME];
    for (uint32_t i = 0; i < d->config.n_layers; i++) {
        const struct expert_formats *f = &d->experts[i].formats;
        if (!config_has_experts(&d->config, i))
            continue;
        n_layers++;
        uint32_t up_format = format_on_disk(d, f->up), down_format = format_on_disk(d, f->down);
        up[up_format]++;
        gate[format_on_disk(d, f->gate)] += f->gate != f->up;
        down[down_format] += down_format != up_format;
    }
    uint32_t usual = largest(up);
    up[usual] = 0;
    snprintf(out, n, "%s", name_of(d, usual, name));
    add_layers(d, out, n, "", up, n_layers);
    add_layers(d, out, n, "gate ", gate, n_layers);
    add_layers(d, out, n, "down ", down, n_layers);
}

void format_text_dense(const struct model_dir *d, char *out, size_t n)
{
    uint64_t bytes[FORMAT_END] = {0}, all = 0;
    char name[NAME];
    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct tensor *t = &d->tensors[i];
        uint32_t format = t->dtype == DTYPE_F8_E4M3 ? FORMAT_FP8 : tensor_format(t);
        if (expert_tensors_has(t->name) || fp8_is_scales(t) || format == FORMAT_NONE)
            continue;
        bytes[format_on_disk(d, format)] += t->bytes;
        all += t->bytes;
    }
    out[0] = '\0';
    for (int i = 0; i < MOST_SHARES; i++) {
        uint32_t format = largest(bytes);
        if (bytes[format] == 0)
            return;
        add(out, n, "%s%s %.3g %%", i ? ", " : "", name_of(d, format, name),
            100 * (double)bytes[format] / (double)all);
        bytes[format] = 0;
    }
    uint64_t others = 0;
    for (uint32_t i = 0; i < FORMAT_END; i++)
        others += bytes[i];
    if (others)
        add(out, n, ", others %.3g %%", 100 * (double)others / (double)all);
}
