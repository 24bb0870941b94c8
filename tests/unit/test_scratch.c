/* The scratch memory that attention's parts reserve, against what their calls write: over families, dims as
 * published, chunks, positions and types of the KV cache, on a device like an H200 that need not be there.
 *
 * suites: check vulkan fast asan */
#include <jansson.h>

#include "arch/index.h"
#include "arch/part.h"
#include "base/mem.h"
#include "check.h"
#include "device.h"
#include "exec/exec.h"
#include "model/config.h"
#include "model/config_read.h"
#include "ops/attention/attention.h"
#include "ops/attention/wide.h"
#include "ops/mla/mla.h"

/* part_needs.own of both kinds: partial results, scratch of mla. */
enum { SCRATCH = 1 };
/* Tokens of a slice of mla. */
enum { SLICE = 256 };

static const char *const families[] = {
    "gemma4-plain", "gemma4-odd", "gptoss-plain", "next-plain",    "glm-plain", "m3-plain",   "qw4-plain",
    "mimo-plain",   "step-plain", "kimi-plain",   "kimilin-plain", "k3-plain",  "glm5-plain", "dsv32"};
/* heads, key heads, channels; the first three are Gemma 4's global heads */
static const uint32_t heads[][3] = {{16, 2, 512}, {32, 4, 512}, {8, 2, 512}, {16, 8, 256},
                                    {32, 4, 128}, {64, 8, 64},  {96, 8, 128}};
/* heads over latents of 512 + 64: Kimi-Linear's, Kimi-K2's, Kimi-K3's, DeepSeek-V3's */
static const uint32_t latent_heads[] = {32, 64, 96, 128};
static const uint32_t chunks[] = {1, 15, 16, 64, 512, 2048, 4096};
static const uint32_t contexts[] = {8192, 262144, 1048576};
static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static struct exec_caps caps_of(uint32_t shared_bytes)
{
    return (struct exec_caps){.name = "fake",
                              .max_invariant = EXEC_MAX_INVARIANT,
                              .prompt_is_f16 = true,
                              .kv_default_is_f16 = true,
                              .has_coopmat = true,
                              .has_denorm = true,
                              .n_processors = 132,
                              .subgroup_size = 32,
                              .max_workgroup = 1024,
                              .max_shared_bytes = shared_bytes};
}

static struct attention_shape shape_of(const struct gqa_config *g, enum kv_type type)
{
    return (struct attention_shape){.n_heads = g->n_heads,
                                    .n_kv_heads = g->n_kv_heads,
                                    .key_dim = g->head_dim,
                                    .value_dim = config_value_dim(g),
                                    .gated = g->gated,
                                    .sinks = g->sinks,
                                    .window = g->window,
                                    .choice = index_choice(&g->index),
                                    .kv_type = type};
}

/* Returns the most bytes that calls of n tokens write which see up to n_pos positions. */
static uint64_t most_written(const struct attention_shape *s, const struct exec_caps *caps, uint32_t n,
                             uint32_t n_pos)
{
    enum { STEPS = 24 };
    static const struct attention_fresh fresh;
    struct attention op = {.shape = *s};
    uint64_t most = 0;
    attention_vulkan_plan(&op, caps);
    for (uint32_t i = 0; n <= n_pos && i <= STEPS; i++) {
        uint32_t pos = (uint32_t)((uint64_t)(n_pos - n) * i / STEPS);
        bool is_alone = n == 1 && pos < kv_choice_from(&s->choice) && !s->latent;
        struct attention_call call = {
            .n = n, .pos = pos, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .use_f16 = true};
        /* attention_run divides other calls */
        if (pos < kv_choice_from(&s->choice) && pos + n > kv_choice_from(&s->choice))
            continue;
        most = size_max(most, attention_vulkan_bytes(&op, &call));
        call.on_matrices = is_alone;
        most = size_max(most, attention_vulkan_bytes(&op, &call));
        call.on_matrices = false;
        call.fresh = is_alone ? &fresh : NULL;
        most = size_max(most, attention_vulkan_bytes(&op, &call));
    }
    return most;
}

static void expect_room(const char *family, const struct attention_shape *s, uint32_t n, uint32_t n_pos,
                        uint64_t room, uint64_t written)
{
    if (written > room)
        fail_msg("%s: %u/%u heads of %u, type %d, %u tokens of %u: %llu bytes, the calls write %llu", family,
                 s->n_heads, s->n_kv_heads, s->key_dim, (int)s->kv_type, n, n_pos, (unsigned long long)room,
                 (unsigned long long)written);
}

/* Chunks of every size up to the largest, and sequences of one token each. */
static void check_heads(const char *family, const struct config *c, const struct part_config *p,
                        const struct exec_caps *caps)
{
    for (size_t t = 0; t < LENGTH(types); t++)
        for (size_t k = 0; k < LENGTH(chunks); k++) {
            const struct part_most most = {
                .chunk = chunks[k], .batched = EXEC_MAX_INVARIANT, .kv_type = types[t]};
            const struct attention_shape s = shape_of(&p->gqa, types[t]);
            uint32_t n_pos = config_longest_context(c);
            struct part_needs needs;
            part_gqa.needs(c, p, caps, &most, &needs);
            uint64_t room = needs.own[SCRATCH] * sizeof(float), alone = most_written(&s, caps, 1, n_pos);
            for (size_t i = 0; i <= k; i++)
                expect_room(family, &s, chunks[i], n_pos, room, most_written(&s, caps, chunks[i], n_pos));
            expect_room(family, &s, 1, n_pos, room, alone * part_n_concurrent(&most));
        }
}

static uint64_t mla_written(const struct latent_config *m, const struct attention_shape *s,
                            const struct exec_caps *caps, uint32_t n, uint32_t n_pos)
{
    uint64_t row = size_max(m->kv_lora_rank, m->nope_dim + m->rope_dim);
    uint64_t before = ((uint64_t)s->key_dim + s->value_dim) * sizeof(float) + row * sizeof(uint16_t);
    return (uint64_t)n * s->n_heads * before + most_written(s, caps, n, n_pos);
}

static void check_latents(const char *family, const struct config *c, const struct part_config *p,
                          const struct exec_caps *caps)
{
    for (size_t t = 0; t < LENGTH(types); t++)
        for (size_t k = 0; k < LENGTH(chunks); k++) {
            const struct part_most most = {
                .chunk = chunks[k], .batched = EXEC_MAX_INVARIANT, .kv_type = types[t]};
            const struct latent_config *m = &p->latent;
            const struct attention_shape s = {.n_heads = m->n_heads,
                                              .n_kv_heads = 1,
                                              .key_dim = m->kv_lora_rank + m->rope_dim,
                                              .value_dim = m->kv_lora_rank,
                                              .latent = true,
                                              .choice = index_choice(&m->index),
                                              .kv_type = types[t]};
            uint32_t n_pos = config_longest_context(c);
            struct part_needs needs;
            part_latent.needs(c, p, caps, &most, &needs);
            uint64_t room = needs.own[SCRATCH] * sizeof(float);
            for (size_t i = 0; i <= k; i++) {
                uint32_t n = (uint32_t)size_min(chunks[i], SLICE);
                expect_room(family, &s, n, n_pos, room, mla_written(m, &s, caps, n, n_pos));
            }
        }
}

/* The part with its own dims, then with those of others. */
static void check_part(const char *family, const struct config *c, const struct part_config *p,
                       const struct exec_caps *caps)
{
    struct part_config other = *p;
    if (p->kind == PART_ATTENTION) {
        check_heads(family, c, p, caps);
        for (size_t i = 0; !p->gqa.index.n_heads && i < LENGTH(heads); i++) {
            other.gqa.n_heads = heads[i][0];
            other.gqa.n_kv_heads = heads[i][1];
            other.gqa.head_dim = heads[i][2];
            other.gqa.value_dim = 0;
            check_heads(family, c, &other, caps);
        }
    } else if (p->kind == PART_LATENT) {
        check_latents(family, c, p, caps);
        for (size_t i = 0; i < LENGTH(latent_heads); i++) {
            other.latent.n_heads = latent_heads[i];
            other.latent.kv_lora_rank = 512;
            other.latent.nope_dim = other.latent.v_dim = 128;
            other.latent.rope_dim = 64;
            check_latents(family, c, &other, caps);
        }
    }
}

static void a_part_reserves_what_its_calls_write(void **state)
{
    (void)state;
    static const uint32_t shared[] = {32768, 49152, 101376};
    for (size_t f = 0; f < LENGTH(families); f++) {
        struct config c;
        struct moeflux_err e = {0};
        char path[128];
        snprintf(path, sizeof path, "tests/models/families/%s/config.json", families[f]);
        json_t *root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        check_ok(config_read(&c, root, path, &e), &e);
        for (size_t i = 0; i < LENGTH(contexts) * LENGTH(shared); i++) {
            const struct exec_caps caps = caps_of(shared[i % LENGTH(shared)]);
            c.max_context = contexts[i / LENGTH(shared)];
            for (uint32_t k = 0; k < c.n_parts; k++)
                check_part(families[f], &c, &c.parts[k], &caps);
        }
        config_free(&c);
        json_decref(root);
    }
}

/* The batch fails before anything is written. */
static void a_call_with_too_little_scratch_fails_its_batch(void **state)
{
    (void)state;
    const struct attention_shape s = {
        .n_heads = 4, .n_kv_heads = 2, .key_dim = 64, .value_dim = 64, .scale = 1, .kv_type = KV_TYPE_F32};
    struct exec *x;
    struct attention op;
    struct moeflux_err e = {0};
    if (!device_is_vulkan()) {
        print_message("SKIP CASE: no Vulkan device\n");
        return;
    }
    check_ok(exec_open(&x, &(struct exec_options){.device = device_name()}, &e), &e);
    check_ok(attention_open(&op, x, &s, &e), &e);
    struct attention_call calls[2] = {{.n = 1, .pos = 5000, .n_heads = 4, .n_kv_heads = 2}};
    uint64_t needs = attention_vulkan_bytes(&op, &calls[0]);
    assert_true(needs > 0);
    calls[0].partial_bytes = needs - 1;
    calls[1] = calls[0];
    exec_begin(x);
    attention_run(&op, x, &calls[0]);
    assert_int_equal(exec_finish(x, &e), ERR_NO_FIT);
    exec_begin(x);
    attention_run_concurrent(&op, x, calls, 2);
    assert_int_equal(exec_finish(x, &e), ERR_NO_FIT);
    attention_close(&op, x);
    exec_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_reserves_what_its_calls_write),
        cmocka_unit_test(a_call_with_too_little_scratch_fails_its_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
