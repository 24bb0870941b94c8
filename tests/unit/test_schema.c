/* The tensors of published models: counts and bytes that follow from their shapes agree with the published
 * ones.
 *
 * suites: check fast asan */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/mem.h"
#include "base/str.h"
#include "check.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/expert_places.h"
#include "model/manifest.h"
#include "model/schema.h"

/* The shapes in the configurations of DeepSeek-V3 and Cogito-V2, which use the old style of RoPE. */
static const char COGITO[] =
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, \"num_hidden_layers\": 61, \"vocab_size\": "
    "128815,"
    " \"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"intermediate_size\": 18432,"
    " \"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, \"num_experts_per_tok\": 8,"
    " \"n_shared_experts\": 1, \"first_k_dense_replace\": 3, \"moe_layer_freq\": 1, \"n_group\": 8,"
    " \"topk_group\": 4, \"routed_scaling_factor\": 2.5, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512,"
    " \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"rope_theta\": 10000,"
    " \"max_position_embeddings\": 163840, \"eos_token_id\": 1,"
    " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096,"
    " \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}";

static void read_cogito(struct config *c)
{
    struct moeflux_err e = {0};
    json_t *root = json_loads(COGITO, 0, NULL);
    assert_non_null(root);
    check_ok(config_read(c, root, "config.json", &e), &e);
    json_decref(root);
}

/* 4 bits in groups of 64, vectors and routers BF16. */
struct sum {
    uint32_t n_tensors;
    uint64_t bytes;
};

static void add(struct sum *s, uint64_t bytes)
{
    s->n_tensors++;
    s->bytes = size_round_up(s->bytes, MANIFEST_ALIGN) + bytes;
}

static struct sum sum_of(const struct config *c)
{
    struct sum s = {0};
    struct schema schema;
    struct moeflux_err e = {0};
    check_ok(schema_build(&schema, c, &e), &e);
    for (size_t i = 0; i < schema.n; i++) {
        const struct schema_item *it = &schema.items[i];
        uint64_t n = (uint64_t)it->rows * it->cols;
        if (!it->rows || str_ends_with(it->name, ".mlp.gate")) {
            add(&s, (it->rows ? n : it->cols) * 2);
        } else {
            add(&s, n / 2);
            add(&s, n / 64 * 2);
            add(&s, n / 64 * 2);
        }
    }
    schema_free(&schema);
    return s;
}

static void cogito_has_the_published_tensors(void **state)
{
    (void)state;
    struct config c;
    read_cogito(&c);
    c.has_kv_b = true;
    struct sum s = sum_of(&c);
    assert_int_equal(s.n_tensors, 1831);
    assert_int_equal(s.bytes, 9779389696ULL);
    /* Newer files have two matrices in place of kv_b_proj, as many values together. */
    c.has_kv_b = false;
    struct sum absorbed = sum_of(&c);
    assert_int_equal(absorbed.n_tensors, 1831 + 61 * 3);
    assert_int_equal(absorbed.bytes, 9779389696ULL);
    config_free(&c);
}

static void cogito_has_the_published_experts_and_states(void **state)
{
    (void)state;
    struct config c;
    read_cogito(&c);
    const struct latent_config *m = &config_first(&c, PART_LATENT)->latent;
    uint64_t n_layers = 0;
    for (uint32_t i = 0; i < c.n_layers; i++)
        n_layers += config_has_experts(&c, i);
    const struct expert_formats q4 = {FORMAT_Q4, FORMAT_Q4, FORMAT_Q4};
    uint64_t bytes = expert_places_layout(&c, &q4).bytes;
    assert_int_equal(n_layers, 58);
    assert_int_equal(bytes, 24772608);
    assert_int_equal(bytes * c.n_experts * n_layers, 367823683584ULL);
    assert_int_equal((m->kv_lora_rank + m->rope_dim) * 4ULL * c.n_layers, 140544);
    config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cogito_has_the_published_tensors),
        cmocka_unit_test(cogito_has_the_published_experts_and_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
