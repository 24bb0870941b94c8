/* vec.h - 8 floats or 8 integers of 32 bits, with the same arithmetic for every instruction set.
 *
 * A file that includes this is compiled once for each instruction set (src/cpu/isa.h, Makefile). All of them
 * give the same bits: an operation works on each lane alone and rounds once, vec_fma is fused everywhere, and
 * vec_sum adds the lanes in one order. Only the bits of a NaN may differ.
 *
 * Why a struct and not a bare GCC vector: gcc keeps a vector that is wider than the registers in memory, but
 * one of two halves in two registers. VEC_MAKE writes both halves; with registers of 8 floats it drops the
 * second. */
#ifndef MOEFLUX_CPU_VEC_H
#define MOEFLUX_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The Makefile names the instruction set twice: CPU_ISA is its name, CPU_ISA_name is defined for #ifdef. */
#ifndef CPU_ISA
#define CPU_ISA portable
#define CPU_ISA_portable
#endif
#if defined(__x86_64__) && !defined(CPU_ISA_portable)
#define VEC_AVX
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(CPU_ISA_portable)
#define VEC_NEON
#include <arm_neon.h>
#endif

/* VEC_NAME(gemv) is gemv_avx2 and so on. */
#define VEC_JOIN_(name, isa) name##_##isa
#define VEC_JOIN(name, isa)  VEC_JOIN_(name, isa)
#define VEC_NAME(name)       VEC_JOIN(name, CPU_ISA)

#define VEC_INLINE static inline __attribute__((always_inline))

enum { VEC_LANES = 8 };

#ifdef VEC_AVX
enum { VEC_PART = 8 };
#define VEC_MAKE(type, lanes_a, lanes_b) ((struct type){lanes_a})
#define VEC_HALVES(half)                 half a
#else
enum { VEC_PART = 4 };
#define VEC_MAKE(type, lanes_a, lanes_b) ((struct type){lanes_a, lanes_b})
#define VEC_HALVES(half)                 half a, b
#endif

#define VEC_OF(type) type __attribute__((vector_size(VEC_PART * 4)))
/* Lanes 0 to 3 are in a and 4 to 7 in b, or all of them in a. */
struct vec {
    VEC_HALVES(VEC_OF(float));
};
struct ivec {
    VEC_HALVES(VEC_OF(int32_t));
};
/* The lanes as unsigned numbers, for shifts to the right and as masks. */
struct uvec {
    VEC_HALVES(VEC_OF(uint32_t));
};

/* ---- the same bits as another type */
VEC_INLINE struct ivec ivec_bits(struct vec x)
{
    return VEC_MAKE(ivec, (VEC_OF(int32_t))x.a, (VEC_OF(int32_t))x.b);
}

VEC_INLINE struct vec vec_bits(struct ivec x)
{
    return VEC_MAKE(vec, (VEC_OF(float))x.a, (VEC_OF(float))x.b);
}

/* ---- memory; any alignment */
VEC_INLINE struct vec vec_load(const float *p)
{
#if defined(VEC_AVX)
    /* memcpy would be slow: gcc 12 moves 32 bytes through the stack in two parts. */
    return (struct vec){_mm256_loadu_ps(p)};
#elif defined(VEC_NEON)
    return (struct vec){vld1q_f32(p), vld1q_f32(p + 4)};
#else
    struct vec v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}

VEC_INLINE void vec_store(float *p, struct vec v)
{
#if defined(VEC_AVX)
    _mm256_storeu_ps(p, v.a);
#elif defined(VEC_NEON)
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
#else
    memcpy(p, &v, sizeof v);
#endif
}

VEC_INLINE struct ivec ivec_load(const void *p)
{
#if defined(VEC_AVX)
    return (struct ivec){(VEC_OF(int32_t))_mm256_loadu_si256((const __m256i *)p)};
#elif defined(VEC_NEON)
    return (struct ivec){vreinterpretq_s32_u8(vld1q_u8(p)),
                         vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)p + 16))};
#else
    struct ivec v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}

VEC_INLINE void ivec_store(void *p, struct ivec v)
{
#if defined(VEC_AVX)
    _mm256_storeu_si256((__m256i *)p, (__m256i)v.a);
#elif defined(VEC_NEON)
    vst1q_u8(p, vreinterpretq_u8_s32(v.a));
    vst1q_u8((uint8_t *)p + 16, vreinterpretq_u8_s32(v.b));
#else
    memcpy(p, &v, sizeof v);
#endif
}

/* Load and store the first n of 8 lanes. The other lanes are 0, and the memory after n stays as it is. */
VEC_INLINE struct vec vec_load_n(const float *p, uint32_t n)
{
    float lanes[VEC_LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vec_load(lanes);
}

VEC_INLINE void vec_store_n(float *p, struct vec v, uint32_t n)
{
    float lanes[VEC_LANES];
    vec_store(lanes, v);
    memcpy(p, lanes, n * sizeof *p);
}

/* Load and store the first n numbers, at most 8. */
VEC_INLINE struct vec vec_load_some(const float *p, uint32_t n)
{
    return n >= VEC_LANES ? vec_load(p) : vec_load_n(p, n);
}

VEC_INLINE void vec_store_some(float *p, struct vec v, uint32_t n)
{
    if (n >= VEC_LANES)
        vec_store(p, v);
    else
        vec_store_n(p, v, n);
}

VEC_INLINE struct vec vec_set1(float x)
{
#if defined(VEC_AVX)
    return (struct vec){_mm256_set1_ps(x)};
#else
    return VEC_MAKE(vec, x - (VEC_OF(float)){0}, x - (VEC_OF(float)){0});
#endif
}

VEC_INLINE struct ivec ivec_set1(int32_t x)
{
    return VEC_MAKE(ivec, x + (VEC_OF(int32_t)){0}, x + (VEC_OF(int32_t)){0});
}

VEC_INLINE struct vec vec_zero(void)
{
    return vec_set1(0);
}

/* ---- numbers */
VEC_INLINE struct vec vec_add(struct vec x, struct vec y)
{
    return VEC_MAKE(vec, x.a + y.a, x.b + y.b);
}

VEC_INLINE struct vec vec_sub(struct vec x, struct vec y)
{
    return VEC_MAKE(vec, x.a - y.a, x.b - y.b);
}

VEC_INLINE struct vec vec_mul(struct vec x, struct vec y)
{
    return VEC_MAKE(vec, x.a * y.a, x.b * y.b);
}

VEC_INLINE struct vec vec_div(struct vec x, struct vec y)
{
    return VEC_MAKE(vec, x.a / y.a, x.b / y.b);
}

VEC_INLINE struct vec vec_neg(struct vec x)
{
    return VEC_MAKE(vec, -x.a, -x.b);
}

#if !defined(VEC_AVX) && !defined(VEC_NEON)
/* Returns one lane of vec_fma. The C library's fmaf is slow if the processor has none, and a call if gcc may
 * not assume it. In double the product is exact, and the sum is off by `rest`. Rounding the sum to an odd
 * last bit instead of to the nearest keeps what the rounding to float, which has 29 bits less, needs to
 * know. */
static inline float vec_fma_lane(float x, float y, float z)
{
#ifdef FP_FAST_FMAF
    return fmaf(x, y, z);
#else
    double product = (double)x * (double)y, sum = product + (double)z, added = sum - product;
    double rest = (product - (sum - added)) + ((double)z - added);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((bits & 1) == 0 && (rest > 0 || rest < 0))
        bits = (rest > 0) == (sum > 0) ? bits + 1 : bits - 1;
    memcpy(&sum, &bits, sizeof sum);
    return (float)sum;
#endif
}

/* A lane may take a dozen operations; then all calls of a file, of which there are thousands, share one
 * function. */
#ifdef FP_FAST_FMAF
#define VEC_LANES_INLINE VEC_INLINE
#else
#define VEC_LANES_INLINE static __attribute__((noinline, unused))
#endif
VEC_LANES_INLINE struct vec vec_fma_lanes(struct vec x, struct vec y, struct vec z)
{
    float r[VEC_LANES];
    for (int l = 0; l < VEC_PART; l++) {
        r[l] = vec_fma_lane(x.a[l], y.a[l], z.a[l]);
        r[l + VEC_PART] = vec_fma_lane(x.b[l], y.b[l], z.b[l]);
    }
    return vec_load(r);
}
#endif

/* Returns x * y + z, rounded once. */
VEC_INLINE struct vec vec_fma(struct vec x, struct vec y, struct vec z)
{
#if defined(VEC_AVX)
    return (struct vec){_mm256_fmadd_ps(x.a, y.a, z.a)};
#elif defined(VEC_NEON)
    return (struct vec){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
#else
    return vec_fma_lanes(x, y, z);
#endif
}

VEC_INLINE struct vec vec_sqrt(struct vec x)
{
#if defined(VEC_AVX)
    return (struct vec){_mm256_sqrt_ps(x.a)};
#elif defined(VEC_NEON)
    return (struct vec){vsqrtq_f32(x.a), vsqrtq_f32(x.b)};
#else
    float r[VEC_LANES];
    for (int l = 0; l < VEC_PART; l++) {
        r[l] = sqrtf(x.a[l]);
        r[l + VEC_PART] = sqrtf(x.b[l]);
    }
    return vec_load(r);
#endif
}

/* ---- masks: all bits of a lane, or none. A comparison with a NaN is false. */
VEC_INLINE struct ivec vec_greater(struct vec x, struct vec y)
{
    return VEC_MAKE(ivec, (VEC_OF(int32_t))(x.a > y.a), (VEC_OF(int32_t))(x.b > y.b));
}

VEC_INLINE struct ivec ivec_greater(struct ivec x, struct ivec y)
{
    return VEC_MAKE(ivec, x.a > y.a, x.b > y.b);
}

VEC_INLINE struct ivec ivec_equal(struct ivec x, struct ivec y)
{
    return VEC_MAKE(ivec, x.a == y.a, x.b == y.b);
}

VEC_INLINE struct ivec ivec_select(struct ivec mask, struct ivec yes, struct ivec no)
{
#if defined(VEC_AVX)
    return (struct ivec){(VEC_OF(int32_t))_mm256_blendv_epi8((__m256i)no.a, (__m256i)yes.a, (__m256i)mask.a)};
#else
    return VEC_MAKE(ivec, (mask.a & yes.a) | (~mask.a & no.a), (mask.b & yes.b) | (~mask.b & no.b));
#endif
}

VEC_INLINE struct vec vec_select(struct ivec mask, struct vec yes, struct vec no)
{
    return vec_bits(ivec_select(mask, ivec_bits(yes), ivec_bits(no)));
}

/* Returns x > y ? x : y in each lane: y if one of them is a NaN. */
VEC_INLINE struct vec vec_max(struct vec x, struct vec y)
{
#if defined(VEC_AVX)
    return (struct vec){_mm256_max_ps(x.a, y.a)};
#else
    return vec_select(vec_greater(x, y), x, y);
#endif
}

/* Returns y > x ? x : y in each lane: y if one of them is a NaN. */
VEC_INLINE struct vec vec_min(struct vec x, struct vec y)
{
#if defined(VEC_AVX)
    return (struct vec){_mm256_min_ps(x.a, y.a)};
#else
    return vec_select(vec_greater(y, x), x, y);
#endif
}

/* ---- integers; sums and products wrap */
VEC_INLINE struct ivec ivec_add(struct ivec x, struct ivec y)
{
    struct uvec s = VEC_MAKE(uvec, (VEC_OF(uint32_t))x.a + (VEC_OF(uint32_t))y.a,
                             (VEC_OF(uint32_t))x.b + (VEC_OF(uint32_t))y.b);
    return VEC_MAKE(ivec, (VEC_OF(int32_t))s.a, (VEC_OF(int32_t))s.b);
}

VEC_INLINE struct ivec ivec_sub(struct ivec x, struct ivec y)
{
    struct uvec s = VEC_MAKE(uvec, (VEC_OF(uint32_t))x.a - (VEC_OF(uint32_t))y.a,
                             (VEC_OF(uint32_t))x.b - (VEC_OF(uint32_t))y.b);
    return VEC_MAKE(ivec, (VEC_OF(int32_t))s.a, (VEC_OF(int32_t))s.b);
}

VEC_INLINE struct ivec ivec_and(struct ivec x, struct ivec y)
{
    return VEC_MAKE(ivec, x.a & y.a, x.b & y.b);
}

VEC_INLINE struct ivec ivec_or(struct ivec x, struct ivec y)
{
    return VEC_MAKE(ivec, x.a | y.a, x.b | y.b);
}

VEC_INLINE struct ivec ivec_left(struct ivec x, int by)
{
    struct uvec s = VEC_MAKE(uvec, (VEC_OF(uint32_t))x.a << by, (VEC_OF(uint32_t))x.b << by);
    return VEC_MAKE(ivec, (VEC_OF(int32_t))s.a, (VEC_OF(int32_t))s.b);
}

/* Shifts in zeros from the left. */
VEC_INLINE struct ivec ivec_right(struct ivec x, int by)
{
    struct uvec s = VEC_MAKE(uvec, (VEC_OF(uint32_t))x.a >> by, (VEC_OF(uint32_t))x.b >> by);
    return VEC_MAKE(ivec, (VEC_OF(int32_t))s.a, (VEC_OF(int32_t))s.b);
}

/* Shifts in copies of the sign from the left. */
VEC_INLINE struct ivec ivec_right_signed(struct ivec x, int by)
{
    return VEC_MAKE(ivec, x.a >> by, x.b >> by);
}

VEC_INLINE struct ivec ivec_max(struct ivec x, struct ivec y)
{
    return ivec_select(ivec_greater(x, y), x, y);
}

VEC_INLINE struct vec vec_abs(struct vec x)
{
    return vec_bits(ivec_and(ivec_bits(x), ivec_set1(INT32_MAX)));
}

/* ---- conversion of floats and integers */
VEC_INLINE struct vec vec_from_int(struct ivec x)
{
    return VEC_MAKE(vec, __builtin_convertvector(x.a, VEC_OF(float)),
                    __builtin_convertvector(x.b, VEC_OF(float)));
}

/* Rounds to the nearest integer, ties to even. |x| < 2^31. */
VEC_INLINE struct ivec ivec_nearest(struct vec x)
{
#if defined(VEC_AVX)
    return (struct ivec){(VEC_OF(int32_t))_mm256_cvtps_epi32(x.a)};
#elif defined(VEC_NEON)
    return (struct ivec){vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)};
#else
    int32_t r[VEC_LANES];
    for (int l = 0; l < VEC_PART; l++) {
        r[l] = (int32_t)rintf(x.a[l]);
        r[l + VEC_PART] = (int32_t)rintf(x.b[l]);
    }
    return ivec_load(r);
#endif
}

/* ---- across lanes */
VEC_INLINE float vec_lane(struct vec x, int lane)
{
#ifdef VEC_AVX
    return x.a[lane];
#else
    return lane < 4 ? x.a[lane] : x.b[lane - 4];
#endif
}

/* The one tree: adds lanes 4 to 7 to 0 to 3, then (0 + 2) + (1 + 3). */
VEC_INLINE float vec_sum(struct vec x)
{
#ifdef VEC_AVX
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(x.a), _mm256_extractf128_ps(x.a, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
#else
    VEC_OF(float) t = x.a + x.b;
    return (t[0] + t[2]) + (t[1] + t[3]);
#endif
}

/* Lane l of the result is vec_sum(x[l]). */
VEC_INLINE struct vec vec_sums(const struct vec x[VEC_LANES])
{
#ifdef VEC_AVX
    __m256 half[4], quarter[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) /* each half of half[i] is one of two vectors, folded */
        half[i] = _mm256_permute2f128_ps(x[i].a, x[i + 4].a, 0x20) +
                  _mm256_permute2f128_ps(x[i].a, x[i + 4].a, 0x31);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        quarter[i] = _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0x44) +
                     _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0xee);
    return (struct vec){_mm256_shuffle_ps(quarter[0], quarter[1], 0x88) +
                        _mm256_shuffle_ps(quarter[0], quarter[1], 0xdd)};
#else
    float sums[VEC_LANES];
    for (int l = 0; l < VEC_LANES; l++)
        sums[l] = vec_sum(x[l]);
    return vec_load(sums);
#endif
}

/* Returns the largest lane; with a NaN among them, any lane. */
VEC_INLINE float vec_largest(struct vec x)
{
    float m = vec_lane(x, 0);
    for (int l = 1; l < VEC_LANES; l++)
        m = vec_lane(x, l) > m ? vec_lane(x, l) : m;
    return m;
}

VEC_INLINE int32_t ivec_largest(struct ivec x)
{
    int32_t lanes[VEC_LANES], m;
    ivec_store(lanes, x);
    m = lanes[0];
    for (int l = 1; l < VEC_LANES; l++)
        m = lanes[l] > m ? lanes[l] : m;
    return m;
}

/* ---- bf16 and float16 in memory; any alignment */
VEC_INLINE struct vec vec_load_bf16(const void *p)
{
#if defined(VEC_AVX)
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    return (struct vec){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
#elif defined(VEC_NEON)
    uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    return (struct vec){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                        vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
#else
    uint16_t h[VEC_LANES];
    uint32_t wide[VEC_LANES];
    memcpy(h, p, sizeof h);
    for (int l = 0; l < VEC_LANES; l++)
        wide[l] = (uint32_t)h[l] << 16;
    return vec_bits(ivec_load(wide));
#endif
}

/* Rounds to the nearest bf16, ties to even. */
VEC_INLINE void vec_store_bf16(void *p, struct vec x)
{
    struct ivec u = ivec_bits(x), odd = ivec_and(ivec_right(u, 16), ivec_set1(1));
    uint32_t wide[VEC_LANES];
    uint16_t h[VEC_LANES];
    ivec_store(wide, ivec_right(ivec_add(u, ivec_add(odd, ivec_set1(0x7fff))), 16));
    for (int l = 0; l < VEC_LANES; l++)
        h[l] = (uint16_t)wide[l];
    memcpy(p, h, sizeof h);
}

#if !defined(VEC_AVX) && !defined(VEC_NEON)
static inline float vec_f16_wide(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    float f;
    memcpy(&f, &u, sizeof f);
    f *= 0x1p112f;
    memcpy(&u, &f, sizeof u);
    /* The largest exponent means infinity or NaN. */
    u |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    u |= (uint32_t)(h & 0x8000) << 16;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* |x| <= 65504 */
static inline uint16_t vec_f16_narrow(float x)
{
    float size = fabsf(x), shifted = size + 0.5f;
    uint32_t u, s;
    memcpy(&u, &size, sizeof u);
    memcpy(&s, &shifted, sizeof s);
    /* The last bit of 0.5 is 2^-24, the same as that of float16's smallest numbers: the sum rounds to it. */
    uint32_t h = size < 0x1p-14f ? s - 0x3f000000u : ((u + 0xfff + (u >> 13 & 1)) >> 13) - (112u << 10);
    return (uint16_t)(h | (signbit(x) ? 0x8000u : 0));
}
#endif

VEC_INLINE struct vec vec_load_f16(const void *p)
{
#if defined(VEC_AVX)
    return (struct vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p))};
#elif defined(VEC_NEON)
    float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(p));
    return (struct vec){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
#else
    uint16_t h[VEC_LANES];
    float wide[VEC_LANES];
    memcpy(h, p, sizeof h);
    for (int l = 0; l < VEC_LANES; l++)
        wide[l] = vec_f16_wide(h[l]);
    return vec_load(wide);
#endif
}

/* Rounds to the nearest float16, ties to even. Values beyond +-65504 become +-65504. x: no NaN. */
VEC_INLINE void vec_store_f16(void *p, struct vec x)
{
    x = vec_max(vec_min(x, vec_set1(65504)), vec_set1(-65504));
#if defined(VEC_AVX)
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
#elif defined(VEC_NEON)
    vst1q_u8(p, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
#else
    float wide[VEC_LANES];
    uint16_t h[VEC_LANES];
    vec_store(wide, x);
    for (int l = 0; l < VEC_LANES; l++)
        h[l] = vec_f16_narrow(wide[l]);
    memcpy(p, h, sizeof h);
#endif
}

#ifdef VEC_NEON
VEC_INLINE void vec_turn_4(int32x4_t r0, int32x4_t r1, int32x4_t r2, int32x4_t r3, int32x4_t out[4])
{
    int64x2_t t0 = vreinterpretq_s64_s32(vtrn1q_s32(r0, r1)), t1 = vreinterpretq_s64_s32(vtrn2q_s32(r0, r1));
    int64x2_t t2 = vreinterpretq_s64_s32(vtrn1q_s32(r2, r3)), t3 = vreinterpretq_s64_s32(vtrn2q_s32(r2, r3));
    out[0] = vreinterpretq_s32_s64(vtrn1q_s64(t0, t2));
    out[1] = vreinterpretq_s32_s64(vtrn1q_s64(t1, t3));
    out[2] = vreinterpretq_s32_s64(vtrn2q_s64(t0, t2));
    out[3] = vreinterpretq_s32_s64(vtrn2q_s64(t1, t3));
}
#endif

/* ---- transposes a square of 8 x 8: lane j of out[i] gets word i of rows[j]. rows: 32 bytes each, any
 * alignment. */
VEC_INLINE void vec_turn(const void *const rows[VEC_LANES], struct ivec out[VEC_LANES])
{
#if defined(VEC_AVX)
    __m256i r[8], t[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_si256((const __m256i *)rows[i]);
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        out[i].a = (VEC_OF(int32_t))_mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        out[i + 4].a = (VEC_OF(int32_t))_mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
#elif defined(VEC_NEON)
    int32x4_t o[4];
    for (int i = 0; i < VEC_LANES; i += 4) {
        const int32_t *const *p = (const int32_t *const *)rows;
        vec_turn_4(vld1q_s32(p[0] + i), vld1q_s32(p[1] + i), vld1q_s32(p[2] + i), vld1q_s32(p[3] + i), o);
        for (int k = 0; k < 4; k++)
            out[i + k].a = o[k];
        vec_turn_4(vld1q_s32(p[4] + i), vld1q_s32(p[5] + i), vld1q_s32(p[6] + i), vld1q_s32(p[7] + i), o);
        for (int k = 0; k < 4; k++)
            out[i + k].b = o[k];
    }
#else
    int32_t words[VEC_LANES][VEC_LANES];
    for (int row = 0; row < VEC_LANES; row++) {
        int32_t w[VEC_LANES];
        memcpy(w, rows[row], sizeof w);
        for (int i = 0; i < VEC_LANES; i++)
            words[i][row] = w[i];
    }
    for (int i = 0; i < VEC_LANES; i++)
        out[i] = ivec_load(words[i]);
#endif
}

#endif
