/* cpu/vec.h and cpu/math.h: each instruction set against the C library, all of them bit for bit, and against
 * tests/lib/cpu_bits.txt.
 *
 * suites: check fast asan */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/real.h"
#include "check.h"
#include "cpu/math.h"
#include "cpu_bits.h"
#include "vec_probe.h"

enum { N = 1 << 15 };

static float x[N], y[N], z[N], tame[N], first[N], out[N];

static const char *probe_name(enum vec_probe what)
{
    static const char *const names[] = {
#define NAME(name) #name,
        VEC_PROBES(NAME)
#undef NAME
    };
    return names[what];
}

/* Arguments of all sizes, with zeros of both signs, infinities, NaN and the edges of the formats. */
static void fill(float *v, uint64_t seed)
{
    static const float edges[] = {
        0,        -0.0f,     1,         -1,     INFINITY,   -INFINITY,       NAN,
        65504,    65519.9f,  65520,     1e9f,   0x1p-24f,   0x1p-25f,        0x1.8p-25f,
        0x1p-14f, 0x1p-126f, 0x1p-149f, 88.72f, 88.73f,     -87.4f,          -103.9f,
        -104,     0.5f,      1.5f,      2.5f,   8323071.5f, 3.40282347e+38f, 16777216};
    struct cpu_random r = {seed};
    for (uint32_t i = 0; i < N; i++) {
        uint64_t kind = cpu_random_next(&r) % 8;
        float u = cpu_random_float(&r);
        v[i] = kind == 0   ? edges[cpu_random_next(&r) % (sizeof edges / sizeof *edges)]
               : kind == 1 ? ldexpf(u, (int)(cpu_random_next(&r) % 250) - 125)
               : kind == 2 ? u * 0x1p-14f
               : kind == 3 ? u * 70000
                           : u * 100;
    }
}

static int fill_all(void **state)
{
    (void)state;
    fill(x, 1);
    fill(y, 2);
    fill(z, 3);
    for (uint32_t i = 0; i < N; i++)
        tame[i] = fabsf(x[i]) <= 1e9f ? x[i] : 3;
    return 0;
}

/* Rounding has no meaning for what is no number or too large; SLEEF's log1p ends at 1e38. */
static const float *arguments(enum vec_probe what)
{
    switch (what) {
    case PROBE_nearest:
    case PROBE_largest:
    case PROBE_f16:
    case PROBE_bf16:
    case PROBE_log1p:
        return tame;
    default:
        return x;
    }
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    if (!cpu_common_bits())
        skip();
    for (uint32_t what = 0; what < N_PROBES; what++) {
        uint32_t idx = 0;
        for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
            float *to = isa->idx == 0 ? first : out;
            vec_probe(isa->idx)(what, arguments(what), y, z, to, N);
            cpu_bits_equal(probe_name(what), isa->name, to, first, N);
        }
        cpu_bits_check(probe_name(what), "the portable set", first, N);
    }
}

static double c_library(enum vec_probe what, double a, double b, double c)
{
    switch (what) {
    case PROBE_add:
        return a + b;
    case PROBE_sub:
        return a - b;
    case PROBE_mul:
        return a * b;
    case PROBE_div:
        return a / b;
    case PROBE_neg:
        return -a;
    case PROBE_fma:
        return fmaf((float)a, (float)b, (float)c);
    case PROBE_sqrt:
        return sqrt(a);
    case PROBE_max:
        return a > b ? a : b;
    case PROBE_min:
        return b > a ? a : b;
    case PROBE_abs:
        return fabs(a);
    case PROBE_select:
        return a > b ? b : c;
    case PROBE_nearest:
        return rint(a);
    case PROBE_exp:
        return exp(a);
    case PROBE_log:
        return log(a);
    case PROBE_log1p:
        return log1p(a);
    case PROBE_tanh:
        return tanh(a);
    case PROBE_sigmoid:
        return 1 / (1 + exp(-a));
    case PROBE_silu:
        return a / (1 + exp(-a));
    case PROBE_softplus:
        return fmax(a, 0) + log1p(exp(-fabs(a)));
    default:
        return 0;
    }
}

/* Error in units of the last place of float32; operations that vec.h rounds once are exact. */
static double bound(enum vec_probe what)
{
    switch (what) {
    case PROBE_exp:
    case PROBE_log:
    case PROBE_log1p:
    case PROBE_tanh:
        return 1.01;
    case PROBE_sigmoid:
    case PROBE_silu:
    case PROBE_softplus:
        return 4;
    default:
        return 0.5;
    }
}

static void expect_near(enum vec_probe what, const char *isa, uint32_t i, float got)
{
    double want = c_library(what, (double)arguments(what)[i], (double)y[i], (double)z[i]);
    /* sigmoid and silu of less than -88.7 are 0, where exp is infinite; SLEEF gives up the last places of
     * denormals. */
    bool vanishes = what == PROBE_sigmoid || what == PROBE_silu;
    double unit = fmax(fabs(want) * 0x1p-23, vanishes ? 0x1p-120 : 0x1p-146);
    if (isnan(want)          ? isnan(got)
        : isinf((float)want) ? got == (float)want
                             : fabs((double)got - want) <= bound(what) * unit)
        return;
    fail_msg("%s, %s of %.9g, %.9g, %.9g: %.9g, expected %.9g", isa, probe_name(what),
             (double)arguments(what)[i], (double)y[i], (double)z[i], (double)got, want);
}

static void each_operation_agrees_with_the_c_library(void **state)
{
    (void)state;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));)
        for (uint32_t what = 0; what < N_PROBES; what++) {
            if (what == PROBE_largest || what == PROBE_sum || what == PROBE_sums || what == PROBE_bits ||
                what == PROBE_turn || what == PROBE_bf16 || what == PROBE_f16 || what == PROBE_f16_wide)
                continue;
            vec_probe(isa->idx)(what, arguments(what), y, z, out, N);
            for (uint32_t i = 0; i < N; i++)
                expect_near(what, isa->name, i, out[i]);
        }
}

/* Products whose sum with z lies at or next to the middle of two floats, of all sizes, normal or not. */
static void fill_with_middles(void)
{
    struct cpu_random r = {5};
    for (uint32_t i = 0; i < N; i++) {
        uint64_t kind = cpu_random_next(&r);
        int size = (int)(kind % 150) - 149, apart = (int)(kind >> 8 & 63) - 8;
        x[i] = ldexpf(1 + (float)(kind >> 16 & 4095) * 0x1p-12f, size);
        y[i] = 1 + (float)(kind >> 32 & 4095) * 0x1p-12f;
        float sum = x[i] * y[i], half = ldexpf(cpu_random_float(&r) > 0 ? 1 : -1, size - apart);
        z[i] = kind >> 63 ? half : kind >> 62 & 1 ? -sum : ldexpf(sum, apart) + half;
    }
}

static void expect_fmaf(void)
{
    uint32_t idx = 0;
    for (uint32_t i = 0; i < N; i++)
        first[i] = fmaf(x[i], y[i], z[i]);
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        vec_probe(isa->idx)(PROBE_fma, x, y, z, out, N);
        cpu_bits_equal("fma", isa->name, out, first, N);
    }
}

static void a_multiply_add_is_rounded_once(void **state)
{
    fill_all(state);
    expect_fmaf();
    fill_with_middles();
    expect_fmaf();
}

static void the_sum_of_eight_is_the_tree_also_of_eight_at_once(void **state)
{
    (void)state;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        vec_probe(isa->idx)(PROBE_sum, x, y, z, out, N);
        for (uint32_t i = 0; i < N; i += 8) {
            const float *v = x + i;
            first[i] = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
            for (uint32_t l = 1; l < 8; l++)
                first[i + l] = first[i];
        }
        cpu_bits_equal("sum", isa->name, out, first, N);
        for (uint32_t i = 0; i < N; i++)
            first[i] = out[i / 64 * 64 + i % 8 * 8];
        vec_probe(isa->idx)(PROBE_sums, x, y, z, out, N);
        cpu_bits_equal("sums", isa->name, out, first, N);
    }
}

static void a_square_is_turned(void **state)
{
    (void)state;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        vec_probe(isa->idx)(PROBE_turn, x, y, z, out, N);
        for (uint32_t i = 0; i < N; i++)
            first[i] = x[i / 64 * 64 + i % 8 * 8 + i % 64 / 8];
        cpu_bits_equal("turn", isa->name, out, first, N);
    }
}

/* x rounded to `bits` bits after the first one, none of them below 2^lowest. */
static float rounded(float v, int bits, int lowest)
{
    int exponent;
    frexp((double)v, &exponent);
    int last = exponent - 1 - bits;
    last = last < lowest ? lowest : last;
    return (float)ldexp(rint(ldexp((double)v, -last)), last);
}

static void short_floats_are_rounded_to_the_nearest(void **state)
{
    (void)state;
    uint32_t idx = 0;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        const float *in = arguments(PROBE_f16);
        vec_probe(isa->idx)(PROBE_f16, in, y, z, out, N);
        for (uint32_t i = 0; i < N; i++)
            first[i] = rounded(fmaxf(fminf(in[i], 65504), -65504), 10, -24);
        cpu_bits_equal("f16", isa->name, out, first, N);
        vec_probe(isa->idx)(PROBE_bf16, in, y, z, out, N);
        for (uint32_t i = 0; i < N; i++)
            first[i] = rounded(in[i], 7, -133);
        cpu_bits_equal("bf16", isa->name, out, first, N);
    }
}

static void sine_cosine_and_power_are_good_to_a_unit(void **state)
{
    (void)state;
    struct cpu_random r = {4};
    for (uint32_t i = 0; i < N; i++) {
        double a = (double)cpu_random_float(&r) * 300000, p = -fabs((double)cpu_random_float(&r));
        assert_true(fabs(real_sin(a) - sin(a)) <= 0x1p-52);
        assert_true(fabs(real_cos(a) - cos(a)) <= 0x1p-52);
        assert_true(fabs(real_pow(1e7, p) - pow(1e7, p)) <= 0x1p-51 * pow(1e7, p));
        first[i] = (float)(real_sin(a) + real_cos(a) * real_pow(1e7, p));
        double rest = real_sin(a) - (double)(float)real_sin(a); /* the last places of the double */
        x[i] = (float)(rest + real_pow(10, p) - (double)(float)real_pow(10, p));
    }
    if (!cpu_common_bits())
        skip();
    cpu_bits_check("tables", "double", first, N);
    cpu_bits_check("tables_low", "double", x, N);
}

static void an_instruction_set_is_found_by_its_name(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    uint32_t idx = 0;
    const struct cpu_isa *best = NULL;
    for (const struct cpu_isa *isa; (isa = cpu_next_isa(&idx));) {
        assert_ptr_equal(cpu_isa_find(isa->name, &e), isa);
        best = isa;
    }
    assert_ptr_equal(cpu_isa_find(NULL, &e), best);
    assert_string_equal(cpu_isa_at(0)->name, "portable");
}

static void an_unknown_instruction_set_is_an_error_that_lists_them(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    assert_null(cpu_isa_find("sse9", &e));
    assert_int_equal(e.code, ERR_USAGE);
    assert_non_null(strstr(e.text, " sse9: "));
    assert_non_null(strstr(e.text, " portable "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_instruction_set_gives_the_same_bits, fill_all),
        cmocka_unit_test_setup(each_operation_agrees_with_the_c_library, fill_all),
        cmocka_unit_test(a_multiply_add_is_rounded_once),
        cmocka_unit_test_setup(the_sum_of_eight_is_the_tree_also_of_eight_at_once, fill_all),
        cmocka_unit_test_setup(a_square_is_turned, fill_all),
        cmocka_unit_test_setup(short_floats_are_rounded_to_the_nearest, fill_all),
        cmocka_unit_test(sine_cosine_and_power_are_good_to_a_unit),
        cmocka_unit_test(an_instruction_set_is_found_by_its_name),
        cmocka_unit_test(an_unknown_instruction_set_is_an_error_that_lists_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
