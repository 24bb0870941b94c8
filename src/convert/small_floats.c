#include "convert/small_floats.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "base/f16.h"
#include "base/format.h"
#include "convert/errors.h"

#define E2M1_MAX 6.0f
#define E4M3_MAX 448.0f

bool small_floats_take(const struct format *f)
{
    return f->scheme == SCHEME_E2M1 || f->scheme == SCHEME_E4M3;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Returns the 8-bit float nearest to a >= 0; ties to even, at most the largest. */
static float round_e4m3(float a)
{
    float low = (a + 24576.0f) - 24576.0f, high;
    uint32_t u = bits_of(a);
    u = (u + 0x7ffffu + (u >> 20 & 1)) & ~0xfffffu;
    memcpy(&high, &u, sizeof high);
    float nearest = a < 0x1p-6f ? low : high;
    return nearest < E4M3_MAX ? nearest : E4M3_MAX;
}

/* Returns the bits of a number that is an 8-bit float. */
static uint8_t e4m3_bits(float v)
{
    return (uint8_t)(v < 0x1p-6f ? (uint32_t)(v * 512) : (bits_of(v) >> 20) - (120u << 3));
}

/* Returns twice the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; a tie goes to the smaller one. */
static int32_t round_e2m1(float a)
{
    return (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + 2 * (a > 2.5f) + 2 * (a > 3.5f) +
           4 * (a > 5.0f);
}

/* Returns the bits of the nearest one, which are its index among them. */
static uint32_t e2m1_bits(float a)
{
    return (uint32_t)(a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) +
           (a > 5.0f);
}

enum { LANES = 8 };

/* Sums squared differences. Each format has a loop of its own, which compilers vectorise. */
static void add_errors_e2m1(const float *x, float scale, float *lanes)
{
    for (uint32_t k = 0; k < LANES; k++) {
        float a = fabsf(x[k]), r = 0.5f * (float)round_e2m1(a / scale) * scale - a;
        lanes[k] += r * r;
    }
}

static void add_errors_e4m3(const float *x, float scale, float *lanes)
{
    for (uint32_t k = 0; k < LANES; k++) {
        float a = fabsf(x[k]), r = round_e4m3(a / scale) * scale - a;
        lanes[k] += r * r;
    }
}

static float error_with(const float *x, const struct format *f, float scale)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < f->group; i += LANES)
        if (f->scheme == SCHEME_E4M3)
            add_errors_e4m3(x + i, scale, lanes);
        else
            add_errors_e2m1(x + i, scale, lanes);
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

static float error_of_zero(const float *x, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}

static float scale_of(const struct format *f, uint8_t scale)
{
    return f->scale == SCALE_E8M0 ? e8m0_to_float(scale) : e4m3_to_float(scale);
}

/* Returns mlx's scale. A group that is so small that its scale is 0 gets codes of 0. */
static uint8_t first_scale(float largest, enum dtype dtype, const struct format *f)
{
    float s = largest / (f->scheme == SCHEME_E4M3 ? E4M3_MAX : E2M1_MAX);
    if (dtype == DTYPE_BF16)
        s = bf16_to_float(bf16_from_float(s));
    else if (dtype == DTYPE_F16)
        s = f16_to_float(f16_from_float(s));
    if (f->scale == SCALE_E4M3)
        return e4m3_bits(round_e4m3(s));
    if (s == 0)
        return 127;
    float exponent = ceilf((float)log2((double)s));
    return (uint8_t)(fminf(fmaxf(exponent, -127), 127) + 127);
}

static float error_at(const float *x, const struct format *f, uint8_t scale)
{
    float s = scale_of(f, scale);
    return s == 0 ? error_of_zero(x, f->group) : error_with(x, f, s);
}

/* Returns the best of the scales around the first one, which stays unless another is better. Range: powers of
 * two from a quarter of it to twice it, 8-bit floats from half of it to twice it. */
static uint8_t search_scale(const float *x, const struct format *f, uint8_t first, float *error)
{
    int below = f->scale == SCALE_E8M0 ? 2 : 8, above = f->scale == SCALE_E8M0 ? 1 : 8, best = first;
    int most = f->scale == SCALE_E8M0 ? 254 : 126;
    for (int s = first - below; s <= first + above; s++) {
        if (s < 0 || s > most || s == first)
            continue;
        float other = error_at(x, f, (uint8_t)s);
        if (other < *error) {
            *error = other;
            best = s;
        }
    }
    return (uint8_t)best;
}

/* Encodes n numbers; -0 becomes 0. */
static void put_e2m1(const float *x, uint32_t n, float scale, uint8_t *codes)
{
    uint32_t bits[SMALL_FLOATS_MAX_GROUP] = {0};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = e2m1_bits(fabsf(x[i]) / scale);
        bits[i] = size + (size > 0 && x[i] < 0 ? 8 : 0);
    }
    for (uint32_t i = 0; i < n; i += 2)
        codes[i / 2] = (uint8_t)(bits[i] | bits[i + 1] << 4);
}

static void put_codes(const float *x, const struct format *f, uint8_t scale, uint8_t *codes)
{
    float s = scale_of(f, scale);
    if (s == 0) {
        memset(codes, 0, format_code_bytes(f, f->group));
        return;
    }
    if (f->scheme == SCHEME_E2M1) {
        put_e2m1(x, f->group, s, codes);
        return;
    }
    for (uint32_t i = 0; i < f->group; i++)
        codes[i] = (uint8_t)(e4m3_bits(round_e4m3(fabsf(x[i]) / s)) | (signbit(x[i]) ? 0x80 : 0));
}

bool small_floats_encode(const float *x, enum dtype dtype, const struct format *f, bool search,
                         uint8_t *codes, uint8_t *scale, struct convert_error *sum)
{
    float largest = 0;
    if (!float_all_finite(x, f->group))
        return false;
    for (uint32_t i = 0; i < f->group; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    *scale = first_scale(largest, dtype, f);
    if ((search || sum) && largest > 0) {
        float first = error_at(x, f, *scale), best = first;
        if (search)
            *scale = search_scale(x, f, *scale, &best);
        const struct convert_error one = {
            .squares = (double)error_of_zero(x, f->group), .minmax = (double)first, .stored = (double)best};
        if (sum)
            convert_error_add(sum, &one);
    }
    if (sum) {
        sum->weights += f->group;
        sum->bits += 8 * format_all_bytes(f, f->group);
    }
    put_codes(x, f, *scale, codes);
    return true;
}
