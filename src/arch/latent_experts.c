#include "arch/latent_experts.h"

#include "arch/loader.h"
#include "arch/scratch.h"

static struct part_config shared_of(const struct config *c)
{
    return (struct part_config){.kind = PART_DENSE, .dense = {.inner = c->shared_inner}};
}

struct part_needs latent_experts_needs(const struct config *c, const struct exec_caps *caps,
                                       const struct part_most *most)
{
    const struct part_config shared = shared_of(c);
    struct part_needs needs;
    part_dense.needs(c, &shared, caps, most, &needs);
    return needs;
}

void latent_experts_allocate(struct latent_experts *x, const struct config *c, uint32_t n, struct scratch *to)
{
    scratch_floats(to, &x->in, (uint64_t)n * c->moe_latent);
    part_output_allocate(&x->out, c->moe_latent, n, to);
}

int latent_experts_open(struct latent_experts *x, const struct part_room *room, struct loader *l,
                        struct moeflux_err *e)
{
    x->room = room;
    x->shared = shared_of(room->config);
    int rc = part_output_load(&x->out, room->exec, l, e);
    if (rc == 0 && x->shared.dense.inner)
        rc = part_dense.open(&x->dense, room, &x->shared, e);
    return rc;
}

void latent_experts_close(struct latent_experts *x, struct exec *exec)
{
    part_dense.close(x->dense);
    exec_buffer_free(exec, &x->in);
    part_output_close(&x->out, exec);
}

int latent_experts_load(const struct latent_experts *x, struct loader *l, uint32_t layer,
                        const struct part_tensor *t, struct latent_layer *out, struct moeflux_err *e)
{
    int rc = loader_fused(l, layer, t + EXPERTS_LATENT_IN, 1, &out->in, e);
    if (rc == 0)
        rc = loader_fused(l, layer, t + EXPERTS_LATENT_OUT, 1, &out->out, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, t + EXPERTS_LATENT_NORM, 1, &out->norm, e);
    return rc < 0 || !x->dense ? rc : part_dense.load(x->dense, l, layer, t + EXPERTS_GATE, e);
}

void latent_experts_close_layer(struct latent_layer *y, struct exec *exec)
{
    linear_close(&y->in, exec);
    linear_close(&y->out, exec);
}

void latent_experts_begin(const struct latent_experts *x, const struct latent_layer *y,
                          const struct part_call *call)
{
    const struct part_room *r = x->room;
    linear_run(&y->in, r->exec,
               &(struct linear_call){.x = call->in,
                                     .norm = call->norm,
                                     .y = x->in.address,
                                     .x_stride = r->config->hidden,
                                     .y_stride = r->config->moe_latent,
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .eps = r->config->rms_eps,
                                     .f16_scratch = r->f16_scratch.address});
    part_output_clear(&x->out, r->exec, call->chunk->n);
    if (x->dense)
        part_dense.run(x->dense, call);
}

void latent_experts_end(const struct latent_experts *x, const struct latent_layer *y, uint64_t to,
                        const struct arch_tokens *tokens)
{
    const struct part_room *r = x->room;
    uint32_t latent = r->config->moe_latent, hidden = r->config->hidden;
    linear_run(
        &y->out, r->exec,
        &(struct linear_call){.x = x->out.rows.address + (uint64_t)tokens->from * latent * sizeof(float),
                              .norm = y->norm,
                              .y = to + (uint64_t)tokens->from * hidden * sizeof(float),
                              .x_stride = latent,
                              .y_stride = hidden,
                              .n = tokens->n,
                              .chunk = tokens->plan_n,
                              .add = true,
                              .eps = r->config->rms_eps,
                              .f16_scratch = r->f16_scratch.address});
}
