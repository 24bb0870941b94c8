#include "arch/embed_head.h"

#include <string.h>

#include "arch/loader.h"
#include "arch/scratch.h"
#include "base/mem.h"
#include "model/config.h"

/* Loads the embedding or the head; those of a drafter are the model's. */
static int load_shared(struct loader *l, const char *name, struct weights *out, struct moeflux_err *e)
{
    bool is_head = strcmp(name, "lm_head") == 0;
    struct weights *own = is_head ? &l->head : &l->embedding;
    int rc = 0;
    if (l->model)
        *own = is_head ? l->model->head : l->model->embedding;
    else
        rc = loader_matrix(l, name, l->config->vocab_size, l->config->hidden, own, e);
    *out = *own;
    return rc;
}

int embed_head_load(struct embed_head *s, struct loader *l, const struct config *c, struct arch_span layers,
                    struct moeflux_err *e)
{
    struct weights embedding, head;
    bool embeds = layers.first == 0, has_head = layers.end == c->n_layers;
    int rc = 0;
    s->config = c;
    if (embeds || (has_head && c->tied))
        rc = load_shared(l, "model.embed_tokens", &embedding, e);
    if (rc == 0 && embeds)
        rc = embed_open(&s->embed, l->exec, &embedding, c->embed_factor > 0 ? c->embed_factor : 1, e);
    if (rc == 0 && c->drafts)
        rc = drafter_input_load(&s->drafter, l, c, e);
    if (rc < 0 || !has_head)
        return rc;
    if (config_has_last_norm(c))
        rc = loader_vector(l, "model.norm.weight", c->hidden, &s->head_norm, e);
    if (rc == 0 && !c->tied)
        rc = load_shared(l, "lm_head", &head, e);
    if (rc == 0)
        rc = linear_open(&s->head, l->exec, c->tied ? &embedding : &head, 1, e);
    return rc < 0 || c->softcap <= 0 ? rc : softcap_open(&s->softcap, l->exec, c->softcap, e);
}

void embed_head_allocate(struct embed_head *s, const struct config *c, struct arch_span layers, uint32_t n,
                         uint32_t n_batched, struct scratch *to)
{
    scratch_floats(to, &s->x, (uint64_t)n * c->hidden);
    if (c->drafts)
        drafter_input_allocate(&s->drafter, c, n, to);
    if (layers.end == c->n_layers)
        scratch_floats(to, &s->logits, size_max(ARCH_HEAD_ROWS, n_batched) * c->vocab_size);
}

void embed_head_close(struct embed_head *s, struct exec *x)
{
    drafter_input_close(&s->drafter, x);
    linear_close(&s->head, x);
    exec_buffer_free(x, &s->x);
    exec_buffer_free(x, &s->logits);
}

void embed_head_embed(const struct embed_head *s, struct exec *x, const struct arch_chunk *c)
{
    uint64_t to = s->config->drafts ? s->drafter.embedded.address : s->x.address;
    embed_run(&s->embed, x, &(struct embed_call){.ids = c->ids, .dst = to, .n = c->n});
    if (s->config->drafts)
        drafter_input_embed(&s->drafter, x, c, s->x.address);
}

void embed_head_add_fed(const struct embed_head *s, struct exec *x, const struct arch_chunk *c, uint64_t to)
{
    drafter_input_add(&s->drafter, x, c, s->head_norm, to);
}

void embed_head_head(const struct embed_head *s, struct exec *x, const struct arch_tokens *t)
{
    uint32_t hidden = s->config->hidden;
    linear_run(&s->head, x,
               &(struct linear_call){.x = s->x.address + (uint64_t)t->from * hidden * sizeof(float),
                                     .norm = s->head_norm,
                                     .y = s->logits.address,
                                     .x_stride = hidden,
                                     .y_stride = s->config->vocab_size,
                                     .n = t->n,
                                     .chunk = t->plan_n,
                                     .eps = s->config->rms_eps,
                                     .f16_scratch = t->plan_n > EXEC_MAX_INVARIANT ? s->f16_scratch : 0});
    if (s->config->softcap > 0)
        softcap_run(&s->softcap, x,
                    &(struct softcap_call){.x = s->logits.address, .n = t->n * s->config->vocab_size});
}
