#include "engine/run/by_token.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "engine/run/pass.h"
#include "model/model_dir.h"
#include "model/model_dir_find.h"
#include "model/model_dir_read.h"
#include "model/part_tensors.h"
#include "model/schema.h"

static int read_table(struct moeflux_model *m, uint32_t layer, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    struct part_tensor t[PART_MAX_TENSORS];
    const struct tensor *at;
    char name[SCHEMA_NAME];
    part_tensors(c, config_part(c, layer, c->layers[layer].n_blocks - 1), t);
    snprintf(name, sizeof name, "model.layers.%u.%s", layer, t[EXPERTS_OF_TOKENS].name);
    int rc = model_dir_ids(&m->dir, name, t[EXPERTS_OF_TOKENS].cols, &at, e);
    if (rc < 0)
        return rc;
    uint32_t *table = mem_new(t[EXPERTS_OF_TOKENS].cols, sizeof(uint64_t), e);
    m->by_token.tables[layer] = table;
    return table ? model_dir_read_ids(&m->dir, at, c->own_top_k, c->n_experts, table, e) : ERR_MEMORY;
}

int by_token_open(struct moeflux_model *m, struct moeflux_err *e)
{
    const struct config *c = &m->dir.config;
    int rc = 0;
    if (!config_routes_by_token(c))
        return 0;
    m->by_token.tables = mem_new(c->n_layers, sizeof *m->by_token.tables, e);
    if (!m->by_token.tables)
        return ERR_MEMORY;
    for (uint32_t i = 0; rc == 0 && i < c->n_layers; i++)
        if (config_is_by_token(c, i))
            rc = read_table(m, i, e);
    return rc;
}

void by_token_close(struct moeflux_model *m)
{
    for (uint32_t i = 0; m->by_token.tables && i < m->dir.config.n_layers; i++)
        free(m->by_token.tables[i]);
    free(m->by_token.tables);
    m->by_token = (struct by_token){0};
}

/* Lists the experts of some tokens, each once. Returns how many they are. */
static uint32_t list(const uint32_t *table, uint32_t row, const int32_t *ids, uint32_t n_tokens,
                     uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t k = 0; k < row; k++) {
            uint32_t expert = table[(uint64_t)ids[t] * row + k], i = 0;
            while (i < n && out[i] != expert)
                i++;
            out[i] = expert;
            n += i == n;
        }
    return n;
}

void by_token_prefetch(const struct pass *p, const int32_t *ids)
{
    const struct moeflux_model *m = p->m;
    uint32_t n = pass_n_decoding(p), row = m->dir.config.own_top_k, *wanted = p->at->wanted;
    if (!m->by_token.tables)
        return;
    for (uint32_t i = p->at->layers.first; n > 0 && i < p->at->layers.end; i++)
        if (m->by_token.tables[i] && pass_reads_ahead(p, i))
            expert_store_prefetch(pass_side(p, i)->store, i, wanted,
                                  list(m->by_token.tables[i], row, ids, n, wanted), false);
}
