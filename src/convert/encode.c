#include "convert/encode.h"

#include <string.h>

#include "base/f16.h"
#include "base/format.h"
#include "base/mem.h"
#include "convert/search.h"
#include "convert/small_floats.h"
#include "model/quant.h"
#include "model/tensor.h"

static bool encode_plain(enum dtype dtype, const void *in, uint64_t n_groups, const struct format *f,
                         const struct convert_codes *to)
{
    switch (dtype) {
    case DTYPE_BF16:
        return quant_encode_bf16(in, n_groups, f, to->codes, to->scales, to->biases);
    case DTYPE_F16:
        return quant_encode_f16(in, n_groups, f, to->codes, to->scales, to->biases);
    default:
        return quant_encode_f32(in, n_groups, f, to->codes, to->scales, to->biases);
    }
}

static void widen(enum dtype dtype, const void *in, uint64_t n, float *out)
{
    const uint16_t *half = in;
    if (dtype == DTYPE_F32)
        memcpy(out, in, n * sizeof *out);
    else if (dtype == DTYPE_BF16)
        for (uint64_t i = 0; i < n; i++)
            out[i] = bf16_to_float(half[i]);
    else
        for (uint64_t i = 0; i < n; i++)
            out[i] = f16_to_float(half[i]);
}

/* Packs a group's codes as a stream of bits, which fills whole bytes. */
static void pack(const uint8_t *codes, uint32_t group, uint32_t bits, uint8_t *out)
{
    for (uint32_t i = 0; i < group; i += 8) {
        uint64_t eight = 0;
        for (uint32_t k = 0; k < 8; k++)
            eight |= (uint64_t)codes[i + k] << (k * bits);
        for (uint32_t k = 0; k < bits; k++)
            *out++ = (uint8_t)(eight >> (8 * k));
    }
}

/* Measures n groups of s->x, and replaces scales in `to`, and their codes, by better ones. */
static void improve(struct search *s, search_fn *run, bool more, const struct format *f, uint32_t n,
                    const struct convert_codes *to, struct convert_error *sum)
{
    uint16_t *scales = to->scales, *biases = to->biases;
    /* The search takes eight groups; at the end some are repeated. */
    for (uint32_t g = n; g < SEARCH_GROUPS; g++)
        memcpy(s->x + (size_t)g * s->group, s->x, s->group * sizeof *s->x);
    for (uint32_t g = 0; g < SEARCH_GROUPS; g++) {
        s->scales[g] = scales[g < n ? g : 0];
        s->biases[g] = biases[g < n ? g : 0];
    }
    run(s, more);
    for (uint32_t g = 0; g < n; g++) {
        struct convert_error x = {.weights = s->group,
                                  .bits = 8 * format_all_bytes(f, s->group),
                                  .squares = (double)s->squares[g],
                                  .minmax = (double)s->first_error[g],
                                  .stored = (double)s->error[g]};
        convert_error_add(sum, &x);
        if (!s->found[g])
            continue;
        scales[g] = s->scales[g];
        biases[g] = s->biases[g];
        pack(s->codes + (size_t)g * s->group, s->group, s->bits,
             to->codes + format_code_bytes(f, (uint64_t)g * s->group));
    }
}

static bool encode_small(enum dtype dtype, const uint8_t *in, uint64_t n_groups, const struct format *f,
                         bool search, const struct convert_codes *out, struct convert_error *sum)
{
    uint64_t width = tensor_dtype_bytes(dtype), bytes = format_code_bytes(f, f->group);
    uint8_t *scales = out->scales;
    bool ok = true;
    for (uint64_t g = 0; ok && g < n_groups; g++) {
        float x[SMALL_FLOATS_MAX_GROUP];
        widen(dtype, in + g * f->group * width, f->group, x);
        ok = small_floats_encode(x, dtype, f, search, out->codes + g * bytes, &scales[g], sum);
    }
    return ok;
}

bool convert_encode(enum dtype dtype, const void *in, uint64_t n, const struct format *f,
                    enum convert_scales rule, const struct convert_codes *out, struct convert_error *sum)
{
    uint64_t n_groups = n / f->group, width = tensor_dtype_bytes(dtype);
    struct convert_error ignored = {0};
    if (small_floats_take(f))
        return encode_small(dtype, in, n_groups, f, rule == CONVERT_SCALES_SEARCH, out, sum);
    if (!encode_plain(dtype, in, n_groups, f, out))
        return false;
    if (rule == CONVERT_SCALES_PLAIN || (rule == CONVERT_SCALES_MINMAX && !sum))
        return true;
    search_fn *run = search_find();
    struct search s = {.group = f->group, .bits = f->bits};
    for (uint64_t g = 0; g < n_groups; g += SEARCH_GROUPS) {
        uint32_t some = (uint32_t)size_min(SEARCH_GROUPS, n_groups - g);
        struct convert_codes to = {out->codes + format_code_bytes(f, g * f->group),
                                   (uint16_t *)out->scales + g, (uint16_t *)out->biases + g};
        widen(dtype, (const uint8_t *)in + g * f->group * width, (uint64_t)some * f->group, s.x);
        improve(&s, run, rule == CONVERT_SCALES_SEARCH, f, some, &to, sum ? sum : &ignored);
    }
    return true;
}
