/* The loops of loops.h for one instruction set; the Makefile compiles this file once for each. */
#include "ops/loops.h"

#include "args.h"
#include "cpu/vec.h"
#include "cpu/math.h"

/* Defined in the files cpu_isa.c of attention/, delta/, indexer/ and ssd/. */
void VEC_NAME(attention_tile)(struct attention_tile *t);
void VEC_NAME(delta_prepare)(const struct delta_unit *u);
void VEC_NAME(delta_gates)(const struct delta_gate *g);
void VEC_NAME(delta_channels)(const struct delta_channels *c);
void VEC_NAME(delta_walk)(const struct delta_head *h);
void VEC_NAME(indexer_scores)(const struct indexer_tile *t);
void VEC_NAME(ssd_prepare)(const struct ssd_unit *u);
void VEC_NAME(ssd_times)(const struct ssd_steps *s);
void VEC_NAME(ssd_walk)(const struct ssd_head *h);
extern const struct loops VEC_NAME(loops);

enum { SUMS = 4 };

static float dot_loop(const float *x, const float *w, uint32_t n)
{
    struct vec acc[SUMS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        struct vec *to = &acc[c / VEC_LANES % SUMS];
        *to = vec_fma(vec_load_some(x + c, n - c), vec_load_some(w + c, n - c), *to);
    }
    return vec_sum(vec_add(vec_add(acc[0], acc[1]), vec_add(acc[2], acc[3])));
}

static float sum_of_squares(const float *x, uint32_t n)
{
    return dot_loop(x, x, n);
}

static void norm_loop(const float *x, const float *norm, uint32_t n, float eps, float *out)
{
    if (!norm) {
        memcpy(out, x, n * sizeof *x);
        return;
    }
    struct vec by = vec_set1(1 / sqrtf(sum_of_squares(x, n) / (float)n + eps));
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        struct vec v = vec_mul(vec_load_some(x + c, n - c), by);
        vec_store_some(out + c, vec_mul(v, vec_load_some(norm + c, n - c)), n - c);
    }
}

static void unit_loop(const float *x, uint32_t n, float eps, float *out)
{
    struct vec by = vec_set1(1 / sqrtf(sum_of_squares(x, n) / (float)n + eps));
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(out + c, vec_mul(vec_load_some(x + c, n - c), by), n - c);
}

static void swiglu_loop(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(
            out + c, vec_mul(math_silu(vec_load_some(gate + c, n - c)), vec_load_some(up + c, n - c)), n - c);
}

/* x (1 + tanh(h)) / 2 = x sigmoid(2 h), 2 h = 2 sqrt(2 / pi) (x + 0.044715 x^3) */
static void geglu_loop(const float *gate, const float *up, uint32_t n, float *out)
{
    const struct vec by = vec_set1(1.59576912f), cubic = vec_set1(0.044715f);
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        struct vec x = vec_load_some(gate + c, n - c);
        struct vec h = vec_mul(by, vec_fma(vec_mul(cubic, vec_mul(x, x)), x, x));
        vec_store_some(out + c, vec_mul(vec_mul(x, math_sigmoid(h)), vec_load_some(up + c, n - c)), n - c);
    }
}

static void reglu_loop(const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(
            out + c,
            vec_mul(vec_max(vec_load_some(gate + c, n - c), vec_zero()), vec_load_some(up + c, n - c)),
            n - c);
}

static void softcap_loop(float *x, uint32_t n, float cap)
{
    struct vec most = vec_set1(cap);
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(x + c, vec_mul(most, math_tanh(vec_div(vec_load_some(x + c, n - c), most))), n - c);
}

static void swiglu_limited_loop(const float *gate, const float *up, uint32_t n, float alpha, float limit,
                                float *out)
{
    struct vec most = vec_set1(limit), least = vec_set1(-limit), one = vec_set1(1), by = vec_set1(alpha);
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        /* The order of the operands keeps a NaN a NaN. */
        struct vec g = vec_min(most, vec_load_some(gate + c, n - c));
        struct vec u = vec_max(least, vec_min(most, vec_load_some(up + c, n - c)));
        g = vec_mul(g, math_sigmoid(vec_mul(by, g)));
        vec_store_some(out + c, vec_mul(g, vec_add(u, one)), n - c);
    }
}

static void swiglu_clamped_loop(const float *gate, const float *up, uint32_t n, float top, float clamp,
                                float *out)
{
    struct vec highest = vec_set1(top), most = vec_set1(clamp), least = vec_set1(-clamp);
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        /* The order of the operands keeps a NaN a NaN. */
        struct vec g = vec_min(most, math_silu(vec_min(highest, vec_load_some(gate + c, n - c))));
        struct vec u = vec_max(least, vec_min(most, vec_load_some(up + c, n - c)));
        vec_store_some(out + c, vec_mul(g, u), n - c);
    }
}

static void situ_loop(const float *gate, const float *up, uint32_t n, float beta, float linear, float *out)
{
    const struct vec by = vec_set1(beta), of_up = vec_set1(linear);
    for (uint32_t c = 0; c < n; c += VEC_LANES) {
        struct vec g = vec_load_some(gate + c, n - c), u = vec_load_some(up + c, n - c);
        struct vec v = vec_mul(vec_mul(by, math_tanh(vec_div(g, by))), math_sigmoid(g));
        if (linear > 0)
            u = vec_mul(of_up, math_tanh(vec_div(u, of_up)));
        vec_store_some(out + c, vec_mul(v, u), n - c);
    }
}

static void root_softplus_loop(const float *x, uint32_t n, float *out)
{
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(out + c, vec_sqrt(math_softplus(vec_load_some(x + c, n - c))), n - c);
}

static void sigmoid_loop(const float *x, uint32_t n, float *out)
{
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(out + c, math_sigmoid(vec_load_some(x + c, n - c)), n - c);
}

static void exp_below_loop(const float *x, uint32_t n, float top, float *out)
{
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(out + c, math_exp(vec_sub(vec_load_some(x + c, n - c), vec_set1(top))), n - c);
}

static void add_scaled_loop(float *sum, const float *x, float by, uint32_t n)
{
    for (uint32_t c = 0; c < n; c += VEC_LANES)
        vec_store_some(sum + c,
                       vec_fma(vec_set1(by), vec_load_some(x + c, n - c), vec_load_some(sum + c, n - c)),
                       n - c);
}

static void store_f16_loop(const float *x, uint32_t n, void *out)
{
    uint16_t *h = out;
    uint32_t whole = n / VEC_LANES * VEC_LANES;
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        vec_store_f16(h + c, vec_load(x + c));
    if (whole < n) {
        uint16_t last[VEC_LANES];
        vec_store_f16(last, vec_load_n(x + whole, n - whole));
        memcpy(h + whole, last, (n - whole) * sizeof *h);
    }
}

static void load_f16_loop(const void *x, uint32_t n, float *out)
{
    const uint16_t *h = x;
    uint32_t whole = n / VEC_LANES * VEC_LANES;
    for (uint32_t c = 0; c < whole; c += VEC_LANES)
        vec_store(out + c, vec_load_f16(h + c));
    if (whole < n) {
        uint16_t last[VEC_LANES] = {0};
        memcpy(last, h + whole, (n - whole) * sizeof *h);
        vec_store_n(out + whole, vec_load_f16(last), n - whole);
    }
}

/* Compilers make vectors of a block of known size. A product is rounded once, so all sets give the same
 * bits. */
VEC_INLINE void load_q8_block(const int8_t *codes, float scale, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)codes[i] * scale;
}

static void load_q8_loop(const void *row, uint32_t n, float *out)
{
    const int8_t *codes = row;
    const uint8_t *from = (const uint8_t *)row + n;
    float scales[VEC_LANES] = {0};
    for (uint32_t c = 0, b = 0; c < n; c += KV_Q8_BLOCK, b++) {
        uint32_t left = (n - c + KV_Q8_BLOCK - 1) / KV_Q8_BLOCK;
        if (b % VEC_LANES == 0)
            load_f16_loop(from + b * sizeof(uint16_t), left < VEC_LANES ? left : VEC_LANES, scales);
        if (c + KV_Q8_BLOCK <= n)
            load_q8_block(codes + c, scales[b % VEC_LANES], KV_Q8_BLOCK, out + c);
        else
            load_q8_block(codes + c, scales[b % VEC_LANES], n - c, out + c);
    }
}

static void add_rows_loop(float *y, const float *x, const float *rows, uint32_t n_rows, uint32_t n,
                          bool first)
{
    enum { VECS = LOOPS_COLS / VEC_LANES };
    struct vec acc[VECS];
    for (uint32_t i = 0, c = 0; i < VECS; i++, c += VEC_LANES)
        acc[i] = first || c >= n ? vec_zero() : vec_load_some(y + c, n - c);
    for (uint32_t r = 0; r < n_rows; r++, rows += LOOPS_COLS) {
        struct vec by = vec_set1(x[r]);
        for (uint32_t i = 0, c = 0; i < VECS; i++, c += VEC_LANES)
            acc[i] = vec_fma(vec_load(rows + c), by, acc[i]);
    }
    for (uint32_t i = 0, c = 0; c < n; i++, c += VEC_LANES)
        vec_store_some(y + c, acc[i], n - c);
}

static void turn_loop(float *x, const float *angles, uint32_t n, uint32_t apart)
{
    uint32_t step = apart ? 1 : 2, to = apart ? apart : 1;
    for (uint32_t i = 0; i < n; i++, angles += 2) {
        float *u = x + (uint64_t)i * step, *v = u + to, a = *u, b = *v;
        *u = a * angles[0] - b * angles[1];
        *v = b * angles[0] + a * angles[1];
    }
}

const struct loops VEC_NAME(loops) = {
    .norm = norm_loop,
    .unit = unit_loop,
    .squares = sum_of_squares,
    .dot = dot_loop,
    .swiglu = swiglu_loop,
    .geglu = geglu_loop,
    .reglu = reglu_loop,
    .softcap = softcap_loop,
    .swiglu_limited = swiglu_limited_loop,
    .swiglu_clamped = swiglu_clamped_loop,
    .situ = situ_loop,
    .root_softplus = root_softplus_loop,
    .sigmoid = sigmoid_loop,
    .exp_below = exp_below_loop,
    .add_scaled = add_scaled_loop,
    .store_f16 = store_f16_loop,
    .load_f16 = load_f16_loop,
    .load_q8 = load_q8_loop,
    .add_rows = add_rows_loop,
    .turn = turn_loop,
    .attention_tile = VEC_NAME(attention_tile),
    .delta_prepare = VEC_NAME(delta_prepare),
    .delta_gates = VEC_NAME(delta_gates),
    .delta_channels = VEC_NAME(delta_channels),
    .delta_walk = VEC_NAME(delta_walk),
    .indexer_scores = VEC_NAME(indexer_scores),
    .ssd_prepare = VEC_NAME(ssd_prepare),
    .ssd_times = VEC_NAME(ssd_times),
    .ssd_walk = VEC_NAME(ssd_walk),
};
