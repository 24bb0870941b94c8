#include "experts/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "experts/usage.h"

#define HEAD "moeflux trace 1 "

enum {
    MAX_LAYERS = 1 << 16,
    MAX_EXPERTS = 1 << 16,
    MAX_ALL = 1 << 24,
    MAX_TOP_K = 1024,
    MAX_TOKENS = 1 << 30
};
/* Bytes of one expert in a line: "65535:999999.9999 "; of what comes before them. */
enum { MAX_PAIR = 32, MAX_FRONT = 64 };

/* Whether there can be such a model. */
static bool is_possible(const struct trace_shape *s)
{
    return s->n_layers >= 1 && s->n_layers <= MAX_LAYERS && s->n_experts >= 1 &&
           s->n_experts <= MAX_EXPERTS && (uint64_t)s->n_layers * s->n_experts <= MAX_ALL && s->top_k >= 1 &&
           s->top_k <= s->n_experts && s->top_k <= MAX_TOP_K && s->expert_bytes >= 1;
}

/* ---- writing ---- */

enum { ROOM = 256 << 10 };

struct trace_writer {
    struct trace_shape shape;
    struct side_file file;
    char *text; /* [ROOM], n of it not written yet */
    size_t n;
    bool done; /* committed, or failed */
    struct moeflux_err first;
};

int trace_writer_open(struct trace_writer **out, const char *path, const struct trace_shape *s,
                      struct moeflux_err *e)
{
    *out = NULL;
    if (!is_possible(s))
        return err_set(e, ERR_UNSUPPORTED, "%s: %u layers of %u experts, %u chosen: too many for a trace",
                       path, s->n_layers, s->n_experts, s->top_k);
    struct trace_writer *w = mem_new(1, sizeof *w, e);
    if (!w)
        return ERR_MEMORY;
    w->shape = *s;
    w->file.fd = -1;
    w->text = mem_new(ROOM, 1, e);
    int rc = w->text ? side_file_create(&w->file, path, 0, e) : ERR_MEMORY;
    if (rc < 0) {
        trace_writer_close(w);
        return rc;
    }
    w->n = (size_t)snprintf(w->text, ROOM, HEAD "%" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu64 "\n",
                            s->n_layers, s->n_experts, s->top_k, s->expert_bytes);
    *out = w;
    return 0;
}

static void flush(struct trace_writer *w)
{
    w->done |= file_write(w->file.fd, w->file.path, w->text, w->n, &w->first) < 0;
    w->n = 0;
}

/* A weight is written in whole ten-thousandths, so that no locale has a say in it. */
static void add_pair(struct trace_writer *w, uint32_t expert, float weight)
{
    bool is_number = weight >= 0 && weight < 1e6f;
    uint64_t parts = is_number ? (uint64_t)llround((double)weight * 1e4) : 0;
    char *to = w->text + w->n;
    w->n += (size_t)(is_number ? snprintf(to, MAX_PAIR, " %" PRIu32 ":%" PRIu64 ".%04" PRIu64, expert,
                                          parts / 10000, parts % 10000)
                               : snprintf(to, MAX_PAIR, " %" PRIu32 ":nan", expert));
}

void trace_writer_add(struct trace_writer *w, uint32_t layer, uint32_t pos, uint32_t n,
                      const uint32_t *experts, const float *weights)
{
    uint32_t top_k = w->shape.top_k;
    for (uint32_t t = 0; t < n && !w->done; t++) {
        if (w->n + MAX_FRONT + (size_t)top_k * MAX_PAIR > ROOM)
            flush(w);
        w->n += (size_t)snprintf(w->text + w->n, MAX_FRONT, "%" PRIu32 " %" PRIu32 " %" PRIu32, layer,
                                 pos + t, n);
        for (uint64_t k = (uint64_t)t * top_k; k < (uint64_t)(t + 1) * top_k; k++) {
            if (experts[k] >= w->shape.n_experts)
                break;
            add_pair(w, experts[k], weights[k]);
        }
        w->text[w->n++] = '\n';
    }
}

int trace_writer_commit(struct trace_writer *w, struct moeflux_err *e)
{
    if (!w->done) {
        w->n += (size_t)snprintf(w->text + w->n, MAX_FRONT, "end\n");
        flush(w);
        w->done |= !w->first.code && side_file_commit(&w->file, &w->first) < 0;
    }
    w->done = true;
    return w->first.code ? err_set(e, w->first.code, "%s", w->first.text) : 0;
}

void trace_writer_close(struct trace_writer *w)
{
    if (!w)
        return;
    side_file_free(&w->file);
    free(w->text);
    free(w);
}

/* ---- reading ---- */

enum { BUFFER = 1 << 20 };

struct parser {
    const char *path;
    int fd;
    char *buffer; /* [cap] */
    size_t cap;
    uint64_t left, off;
    const char *line, *end;  /* the current line, without its end */
    const char *next, *stop; /* what follows it in the buffer */
    unsigned long long n_lines;
    struct trace *t;
    bool *is_there;           /* [n_experts]: whether the current step has the expert */
    bool *has_layer;          /* [n_layers] */
    uint32_t pos, n_expected; /* current step: the next token's place, tokens still to come */
    uint64_t cap_steps, cap_uses;
};

static int refuse(const struct parser *p, const char *expected, struct moeflux_err *e)
{
    enum { MOST_SHOWN = 60 };
    int n = (int)size_min((uint64_t)(p->end - p->line), MOST_SHOWN);
    return err_set(e, ERR_FORMAT, "%s: line %llu: expected %s, found \"%.*s\"", p->path, p->n_lines, expected,
                   n, p->line);
}

/* Moves what is left to the front of the buffer and fills it up. */
static int refill(struct parser *p, struct moeflux_err *e)
{
    size_t kept = (size_t)(p->stop - p->next), n = (size_t)size_min(p->cap - kept, p->left);
    memmove(p->buffer, p->next, kept);
    int rc = file_read_at(p->fd, p->path, p->buffer + kept, n, p->off, e);
    p->next = p->buffer;
    p->stop = p->buffer + kept + n;
    p->off += n;
    p->left -= n;
    return rc;
}

/* Takes the next line. Returns 1; 0 if the text ends before the line does, or the line is too long to be
 * legal. */
static int next_line(struct parser *p, struct moeflux_err *e)
{
    const char *end = memchr(p->next, '\n', (size_t)(p->stop - p->next));
    if (!end && p->left > 0) {
        int rc = refill(p, e);
        if (rc < 0)
            return rc;
        end = memchr(p->next, '\n', (size_t)(p->stop - p->next));
    }
    p->line = p->next;
    p->end = end ? end : p->stop;
    p->next = end ? end + 1 : p->stop;
    p->n_lines++;
    return end != NULL;
}

static int take(const char **at, const char *end, uint64_t most, uint32_t *out)
{
    uint64_t value;
    if (!usage_take_number(at, end, most, &value))
        return false;
    *out = (uint32_t)value;
    return true;
}

static int read_head(struct parser *p, struct moeflux_err *e)
{
    struct trace_shape *s = &p->t->shape;
    int rc = next_line(p, e);
    const char *at = p->line;
    if (rc < 0)
        return rc;
    bool good = rc > 0 && (size_t)(p->end - at) > strlen(HEAD) && memcmp(at, HEAD, strlen(HEAD)) == 0;
    at += good ? strlen(HEAD) : 0;
    good = good && take(&at, p->end, UINT32_MAX, &s->n_layers) && usage_skip(&at, p->end, ' ') &&
           take(&at, p->end, UINT32_MAX, &s->n_experts) && usage_skip(&at, p->end, ' ') &&
           take(&at, p->end, UINT32_MAX, &s->top_k) && usage_skip(&at, p->end, ' ') &&
           usage_take_number(&at, p->end, (uint64_t)1 << 50, &s->expert_bytes) && at == p->end;
    if (!good)
        return refuse(p, "\"" HEAD "LAYERS EXPERTS TOP_K EXPERT_BYTES\"", e);
    return is_possible(s) ? 0 : refuse(p, "a model that can be", e);
}

static int grow(void **array, uint64_t *cap, uint64_t need, size_t size, struct moeflux_err *e)
{
    uint64_t wanted = size_max(2 * *cap, 1024), bytes;
    if (need <= *cap)
        return 0;
    void *larger = size_mul(wanted, size, &bytes) ? realloc(*array, bytes) : NULL;
    if (!larger)
        return err_set(e, ERR_MEMORY, "out of memory for a trace");
    *array = larger;
    *cap = wanted;
    return 0;
}

/* Begins a step or continues the current one. */
static int begin_line(struct parser *p, uint32_t layer, uint32_t pos, uint32_t n_tokens,
                      struct moeflux_err *e)
{
    struct trace *t = p->t;
    struct trace_step *s = t->n_steps ? &t->steps[t->n_steps - 1] : NULL;
    if (s && p->n_expected > 0) {
        bool goes_on = layer == s->layer && n_tokens == s->n_tokens && pos == p->pos;
        char expected[96];
        snprintf(expected, sizeof expected,
                 "the token at %" PRIu32 " of layer %" PRIu32 ", with %" PRIu32 " tokens", p->pos, s->layer,
                 s->n_tokens);
        p->pos++;
        p->n_expected--;
        return goes_on ? 0 : refuse(p, expected, e);
    }
    if (layer >= t->shape.n_layers || n_tokens == 0 || n_tokens > MAX_TOKENS || pos > MAX_TOKENS) {
        char expected[64];
        snprintf(expected, sizeof expected, "a layer below %" PRIu32 " and at least one token",
                 t->shape.n_layers);
        return refuse(p, expected, e);
    }
    int rc = grow((void **)&t->steps, &p->cap_steps, t->n_steps + 1, sizeof *t->steps, e);
    if (rc < 0)
        return rc;
    t->steps[t->n_steps++] = (struct trace_step){.first = t->n_uses, .layer = layer, .n_tokens = n_tokens};
    p->pos = pos + 1;
    p->n_expected = n_tokens - 1;
    p->has_layer[layer] = true;
    return 0;
}

static bool take_weight(const char **at, const char *end)
{
    uint64_t whole;
    const char *p = *at;
    if (end - p >= 3 && memcmp(p, "nan", 3) == 0) {
        *at = p + 3;
        return true;
    }
    if (!usage_take_number(&p, end, UINT32_MAX, &whole) || !usage_skip(&p, end, '.'))
        return false;
    *at = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    bool has_digits = p > *at;
    *at = p;
    return has_digits;
}

static int take_pairs(struct parser *p, const char *at, struct moeflux_err *e)
{
    struct trace *t = p->t;
    struct trace_step *s = &t->steps[t->n_steps - 1];
    uint32_t n = 0, expert;
    for (; at < p->end; n++) {
        if (n == t->shape.top_k)
            return refuse(p, "no more experts than TOP_K", e);
        if (!usage_skip(&at, p->end, ' ') || !take(&at, p->end, UINT32_MAX, &expert) ||
            !usage_skip(&at, p->end, ':') || !take_weight(&at, p->end))
            return refuse(p, "\"LAYER POS TOKENS EXPERT:WEIGHT ...\"", e);
        if (expert >= t->shape.n_experts) {
            char expected[48];
            snprintf(expected, sizeof expected, "an expert below %" PRIu32, t->shape.n_experts);
            return refuse(p, expected, e);
        }
        if (p->is_there[expert])
            continue;
        int rc = grow((void **)&t->experts, &p->cap_uses, t->n_uses + 1, sizeof *t->experts, e);
        if (rc < 0)
            return rc;
        p->is_there[expert] = true;
        t->experts[t->n_uses++] = (uint16_t)expert;
        s->n++;
    }
    return n > 0 ? 0 : refuse(p, "\"LAYER POS TOKENS EXPERT:WEIGHT ...\"", e);
}

static int read_line(struct parser *p, struct moeflux_err *e)
{
    struct trace *t = p->t;
    const char *at = p->line;
    uint32_t layer, pos, n_tokens;
    if (!take(&at, p->end, UINT32_MAX, &layer) || !usage_skip(&at, p->end, ' ') ||
        !take(&at, p->end, UINT32_MAX, &pos) || !usage_skip(&at, p->end, ' ') ||
        !take(&at, p->end, UINT32_MAX, &n_tokens))
        return refuse(p, "\"LAYER POS TOKENS EXPERT:WEIGHT ...\" or \"end\"", e);
    int rc = begin_line(p, layer, pos, n_tokens, e);
    if (rc == 0)
        rc = take_pairs(p, at, e);
    if (rc == 0 && p->n_expected == 0) {
        const struct trace_step *s = &t->steps[t->n_steps - 1];
        for (uint32_t i = 0; i < s->n; i++)
            p->is_there[t->experts[s->first + i]] = false;
    }
    return rc;
}

static int read_lines(struct parser *p, struct moeflux_err *e)
{
    int rc = 0;
    while (rc == 0) {
        int whole = next_line(p, e);
        if (whole < 0)
            return whole;
        if (whole == 0)
            return refuse(p, "a line \"end\" at the end (the file was cut)", e);
        if (p->end - p->line == 3 && memcmp(p->line, "end", 3) == 0)
            break;
        rc = read_line(p, e);
    }
    if (rc == 0 && p->n_expected > 0)
        return refuse(p, "the other tokens of the evaluation", e);
    if (rc < 0 || (p->next == p->stop && p->left == 0))
        return rc;
    rc = next_line(p, e);
    return rc < 0 ? rc : refuse(p, "nothing after \"end\"", e);
}

/* Counts tokens at one layer, which every evaluation of the model passes, and the layers in use. */
static void count_tokens(struct parser *p)
{
    struct trace *t = p->t;
    for (uint64_t i = 0; i < t->n_steps; i++) {
        const struct trace_step *s = &t->steps[i];
        if (s->layer != t->steps[0].layer)
            continue;
        t->n_single += s->n_tokens == 1;
        t->n_chunks += s->n_tokens > 1;
        t->n_batched += s->n_tokens > 1 ? s->n_tokens : 0;
    }
    for (uint32_t i = 0; i < t->shape.n_layers; i++)
        t->n_used_layers += p->has_layer[i];
}

static int read_all(struct parser *p, struct moeflux_err *e)
{
    p->cap = (size_t)size_min(p->left + 1, BUFFER);
    p->buffer = mem_new(p->cap, 1, e);
    if (!p->buffer)
        return ERR_MEMORY;
    p->line = p->end = p->next = p->stop = p->buffer;
    int rc = read_head(p, e);
    if (rc < 0)
        return rc;
    p->is_there = mem_new(p->t->shape.n_experts, sizeof *p->is_there, e);
    p->has_layer = mem_new(p->t->shape.n_layers, sizeof *p->has_layer, e);
    rc = p->is_there && p->has_layer ? read_lines(p, e) : ERR_MEMORY;
    if (rc == 0)
        count_tokens(p);
    return rc;
}

int trace_read(struct trace *t, const char *path, struct moeflux_err *e)
{
    struct parser p = {.path = path, .t = t};
    *t = (struct trace){0};
    p.fd = file_open_read(path, &p.left, e);
    if (p.fd < 0)
        return p.fd;
    int rc = read_all(&p, e);
    close(p.fd);
    free(p.buffer);
    free(p.is_there);
    free(p.has_layer);
    if (rc < 0)
        trace_free(t);
    return rc;
}

void trace_free(struct trace *t)
{
    free(t->steps);
    free(t->experts);
    *t = (struct trace){0};
}
