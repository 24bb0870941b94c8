/* bench_rows.c - how fast each mode reads the rows of a model's n-gram table: those of a token at a time, and
 * those of a chunk. Not a test: `make bench`.
 *
 *   build/tests/bench_rows [-w] [-n ROWS] DIR
 *     -w   reads the same rows again, so that modes other than direct find them in the page cache;
 *          otherwise the table's pages are dropped before each measurement
 *     -n   random rows of each measurement (16384)
 *
 * The last line, "one by one", is a pread of each row after the system was asked to read 256 of them
 * ahead. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "experts/row_reader.h"
#include "model/model_dir.h"
#include "model/table.h"

enum { TOKEN = 16, AHEAD = 256 };

struct bench {
    struct model_dir model;
    struct table table;
    struct row_piece *pieces; /* [n], in random order */
    uint32_t n, n_rows;
    uint8_t *memory;
    bool warm;
};

static void die(const char *what, const struct moeflux_err *e)
{
    fprintf(stderr, "bench_rows: %s%s%s\n", what, e ? ": " : "", e ? e->text : "");
    exit(1);
}

static int by_place(const void *a, const void *b)
{
    const struct row_piece *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->off > y->off) - (x->off < y->off);
}

/* Draws rows and lists their pieces, sorted inside each batch. */
static void draw(struct bench *b, uint32_t batch, uint64_t *random)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        struct table_run runs[TABLE_RUNS];
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = table_find_row(&b->table, (uint32_t)((*random >> 32) % b->table.hash.n_rows), runs);
        b->n = (b->n_rows) * n;
        for (uint32_t k = 0; k < n; k++, at++)
            b->pieces[at] = (struct row_piece){runs[k].file, runs[k].bytes, runs[k].off,
                                               b->memory + (uint64_t)at * b->table.row_bytes};
    }
    uint32_t pieces = batch * (b->n / b->n_rows);
    for (uint32_t from = 0; from < b->n; from += pieces)
        qsort(b->pieces + from, size_min(pieces, b->n - from), sizeof *b->pieces, by_place);
}

static void drop_pages(const struct bench *b)
{
    for (uint32_t i = 0; !b->warm && i < b->model.n_files; i++)
        posix_fadvise(b->model.files[i].fd, 0, 0, POSIX_FADV_DONTNEED);
}

static double rows_by_reader(const struct bench *b, struct row_reader *r, uint32_t batch)
{
    static const atomic_bool stops;
    struct moeflux_err e;
    uint32_t pieces = batch * (b->n / b->n_rows);
    uint64_t begin = clock_ns();
    for (uint32_t from = 0; from < b->n; from += pieces)
        if (row_reader_read(r, b->pieces + from, (uint32_t)size_min(pieces, b->n - from), &stops, &e) < 0)
            die("read", &e);
    return b->n_rows * 1e9 / (double)(clock_ns() - begin);
}

static double rows_one_by_one(const struct bench *b, uint32_t batch)
{
    uint32_t pieces = batch * (b->n / b->n_rows);
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < b->n; i++) {
        const struct row_piece *p = &b->pieces[i];
        for (uint32_t k = i; i % pieces % AHEAD == 0 && k < b->n && k < i + size_min(pieces, AHEAD); k++)
            posix_fadvise(b->model.files[b->pieces[k].file].fd, (off_t)b->pieces[k].off, b->pieces[k].bytes,
                          POSIX_FADV_WILLNEED);
        if (pread(b->model.files[p->file].fd, p->dst, p->bytes, (off_t)p->off) != (ssize_t)p->bytes)
            die("pread", NULL);
    }
    return b->n_rows * 1e9 / (double)(clock_ns() - begin);
}

static void measure(struct bench *b, struct row_reader *r, const char *name)
{
    static const uint32_t batches[] = {TOKEN, 8192};
    printf("%-12s", name);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        uint64_t random = b->warm ? 7 : clock_ns();
        draw(b, batches[i], &random);
        drop_pages(b);
        for (int k = 0; k < (b->warm ? 2 : 1); k++) {
            double rows = r ? rows_by_reader(b, r, batches[i]) : rows_one_by_one(b, batches[i]);
            if (k == (b->warm ? 1 : 0))
                printf("%14.0f", rows);
        }
    }
    printf("\n");
}

static void open_table(struct bench *b, const char *path)
{
    struct moeflux_err e;
    if (model_dir_open(&b->model, path, &e) < 0)
        die(path, &e);
    for (uint32_t i = 0; i < b->model.config.n_layers; i++) {
        const struct ngram_config *c = table_of_layer(&b->model.config, i);
        if (c && table_open(&b->table, &b->model, i, c, &e) < 0)
            die(path, &e);
        if (c)
            return;
    }
    die("the model has no table", NULL);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_rows = 16384};
    struct moeflux_err e;
    for (int o; (o = getopt(argc, argv, "wn:")) != -1;)
        if (o == 'w')
            b.warm = true;
        else if (o == 'n')
            b.n_rows = (uint32_t)strtoul(optarg, NULL, 10);
    if (optind + 1 != argc || b.n_rows == 0)
        die("usage: bench_rows [-w] [-n ROWS] DIR", NULL);
    open_table(&b, argv[optind]);
    b.pieces = mem_new((uint64_t)b.n_rows * TABLE_RUNS, sizeof *b.pieces, &e);
    b.memory = mem_new((uint64_t)b.n_rows * TABLE_RUNS, b.table.row_bytes, &e);
    bool *is_read = mem_new(b.model.n_files, sizeof *is_read, &e);
    if (!b.pieces || !b.memory || !is_read)
        die("memory", &e);
    table_mark_files(&b.table, is_read);
    printf("%-12s%14s%14s   rows of %u bytes a second, %s\n", "mode", "16 at once", "8192 at once",
           b.table.row_bytes, b.warm ? "warm" : "cold");
    for (enum reader_mode mode = READER_MMAP; mode <= READER_DIRECT; mode++) {
        struct row_reader *r;
        const struct row_reader_options o = {.mode = mode, .max_bytes = b.table.row_bytes};
        if (row_reader_open(&r, &b.model, is_read, &o, &e) < 0)
            printf("%s\n", e.text);
        else
            measure(&b, r, reader_mode_name(mode));
        row_reader_close(r);
    }
    measure(&b, NULL, "one by one");
    free(is_read);
    free(b.pieces);
    free(b.memory);
    table_close(&b.table);
    model_dir_close(&b.model);
    return 0;
}
