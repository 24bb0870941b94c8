#include "engine/run/ngram_rows.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/model.h"

bool ngram_rows_are_needed(const struct config *c)
{
    return config_first(c, PART_NGRAMS)->kind == PART_NGRAMS;
}

static int open_tables(struct ngram_rows *r, const struct model_dir *d, struct expert_layers layers,
                       struct moeflux_err *e)
{
    uint32_t n_heads = 0;
    for (uint32_t i = layers.first; i < layers.end; i++) {
        const struct ngram_config *c = table_of_layer(&d->config, i);
        int rc = c ? table_open(&r->tables[c->table.index], d, i, c, e) : 0;
        if (rc < 0)
            return rc;
        n_heads = c ? r->tables[c->table.index].hash.n_heads : n_heads;
    }
    r->rows = mem_new(size_max((uint64_t)r->max_chunk * n_heads, 1), sizeof *r->rows, e);
    return r->rows ? 0 : ERR_MEMORY;
}

int ngram_rows_open(struct ngram_rows *r, struct exec *x, const struct model_dir *d,
                    struct expert_layers layers, uint32_t max_chunk, struct moeflux_err *e)
{
    const struct config *c = &d->config;
    *r = (struct ngram_rows){.max_chunk = max_chunk};
    bool has_some = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct ngram_config *n = table_of_layer(c, i);
        r->n_tables += n != NULL;
        r->inner = n ? n->inner : r->inner;
        has_some |= n && i >= layers.first && i < layers.end;
    }
    if (!has_some)
        return 0;
    r->tables = mem_new(r->n_tables, sizeof *r->tables, e);
    r->words = mem_new(NGRAM_MAX_SIZE + (uint64_t)max_chunk, sizeof *r->words, e);
    int rc = r->tables && r->words ? open_tables(r, d, layers, e) : ERR_MEMORY;
    return rc < 0 ? rc
                  : exec_buffer_new(x, &r->room, EXEC_INPUT,
                                    (uint64_t)r->n_tables * max_chunk * r->inner * sizeof(float), e);
}

void ngram_rows_close(struct ngram_rows *r, struct exec *x)
{
    for (uint32_t i = 0; r->tables && i < r->n_tables; i++)
        table_close(&r->tables[i]);
    exec_buffer_free(x, &r->room);
    free(r->tables);
    free(r->rows);
    free(r->words);
    *r = (struct ngram_rows){0};
}

/* Writes the token `back` positions before `pos`. */
static int put_word(const struct ngram_text *t, uint32_t pos, uint32_t back, uint32_t end_of_text,
                    uint32_t *to, struct moeflux_err *e)
{
    if (back > pos) {
        *to = end_of_text;
        return 0;
    }
    uint32_t p = pos - back;
    int32_t id = p < t->pos ? t->history[p] : t->ids[p - t->pos];
    if (id < 0)
        return err_set(e, ERR_USAGE, "position %u: the token before it is not known, its n-grams need it",
                       pos);
    *to = (uint32_t)id;
    return 0;
}

static int read_table(struct ngram_rows *r, const struct model_dir *d, uint32_t table,
                      const struct ngram_text *t, uint32_t pos, uint32_t n, uint32_t at,
                      struct moeflux_err *e)
{
    const struct ngram_hash *h = &r->tables[table].hash;
    uint32_t n_before = h->size - 1;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n_before; i++)
        rc = put_word(t, pos, n_before - i, h->end_of_text, &r->words[i], e);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = put_word(t, pos + i, 0, h->end_of_text, &r->words[n_before + i], e);
    if (rc < 0)
        return rc;
    ngram_hash_rows(h, r->words, r->words + n_before, n, r->rows);
    float *to = (float *)(void *)r->room.host + ((uint64_t)table * r->max_chunk + at) * r->inner;
    return table_read(&r->tables[table], d, r->rows, (uint64_t)n * h->n_heads, to, e);
}

int ngram_rows_read(struct ngram_rows *r, const struct model_dir *d, const struct ngram_text *t, uint32_t pos,
                    uint32_t n, uint32_t at, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && r->tables && i < r->n_tables; i++)
        if (r->tables[i].n_shards)
            rc = read_table(r, d, i, t, pos, n, at, e);
    return rc;
}
