/* What moeflux.h offers without an opened model: devices, the needs of a model, the self-test. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "model/family.h"
#include "selftest/selftest.h"
#include "vulkan/device.h"

int moeflux_list_devices(struct moeflux_device *out, uint32_t cap, struct moeflux_err *e)
{
    struct gpu_info *all = mem_new(cap, sizeof *all, e);
    int n = all ? gpu_list(all, cap, e) : ERR_MEMORY;
    for (int i = 0; i < n && (uint32_t)i < cap; i++) {
        out[i] = (struct moeflux_device){.idx = (uint32_t)i,
                                         .memory_bytes = all[i].memory_bytes,
                                         .subgroup_size = all[i].subgroup_size,
                                         .usable = !all[i].missing[0]};
        snprintf(out[i].name, sizeof out[i].name, "%s", all[i].name);
        snprintf(out[i].kind, sizeof out[i].kind, "%s", all[i].kind);
        snprintf(out[i].driver, sizeof out[i].driver, "%s", all[i].driver);
        snprintf(out[i].why_not, sizeof out[i].why_not, "%s", all[i].missing);
    }
    free(all);
    return n;
}

/* Parameters of the dense tensors. Scales and biases of quantised ones do not count. */
static uint64_t dense_params(const struct model_dir *d)
{
    uint64_t n = 0;
    for (size_t i = 0; i < d->n_tensors; i++) {
        const struct tensor *t = &d->tensors[i];
        size_t len = strlen(t->name);
        if (strstr(t->name, ".switch_mlp.") || (len > 7 && strcmp(t->name + len - 7, ".scales") == 0) ||
            (len > 7 && strcmp(t->name + len - 7, ".biases") == 0))
            continue;
        uint64_t width = t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16 ? 16 : t->bits ? t->bits : 32;
        n += t->bytes * 8 / width;
    }
    return n;
}

void model_info_needs(const struct model_dir *d, struct moeflux_needs *out)
{
    const struct config *c = &d->config;
    uint64_t expert_params = 3 * (uint64_t)c->hidden * c->moe_inner, n_moe = 0;
    *out = (struct moeflux_needs){.n_layers = c->n_layers,
                                  .hidden = c->hidden,
                                  .vocab_size = c->vocab_size,
                                  .n_experts = c->n_experts,
                                  .top_k = c->top_k,
                                  .moe_inner = c->moe_inner,
                                  .max_context = c->max_context,
                                  .packed = d->packed,
                                  .dense_bytes = d->dense_bytes,
                                  .expert_bytes = d->expert_bytes,
                                  .one_expert_bytes = d->expert.bytes};
    snprintf(out->architecture, sizeof out->architecture, "%s", c->family->name);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct arch_state s = arch_state_of(c, i, KV_TYPE_F32);
        out->n_attention += s.rows[0].n > 0;
        out->kv_bytes_per_pos += ((uint64_t)s.rows[0].n + s.rows[1].n) * sizeof(float);
        /* A dispatch reads one window and writes the other. All of it twice: the backup lets a chunk be undone. */
        out->recurrent_state_bytes += 2 * (2 * s.window_bytes + s.delta_bytes);
        n_moe += config_has_experts(c, i);
    }
    const struct tensor *embedding = model_dir_find(d, "model.embed_tokens.weight");
    out->n_params = dense_params(d) + n_moe * c->n_experts * expert_params;
    out->n_active_params = dense_params(d) + n_moe * c->top_k * expert_params;
    /* A token reads all dense weights but the embedding, of which it reads one row. */
    out->token_dense_bytes = d->dense_bytes - (c->tied || !embedding ? 0 : embedding->bytes / 8 * 9);
    out->token_expert_bytes = n_moe * c->top_k * d->expert.bytes;
    out->floor_bytes = d->dense_bytes + out->recurrent_state_bytes + 1024 * out->kv_bytes_per_pos +
                       expert_store_floor_bytes(d);
}

int moeflux_get_needs(const char *dir, struct moeflux_needs *out, struct moeflux_err *e)
{
    struct model_dir d;
    int rc = model_dir_open(&d, dir, e);
    if (rc < 0)
        return rc;
    model_info_needs(&d, out);
    model_dir_close(&d);
    return 0;
}

struct row_relay {
    void (*row)(void *ctx, const struct moeflux_selftest_row *r);
    void *ctx;
};

static void relay_row(void *ctx, const struct selftest_row *r)
{
    const struct row_relay *to = ctx;
    const struct moeflux_selftest_row row = {r->kernel, r->shape,   r->error, r->bound,
                                             r->ok,     r->skipped, r->device};
    if (to->row)
        to->row(to->ctx, &row);
}

int moeflux_selftest(const char *device, void (*row)(void *ctx, const struct moeflux_selftest_row *r),
                     void *ctx, struct moeflux_err *e)
{
    struct row_relay relay = {row, ctx};
    const struct selftest s = {.device = device, .row = relay_row, .ctx = &relay};
    return selftest_run(&s, e);
}
