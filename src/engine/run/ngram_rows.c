#include "engine/run/ngram_rows.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/slice.h"
#include "experts/row_reader.h"
#include "model/config.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/words.h"

/* How long the caller waits before it asks its callback again. */
enum { SLICE_NS = 50000000 };

/* What the thread reads. Between a start and its end only the thread touches it, except `lock` to `stops`. */
struct rows_reading {
    struct pool_job job;
    const struct model_dir *dir;
    const struct table *tables;
    uint32_t n_tables, n_heads, max_chunk;
    struct row_reader *reader;
    struct pool *pool;        /* one thread */
    bool is_short;            /* the thread has short slices */
    uint32_t n;               /* tokens */
    uint32_t *rows;           /* like ngram_rows.rows */
    uint64_t *order;          /* [max_chunk * n_heads]: row and index, sorted */
    struct row_piece *pieces; /* [max_chunk * n_heads * TABLE_RUNS] */
    float *values;            /* [n_tables][max_chunk][n_heads][cols] */
    int code;
    struct moeflux_err err;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_running;
    atomic_bool stops;
};

/* --- the thread --- */

static int by_row(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Returns where the values of the i-th row are. */
static float *values_of(const struct rows_reading *r, uint32_t table, uint64_t i)
{
    return r->values + ((uint64_t)table * r->max_chunk * r->n_heads + i) * r->tables[table].cols;
}

/* The file's bytes of a row wait at the end of its values. */
static uint8_t *raw_of(const struct rows_reading *r, uint32_t table, uint64_t i)
{
    const struct table *t = &r->tables[table];
    return (uint8_t *)(values_of(r, table, i) + t->cols) - t->row_bytes;
}

/* Lists the pieces of the sorted rows, each row once. Returns their number. */
static uint32_t list_pieces(struct rows_reading *r, uint32_t table, uint64_t n)
{
    uint32_t n_pieces = 0;
    /* One run of all rows, then the next: so they are sorted by offset. */
    for (uint32_t run = 0; run < TABLE_RUNS; run++)
        for (uint64_t i = 0; i < n; i++) {
            struct table_run runs[TABLE_RUNS];
            uint32_t row = (uint32_t)(r->order[i] >> 32), before = 0;
            if (i > 0 && row == (uint32_t)(r->order[i - 1] >> 32))
                continue;
            if (run >= table_find_row(&r->tables[table], row, runs))
                continue;
            for (uint32_t k = 0; k < run; k++)
                before += runs[k].bytes;
            r->pieces[n_pieces++] =
                (struct row_piece){.file = runs[run].file,
                                   .bytes = runs[run].bytes,
                                   .off = runs[run].off,
                                   .dst = raw_of(r, table, (uint32_t)r->order[i]) + before};
        }
    return n_pieces;
}

static int read_table(struct rows_reading *r, uint32_t table)
{
    const struct table *t = &r->tables[table];
    const uint32_t *rows = r->rows + (uint64_t)table * r->max_chunk * r->n_heads;
    uint64_t n = (uint64_t)r->n * r->n_heads;
    for (uint64_t i = 0; i < n; i++)
        r->order[i] = (uint64_t)rows[i] << 32 | i;
    qsort(r->order, n, sizeof *r->order, by_row);
    int rc = row_reader_read(r->reader, r->pieces, list_pieces(r, table, n), &r->stops, &r->err);
    const float *last = NULL;
    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        uint32_t row = (uint32_t)(r->order[i] >> 32), at = (uint32_t)r->order[i];
        float *to = values_of(r, table, at);
        if (last && row == (uint32_t)(r->order[i - 1] >> 32))
            memcpy(to, last, t->cols * sizeof *to);
        else
            rc = table_decode(t, r->dir, row, raw_of(r, table, at), to, &r->err);
        last = to;
    }
    return rc;
}

static void run(struct pool_job *job)
{
    struct rows_reading *r = (struct rows_reading *)job;
    /* Otherwise the disk is idle while the threads that compute hold all processors. */
    if (!r->is_short)
        slice_shorten();
    r->is_short = true;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < r->n_tables; i++)
        if (r->tables[i].n_shards)
            rc = read_table(r, i);
    r->code = rc;
    pthread_mutex_lock(&r->lock);
    r->is_running = false;
    pthread_cond_broadcast(&r->ended);
    pthread_mutex_unlock(&r->lock);
}

/* Waits until the thread is idle. Returns false if the watch of `x` stopped the wait. */
static bool await_end(struct rows_reading *r, const struct exec *x)
{
    bool goes_on = true;
    pthread_mutex_lock(&r->lock);
    while (r->is_running && goes_on) {
        clock_wait(&r->ended, &r->lock, SLICE_NS);
        if (!x || !r->is_running)
            continue;
        pthread_mutex_unlock(&r->lock);
        goes_on = exec_goes_on(x);
        pthread_mutex_lock(&r->lock);
    }
    goes_on = goes_on || !r->is_running;
    pthread_mutex_unlock(&r->lock);
    return goes_on;
}

static void stop(struct rows_reading *r)
{
    atomic_store(&r->stops, true);
    await_end(r, NULL);
    atomic_store(&r->stops, false);
}

/* --- opening --- */

static bool has_tables(const struct config *c, struct expert_layers layers)
{
    for (uint32_t i = layers.first; i < layers.end; i++)
        if (table_of_layer(c, i))
            return true;
    return false;
}

static uint32_t count_tables(const struct config *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        n += table_of_layer(c, i) != NULL;
    return n;
}

uint64_t ngram_rows_room_bytes(const struct config *c, struct expert_layers layers, uint32_t max_chunk)
{
    return has_tables(c, layers) ? (uint64_t)count_tables(c) * max_chunk *
                                       config_first(c, PART_NGRAMS)->ngrams.inner * sizeof(float)
                                 : 0;
}

uint64_t ngram_rows_host_bytes(const struct config *c, struct expert_layers layers, uint32_t max_chunk)
{
    const struct ngram_table *t = &config_first(c, PART_NGRAMS)->ngrams.table;
    if (!has_tables(c, layers))
        return 0;
    uint64_t rows = (uint64_t)max_chunk * (t->size - 1) * t->heads;
    return ngram_rows_room_bytes(c, layers, max_chunk) +
           (t->n_words ? (uint64_t)c->vocab_size * sizeof(uint32_t) : 0) +
           rows * (2ull * count_tables(c) * sizeof(uint32_t) + sizeof(uint64_t) +
                   TABLE_RUNS * sizeof(struct row_piece));
}

static int open_tables(struct ngram_rows *r, const struct ngram_rows_options *o, bool *is_read,
                       uint32_t *row_bytes, struct moeflux_err *e)
{
    for (uint32_t i = o->layers.first; i < o->layers.end; i++) {
        const struct ngram_config *c = table_of_layer(&o->dir->config, i);
        if (!c)
            continue;
        struct table *t = &r->tables[c->table.index];
        int rc = table_open(t, o->dir, i, c, e);
        if (rc < 0)
            return rc;
        r->first_layer = (uint32_t)size_min(r->first_layer, i);
        r->n_heads = t->hash.n_heads;
        *row_bytes = (uint32_t)size_max(*row_bytes, t->row_bytes);
        table_mark_files(t, is_read);
    }
    return 0;
}

/* Finds the tokens' words if n-grams consist of words. */
static int open_words(struct ngram_rows *r, const struct model_dir *m, struct moeflux_err *e)
{
    uint32_t expected = config_first(&m->config, PART_NGRAMS)->ngrams.table.n_words;
    struct moeflux_err own = {0};
    e = e ? e : &own;
    if (!expected)
        return 0;
    if (!m->tokenizer_path)
        return err_set(e, ERR_UNSUPPORTED, "%s: no tokenizer, n-gram rows need the tokens' texts", m->path);
    struct tokenizer *t = tokenizer_open(m->tokenizer_path, e);
    if (!t)
        return (int)e->code;
    r->words_of = mem_new(m->config.vocab_size, sizeof *r->words_of, e);
    int64_t n = r->words_of ? words_of_tokens(t, m->config.vocab_size, r->words_of, e) : ERR_MEMORY;
    tokenizer_free(t);
    if (n >= 0 && n != expected)
        return err_set(e, ERR_FORMAT, "%s: %lld different words, expected %u (engram_compressed_vocab_size)",
                       m->tokenizer_path, (long long)n, expected);
    return n < 0 ? (int)n : 0;
}

static int open_reading(struct ngram_rows *r, const struct ngram_rows_options *o, const bool *is_read,
                        uint32_t row_bytes, struct moeflux_err *e)
{
    uint64_t rows = (uint64_t)r->max_chunk * r->n_heads;
    struct rows_reading *g = r->reading = mem_new(1, sizeof *g, e);
    if (!g)
        return ERR_MEMORY;
    if (clock_init_cond(&g->ended)) {
        free(g);
        r->reading = NULL;
        return err_set(e, ERR_MEMORY, "out of memory for a condition");
    }
    pthread_mutex_init(&g->lock, NULL);
    g->job.run = run;
    g->dir = o->dir;
    g->tables = r->tables;
    g->n_tables = r->n_tables;
    g->n_heads = r->n_heads;
    g->max_chunk = r->max_chunk;
    r->rows = mem_new(r->n_tables * rows, sizeof *r->rows, e);
    g->rows = mem_new(r->n_tables * rows, sizeof *g->rows, e);
    g->order = mem_new(rows, sizeof *g->order, e);
    g->pieces = mem_new(rows * TABLE_RUNS, sizeof *g->pieces, e);
    g->values = mem_new((uint64_t)r->n_tables * r->max_chunk * r->inner, sizeof *g->values, e);
    if (!r->rows || !g->rows || !g->order || !g->pieces || !g->values || !(g->pool = pool_new(1, e)))
        return ERR_MEMORY;
    const struct row_reader_options how = {o->io, o->host_bytes, o->expert_bytes, row_bytes};
    return row_reader_open(&g->reader, o->dir, is_read, &how, e);
}

int ngram_rows_open(struct ngram_rows *r, struct exec *x, const struct ngram_rows_options *o,
                    struct moeflux_err *e)
{
    const struct config *c = &o->dir->config;
    uint32_t row_bytes = 0;
    *r = (struct ngram_rows){.max_chunk = o->max_chunk, .first_layer = UINT32_MAX};
    if (!has_tables(c, o->layers))
        return 0;
    r->n_tables = count_tables(c);
    r->inner = config_first(c, PART_NGRAMS)->ngrams.inner;
    r->tables = mem_new(r->n_tables, sizeof *r->tables, e);
    r->words = mem_new(NGRAM_MAX_SIZE + (uint64_t)o->max_chunk, sizeof *r->words, e);
    bool *is_read = mem_new(o->dir->n_files, sizeof *is_read, e);
    int rc = r->tables && r->words && is_read ? open_tables(r, o, is_read, &row_bytes, e) : ERR_MEMORY;
    if (rc == 0)
        rc = open_words(r, o->dir, e);
    if (rc == 0)
        rc = open_reading(r, o, is_read, row_bytes, e);
    free(is_read);
    return rc < 0 ? rc
                  : exec_buffer_new(x, &r->room, EXEC_INPUT,
                                    ngram_rows_room_bytes(c, o->layers, o->max_chunk), e);
}

static void close_reading(struct rows_reading *g)
{
    if (!g)
        return;
    if (g->pool)
        stop(g);
    pool_free(g->pool);
    row_reader_close(g->reader);
    pthread_cond_destroy(&g->ended);
    pthread_mutex_destroy(&g->lock);
    free(g->rows);
    free(g->order);
    free(g->pieces);
    free(g->values);
    free(g);
}

void ngram_rows_close(struct ngram_rows *r, struct exec *x)
{
    close_reading(r->reading);
    for (uint32_t i = 0; r->tables && i < r->n_tables; i++)
        table_close(&r->tables[i]);
    exec_buffer_free(x, &r->room);
    free(r->tables);
    free(r->rows);
    free(r->words);
    free(r->words_of);
    *r = (struct ngram_rows){0};
}

/* --- the tokens --- */

void ngram_rows_clear(struct ngram_rows *r)
{
    r->n = 0;
}

/* Writes the token `back` positions before `pos`, or its word. */
static int put_word(const struct ngram_rows *r, const struct ngram_text *t, uint32_t pos, uint32_t back,
                    uint32_t end_of_text, uint32_t *to, struct moeflux_err *e)
{
    int32_t id = (int32_t)end_of_text;
    if (back <= pos) {
        uint32_t p = pos - back;
        id = p < t->pos ? t->history[p] : t->ids[p - t->pos];
    }
    if (id < 0)
        return err_set(e, ERR_USAGE, "position %u: the token before it is not known, its n-grams need it",
                       pos);
    *to = r->words_of ? r->words_of[id] : (uint32_t)id;
    return 0;
}

static int add_to_table(struct ngram_rows *r, uint32_t table, const struct ngram_text *t, uint32_t pos,
                        uint32_t n, struct moeflux_err *e)
{
    const struct ngram_hash *h = &r->tables[table].hash;
    uint32_t n_before = h->size - 1;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n_before; i++)
        rc = put_word(r, t, pos, n_before - i, h->end_of_text, &r->words[i], e);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = put_word(r, t, pos + i, 0, h->end_of_text, &r->words[n_before + i], e);
    if (rc == 0)
        ngram_hash_rows(h, r->words, r->words + n_before, n,
                        r->rows + ((uint64_t)table * r->max_chunk + r->n) * r->n_heads);
    return rc;
}

int ngram_rows_add(struct ngram_rows *r, const struct ngram_text *t, uint32_t pos, uint32_t n,
                   struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && r->tables && i < r->n_tables; i++)
        if (r->tables[i].n_shards)
            rc = add_to_table(r, i, t, pos, n, e);
    r->n += rc == 0 ? n : 0;
    return rc;
}

/* --- reading --- */

static bool is_same(const struct ngram_rows *r)
{
    const struct rows_reading *g = r->reading;
    bool is = r->is_started && g->n == r->n;
    for (uint32_t i = 0; is && i < r->n_tables; i++) {
        uint64_t from = (uint64_t)i * r->max_chunk * r->n_heads;
        is = memcmp(g->rows + from, r->rows + from, (uint64_t)r->n * r->n_heads * sizeof *r->rows) == 0;
    }
    return is;
}

void ngram_rows_start(struct ngram_rows *r)
{
    struct rows_reading *g = r->reading;
    bool is = g && is_same(r);
    uint32_t n = r->n;
    r->n = 0;
    if (!g || is)
        return;
    stop(g);
    for (uint32_t i = 0; i < r->n_tables; i++) {
        uint64_t from = (uint64_t)i * r->max_chunk * r->n_heads;
        memcpy(g->rows + from, r->rows + from, (uint64_t)n * r->n_heads * sizeof *r->rows);
    }
    g->n = n;
    g->is_running = r->is_started = true;
    pool_submit(g->pool, &g->job);
}

bool ngram_rows_are_there(const struct ngram_rows *r)
{
    struct rows_reading *g = r->reading;
    if (!g || !r->is_started)
        return true;
    pthread_mutex_lock(&g->lock);
    bool is = !g->is_running;
    pthread_mutex_unlock(&g->lock);
    return is;
}

int ngram_rows_wait(struct ngram_rows *r, const struct exec *x, struct moeflux_err *e)
{
    struct rows_reading *g = r->reading;
    if (!g || !r->is_started)
        return 0;
    uint64_t start = clock_ns();
    bool goes_on = await_end(g, x);
    r->wait_ns += clock_ns() - start;
    r->is_started = false;
    if (!goes_on) {
        stop(g);
        return err_set(e, ERR_INTERRUPTED, "interrupted while n-gram rows were read");
    }
    if (g->code < 0) {
        if (e)
            *e = g->err;
        return g->code;
    }
    uint64_t floats = (uint64_t)g->n * r->inner, stride = (uint64_t)r->max_chunk * r->inner;
    for (uint32_t i = 0; i < r->n_tables; i++) {
        if (r->tables[i].n_shards == 0)
            continue;
        memcpy((float *)(void *)r->room.host + i * stride, g->values + i * stride, floats * sizeof(float));
        r->n_read += (uint64_t)g->n * r->n_heads;
    }
    if (r->n > 0)
        ngram_rows_start(r);
    return 0;
}
