#include "experts/usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "base/str.h"

#define HEAD "moeflux usage 1"

/* Bytes of the longest lines: MAX_LINE for three numbers of ten digits, two blanks and the end; MAX_FRAME for
 * the first and the last line. */
enum { MAX_HEAD = 64, MAX_LINE = 33, MAX_FRAME = 128 };

/* ---- reading ---- */

bool usage_take_number(const char **at, const char *end, uint64_t most, uint64_t *out)
{
    const char *p = *at;
    uint64_t value = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (most - digit) / 10 || digit > most)
            return false;
        value = value * 10 + digit;
    }
    if (p == *at || (**at == '0' && p - *at > 1))
        return false;
    *at = p;
    *out = value;
    return true;
}

bool usage_skip(const char **at, const char *end, char c)
{
    if (*at == end || **at != c)
        return false;
    ++*at;
    return true;
}

struct parser {
    const char *path;
    const char *line, *end; /* the current line, without its end */
    const char *next, *stop;
    unsigned long long n_lines;
    uint32_t n_layers, n_experts;
    uint32_t *counts; /* the file's counts */
};

/* Takes the next line. Returns false if it has no end: the text is over, or the file was cut. */
static bool next_line(struct parser *p)
{
    const char *end = memchr(p->next, '\n', (size_t)(p->stop - p->next));
    p->line = p->next;
    p->end = end ? end : p->stop;
    p->next = end ? end + 1 : p->stop;
    p->n_lines++;
    return end != NULL;
}

static int refuse(const struct parser *p, const char *expected, struct moeflux_err *e)
{
    enum { MOST_SHOWN = 60 };
    int n = (int)size_min((uint64_t)(p->end - p->line), MOST_SHOWN);
    return err_set(e, ERR_FORMAT, "%s: line %llu: expected %s, found \"%.*s\"", p->path, p->n_lines, expected,
                   n, p->line);
}

/* Takes a number and what follows it (a blank, or the end of the line) from *at. */
static bool take_number(const char **at, const char *end, bool last, uint32_t *out)
{
    uint64_t value;
    if (!usage_take_number(at, end, UINT32_MAX, &value) || (last ? *at != end : !usage_skip(at, end, ' ')))
        return false;
    *out = (uint32_t)value;
    return true;
}

static int read_head(struct parser *p, struct moeflux_err *e)
{
    char expected[MAX_HEAD];
    snprintf(expected, sizeof expected, HEAD " %" PRIu32 " %" PRIu32, p->n_layers, p->n_experts);
    size_t n = strlen(expected);
    if (next_line(p) && (size_t)(p->end - p->line) == n && memcmp(p->line, expected, n) == 0)
        return 0;
    return refuse(p, expected, e);
}

/* Reads an expert's line. Lines must be in order, so that each expert has one. `least`: the lowest allowed
 * place. */
static int read_line(struct parser *p, uint64_t *least, struct moeflux_err *e)
{
    const char *at = p->line;
    uint32_t layer, expert, count;
    if (!take_number(&at, p->end, false, &layer) || !take_number(&at, p->end, false, &expert) ||
        !take_number(&at, p->end, true, &count) || count == 0)
        return refuse(p, "\"layer expert count\" or \"end\"", e);
    if (layer >= p->n_layers || expert >= p->n_experts) {
        char expected[96];
        snprintf(expected, sizeof expected, "a layer below %" PRIu32 " and an expert below %" PRIu32,
                 p->n_layers, p->n_experts);
        return refuse(p, expected, e);
    }
    uint64_t place = (uint64_t)layer * p->n_experts + expert;
    if (place < *least)
        return refuse(p, "experts in order, each once", e);
    p->counts[place] = count;
    *least = place + 1;
    return 0;
}

static int read_all(struct parser *p, struct moeflux_err *e)
{
    uint64_t least = 0;
    int rc = read_head(p, e);
    while (rc == 0) {
        bool whole = next_line(p);
        bool is_end = p->end - p->line == 3 && memcmp(p->line, "end", 3) == 0;
        if (whole && is_end)
            break;
        rc = whole ? read_line(p, &least, e) : refuse(p, "a line \"end\" at the end (the file was cut)", e);
    }
    if (rc < 0 || p->next == p->stop)
        return rc;
    next_line(p);
    return refuse(p, "nothing after \"end\"", e);
}

static void add(uint32_t *counts, const uint32_t *more, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (__builtin_add_overflow(counts[i], more[i], &counts[i]))
            counts[i] = UINT32_MAX;
}

int usage_read(const char *path, uint32_t n_layers, uint32_t n_experts, uint32_t *counts,
               struct moeflux_err *e)
{
    uint64_t n = (uint64_t)n_layers * n_experts;
    struct stat st;
    char *text;
    size_t len;
    if (stat(path, &st) < 0 && errno == ENOENT)
        return 0;
    int rc = file_read_text(path, MAX_FRAME + n * MAX_LINE, &text, &len, e);
    if (rc < 0)
        return rc;
    struct parser p = {.path = path,
                       .next = text,
                       .stop = text + len,
                       .n_layers = n_layers,
                       .n_experts = n_experts,
                       .counts = mem_new(n, sizeof *p.counts, e)};
    rc = p.counts ? read_all(&p, e) : ERR_MEMORY;
    if (rc == 0)
        add(counts, p.counts, n);
    free(p.counts);
    free(text);
    return rc < 0 ? rc : 1;
}

int usage_read_shape(const char *path, uint32_t *n_layers, uint32_t *n_experts, struct moeflux_err *e)
{
    /* The most experts in all layers; no model has more. */
    enum { MOST = 1 << 24 };
    char head[MAX_HEAD];
    uint64_t size;
    int fd = file_open_read(path, &size, e);
    if (fd < 0)
        return fd;
    size_t n = (size_t)size_min(size, sizeof head);
    int rc = file_read_at(fd, path, head, n, 0, e);
    close(fd);
    if (rc < 0)
        return rc;
    struct parser p = {.path = path, .next = head, .stop = head + n};
    bool good = next_line(&p) && (size_t)(p.end - p.line) > strlen(HEAD) &&
                memcmp(p.line, HEAD " ", strlen(HEAD) + 1) == 0;
    const char *at = p.line + (good ? strlen(HEAD) + 1 : 0);
    good = good && take_number(&at, p.end, false, n_layers) && take_number(&at, p.end, true, n_experts) &&
           *n_layers > 0 && *n_experts > 0 && (uint64_t)*n_layers * *n_experts <= MOST;
    return good ? 0 : refuse(&p, HEAD " LAYERS EXPERTS", e);
}

/* ---- writing ---- */

static void write_text(struct str *text, uint32_t n_layers, uint32_t n_experts, const uint32_t *counts)
{
    str_addf(text, HEAD " %" PRIu32 " %" PRIu32 "\n", n_layers, n_experts);
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t expert = 0; expert < n_experts; expert++) {
            uint32_t count = counts[(uint64_t)layer * n_experts + expert];
            if (count)
                str_addf(text, "%" PRIu32 " %" PRIu32 " %" PRIu32 "\n", layer, expert, count);
        }
    str_add_text(text, "end\n");
}

int usage_write(const char *path, uint32_t n_layers, uint32_t n_experts, const uint32_t *counts,
                struct moeflux_err *e)
{
    struct str text = {0};
    write_text(&text, n_layers, n_experts, counts);
    int rc = str_ok(&text) ? side_file_put(path, 0, text.data, text.len, e)
                           : err_set(e, ERR_MEMORY, "%s: out of memory", path);
    str_free(&text);
    return rc;
}

/* ---- order ---- */

struct ranked {
    uint32_t count;
    struct expert_key key;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    if (x->key.layer != y->key.layer)
        return x->key.layer < y->key.layer ? -1 : 1;
    return x->key.expert < y->key.expert ? -1 : x->key.expert > y->key.expert;
}

int usage_order(uint32_t n_layers, uint32_t n_experts, const uint32_t *counts, struct expert_key *keys,
                uint32_t n, struct moeflux_err *e)
{
    uint64_t n_all = (uint64_t)n_layers * n_experts;
    struct ranked *all = mem_new(n_all, sizeof *all, e);
    uint32_t n_used = 0;
    if (!all)
        return ERR_MEMORY;
    for (uint64_t i = 0; i < n_all; i++)
        if (counts[i])
            all[n_used++] =
                (struct ranked){counts[i], {(uint32_t)(i / n_experts), (uint32_t)(i % n_experts)}};
    qsort(all, n_used, sizeof *all, by_rank);
    uint32_t n_kept = n_used < n ? n_used : n;
    for (uint32_t i = 0; i < n_kept; i++)
        keys[i] = all[i].key;
    free(all);
    return (int)n_kept;
}
