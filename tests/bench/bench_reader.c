/* bench_reader.c - how fast each mode reads a model's experts, compared with fio on the same files. Not a
 * test: `make bench`.
 *
 *   build/tests/bench_reader [-n EXPERTS] [-r ROUNDS] [-t THREADS] [-d DEPTH] [-w] DIR [MODE...]
 *     -w   leaves the files' pages in the page cache; otherwise they are dropped
 *
 * Reads EXPERTS different experts in random order, DEPTH requests at a time. If fio is installed, it reads as
 * many blocks of an expert's size from the same files with the same depth and engine. Rounds alternate
 * between the two, because other programs often use the disk too; the table gives medians. fio's processor
 * time is not measured, only its bandwidth. */
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench.h"
#include "base/str.h"
#include "experts/reader.h"
#include "model/model_dir.h"

enum { MAX_ROUNDS = 99, ALIGN = 4096, HUGE_PAGE = 2 << 20 };

struct bench {
    struct model_dir model;
    uint32_t n_experts, n_rounds, n_threads, depth;
    bool warm;
    uint32_t *order; /* [n_all] layer * experts + expert, shuffled anew for each round */
    uint32_t n_all;
    uint8_t *memory; /* [n_requests][stride] */
    uint64_t stride;
    struct read_request *requests; /* [n_requests]; more than are in flight, so that some always wait */
    uint32_t n_requests;
    uint64_t random;
};

static void die(const char *what, const struct moeflux_err *e)
{
    fprintf(stderr, "bench_reader: %s%s%s\n", what, e ? ": " : "", e ? e->text : "");
    exit(1);
}

static uint32_t draw(struct bench *b, uint32_t n)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((b->random >> 33) % n);
}

static void shuffle(struct bench *b)
{
    for (uint32_t i = b->n_all - 1; i > 0; i--) {
        uint32_t j = draw(b, i + 1), t = b->order[i];
        b->order[i] = b->order[j];
        b->order[j] = t;
    }
}

static bool holds_experts(const struct bench *b, uint32_t file)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    for (uint32_t i = 0; i < b->n_all; i++) {
        uint32_t n = model_dir_expert(&b->model, b->order[i] / b->model.config.n_experts,
                                      b->order[i] % b->model.config.n_experts, x);
        for (uint32_t j = 0; j < n; j++)
            if (x[j].file == file)
                return true;
    }
    return false;
}

static void drop_pages(const struct bench *b)
{
    for (uint32_t i = 0; !b->warm && i < b->model.n_files; i++)
        posix_fadvise(b->model.files[i].fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* --- the reader --- */

static struct reader *open_reader(const struct bench *b, enum reader_mode mode)
{
    struct moeflux_err e = {0};
    struct reader *r = NULL;
    const struct reader_options o = {.mode = mode, .n_threads = b->n_threads, .depth = b->depth};
    if (reader_open(&r, &b->model, &o, &e) < 0)
        printf("%s\n", e.text);
    return r;
}

static void start(struct bench *b, struct reader *r, uint32_t i)
{
    struct read_request *q = &b->requests[i % b->n_requests];
    q->layer = b->order[i] / b->model.config.n_experts;
    q->expert = b->order[i] % b->model.config.n_experts;
    q->dst = b->memory + i % b->n_requests * b->stride;
    q->speculative = false;
    reader_start(r, q);
}

/* Bytes per second of one round. */
static double read_round(struct bench *b, struct reader *r, struct reader_stats *stats)
{
    struct moeflux_err e;
    shuffle(b);
    reader_reset_stats(r);
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < b->n_experts + b->n_requests; i++) {
        if (i >= b->n_requests && i - b->n_requests < b->n_experts &&
            reader_wait(r, &b->requests[i % b->n_requests], &e) < 0)
            die("read", &e);
        if (i < b->n_experts)
            start(b, r, i);
    }
    uint64_t ns = clock_ns() - begin;
    *stats = reader_get_stats(r);
    return (double)stats->bytes * 1e9 / (double)ns;
}

/* --- fio --- */

static void fio_command(struct bench *b, enum reader_mode mode, bool ring, struct str *to)
{
    uint32_t n_jobs = ring ? 1 : b->n_threads;
    uint64_t bs = b->model.max_expert_bytes;
    str_addf(to, "fio --name=x --rw=randread --thread --group_reporting --file_service_type=random");
    str_addf(to, " --ioengine=%s --iodepth=%u --numjobs=%u --direct=%d --invalidate=%d",
             mode == READER_MMAP ? "mmap"
             : ring              ? "io_uring"
                                 : "psync",
             ring ? b->depth : 1, n_jobs, mode == READER_DIRECT, !b->warm);
    str_addf(to, " --randseed=%u --bs=%" PRIu64 " --io_size=%" PRIu64 " --output-format=json --filename=",
             draw(b, 1u << 30), bs, bs * (b->n_experts / n_jobs));
    const char *between = "";
    for (uint32_t i = 0; i < b->model.n_files; i++)
        if (holds_experts(b, i)) {
            str_addf(to, "%s%s", between, b->model.files[i].path);
            between = ":";
        }
}

/* Bytes per second, or 0 when there is no fio. */
static double fio_round(struct bench *b, enum reader_mode mode, bool ring)
{
    struct str command = {0};
    fio_command(b, mode, ring, &command);
    str_add_text(&command, " 2>/dev/null");
    drop_pages(b);
    FILE *f = popen(str_text(&command), "r"); /* NOLINT: our own words, and the paths of the user */
    json_t *root = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    double bw = json_number_value(json_object_get(json_object_get(job, "read"), "bw_bytes"));
    json_decref(root);
    if (f)
        pclose(f);
    str_free(&command);
    return bw;
}

/* --- the table --- */

/* Pages that are mapped cannot be dropped: each cold round has a reader of its own,
 * warm ones go on with r. */
static double reader_round(struct bench *b, enum reader_mode mode, struct reader *r,
                           struct reader_stats *stats)
{
    if (b->warm)
        return read_round(b, r, stats);
    drop_pages(b);
    struct reader *fresh = open_reader(b, mode);
    if (!fresh)
        exit(1);
    double rate = read_round(b, fresh, stats);
    reader_close(fresh);
    return rate;
}

/* The ratio is the median of the rounds' own: a neighbour who takes the disk for a
 * while takes it from both. */
static void print_ratio(double *ours, double *theirs, uint32_t n)
{
    double ratios[MAX_ROUNDS] = {0};
    bool has_fio = true;
    for (uint32_t i = 0; i < n; i++) {
        has_fio = has_fio && theirs[i] > 0;
        ratios[i] = ours[i] / theirs[i];
    }
    printf("%7.3f %7.3f ", bench_median(ours, n) / 1e9, bench_median(theirs, n) / 1e9);
    if (has_fio)
        printf("%6.2f", bench_median(ratios, n));
    else
        printf("%6s", "-");
}

static void measure(struct bench *b, enum reader_mode mode)
{
    double ours[MAX_ROUNDS], theirs[MAX_ROUNDS];
    struct reader_stats stats = {0};
    printf("%-7s ", reader_mode_name(mode));
    struct reader *r = open_reader(b, mode);
    if (!r)
        return;
    bool ring = strstr(reader_describe(r), "io_uring, depth") != NULL;
    for (uint32_t i = 0; i < b->n_rounds; i++) {
        if (i % 2)
            ours[i] = reader_round(b, mode, r, &stats);
        theirs[i] = fio_round(b, mode, ring);
        if (i % 2 == 0)
            ours[i] = reader_round(b, mode, r, &stats);
    }
    print_ratio(ours, theirs, b->n_rounds);
    printf("  %5.1f  %6.1f  %s\n", (double)stats.in_flight_ns / (double)stats.busy_ns,
           stats.n_submits ? (double)stats.n_parts / (double)stats.n_submits : 1.0, reader_describe(r));
    fflush(stdout);
    reader_close(r);
}

/* What the processor spends on an expert that is in its cache. */
static void measure_check(struct bench *b)
{
    struct moeflux_err e;
    struct reader *r = open_reader(b, READER_PREAD);
    if (!r)
        exit(1);
    start(b, r, 0);
    if (reader_wait(r, &b->requests[0], &e) < 0)
        die("read", &e);
    enum { TURNS = 200 };
    uint64_t begin = clock_ns();
    for (int i = 0; i < TURNS; i++)
        if (model_dir_check_expert(&b->model, b->requests[0].layer, b->requests[0].expert, b->requests[0].dst,
                                   &e) < 0)
            die("check", &e);
    double us = (double)(clock_ns() - begin) / 1e3 / TURNS;
    printf("check of an expert's scales and biases: %.1f us, %.1f GB/s of expert\n", us,
           (double)b->model.max_expert_bytes / us / 1e3);
    reader_close(r);
}

/* --- setting up --- */

static void prepare(struct bench *b)
{
    struct moeflux_err e = {0};
    const struct config *c = &b->model.config;
    b->n_requests = 4 * b->depth;
    b->stride = size_round_up(b->model.max_expert_bytes, ALIGN);
    b->order = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *b->order, &e);
    b->requests = mem_new(b->n_requests, sizeof *b->requests, &e);
    if (!b->order || !b->requests ||
        posix_memalign((void **)&b->memory, HUGE_PAGE, b->n_requests * b->stride) != 0)
        die("out of memory", NULL);
    /* The slots of a host device have huge pages, too. */
    madvise(b->memory, b->n_requests * b->stride, MADV_HUGEPAGE);
    memset(b->memory, 1, b->n_requests * b->stride);
    for (uint32_t i = 0; i < c->n_layers * c->n_experts; i++)
        if (config_has_experts(c, i / c->n_experts))
            b->order[b->n_all++] = i;
    b->n_experts = (uint32_t)size_min(b->n_experts ? b->n_experts : b->n_all, b->n_all);
}

static uint32_t number(const char *text, uint32_t most)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*end || n == 0 || n > most)
        die("a number is out of range", NULL);
    return (uint32_t)n;
}

static void read_flags(struct bench *b, int argc, char **argv)
{
    int c;
    while ((c = getopt(argc, argv, "n:r:t:d:w")) != -1) {
        if (c == 'n')
            b->n_experts = number(optarg, UINT32_MAX);
        else if (c == 'r')
            b->n_rounds = number(optarg, MAX_ROUNDS);
        else if (c == 't')
            b->n_threads = number(optarg, 256);
        else if (c == 'd')
            b->depth = number(optarg, 1024);
        else if (c == 'w')
            b->warm = true;
        else
            exit(2);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.n_rounds = 3, .n_threads = 4, .depth = READER_DEFAULT_DEPTH, .random = 1};
    struct moeflux_err e = {0};
    read_flags(&b, argc, argv);
    if (optind >= argc)
        die("usage: bench_reader [-n EXPERTS] [-r ROUNDS] [-t THREADS] [-d DEPTH] [-w] DIR [MODE...]", NULL);
    if (model_dir_open(&b.model, argv[optind], &e) < 0)
        die("open", &e);
    prepare(&b);
    printf("%u of %u experts of %.0f KiB, %s; GB/s, median of %u rounds\n", b.n_experts, b.n_all,
           (double)b.model.max_expert_bytes / 1024, b.warm ? "as cached" : "cold", b.n_rounds);
    measure_check(&b);
    printf("mode     reader     fio  ratio  depth  parts/submit\n");
    static const enum reader_mode all[] = {READER_MMAP, READER_PREAD, READER_URING, READER_DIRECT};
    for (int i = optind + 1; i < argc; i++) {
        size_t k = 0;
        while (k < sizeof all / sizeof *all && strcmp(argv[i], reader_mode_name(all[k])) != 0)
            k++;
        if (k == sizeof all / sizeof *all)
            die("expected modes mmap, pread, uring or direct", NULL);
        measure(&b, all[k]);
    }
    for (size_t i = 0; optind + 1 == argc && i < sizeof all / sizeof *all; i++)
        measure(&b, all[i]);
    free(b.order);
    free(b.requests);
    free(b.memory);
    model_dir_close(&b.model);
    return 0;
}
