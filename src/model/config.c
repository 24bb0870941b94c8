#include "model/config.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

static int read_eos_of(struct config *c, const json_t *value, const char *where, struct moeflux_err *e)
{
    bool list = json_is_array(value);
    size_t n = list ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = list ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: eos_token_id: expected a token id or a list of them", where);
        int32_t token = (int32_t)json_integer_value(id);
        uint32_t k = 0;
        while (k < c->n_eos && c->eos[k] != token)
            k++;
        if (k < c->n_eos)
            continue;
        if (c->n_eos == CONFIG_MAX_EOS)
            return err_set(e, ERR_FORMAT, "%s: eos_token_id: more than %d different ids", where,
                           CONFIG_MAX_EOS);
        c->eos[c->n_eos++] = token;
    }
    return 0;
}

/* Ids below 0 or outside of the vocabulary are legal and mean nothing. */
static int read_suppressed(struct config *c, const json_t *list, const char *where, struct moeflux_err *e)
{
    size_t n = json_array_size(list);
    void *ids = c->suppressed;
    int rc = mem_grow(&ids, &c->cap_suppressed, c->n_suppressed + n, sizeof *c->suppressed, e);
    c->suppressed = ids;
    if (rc == 0 && !json_is_array(list))
        rc = err_set(e, ERR_FORMAT, "%s: suppress_tokens: expected a list of token ids", where);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t token = json_integer_value(id);
        if (!json_is_integer(id))
            rc = err_set(e, ERR_FORMAT, "%s: suppress_tokens[%zu]: expected a token id", where, i);
        else if (token >= 0 && token <= INT32_MAX)
            c->suppressed[c->n_suppressed++] = (int32_t)token;
    }
    return rc;
}

int config_add_generation(struct config *c, const struct json_t *root, const char *where,
                          struct moeflux_err *e)
{
    const json_t *eos = json_member(root, "eos_token_id"), *suppressed = json_member(root, "suppress_tokens");
    int rc = eos ? read_eos_of(c, eos, where, e) : 0;
    return rc == 0 && suppressed ? read_suppressed(c, suppressed, where, e) : rc;
}

const struct part_config *config_first(const struct config *c, enum part_kind kind)
{
    static const struct part_config none;
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].kind == kind)
            return &c->parts[i];
    return &none;
}

static bool is_mixer(enum part_kind kind)
{
    return kind < PART_MIXERS || kind == PART_COMPRESSED || kind == PART_MAMBA;
}

const struct part_config *config_mixer(const struct config *c, uint32_t layer)
{
    uint32_t block = 0;
    while (block < c->layers[layer].n_blocks && !is_mixer(config_part(c, layer, block)->kind))
        block++;
    return config_part(c, layer, block < c->layers[layer].n_blocks ? block : 0);
}

/* Returns whether a layer makes compressed rows. */
static bool makes_rows(const struct config *c, uint32_t layer)
{
    const struct part_config *p = config_mixer(c, layer);
    return p->kind == PART_COMPRESSED && p->compressed.ratio > 0 && !p->compressed.borrows;
}

uint32_t config_rows_of(const struct config *c, uint32_t layer)
{
    const struct part_config *p = config_mixer(c, layer);
    if (p->kind != PART_COMPRESSED || !p->compressed.ratio)
        return UINT32_MAX;
    while (!makes_rows(c, layer) && layer > 0)
        layer--;
    return makes_rows(c, layer) ? layer : UINT32_MAX;
}

bool config_shares_choice(const struct config *c, uint32_t layer)
{
    const struct part_config *p = config_mixer(c, layer);
    return p->kind == PART_LATENT && p->latent.index.ratio > 0 && p->latent.index.n_heads == 0;
}

/* Returns whether a layer's compressed attention needs something of a layer before `from`: rows, a choice,
 * candidates. */
static bool needs_rows(const struct config *c, uint32_t layer, uint32_t from)
{
    const struct part_config *p = config_mixer(c, layer);
    const struct index_config *x = &p->compressed.index;
    if (p->kind != PART_COMPRESSED || !p->compressed.ratio)
        return false;
    uint32_t chooser = layer, finder = layer;
    while (chooser >= from && chooser > 0 && !config_mixer(c, chooser)->compressed.index.n_heads)
        chooser--;
    while (finder >= from && finder > 0 && !config_mixer(c, finder)->compressed.index.finds)
        finder--;
    return config_rows_of(c, layer) < from || (x->ratio && chooser < from) || (x->blocks && finder < from);
}

bool config_needs_choice(const struct config *c, uint32_t layer)
{
    for (uint32_t i = layer; i < c->n_layers; i++)
        if (needs_rows(c, i, layer))
            return true;
    for (; layer < c->n_layers; layer++) {
        const struct part_config *p = config_mixer(c, layer);
        if (p->kind == PART_LATENT && p->latent.index.ratio > 0)
            break;
    }
    return layer < c->n_layers && config_shares_choice(c, layer);
}

uint32_t config_window(const struct config *c, uint32_t layer)
{
    const struct part_config *p = config_mixer(c, layer);
    if (p->kind == PART_COMPRESSED) /* compressed rows are of all positions */
        return p->compressed.ratio ? 0 : p->compressed.window;
    return p->kind == PART_ATTENTION ? p->gqa.window : 0;
}

bool config_routes_by_token(const struct config *c)
{
    bool does = false;
    for (uint32_t i = 0; i < c->n_parts; i++)
        does |= c->parts[i].kind == PART_EXPERTS && c->parts[i].routed.by_token;
    return does;
}

/* Returns the most experts that the router can choose. */
static uint32_t most_active(const struct config *c)
{
    if (config_routes_by_token(c))
        return c->own_top_k;
    return c->router.sigmoid ? c->n_experts / c->router.n_groups * c->router.keep_groups : c->n_experts;
}

int config_set_active_experts(struct config *c, uint32_t n, float share, struct moeflux_err *e)
{
    uint32_t most = most_active(c);
    if (n > most && config_routes_by_token(c))
        return err_set(e, ERR_USAGE,
                       "`active_experts` %u, expected at most %u (a table's experts of a token)", n, most);
    if (n > most && most < c->n_experts)
        return err_set(e, ERR_USAGE, "`active_experts` %u, expected at most %u (%u groups of %u experts)", n,
                       most, c->router.keep_groups, c->n_experts / c->router.n_groups);
    if (n > most)
        return err_set(e, ERR_USAGE, "`active_experts` %u, expected at most %u (experts of a layer)", n,
                       most);
    if (!(share >= 0 && share <= 1))
        return err_set(e, ERR_USAGE, "`expert_share` %g, expected more than 0 and at most 1", (double)share);
    c->top_k = n ? n : c->own_top_k;
    c->expert_share = share < 1 ? share : 0;
    return 0;
}

void config_free(struct config *c)
{
    free(c->layers);
    free(c->suppressed);
    *c = (struct config){0};
}
