/* widen (product.h), weights as floats, for one instruction set. */
#include "cpu/table.h"

#include "base/format.h"
#include "cpu/unpack.h"

/* Widens one block, whose first group is number `group` of the matrix. */
VEC_INLINE void widen_codes(const uint8_t *codes, int kind, const struct format *f,
                            const struct cpu_matrix *w, uint64_t group, float *out)
{
    uint8_t bytes[CPU_BLOCK];
    uint32_t part = f->group < CPU_BLOCK ? f->group : CPU_BLOCK;
    float factor = kind == FORMAT_NVFP4_FACTOR ? scales_one(w->biases, SCALE_F32, 0) : 1;
    codes_store(codes_load_last(codes, kind), bytes);
    for (uint32_t first = 0; first < CPU_BLOCK; first += part, group++) {
        bool is_e2m1 = codes_are_e2m1(kind);
        float scale = scales_one(w->scales, f->scale, group) * factor * (is_e2m1 ? 0.5f : 1);
        struct pair bias = pair_set1(is_e2m1 ? 0 : scales_one(w->biases, f->scale, group));
        for (uint32_t c = first; c < first + part; c += PAIR_LANES) {
            struct ipair code = ipair_load_bytes(bytes + c);
            if (is_e2m1)
                pair_store(out + c, pair_mul(pair_from_int(ipair_add(code, ipair_set1(-CODES_SHIFT))),
                                             pair_set1(scale)));
            else
                pair_store(out + c, pair_add(pair_mul(pair_from_int(code), pair_set1(scale)), bias));
        }
    }
}

VEC_INLINE void widen_blocks(const struct cpu_matrix *w, int kind, uint64_t first, uint32_t n, float *out)
{
    const struct format *f = format_of(w->format);
    int shift = __builtin_ctz(f->group);
    const uint8_t *codes = (const uint8_t *)w->weight + first / CPU_BLOCK * codes_bytes(kind);
    for (uint32_t c = 0; c < n; c += CPU_BLOCK, codes += codes_bytes(kind))
        widen_codes(codes, kind, f, w, (first + c) >> shift, out + c);
}

static void widen_e4m3(const struct cpu_matrix *w, uint64_t first, uint32_t n, float *out)
{
    const struct format *f = format_of(w->format);
    const uint8_t *p = (const uint8_t *)w->weight + first;
    for (uint32_t c = 0; c < n; c += PAIR_LANES) {
        struct pair scale = pair_set1(scales_one(w->scales, f->scale, (first + c) / f->group));
        pair_store(out + c, pair_mul(pair_load_e4m3(p + c), scale));
    }
}

VEC_INLINE void widen_halves(const struct cpu_matrix *w, bool is_bf16, uint64_t first, uint32_t n, float *out)
{
    const uint8_t *p = (const uint8_t *)w->weight + 2 * first;
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        uint32_t left = n - c < VEC_LANES ? n - c : VEC_LANES;
        uint16_t some[VEC_LANES] = {0};
        const void *from = p + (size_t)2 * c;
        if (left < VEC_LANES)
            from = memcpy(some, from, left * sizeof *some);
        struct vec v = is_bf16 ? vec_load_bf16(from) : vec_load_f16(from);
        if (left < VEC_LANES)
            vec_store_n(out + c, v, left);
        else
            vec_store(out + c, v);
    }
}

void VEC_NAME(widen)(const struct cpu_matrix *w, uint32_t row, uint32_t col, uint32_t n, float *out)
{
    uint64_t first = (uint64_t)row * w->cols + col;
    if (format_is_block(w->format)) {
        SHARED_NAME(widen_blocks)(w, row, col, n, out);
        return;
    }
    int kind = (int)(w->format & FORMAT_KIND_MASK);
    switch (kind) {
#define BLOCKS(KIND)                                                                                         \
    case KIND:                                                                                               \
        widen_blocks(w, KIND, first, n, out);                                                                \
        break;
        BLOCKS(FORMAT_Q2)
        BLOCKS(FORMAT_Q3)
        BLOCKS(FORMAT_Q4)
        BLOCKS(FORMAT_Q5)
        BLOCKS(FORMAT_Q6)
        BLOCKS(FORMAT_Q8)
        BLOCKS(FORMAT_MXFP4)
        BLOCKS(FORMAT_NVFP4)
        BLOCKS(FORMAT_NVFP4_FACTOR)
#undef BLOCKS
    case FORMAT_MXFP8:
    case FORMAT_FP8:
    case FORMAT_FP8_32:
        widen_e4m3(w, first, n, out);
        break;
    case FORMAT_F32:
        memcpy(out, (const uint8_t *)w->weight + 4 * first, n * sizeof *out);
        break;
    default:
        widen_halves(w, kind == FORMAT_BF16, first, n, out);
        break;
    }
}
