#include "arch/drafter_input.h"

#include "arch/arch.h"
#include "arch/loader.h"
#include "arch/scratch.h"
#include "model/config.h"
#include "model/drafter.h"

static int load_product(struct linear *to, struct loader *l, const struct config *c, const char *name,
                        struct moeflux_err *e)
{
    struct weights w;
    int rc = loader_matrix(l, name, c->hidden, c->hidden, &w, e);
    return rc < 0 ? rc : linear_open(to, l->exec, &w, 1, e);
}

int drafter_input_load(struct drafter_input *d, struct loader *l, const struct config *c,
                       struct moeflux_err *e)
{
    uint32_t normed = drafter_norm_width(c);
    int rc = 0;
    d->config = c;
    if (drafter_has_last_norm(c))
        rc = loader_vector(l, DRAFTER_LAST_NORM, c->hidden, &d->last_norm, e);
    if (rc == 0)
        rc = loader_vector(l, DRAFTER_EMBEDDING_NORM, c->hidden, &d->embedding_norm, e);
    if (rc == 0)
        rc = loader_vector(l, DRAFTER_HIDDEN_NORM, normed, &d->hidden_norm, e);
    if (rc == 0)
        rc = load_product(&d->embedding_fc, l, c, DRAFTER_EMBEDDING_FC, e);
    if (rc == 0)
        rc = load_product(&d->hidden_fc, l, c, DRAFTER_HIDDEN_FC, e);
    return rc < 0 ? rc : normed_add_open(&d->normed, l->exec, normed, c->rms_eps, e);
}

void drafter_input_allocate(struct drafter_input *d, const struct config *c, uint32_t n, struct scratch *to)
{
    scratch_floats(to, &d->embedded, (uint64_t)n * c->hidden);
    scratch_floats(to, &d->fed, (uint64_t)n * config_width(c));
    scratch_floats(to, &d->hidden, (uint64_t)n * config_width(c));
}

void drafter_input_close(struct drafter_input *d, struct exec *x)
{
    struct exec_buffer *buffers[] = {&d->embedded, &d->fed, &d->hidden};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        exec_buffer_free(x, buffers[i]);
    linear_close(&d->embedding_fc, x);
    linear_close(&d->hidden_fc, x);
}

/* Describes a product with n rows of `hidden` numbers for each token. */
static struct linear_call product_of(const struct drafter_input *d, const struct arch_chunk *c, uint32_t n)
{
    uint32_t hidden = d->config->hidden;
    return (struct linear_call){.x_stride = hidden,
                                .y_stride = hidden,
                                .n = n * c->n,
                                .chunk = n * arch_plan_n(c),
                                .eps = d->config->rms_eps};
}

void drafter_input_embed(const struct drafter_input *d, struct exec *x, const struct arch_chunk *c,
                         uint64_t to)
{
    struct linear_call product = product_of(d, c, 1);
    product.x = d->embedded.address;
    product.norm = d->embedding_norm;
    product.y = to;
    linear_run(&d->embedding_fc, x, &product);
}

void drafter_input_add(const struct drafter_input *d, struct exec *x, const struct arch_chunk *c,
                       uint64_t own_norm, uint64_t to)
{
    const struct streams_config *s = &d->config->streams;
    struct linear_call product = product_of(d, c, s->n ? s->n : 1);
    bool has_one_norm = s->rank > 0 || drafter_has_last_norm(d->config);
    struct normed_add_call norm = {.y = c->fed, .dst = d->hidden.address, .n = c->n};
    norm.norm = s->n ? d->hidden_norm : c->fed_is_own ? own_norm : d->last_norm;
    if (has_one_norm)
        normed_add_run(&d->normed, x, &norm);
    product.x = has_one_norm ? d->hidden.address : c->fed;
    product.norm = s->rank ? 0 : d->hidden_norm;
    product.y = to;
    product.add = true;
    linear_run(&d->hidden_fc, x, &product);
}
