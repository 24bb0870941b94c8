#include "model/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/drafter.h"
#include "model/part_tensors.h"

/* Collects items; the first failure sticks. */
struct builder {
    struct schema *out;
    const struct config *c;
    uint32_t layer;
    struct moeflux_err *e;
    int rc;
};

static void add(struct builder *b, const char *name, uint32_t rows, uint32_t cols, bool is_ids)
{
    if (b->rc < 0)
        return;
    void *items = b->out->items;
    b->rc = mem_grow(&items, &b->out->cap, b->out->n + 1, sizeof *b->out->items, b->e);
    b->out->items = items;
    if (b->rc < 0)
        return;
    struct schema_item *it = &b->out->items[b->out->n++];
    *it = (struct schema_item){.rows = rows, .cols = cols, .is_ids = is_ids};
    snprintf(it->name, sizeof it->name, "%s", name);
}

/* Adds a tensor of the current layer, unless it is absent. */
static void in_layer(struct builder *b, struct part_tensor t)
{
    char full[SCHEMA_NAME];
    snprintf(full, sizeof full, "model.layers.%u.%s", b->layer, t.name);
    if (t.cols > 0)
        add(b, full, t.rows, t.cols, t.is_ids);
}

static void block(struct builder *b, const struct part_config *p)
{
    struct part_tensor t[PART_MAX_TENSORS];
    part_tensors(b->c, p, t);
    for (int i = 0; i < PART_MAX_TENSORS; i++)
        if (i == 0 || strcmp(t[i].name, t[i - 1].name) != 0) /* a matrix may have two uses */
            in_layer(b, t[i]);
}

static void layer(struct builder *b)
{
    const struct config_layer *y = &b->c->layers[b->layer];
    for (uint32_t i = 0; i < y->n_blocks; i++) {
        struct part_tensor mix[STREAMS_TENSORS], posts[POST_TENSORS];
        in_layer(b, part_norm(b->c, &y->blocks[i]));
        part_posts(b->c, &y->blocks[i], posts);
        for (int k = 0; k < POST_TENSORS; k++)
            in_layer(b, posts[k]);
        part_streams(b->c, y->blocks[i].mix, false, mix);
        for (int k = 0; k < STREAMS_TENSORS; k++)
            in_layer(b, mix[k]);
    }
    for (uint32_t i = 0; i < y->n_blocks; i++)
        block(b, config_part(b->c, b->layer, i));
}

/* Adds a tensor below "model.", unless it is absent. */
static void in_model(struct builder *b, struct part_tensor t)
{
    char full[SCHEMA_NAME];
    snprintf(full, sizeof full, "model.%s", t.name);
    if (t.cols > 0)
        add(b, full, t.rows, t.cols, false);
}

/* Adds what is between the layers and the head: a norm, a mix of streams, or both. */
static void last(struct builder *b)
{
    struct part_tensor mix[STREAMS_TENSORS];
    if (config_has_last_norm(b->c))
        add(b, "model.norm.weight", 0, b->c->hidden, false);
    part_streams(b->c, part_last_mix(b->c), true, mix);
    for (int i = 0; i < STREAMS_TENSORS; i++)
        in_model(b, mix[i]);
}

/* Adds what makes the input of a layer of multi-token prediction. */
static void drafter(struct builder *b)
{
    if (drafter_has_last_norm(b->c))
        add(b, DRAFTER_LAST_NORM, 0, b->c->hidden, false);
    add(b, DRAFTER_EMBEDDING_NORM, 0, b->c->hidden, false);
    add(b, DRAFTER_HIDDEN_NORM, 0, drafter_norm_width(b->c), false);
    add(b, DRAFTER_EMBEDDING_FC, b->c->hidden, b->c->hidden, false);
    add(b, DRAFTER_HIDDEN_FC, b->c->hidden, b->c->hidden, false);
}

int schema_build(struct schema *s, const struct config *c, struct moeflux_err *e)
{
    *s = (struct schema){0};
    struct builder b = {.out = s, .c = c, .e = e};
    add(&b, "model.embed_tokens", c->vocab_size, c->hidden, false);
    if (!c->tied)
        add(&b, "lm_head", c->vocab_size, c->hidden, false);
    last(&b);
    if (c->drafts)
        drafter(&b);
    for (; b.layer < c->n_layers; b.layer++)
        layer(&b);
    if (b.rc < 0)
        schema_free(s);
    return b.rc;
}

bool schema_has(const struct schema *s, const char *tensor)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct schema_item *it = &s->items[i];
        size_t n = strlen(it->name);
        if (!strncmp(it->name, tensor, n) && !strcmp(tensor + n, it->rows ? ".weight" : ""))
            return true;
    }
    return false;
}

void schema_free(struct schema *s)
{
    free(s->items);
    *s = (struct schema){0};
}
