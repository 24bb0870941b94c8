/* A model of Cogito-V2's dimensions, cut to one dense layer and one of eight experts, with random weights:
 * the device and the reference agree. What only large shapes meet: 128 heads, a latent of 512, products of
 * 18,432 columns. MOEFLUX_DEVICE names another device than the default one.
 *
 * suites: nightly long */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/f16.h"
#include "base/str.h"
#include "check.h"
#include "moeflux.h"
#include "tmp_tree.h"

enum { HIDDEN = 7168, VOCAB = 96, N_LAYERS = 2, N_HEADS = 128, LATENT = 512, NOPE = 128, ROPE = 64, V = 128 };
enum { Q_RANK = 1536, DENSE = 18432, INNER = 2048, N_EXPERTS = 8, N_PROMPT = 2, N_TOKENS = 3 };

static const char CONFIG[] =
    "{\"model_type\": \"deepseek_v3\", \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"vocab_size\": 96,"
    " \"hidden_size\": 7168, \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 128, \"n_shared_experts\": 1,"
    " \"n_routed_experts\": 8, \"num_experts_per_tok\": 4, \"n_group\": 4, \"topk_group\": 2,"
    " \"routed_scaling_factor\": 2.5, \"norm_topk_prob\": true, \"first_k_dense_replace\": 1,"
    " \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
    " \"v_head_dim\": 128, \"max_position_embeddings\": 163840, \"rope_theta\": 10000, \"eos_token_id\": 1,"
    " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096,"
    " \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0},"
    " \"quantization\": {\"group_size\": 64, \"bits\": 4}}";

/* ---- the file: header and contents are made in the same order, the contents straight to the disk ---- */

struct maker {
    struct str header;
    uint64_t at, rng;
    FILE *f; /* NULL while the header is made */
};

static uint64_t next_random(struct maker *m)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return m->rng;
}

static float uniform(struct maker *m, float low, float high)
{
    return low + (high - low) * (float)(next_random(m) >> 40) * 0x1p-24f;
}

static void name_tensor(struct maker *m, const char *name, const char *dtype, const char *shape,
                        uint64_t bytes)
{
    str_addf(&m->header,
             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
             m->header.len ? "," : "{", name, dtype, shape, m->at, m->at + bytes);
    m->at += bytes;
}

static void write_bytes(struct maker *m, const void *bytes, uint64_t n)
{
    assert_int_equal(fwrite(bytes, 1, n, m->f), n);
}

static void write_codes(struct maker *m, uint64_t bytes)
{
    uint64_t block[512] = {0};
    for (uint64_t done = 0; done < bytes; done += sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof *block; i++)
            block[i] = next_random(m);
        write_bytes(m, block, bytes - done < sizeof block ? bytes - done : sizeof block);
    }
}

/* Scales around s, of both signs, or the biases that centre their codes: the generator is put back between
 * the two. */
static void write_groups(struct maker *m, uint64_t n, float s, float factor)
{
    uint16_t block[1024] = {0};
    for (uint64_t done = 0, here; done < n; done += here) {
        here = n - done < 1024 ? n - done : 1024;
        for (uint64_t i = 0; i < here; i++) {
            float sign = next_random(m) & 1 ? 1.0f : -1.0f;
            block[i] = bf16_from_float(uniform(m, 0.5f, 1.5f) * s * sign * factor);
        }
        write_bytes(m, block, 2 * here);
    }
}

/* n matrices [rows][cols], n = 0: one without that dimension. Outputs are about as large as inputs. */
static void matrix(struct maker *m, const char *base, uint32_t n, uint32_t rows, uint32_t cols)
{
    static const char *const tails[] = {"weight", "scales", "biases"};
    uint64_t groups = (uint64_t)(n ? n : 1) * rows * cols / 64;
    uint64_t before = m->rng;
    for (int i = 0; i < 3; i++) {
        char name[128], shape[64], stack[16] = "";
        uint32_t width = i == 0 ? cols / 8 : cols / 64;
        uint64_t bytes = groups * (i == 0 ? 32 : 2);
        if (n)
            snprintf(stack, sizeof stack, "%u,", n);
        snprintf(name, sizeof name, "%s.%s", base, tails[i]);
        snprintf(shape, sizeof shape, "[%s%u,%u]", stack, rows, width);
        if (!m->f) {
            name_tensor(m, name, i == 0 ? "U32" : "BF16", shape, bytes);
        } else if (i == 0) {
            write_codes(m, bytes);
            before = m->rng;
        } else {
            m->rng = before;
            write_groups(m, groups, 0.23f / sqrtf((float)cols), i == 1 ? 1.0f : -7.5f);
        }
    }
}

static void vector(struct maker *m, const char *name, uint32_t n, float low, float high)
{
    char shape[32];
    snprintf(shape, sizeof shape, "[%u]", n);
    if (!m->f)
        name_tensor(m, name, "F32", shape, 4 * (uint64_t)n);
    for (uint32_t i = 0; m->f && i < n; i++) {
        float v = uniform(m, low, high);
        write_bytes(m, &v, sizeof v);
    }
}

static void router(struct maker *m, const char *name)
{
    if (!m->f)
        name_tensor(m, name, "BF16", "[8,7168]", 2 * (uint64_t)N_EXPERTS * HIDDEN);
    for (uint32_t i = 0; m->f && i < N_EXPERTS * HIDDEN; i++) {
        uint16_t bits = bf16_from_float(uniform(m, -0.02f, 0.02f));
        write_bytes(m, &bits, 2);
    }
}

static const char *in_layer(uint32_t layer, const char *what)
{
    static char name[128];
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, what);
    return name;
}

static void attention(struct maker *m, uint32_t i)
{
    vector(m, in_layer(i, "input_layernorm.weight"), HIDDEN, 0.5f, 1.5f);
    vector(m, in_layer(i, "post_attention_layernorm.weight"), HIDDEN, 0.5f, 1.5f);
    matrix(m, in_layer(i, "self_attn.q_a_proj"), 0, Q_RANK, HIDDEN);
    vector(m, in_layer(i, "self_attn.q_a_layernorm.weight"), Q_RANK, 0.5f, 1.5f);
    matrix(m, in_layer(i, "self_attn.q_b_proj"), 0, N_HEADS * (NOPE + ROPE), Q_RANK);
    matrix(m, in_layer(i, "self_attn.kv_a_proj_with_mqa"), 0, LATENT + ROPE, HIDDEN);
    vector(m, in_layer(i, "self_attn.kv_a_layernorm.weight"), LATENT, 0.5f, 1.5f);
    matrix(m, in_layer(i, "self_attn.embed_q"), N_HEADS, LATENT, NOPE);
    matrix(m, in_layer(i, "self_attn.unembed_out"), N_HEADS, V, LATENT);
    matrix(m, in_layer(i, "self_attn.o_proj"), 0, HIDDEN, N_HEADS * V);
}

static void gated_mlp(struct maker *m, uint32_t layer, const char *prefix, uint32_t n, uint32_t inner)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "mlp.%s%s", prefix, parts[i]);
        matrix(m, in_layer(layer, name), n, i < 2 ? inner : HIDDEN, i < 2 ? HIDDEN : inner);
    }
}

static void tensors(struct maker *m)
{
    m->rng = 20250607;
    matrix(m, "model.embed_tokens", 0, VOCAB, HIDDEN);
    matrix(m, "lm_head", 0, VOCAB, HIDDEN);
    vector(m, "model.norm.weight", HIDDEN, 0.5f, 1.5f);
    attention(m, 0);
    gated_mlp(m, 0, "", 0, DENSE);
    attention(m, 1);
    router(m, in_layer(1, "mlp.gate.weight"));
    vector(m, in_layer(1, "mlp.gate.e_score_correction_bias"), N_EXPERTS, -1.5f, -0.5f);
    gated_mlp(m, 1, "shared_experts.", 0, INNER);
    gated_mlp(m, 1, "switch_mlp.", N_EXPERTS, INNER);
}

static void make_model(const char *dir)
{
    struct maker m = {0};
    uint8_t n[8];
    tensors(&m);
    str_add_text(&m.header, "}");
    assert_true(str_ok(&m.header));
    for (int i = 0; i < 8; i++)
        n[i] = (uint8_t)(m.header.len >> (8 * i));
    m.f = fopen(tmp_tree_path(dir, "model.safetensors"), "wb");
    assert_non_null(m.f);
    write_bytes(&m, n, 8);
    write_bytes(&m, m.header.data, m.header.len);
    tensors(&m);
    assert_int_equal(fclose(m.f), 0);
    str_free(&m.header);
    tmp_tree_write_text(dir, "config.json", CONFIG);
}

/* ---- the comparison ---- */

struct outputs {
    float logits[VOCAB]; /* after the last token */
    float hidden[N_LAYERS + 1][N_TOKENS][HIDDEN];
};

static int keep_hidden(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *rows,
                       struct moeflux_err *e)
{
    struct outputs *out = ctx;
    (void)e;
    memcpy(out->hidden[layer][pos], rows, n * sizeof out->hidden[0][0]);
    return 0;
}

/* The first n_prompt tokens at once, the others one by one. */
static void run_on(const char *dir, const char *device, uint32_t n_prompt, struct outputs *out)
{
    static const int32_t ids[N_TOKENS] = {17, 80, 3};
    const struct moeflux_options o = {.dir = dir,
                                      .device = device,
                                      .context = 64,
                                      .chunk = N_TOKENS,
                                      .prompt_type = MOEFLUX_PROMPT_TYPE_F32};
    struct moeflux_model *m;
    struct moeflux_session *s;
    struct moeflux_err e = {0};
    check_ok(moeflux_model_open(&m, &o, &e), &e);
    check_ok(moeflux_session_new(&s, m, 64, &e), &e);
    const struct moeflux_outputs outputs = {.logits = out->logits, .hidden = keep_hidden, .ctx = out};
    check_ok(moeflux_session_eval(s, ids, n_prompt, &outputs, &e), &e);
    for (uint32_t i = n_prompt; i < N_TOKENS; i++)
        check_ok(moeflux_session_eval(s, ids + i, 1, &outputs, &e), &e);
    moeflux_session_free(s);
    moeflux_model_close(m);
}

/* The largest difference by the largest value. */
static double error_of(const float *found, const float *want, size_t n)
{
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(found[i]) && isfinite(want[i])); /* fmax drops NaN */
        worst = fmax(worst, fabs((double)found[i] - (double)want[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    return worst / largest;
}

static void device_and_reference_agree_on_cogito_s_dimensions(void **state)
{
    (void)state;
    char *dir = tmp_tree_new();
    struct outputs *found = calloc(1, sizeof *found), *want = calloc(1, sizeof *want);
    assert_true(found && want);
    make_model(dir);
    run_on(dir, getenv("MOEFLUX_DEVICE"), N_PROMPT, found);
    run_on(dir, "reference", N_TOKENS, want);
    for (uint32_t i = 0; i <= N_LAYERS; i++) {
        double error = error_of(found->hidden[i][0], want->hidden[i][0], N_TOKENS * HIDDEN);
        printf("hidden %u: %.1e\n", i, error);
        assert_true(error <= 2e-5);
    }
    double error = error_of(found->logits, want->logits, VOCAB);
    printf("logits: %.1e\n", error);
    assert_true(error <= 2e-5);
    free(found);
    free(want);
    tmp_tree_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(device_and_reference_agree_on_cogito_s_dimensions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
