/* bench_predictor.c - what reading ahead and the cache's policies gain on a real text. Not a test: `make
 * bench`.
 *
 *   build/tests/bench_predictor [-n TOKENS] [-d DEVICE] [-i IO] [DIR]
 *     DIR   the model; default: tests/models/tiny
 *
 * Goes through a text token by token. The model writes it itself: it always takes the most probable token,
 * from each of several first tokens, so that the routing is that of text. Prints the hit rate of each policy
 * at 25, 50 and 75 % of the experts; then, at each of these, for each predictor:
 *   recall      the part of the chosen experts that it had named
 *   precision   the part of the named experts that were chosen
 *   and what was read ahead and used, and the speed
 * It is for devices whose memory is the host's, since --memory has to bound the cache. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "experts/reader.h"
#include "moeflux.h"

enum { PAGE = 4096, LINE = 200, N_WARM = 64 };

struct bench {
    struct moeflux_options base;
    struct moeflux_needs needs;
    uint32_t n_tokens;
    int32_t *ids; /* [n_tokens] the text; every LINE tokens a new sequence begins */
    float *logits;
};

struct result {
    struct moeflux_stats stats;
    double tok_s;
};

static void die(const struct moeflux_err *e)
{
    fprintf(stderr, "bench_predictor: %s\n", e->text);
    exit(1);
}

/* ---- the text ---- */

static int32_t likeliest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* The first tokens lie far from each other in the vocabulary: stories that differ. */
static int32_t first_token(const struct bench *b, uint32_t sequence)
{
    return (int32_t)((uint64_t)(sequence + 1) * 2654435761u % b->needs.vocab_size);
}

static void eval(const struct bench *b, struct moeflux_session *s, int32_t id)
{
    struct moeflux_err e = {0};
    if (moeflux_session_eval(s, &id, 1, &(struct moeflux_outputs){.logits = b->logits}, &e) < 0)
        die(&e);
}

static struct moeflux_model *open_model(const struct moeflux_options *o, struct moeflux_session **s)
{
    struct moeflux_model *m;
    struct moeflux_err e = {0};
    if (moeflux_model_open(&m, o, &e) < 0 || moeflux_session_new(s, m, LINE, &e) < 0)
        die(&e);
    return m;
}

static void write_text(struct bench *b)
{
    struct moeflux_session *s;
    struct moeflux_model *m = open_model(&b->base, &s);
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        if (i % LINE == 0 && moeflux_session_clear(s, &e) < 0)
            die(&e);
        b->ids[i] = i % LINE ? likeliest(b->logits, b->needs.vocab_size) : first_token(b, i / LINE);
        eval(b, s, b->ids[i]);
    }
    moeflux_session_free(s);
    moeflux_model_close(m);
}

/* ---- measuring ---- */

static uint64_t all_slots(const struct bench *b)
{
    return b->needs.token_expert_bytes / b->needs.one_expert_bytes / b->needs.top_k * b->needs.n_experts;
}

/* The text with a cache for `percent` of the experts; what the first tokens cost is not counted. */
static struct result measure(const struct bench *b, enum moeflux_prefetch prefetch,
                             enum moeflux_cache_policy policy, uint32_t percent)
{
    struct moeflux_options o = b->base;
    struct moeflux_session *s;
    struct result r;
    struct moeflux_err e = {0};
    uint64_t start = 0;
    o.memory_bytes = all_slots(b) * percent / 100 * size_round_up(b->needs.one_expert_bytes, PAGE);
    o.prefetch = prefetch;
    o.cache_policy = policy;
    struct moeflux_model *m = open_model(&o, &s);
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        if (i == N_WARM) {
            moeflux_model_reset_stats(m);
            start = clock_ns();
        }
        if (i % LINE == 0 && moeflux_session_clear(s, &e) < 0)
            die(&e);
        eval(b, s, b->ids[i]);
    }
    r.tok_s = (double)(b->n_tokens - N_WARM) * 1e9 / (double)(clock_ns() - start);
    moeflux_model_get_stats(m, &r.stats);
    moeflux_session_free(s);
    moeflux_model_close(m);
    return r;
}

static double percent_of(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static double hit_rate(const struct moeflux_stats *t)
{
    return percent_of(t->n_hits, t->n_hits + t->n_host_hits + t->n_misses);
}

static void predictors(const struct bench *b, uint32_t percent)
{
    static const char *const names[] = {"none", "previous", "router", "both"};
    static const enum moeflux_prefetch all[] = {MOEFLUX_PREFETCH_NONE, MOEFLUX_PREFETCH_PREVIOUS,
                                                MOEFLUX_PREFETCH_ROUTER, MOEFLUX_PREFETCH_BOTH};
    printf("\npredictors, a cache for %u %% of the experts\n", percent);
    printf("%-10s %8s %10s %10s %8s %8s %10s %8s\n", "prefetch", "recall", "precision", "read ahead", "used",
           "hits", "wait ms", "tok/s");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct result r = measure(b, all[i], MOEFLUX_CACHE_POLICY_AUTO, percent);
        const struct moeflux_stats *t = &r.stats;
        printf("%-10s %7.1f%% %9.1f%% %10" PRIu64 " %7.1f%% %7.1f%% %10.3f %8.2f\n", names[i],
               percent_of(t->n_predicted_right, t->n_predictable),
               percent_of(t->n_predicted_right, t->n_predicted), t->n_prefetched,
               percent_of(t->n_prefetched_used, t->n_prefetched), hit_rate(t),
               (double)t->wait_read_ns / 1e6 / (double)t->n_decode_tokens, r.tok_s);
        fflush(stdout);
    }
}

static void policies(const struct bench *b)
{
    static const char *const names[] = {"lru", "frequency"};
    static const enum moeflux_cache_policy all[] = {MOEFLUX_CACHE_POLICY_LRU, MOEFLUX_CACHE_POLICY_FREQUENCY};
    static const uint32_t budgets[] = {25, 50, 75};
    printf("\nhit rate by policy, nothing read ahead\n%-10s", "cache");
    for (size_t j = 0; j < sizeof budgets / sizeof *budgets; j++)
        printf(" %7u%%", budgets[j]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        printf("\n%-10s", names[i]);
        for (size_t j = 0; j < sizeof budgets / sizeof *budgets; j++) {
            struct result r = measure(b, MOEFLUX_PREFETCH_NONE, all[i], budgets[j]);
            printf(" %7.1f%%", hit_rate(&r.stats));
            fflush(stdout);
        }
    }
    putchar('\n');
}

static enum moeflux_expert_io expert_io_of(const char *name)
{
    for (int i = READER_AUTO; i <= READER_DIRECT; i++)
        if (strcmp(name, reader_mode_name((enum reader_mode)i)) == 0)
            return (enum moeflux_expert_io)i;
    fprintf(stderr, "bench_predictor: -i %s: expected auto, mmap, pread, uring or direct\n", name);
    exit(2);
}

static void read_flags(struct bench *b, int argc, char **argv)
{
    int c;
    while ((c = getopt(argc, argv, "n:d:i:")) != -1) {
        if (c == 'n')
            b->n_tokens = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'd')
            b->base.device = optarg;
        else if (c == 'i')
            b->base.expert_io = expert_io_of(optarg);
        else
            exit(2);
    }
    b->base.dir = optind < argc ? argv[optind] : "tests/models/tiny";
    if (b->n_tokens <= N_WARM) {
        fprintf(stderr, "bench_predictor: -n: expected more than %d tokens\n", N_WARM);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.n_tokens = 600};
    struct moeflux_err e = {0};
    read_flags(&b, argc, argv);
    if (moeflux_get_needs(b.base.dir, &b.needs, &e) < 0)
        die(&e);
    b.ids = mem_new(b.n_tokens, sizeof *b.ids, &e);
    b.logits = mem_new(b.needs.vocab_size, sizeof *b.logits, &e);
    if (!b.ids || !b.logits)
        die(&e);
    write_text(&b);
    printf("%s: %u tokens in sequences of %d, %" PRIu64 " experts, %u of %u a layer\n", b.base.dir,
           b.n_tokens, LINE, all_slots(&b), b.needs.top_k, b.needs.n_experts);
    policies(&b);
    for (uint32_t percent = 25; percent <= 75; percent += 25)
        predictors(&b, percent);
    free(b.ids);
    free(b.logits);
    return 0;
}
