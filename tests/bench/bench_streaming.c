/* bench_streaming.c - how well reading and computing overlap if memory holds a part of the experts. Not a
 * test: `make bench`.
 *
 *   build/tests/bench_streaming [-n TOKENS] [-r ROUNDS] [-t THREADS] [-p PERCENT,..] [-i MODE,..] DIR
 *
 * Measures, for each percentage of the experts that has a slot and each way of reading (auto, mmap, pread,
 * uring, direct), ROUNDS times in rotation, so that other work of the machine affects all three alike:
 *   compute  TOKENS single tokens with every expert in memory
 *   reads    the bytes that the same cache lacks for them if nothing is read ahead, through a reader that
 *            always has more to do
 *   tokens   the same tokens with that cache
 *
 * Prints the medians in milliseconds a token, the part of what was read that those bytes are, and the ratio:
 * the larger of the first two divided by the third. 1 is a perfect overlap. Ids are random. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench.h"
#include "experts/reader.h"
#include "model/model_dir.h"
#include "moeflux.h"

enum { MAX_ROUNDS = 99, MAX_LIST = 8, PAGE = 4096, HUGE_PAGE = 2 << 20, N_REQUESTS = 64, N_WARM = 24 };

static const char *const MODES[] = {"auto", "mmap", "pread", "uring", "direct"};
enum { N_MODES = sizeof MODES / sizeof *MODES };

struct model {
    struct moeflux_model *m;
    struct moeflux_session *s;
    float *logits;
    uint32_t vocab_size;
    uint64_t random; /* state that yields the next id: every model gets the same ids */
};

struct bench {
    const char *dir;
    uint32_t n_tokens, n_rounds, n_threads;
    struct moeflux_needs needs;
    struct model_dir files;
    uint8_t *memory; /* [N_REQUESTS][stride] */
    uint64_t stride;
    struct read_request requests[N_REQUESTS];
    uint64_t random; /* state that yields the next expert to read */
    struct model resident;
};

static void die(const char *what, const struct moeflux_err *e)
{
    fprintf(stderr, "bench_streaming: %s%s%s\n", what, e ? ": " : "", e ? e->text : "");
    exit(1);
}

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* ---- tokens ---- */

static struct model open_model(const struct bench *b, const struct moeflux_options *o)
{
    struct model x = {.random = 1};
    struct moeflux_err e = {0};
    if (moeflux_model_open(&x.m, o, &e) < 0)
        die("open", &e);
    x.vocab_size = moeflux_model_get_info(x.m).vocab_size;
    x.logits = malloc(x.vocab_size * sizeof *x.logits);
    uint32_t n = (uint32_t)size_max(b->n_tokens, N_WARM);
    if (!x.logits || moeflux_session_new(&x.s, x.m, n, &e) < 0)
        die("session", &e);
    return x;
}

static void close_model(struct model *x)
{
    moeflux_session_free(x->s);
    moeflux_model_close(x->m);
    free(x->logits);
}

/* Milliseconds a token, each in an evaluation of its own, from an empty sequence on. */
static double run(struct model *x, uint32_t n)
{
    struct moeflux_err e = {0};
    if (moeflux_session_clear(x->s, &e) < 0)
        die("clear", &e);
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = (int32_t)draw(&x->random, x->vocab_size);
        if (moeflux_session_eval(x->s, &id, 1, &(struct moeflux_outputs){.logits = x->logits}, &e) < 0)
            die("evaluation", &e);
    }
    return (double)(clock_ns() - begin) / 1e6 / n;
}

static struct moeflux_stats stats_of(const struct model *x)
{
    struct moeflux_stats s;
    moeflux_model_get_stats(x->m, &s);
    return s;
}

/* ---- reads alone ---- */

static struct reader *open_reader(const struct bench *b, enum reader_mode mode)
{
    struct reader *r;
    struct moeflux_err e = {0};
    const struct reader_region region = {b->memory, N_REQUESTS * b->stride};
    const struct reader_options o = {
        .mode = mode, .n_threads = b->n_threads, .regions = &region, .n_regions = 1};
    if (reader_open(&r, &b->files, &o, &e) < 0)
        die("reader", &e);
    return r;
}

static void start_read(struct bench *b, struct reader *r, uint32_t i)
{
    const struct config *c = &b->files.config;
    struct read_request *q = &b->requests[i % N_REQUESTS];
    do
        q->layer = draw(&b->random, c->n_layers);
    while (!config_has_experts(c, q->layer));
    q->expert = draw(&b->random, c->n_experts);
    q->dst = b->memory + i % N_REQUESTS * b->stride;
    q->speculative = false;
    reader_start(r, q);
}

/* Milliseconds for n experts. */
static double read_experts(struct bench *b, struct reader *r, uint32_t n)
{
    struct moeflux_err e = {0};
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < n + N_REQUESTS; i++) {
        if (i >= N_REQUESTS && i - N_REQUESTS < n && reader_wait(r, &b->requests[i % N_REQUESTS], &e) < 0)
            die("read", &e);
        if (i < n)
            start_read(b, r, i);
    }
    return (double)(clock_ns() - begin) / 1e6;
}

/* ---- the table ---- */

/* Returns options with so much memory that `percent` of the experts have slots,
 * after the checkpoints' part. */
static struct moeflux_options options_of(const struct bench *b, uint32_t percent, int mode)
{
    uint64_t slot = size_round_up(b->needs.one_expert_bytes, PAGE);
    uint64_t n = b->needs.expert_bytes / b->needs.one_expert_bytes * percent / 100;
    struct moeflux_options o = {.dir = b->dir,
                                .device = "cpu",
                                .n_threads = b->n_threads,
                                .expert_io = (enum moeflux_expert_io)mode,
                                .context = b->n_tokens};
    struct moeflux_plan p = {0};
    struct moeflux_err e = {0};
    while (percent < 100 && p.n_slots < n) {
        o.memory_bytes += (n - p.n_slots) * slot;
        if (moeflux_make_plan(&o, &p, &e) < 0)
            die("plan", &e);
    }
    return o;
}

/* How many experts the cache lacks in a round, on average, if nothing is read ahead. */
static double count_misses(const struct bench *b, const struct moeflux_options *o)
{
    struct moeflux_options apart = *o;
    apart.prefetch = MOEFLUX_PREFETCH_NONE;
    struct model x = open_model(b, &apart);
    run(&x, N_WARM);
    moeflux_model_reset_stats(x.m);
    for (uint32_t i = 0; i < b->n_rounds; i++)
        run(&x, b->n_tokens);
    double n = (double)stats_of(&x).n_misses / b->n_rounds;
    close_model(&x);
    return n;
}

static void measure(struct bench *b, uint32_t percent, int mode)
{
    double compute[MAX_ROUNDS], reads[MAX_ROUNDS], tokens[MAX_ROUNDS];
    const struct moeflux_options o = options_of(b, percent, mode);
    double misses = count_misses(b, &o);
    struct model x = open_model(b, &o);
    bool in_cache = mode != MOEFLUX_EXPERT_IO_DIRECT;
    struct reader *r = open_reader(b, in_cache ? READER_PREAD : READER_DIRECT);
    run(&x, N_WARM);
    run(&b->resident, 2);
    moeflux_model_reset_stats(x.m);
    for (uint32_t i = 0; i < b->n_rounds; i++) {
        compute[i] = run(&b->resident, b->n_tokens);
        tokens[i] = run(&x, b->n_tokens);
        reads[i] = read_experts(b, r, (uint32_t)(misses + 0.5)) / b->n_tokens;
    }
    double c = bench_median(compute, b->n_rounds), d = bench_median(reads, b->n_rounds),
           t = bench_median(tokens, b->n_rounds);
    uint64_t n_reads = stats_of(&x).n_reads;
    printf("%6u %%  %-7s %8.2f %8.2f %8.2f  %6.1f  %7.2f  %6.3f\n", percent, MODES[mode], c, d, t,
           misses / b->n_tokens, n_reads ? misses * b->n_rounds / (double)n_reads : 0, (c > d ? c : d) / t);
    fflush(stdout);
    reader_close(r);
    close_model(&x);
}

static uint32_t number(const char *text, uint32_t most)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*end || n == 0 || n > most)
        die("a number is out of range", NULL);
    return (uint32_t)n;
}

static uint32_t read_list(char *text, int (*read)(const char *word), int *to)
{
    uint32_t n = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word && n < MAX_LIST; word = strtok_r(NULL, ",", &rest))
        to[n++] = read(word);
    return n;
}

static int read_percent(const char *word)
{
    return (int)number(word, 99);
}

static int read_mode(const char *word)
{
    for (int i = 0; i < N_MODES; i++)
        if (strcmp(word, MODES[i]) == 0)
            return i;
    die("expected modes auto, mmap, pread, uring or direct", NULL);
    return 0;
}

static void prepare(struct bench *b)
{
    struct moeflux_err e = {0};
    if (moeflux_get_needs(b->dir, &b->needs, &e) < 0 || model_dir_open(&b->files, b->dir, &e) < 0)
        die("open", &e);
    b->stride = size_round_up(b->files.max_expert_bytes, PAGE);
    if (posix_memalign((void **)&b->memory, HUGE_PAGE, N_REQUESTS * b->stride) != 0)
        die("out of memory", NULL);
    madvise(b->memory, N_REQUESTS * b->stride, MADV_HUGEPAGE);
    memset(b->memory, 1, N_REQUESTS * b->stride);
    const struct moeflux_options all = options_of(b, 100, MOEFLUX_EXPERT_IO_AUTO);
    b->resident = open_model(b, &all);
    if (!moeflux_model_get_info(b->resident.m).experts_resident)
        die("there is no room for all experts", NULL);
    run(&b->resident, N_WARM);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_tokens = 32, .n_rounds = 7, .n_threads = 2, .random = 1};
    int percents[MAX_LIST] = {25, 50, 75},
        modes[MAX_LIST] = {MOEFLUX_EXPERT_IO_AUTO, MOEFLUX_EXPERT_IO_DIRECT};
    uint32_t n_percents = 3, n_modes = 2;
    for (int c; (c = getopt(argc, argv, "n:r:t:p:i:")) != -1;) {
        if (c == 'n')
            b.n_tokens = number(optarg, 4096);
        else if (c == 'r')
            b.n_rounds = number(optarg, MAX_ROUNDS);
        else if (c == 't')
            b.n_threads = number(optarg, 256);
        else if (c == 'p')
            n_percents = read_list(optarg, read_percent, percents);
        else if (c == 'i')
            n_modes = read_list(optarg, read_mode, modes);
        else
            exit(2);
    }
    if (optind + 1 != argc)
        die("usage: bench_streaming [-n TOKENS] [-r ROUNDS] [-t THREADS] [-p PERCENT,..] [-i MODE,..] DIR",
            NULL);
    b.dir = argv[optind];
    prepare(&b);
    printf(
        "experts  read by  compute    reads   tokens  misses  of read   ratio   (ms a token, %u threads)\n",
        b.n_threads);
    for (uint32_t k = 0; k < n_modes; k++)
        for (uint32_t i = 0; i < n_percents; i++)
            measure(&b, (uint32_t)percents[i], modes[k]);
    close_model(&b.resident);
    free(b.memory);
    model_dir_close(&b.files);
    return 0;
}
