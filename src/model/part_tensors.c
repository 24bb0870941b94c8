#include "model/part_tensors.h"

#include <stdio.h>
#include <string.h>

#include "model/family.h"

static void gqa(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct gqa_config *g = &p->gqa;
    uint32_t d = g->head_dim, q = g->n_heads * d, kv = g->n_kv_heads * d, q_rows = q * (1 + g->gated);
    uint32_t norms = g->norm != QK_NORM_NONE, biased = g->biased;
    bool is_one = g->norm == QK_NORM_ALL;
    const struct part_tensor all[] = {
        [GQA_Q] = {"self_attn.q_proj", q_rows, c->hidden},
        [GQA_K] = {"self_attn.k_proj", kv, c->hidden},
        [GQA_V] = {"self_attn.v_proj", kv, c->hidden},
        [GQA_OUT] = {"self_attn.o_proj", c->hidden, q},
        [GQA_Q_NORM] = {"self_attn.q_norm.weight", 0, norms * (is_one ? q : d)},
        [GQA_K_NORM] = {"self_attn.k_norm.weight", 0, norms * (is_one ? kv : d)},
        [GQA_BIASES] = {"self_attn.q_proj.bias", 0, biased * q_rows},
        [GQA_BIASES + 1] = {"self_attn.k_proj.bias", 0, biased * kv},
        [GQA_BIASES + 2] = {"self_attn.v_proj.bias", 0, biased * kv},
        [GQA_OUT_BIAS] = {"self_attn.o_proj.bias", 0, g->out_biased * c->hidden},
        [GQA_SINKS] = {"self_attn.sinks", 0, g->sinks * g->n_heads},
    };
    memcpy(t, all, sizeof all);
}

static void delta_net(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct delta_config *d = &p->delta;
    uint32_t values = d->n_v_heads * d->v_head_dim, channels = config_conv_dim(d);
    const struct part_tensor all[] = {
        [DELTA_QKV] = {"linear_attn.in_proj_qkv", channels, c->hidden},
        [DELTA_Z] = {"linear_attn.in_proj_z", values, c->hidden},
        [DELTA_B] = {"linear_attn.in_proj_b", d->n_v_heads, c->hidden},
        [DELTA_A] = {"linear_attn.in_proj_a", d->n_v_heads, c->hidden},
        [DELTA_OUT] = {"linear_attn.out_proj", c->hidden, values},
        [DELTA_CONV] = {"linear_attn.conv1d.weight", 0, channels * d->conv_kernel},
        [DELTA_A_LOG] = {"linear_attn.A_log", 0, d->n_v_heads},
        [DELTA_DT_BIAS] = {"linear_attn.dt_bias", 0, d->n_v_heads},
        [DELTA_NORM] = {"linear_attn.norm.weight", 0, d->v_head_dim},
    };
    memcpy(t, all, sizeof all);
}

static void latent(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct latent_config *m = &p->latent;
    uint32_t rank = m->kv_lora_rank, q_rows = m->n_heads * (m->nope_dim + m->rope_dim), lora = m->q_lora_rank;
    uint32_t one = c->has_kv_b, two = !c->has_kv_b;
    const struct part_tensor all[] = {
        [LATENT_Q_A] = {"self_attn.q_proj", lora ? lora : q_rows, c->hidden},
        [LATENT_Q_NORM] = {"self_attn.q_a_layernorm.weight", 0, lora},
        [LATENT_Q_B] = {"self_attn.q_b_proj", q_rows, lora},
        [LATENT_KV_A] = {"self_attn.kv_a_proj_with_mqa", rank + m->rope_dim, c->hidden},
        [LATENT_KV_NORM] = {"self_attn.kv_a_layernorm.weight", 0, rank},
        [LATENT_KV_B] = {"self_attn.kv_b_proj", m->n_heads * (m->nope_dim + m->v_dim), one * rank},
        [LATENT_EMBED_Q] = {"self_attn.embed_q", m->n_heads * rank, two * m->nope_dim},
        [LATENT_UNEMBED] = {"self_attn.unembed_out", m->n_heads * m->v_dim, two * rank},
        [LATENT_OUT] = {"self_attn.o_proj", c->hidden, m->n_heads * m->v_dim},
    };
    memcpy(t, all, sizeof all);
    if (lora)
        strcpy(t[LATENT_Q_A].name, "self_attn.q_a_proj");
}

/* Sets a gated feed-forward part's three matrices, below "mlp." and `where`. */
static void gated(const struct config *c, const char *where, uint32_t inner, struct part_tensor *t)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3 && inner > 0; i++) {
        t[i] = (struct part_tensor){"", i < 2 ? inner : c->hidden, i < 2 ? c->hidden : inner};
        snprintf(t[i].name, sizeof t[i].name, "mlp.%s%s", where, parts[i]);
    }
}

static void dense(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    gated(c, "", p->dense.inner, t + DENSE_GATE);
}

/* Sets a tensor that only some families have. */
static void named(const char *name, uint32_t rows, uint32_t cols, struct part_tensor *t)
{
    if (!name)
        return;
    *t = (struct part_tensor){.rows = rows, .cols = cols};
    snprintf(t->name, sizeof t->name, "mlp.%s", name);
}

static void experts(const struct config *c, const struct part_config *p, struct part_tensor *t)
{
    const struct family *f = c->family;
    uint32_t n = c->experts_biased * c->n_experts;
    const struct part_tensor all[] = {
        [EXPERTS_ROUTER] = {"mlp.gate", c->n_experts, c->hidden},
        [EXPERTS_BIASES] = {"mlp.switch_mlp.gate_proj.bias", 0, n * c->moe_inner},
        [EXPERTS_BIASES + 1] = {"mlp.switch_mlp.up_proj.bias", 0, n * c->moe_inner},
        [EXPERTS_BIASES + 2] = {"mlp.switch_mlp.down_proj.bias", 0, n * c->hidden},
    };
    char shared[PART_TENSOR_NAME / 2];
    (void)p;
    memcpy(t, all, sizeof all);
    named(f->router_bias, 0, c->n_experts, &t[EXPERTS_ROUTER_BIAS]);
    named(f->shared_gate, 1, c->hidden, &t[EXPERTS_SHARED_GATE]);
    snprintf(shared, sizeof shared, "%s.", f->shared ? f->shared : "");
    gated(c, shared, c->shared_inner, t + EXPERTS_GATE);
}

void part_tensors(const struct config *c, const struct part_config *p, struct part_tensor *out)
{
    static void (*const kinds[PART_KINDS])(const struct config *, const struct part_config *,
                                           struct part_tensor *) = {
        [PART_DELTA_NET] = delta_net, [PART_ATTENTION] = gqa,   [PART_LATENT] = latent,
        [PART_DENSE] = dense,         [PART_EXPERTS] = experts,
    };
    memset(out, 0, PART_MAX_TENSORS * sizeof *out);
    kinds[p->kind](c, p, out);
}

struct part_tensor part_norm(const struct config *c, const struct config_block *b)
{
    struct part_tensor t = {.cols = c->hidden};
    snprintf(t.name, sizeof t.name, "%s", b->norm);
    return t;
}
