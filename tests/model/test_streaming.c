/* The logits do not depend on how experts come: ways of reading, sizes and policies of the cache, what is
 * read ahead, threads, tiers of memory, the layout on disk, warm and cold. And the counters say of each run
 * what their contract promises.
 *
 * MOEFLUX_DEVICE names another device than the default one. On "cpu" and "reference" everything runs, staging
 * aside: they have no memory of their own. Readers, policies and predictors are the same for all devices, so
 * on another one only that varies which meets its memory and its queue. MOEFLUX_TESTS names a part of the
 * tests, as "qwen_odd*".
 *
 * suites: nightly vulkan cpu long asan tsan-nightly */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "check.h"
#include "device.h"
#include "convert/convert.h"
#include "golden.h"
#include "engine/lab/lab.h"
#include "moeflux.h"
#include "tmp_tree.h"

enum { N_PROMPT = 8, N_DECODE = 4, N_ROWS = N_DECODE + 1, PAGE = 4096, CHUNK = 16 };

static bool is_native(void)
{
    const char *device = getenv("MOEFLUX_DEVICE");
    return device && strcmp(device, "cpu") == 0;
}

/* The host: a device without its own memory. */
static bool is_host(void)
{
    const char *device = getenv("MOEFLUX_DEVICE");
    return is_native() || (device && strcmp(device, "reference") == 0);
}

/* ---- what is varied ---- */

enum { LAYOUT, IO, BUDGET, PREFETCH, THREADS, POLICY, MEMORY, N_FACTORS };
enum { PLAIN, PACKED, SPREAD, N_LAYOUTS };
enum { MMAP, PREAD, URING, DIRECT };
enum { ALL, HALF, LITTLE };
enum { NO_PREFETCH, PREVIOUS, ROUTER, BOTH };
enum { MAPPED, STAGED };
enum { MAX_LEVELS = 4 };

static const struct factor {
    uint32_t n;
    const char *levels[MAX_LEVELS];
} factors[N_FACTORS] = {
    [LAYOUT] = {N_LAYOUTS, {"plain", "packed", "spread"}},
    [IO] = {4, {"mmap", "pread", "uring", "direct"}},
    [BUDGET] = {3, {"all", "half", "little"}},
    [PREFETCH] = {4, {"none", "previous", "router", "both"}},
    [THREADS] = {2, {"1", "4"}},
    [POLICY] = {3, {"lru", "frequency", "context"}},
    /* Staged: with a host tier below the device's slots. The last factor: the first half of all choices lacks
     * it. */
    [MEMORY] = {2, {"mapped", "staged"}},
};
enum { N_PRODUCT = N_LAYOUTS * 4 * 3 * 4 * 2 * 2 * 2 };

struct choice {
    uint32_t level[N_FACTORS];
};

static struct choice nth_choice(uint32_t i)
{
    struct choice c;
    for (uint32_t f = 0; f < N_FACTORS; f++) {
        c.level[f] = i % factors[f].n;
        i /= factors[f].n;
    }
    return c;
}

static const char *level_name(const struct choice *c, uint32_t factor)
{
    return factors[factor].levels[c->level[factor]];
}

/* ---- the models ---- */

struct subject {
    char *tmp;
    const char *dirs[N_LAYOUTS];
    struct moeflux_needs needs;
    uint32_t n_moe_layers;
    uint64_t slot_bytes;
    uint64_t fixed_bytes[2];          /* device memory not for experts: as it is, staged */
    int32_t ids[N_PROMPT + N_DECODE]; /* real text, so that the routing is real */
    bool can[N_LAYOUTS][4];           /* index: layout, way of reading */
    bool has_staged;                  /* the device has memory apart */
};

static void learn_ids(struct subject *s, const char *golden)
{
    struct golden g;
    golden_open(&g, golden);
    const struct golden_tensor *tokens = golden_find(&g, 0, "tokens");
    assert_true(tokens->shape[0] >= N_PROMPT + N_DECODE);
    memcpy(s->ids, tokens->data, sizeof s->ids);
    golden_close(&g);
}

/* Host and device get room for as many experts, whether that is one place or two. */
static struct moeflux_options options_for(const struct subject *s, const struct choice *c)
{
    uint64_t all = (uint64_t)s->n_moe_layers * s->needs.n_experts;
    /* A token and a half of one layer: every layer takes the slots of the one before. */
    const uint64_t slots[] = {[ALL] = all, [HALF] = all / 2, [LITTLE] = (uint64_t)s->needs.top_k * 3 / 2};
    uint64_t bytes = slots[c->level[BUDGET]] * s->slot_bytes;
    static const enum moeflux_expert_io io[] = {MOEFLUX_EXPERT_IO_MMAP, MOEFLUX_EXPERT_IO_PREAD,
                                                MOEFLUX_EXPERT_IO_URING, MOEFLUX_EXPERT_IO_DIRECT};
    static const enum moeflux_prefetch prefetch[] = {MOEFLUX_PREFETCH_NONE, MOEFLUX_PREFETCH_PREVIOUS,
                                                     MOEFLUX_PREFETCH_ROUTER, MOEFLUX_PREFETCH_BOTH};
    static const enum moeflux_cache_policy policy[] = {
        MOEFLUX_CACHE_POLICY_LRU, MOEFLUX_CACHE_POLICY_FREQUENCY, MOEFLUX_CACHE_POLICY_CONTEXT};
    return (struct moeflux_options){.dir = s->dirs[c->level[LAYOUT]],
                                    .device = getenv("MOEFLUX_DEVICE"),
                                    .memory_bytes = bytes,
                                    .gpu_memory_bytes = s->fixed_bytes[c->level[MEMORY]] + bytes,
                                    .expert_io = io[c->level[IO]],
                                    .prefetch = prefetch[c->level[PREFETCH]],
                                    .cache_policy = policy[c->level[POLICY]],
                                    .n_threads = (uint32_t)atoi(level_name(c, THREADS)),
                                    .chunk = CHUNK};
}

static int open_choice(struct moeflux_model **m, const struct subject *s, const struct choice *c,
                       struct moeflux_err *e)
{
    const struct moeflux_options o = options_for(s, c);
    return device_open_staged(m, &o, c->level[MEMORY] == STAGED, e);
}

/* What the plan of a run sets aside before experts get anything. */
static uint64_t fixed_of(struct subject *s, bool staged)
{
    const struct moeflux_options o = {
        .dir = s->dirs[PLAIN], .device = getenv("MOEFLUX_DEVICE"), .chunk = CHUNK};
    struct moeflux_plan p;
    struct moeflux_err e = {0};
    check_ok(device_plan_staged(&o, staged, &p, &e), &e);
    s->has_staged |= staged && !p.is_unified;
    return p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes;
}

/* Which ways of reading a layout has. What cannot be had says so, and only io_uring and direct reads may. */
static void probe(struct subject *s)
{
    for (uint32_t layout = 0; layout < N_LAYOUTS; layout++)
        for (uint32_t io = 0; io < factors[IO].n; io++) {
            const struct choice c = {.level = {[LAYOUT] = layout, [IO] = io, [BUDGET] = HALF}};
            struct moeflux_model *m;
            struct moeflux_err e = {0};
            struct moeflux_options o = options_for(s, &c);
            o.device = "cpu"; /* opens fast, and a device reads no other way */
            o.gpu_memory_bytes = 0;
            int rc = device_open_model(&m, &o, &e);
            s->can[layout][io] = rc == 0;
            if (rc < 0 && (rc != ERR_UNSUPPORTED || io < URING))
                fail_msg("%s, %s: %s", level_name(&c, LAYOUT), level_name(&c, IO), e.text);
            moeflux_model_close(m);
        }
}

static void open_subject(struct subject *s, const char *plain, const char *golden)
{
    struct convert_result r;
    struct moeflux_err e = {0};
    *s = (struct subject){.tmp = tmp_tree_new(), .dirs = {plain}};
    s->dirs[PACKED] = tmp_tree_path(s->tmp, "packed");
    s->dirs[SPREAD] = tmp_tree_path(s->tmp, "spread");
    const char *part = tmp_tree_path(s->tmp, "part");
    check_ok(convert_run(&(struct convert_options){.src = plain, .dst = s->dirs[PACKED]}, &r, &e), &e);
    check_ok(
        convert_run(&(struct convert_options){.src = plain, .dst = s->dirs[SPREAD], .spread = part}, &r, &e),
        &e);
    check_ok(moeflux_get_needs(plain, &s->needs, &e), &e);
    s->n_moe_layers = (uint32_t)(s->needs.token_expert_bytes / s->needs.one_expert_bytes / s->needs.top_k);
    s->slot_bytes = size_round_up(s->needs.one_expert_bytes, PAGE);
    for (int staged = 0; staged < 2; staged++)
        s->fixed_bytes[staged] = fixed_of(s, staged);
    learn_ids(s, golden);
    probe(s);
}

static void close_subject(struct subject *s)
{
    tmp_tree_remove(s->tmp);
}

static const char *layer_path(const struct subject *s, uint32_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "packed_experts/layer_%02u.bin", layer);
    return tmp_tree_path(s->dirs[PACKED], name);
}

static bool can(const struct subject *s, const struct choice *c)
{
    return s->can[c->level[LAYOUT]][c->level[IO]] && (c->level[MEMORY] == MAPPED || s->has_staged);
}

/* ---- one run ---- */

static void describe(const struct choice *c, char *out, size_t cap)
{
    size_t n = 0;
    for (uint32_t f = 0; f < N_FACTORS; f++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", f ? ", " : "", level_name(c, f));
}

/* The logits after the prompt and after each single token more: [N_ROWS][vocab]. */
static void evaluate(const struct subject *s, struct moeflux_model *m, struct moeflux_session *q, float *rows)
{
    struct moeflux_err e = {0};
    uint32_t vocab = s->needs.vocab_size;
    check_ok(moeflux_session_eval(q, s->ids, N_PROMPT, &(struct moeflux_outputs){.logits = rows}, &e), &e);
    moeflux_model_reset_stats(m);
    for (uint32_t i = 0; i < N_DECODE; i++)
        check_ok(moeflux_session_eval(q, s->ids + N_PROMPT + i, 1,
                                      &(struct moeflux_outputs){.logits = rows + (uint64_t)(i + 1) * vocab},
                                      &e),
                 &e);
}

#define hold(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("%s: %s does not hold", name, #condition);                                              \
    } while (0)

/* The counters of N_DECODE single tokens. */
static void check_counters(const struct subject *s, struct moeflux_model *m, const struct choice *c,
                           const char *name)
{
    struct moeflux_stats t;
    moeflux_model_get_stats(m, &t);
    uint64_t chosen = (uint64_t)N_DECODE * s->n_moe_layers * s->needs.top_k, waited = 0;
    bool resident = moeflux_model_get_info(m).experts_resident;
    hold(resident == (c->level[BUDGET] == ALL));
    hold(t.n_hits + t.n_host_hits + t.n_misses == (resident ? 0 : chosen));
    hold(t.n_decode_tokens == N_DECODE && t.n_prefill_tokens == 0);
    hold(t.n_predicted_right <= t.n_predicted);
    hold(t.n_predicted_right <= t.n_predictable);
    hold(t.n_predictable <= chosen);
    hold(t.n_prefetched_used <= t.n_prefetched);
    hold(t.n_prefetched <= t.n_predicted);
    bool ahead = !resident && c->level[PREFETCH] != NO_PREFETCH;
    hold(ahead == (t.n_predicted > 0));
    hold(ahead == (t.n_predictable > 0));
    hold(ahead || t.n_prefetched == 0);
    hold(!resident || t.n_reads == 0);
    hold(t.read_bytes == t.n_reads * s->needs.one_expert_bytes);
    for (uint32_t i = 0; i < s->needs.n_layers; i++)
        waited += lab_layer_wait_ns(m, i);
    hold(waited == t.wait_read_ns);
    hold(t.n_host_slots > 0 || t.n_host_hits + t.n_promoted + t.n_demoted == 0);
    hold(c->level[MEMORY] == MAPPED || resident || t.n_host_slots > 0);
    hold((t.weights_mapped_bytes > 0) == (is_native() && c->level[IO] == MMAP));
    hold(t.weights_mapped_bytes <= t.weights_bytes);
}

/* Cold, and again in the cache that this left. */
static void run(const struct subject *s, const struct choice *c, float *rows, const float *want)
{
    char name[128];
    struct moeflux_model *m;
    struct moeflux_session *q;
    struct moeflux_err e = {0};
    uint64_t bytes = (uint64_t)N_ROWS * s->needs.vocab_size * sizeof(float);
    describe(c, name, sizeof name);
    if (open_choice(&m, s, c, &e) < 0)
        fail_msg("%s: %s", name, e.text);
    check_ok(moeflux_session_new(&q, m, N_PROMPT + N_DECODE, &e), &e);
    for (int turn = 0; turn < 2; turn++) {
        memset(rows, 0, bytes);
        evaluate(s, m, q, rows);
        if (want && memcmp(rows, want, bytes) != 0)
            fail_msg("%s, %s: other logits", name, turn ? "warm" : "cold");
        check_counters(s, m, c, name);
        check_ok(moeflux_session_clear(q, &e), &e);
    }
    moeflux_session_free(q);
    moeflux_model_close(m);
}

/* Runs the choices against the plainest one. */
static void compare(const struct subject *s, const struct choice *choices, uint32_t n)
{
    uint64_t floats = (uint64_t)N_ROWS * s->needs.vocab_size;
    float *want = calloc(floats, sizeof *want), *got = calloc(floats, sizeof *got);
    const struct choice plainest = {.level = {[LAYOUT] = PLAIN, [IO] = PREAD, [BUDGET] = ALL}};
    uint32_t n_run = 0;
    run(s, &plainest, want, NULL);
    for (uint32_t i = 0; i < n; i++)
        if (can(s, &choices[i])) {
            run(s, &choices[i], got, want);
            n_run++;
        }
    printf("%s: %u combinations ran, %u cannot be had\n", s->dirs[PLAIN], n_run, n - n_run);
    free(want);
    free(got);
}

/* ---- which combinations ---- */

/* Whether a run on a device adds to those on the host. Its memory decides where reads land: in mappings that
 * it imports, in buffers that io_uring registers, in memory that direct reads may refuse. It records the
 * prediction of the next layer's router. Layouts, other reads, the predictor of the previous token, the
 * readers' threads and which expert leaves the cache it does not meet. */
static bool concerns_device(const struct choice *c)
{
    return c->level[LAYOUT] == PACKED && c->level[IO] != PREAD && c->level[THREADS] == 0 &&
           c->level[POLICY] == 0 && (c->level[PREFETCH] == NO_PREFETCH || c->level[PREFETCH] == BOTH);
}

static bool is_sought(const struct subject *s, const struct choice *c)
{
    return can(s, c) && (is_host() || concerns_device(c));
}

/* Those that the host has: all its memory is mapped. */
static uint32_t all_mapped_choices(struct choice *out)
{
    for (uint32_t i = 0; i < N_PRODUCT / 2; i++)
        out[i] = nth_choice(i);
    return N_PRODUCT / 2;
}

/* Pairs of levels of two factors that a choice adds to those covered; marks them if asked to. */
static uint32_t new_pairs(const struct choice *c, bool covered[N_FACTORS][MAX_LEVELS][N_FACTORS][MAX_LEVELS],
                          bool mark)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < N_FACTORS; a++)
        for (uint32_t b = a + 1; b < N_FACTORS; b++) {
            bool *it = &covered[a][c->level[a]][b][c->level[b]];
            n += !*it;
            *it = *it || mark;
        }
    return n;
}

/* The fewest choices that a greedy search finds which have every wanted pair of levels. */
static uint32_t covering_choices(const struct subject *s, struct choice *out)
{
    bool covered[N_FACTORS][MAX_LEVELS][N_FACTORS][MAX_LEVELS] = {0};
    for (uint32_t n = 0;; n++) {
        uint32_t most = 0;
        for (uint32_t i = 0; i < N_PRODUCT; i++) {
            const struct choice c = nth_choice(i);
            uint32_t gain = is_sought(s, &c) ? new_pairs(&c, covered, false) : 0;
            if (gain > most) {
                most = gain;
                out[n] = c;
            }
        }
        if (most == 0)
            return n;
        new_pairs(&out[n], covered, true);
    }
}

/* ---- the tests ---- */

static const char ODD[] = "tests/models/qwen-odd/mlx",
                  ODD_GOLDEN[] = "tests/models/qwen-odd/golden.safetensors";
static const char DEEPSEEK[] = "tests/models/deepseek-odd/mlx",
                  DEEPSEEK_GOLDEN[] = "tests/models/deepseek-odd/golden.safetensors";
static const char QWEN3[] = "tests/models/qwen3-odd/mlx",
                  QWEN3_GOLDEN[] = "tests/models/qwen3-odd/golden.safetensors";
static const char TINY[] = "tests/models/tiny", TINY_GOLDEN[] = "tests/models/tiny/golden.safetensors";

/* The odd model's experts do not end at a block. */
static void packed_models_are_read_in_every_way(void **state)
{
    (void)state;
    struct subject s;
    const char *const models[][2] = {{ODD, ODD_GOLDEN}, {TINY, TINY_GOLDEN}};
    for (uint32_t i = 0; i < 2; i++) {
        open_subject(&s, models[i][0], models[i][1]);
        for (uint32_t io = 0; io < factors[IO].n; io++)
            if (!s.can[SPREAD][io] || !s.can[PACKED][io])
                fail_msg("%s, packed: no %s", models[i][0], factors[IO].levels[io]);
        close_subject(&s);
    }
}

static void all_combinations_give_the_same_logits(void **state)
{
    (void)state;
    struct subject s;
    struct choice choices[N_PRODUCT];
    open_subject(&s, ODD, ODD_GOLDEN);
    compare(&s, choices, all_mapped_choices(choices));
    close_subject(&s);
}

static void pairs_agree(const char *model, const char *golden)
{
    struct subject s;
    struct choice choices[N_PRODUCT];
    open_subject(&s, model, golden);
    compare(&s, choices, covering_choices(&s, choices));
    close_subject(&s);
}

static void qwen_odd_logits_are_equal_over_all_pairs(void **state)
{
    (void)state;
    pairs_agree(ODD, ODD_GOLDEN);
}

static void deepseek_odd_logits_are_equal_over_all_pairs(void **state)
{
    (void)state;
    pairs_agree(DEEPSEEK, DEEPSEEK_GOLDEN);
}

static void qwen3_odd_logits_are_equal_over_all_pairs(void **state)
{
    (void)state;
    pairs_agree(QWEN3, QWEN3_GOLDEN);
}

static void tiny_logits_are_equal_over_all_pairs(void **state)
{
    (void)state;
    pairs_agree(TINY, TINY_GOLDEN);
}

/* ---- traces ---- */

/* Evaluates and returns the trace, for the caller to free. */
static uint8_t *trace_of(const struct subject *s, const struct choice *c, float *rows)
{
    const char *path = tmp_tree_path(s->tmp, "trace");
    struct moeflux_options o = options_for(s, c);
    struct moeflux_model *m;
    struct moeflux_session *q;
    struct moeflux_err e = {0};
    check_ok(device_open_traced(&m, &o, c->level[MEMORY] == STAGED, path, &e), &e);
    check_ok(moeflux_session_new(&q, m, N_PROMPT + N_DECODE, &e), &e);
    evaluate(s, m, q, rows);
    check_ok(lab_save_trace(m, &e), &e);
    moeflux_session_free(q);
    moeflux_model_close(m);
    return tmp_tree_read(path, NULL);
}

static void a_trace_is_the_same_wherever_the_experts_are(void **state)
{
    (void)state;
    struct subject s;
    open_subject(&s, TINY, TINY_GOLDEN);
    uint64_t floats = (uint64_t)N_ROWS * s.needs.vocab_size;
    float *want = calloc(floats, sizeof *want), *got = calloc(floats, sizeof *got);
    const struct choice plainest = {.level = {[LAYOUT] = PLAIN, [IO] = PREAD, [BUDGET] = ALL}};
    run(&s, &plainest, want, NULL);
    uint8_t *first = trace_of(&s, &plainest, got);
    assert_memory_equal(got, want, floats * sizeof *want);
    /* Budgets between all and little repeat the latter on a slow device. */
    for (uint32_t budget = ALL; budget <= LITTLE; budget += device_is_vulkan() ? LITTLE - ALL : 1)
        for (uint32_t memory = MAPPED; memory <= (s.has_staged ? STAGED : MAPPED); memory++) {
            struct choice c = plainest;
            c.level[BUDGET] = budget;
            c.level[MEMORY] = memory;
            uint8_t *trace = trace_of(&s, &c, got);
            assert_string_equal((char *)trace, (char *)first);
            assert_memory_equal(got, want, floats * sizeof *want);
            free(trace);
        }
    free(first);
    free(want);
    free(got);
    close_subject(&s);
}

/* ---- files that shrink ---- */

/* What a file was before it was cut. */
struct original {
    uint8_t *bytes;
    size_t n;
    struct timespec written;
};

static void cut(const char *path, struct original *was, size_t divisor)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    was->written = st.st_mtim;
    was->bytes = tmp_tree_read(path, &was->n);
    assert_int_equal(truncate(path, (off_t)(was->n / divisor)), 0);
}

/* Changed in place, since the program has the file open. The time of the last change comes back, too. */
static void restore(const char *path, struct original *was)
{
    struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, was->written};
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(was->bytes, 1, was->n, f), was->n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    free(was->bytes);
}

static void check_shrinking(const struct subject *s, const struct choice *c, float *rows, const float *want)
{
    enum { MAX_LAYERS = 8 };
    struct original was[MAX_LAYERS];
    struct moeflux_model *m;
    struct moeflux_session *q;
    struct moeflux_err e = {0};
    char name[128];
    describe(c, name, sizeof name);
    assert_true(s->needs.n_layers <= MAX_LAYERS);
    check_ok(open_choice(&m, s, c, &e), &e);
    check_ok(moeflux_session_new(&q, m, N_PROMPT + N_DECODE, &e), &e);
    evaluate(s, m, q, rows);
    check_ok(moeflux_session_clear(q, &e), &e);
    check_ok(moeflux_session_eval(q, s->ids, N_PROMPT, &(struct moeflux_outputs){.logits = rows}, &e), &e);
    for (uint32_t i = 0; i < s->needs.n_layers; i++)
        cut(layer_path(s, i), &was[i], 10);
    int rc = 0;
    uint32_t n_good = 0;
    for (; n_good < N_DECODE && rc == 0; n_good += rc == 0)
        rc = moeflux_session_eval(q, s->ids + N_PROMPT + n_good, 1, &(struct moeflux_outputs){.logits = rows},
                                  &e);
    if (rc != ERR_IO || !strstr(e.text, ".bin has ") || !strstr(e.text, "when it was opened"))
        fail_msg("%s: %d, %s", name, rc, e.text);
    /* A slow device keeps the state before a token. */
    uint32_t position = moeflux_session_position(q);
    if (position != 0 && position != N_PROMPT + n_good)
        fail_msg("%s: at %u after %u tokens", name, position, N_PROMPT + n_good);
    check_ok(moeflux_session_clear(q, &e), &e);
    for (uint32_t i = 0; i < s->needs.n_layers; i++)
        restore(layer_path(s, i), &was[i]);
    evaluate(s, m, q, rows);
    if (memcmp(rows, want, (uint64_t)N_ROWS * s->needs.vocab_size * sizeof *rows) != 0)
        fail_msg("%s: other logits after the fault", name);
    moeflux_session_free(q);
    moeflux_model_close(m);
}

static void a_file_that_shrinks_ends_the_evaluation_and_no_more(void **state)
{
    (void)state;
    struct subject s;
    open_subject(&s, TINY, TINY_GOLDEN);
    uint64_t floats = (uint64_t)N_ROWS * s.needs.vocab_size;
    float *want = calloc(floats, sizeof *want), *got = calloc(floats, sizeof *got);
    const struct choice plainest = {.level = {[LAYOUT] = PLAIN, [IO] = PREAD, [BUDGET] = ALL}};
    run(&s, &plainest, want, NULL);
    for (uint32_t i = 0; i < 2 * factors[IO].n; i++) {
        const struct choice c = {.level = {[LAYOUT] = PACKED,
                                           [IO] = i / 2,
                                           [BUDGET] = LITTLE,
                                           [PREFETCH] = i % factors[PREFETCH].n,
                                           [MEMORY] = !is_host() && i % 2}};
        /* A device meets each way once, in either memory. */
        if (!is_host() && i % 2 != i / 2 % 2)
            continue;
        check_shrinking(&s, &c, got, want);
    }
    free(want);
    free(got);
    close_subject(&s);
}

/* Mapped, as the experts are: both are looked at before an evaluation. */
static void weights_that_shrink_end_the_evaluation_and_no_more(void **state)
{
    (void)state;
    struct subject s;
    struct moeflux_model *m;
    struct moeflux_session *q;
    struct moeflux_err e = {0};
    open_subject(&s, TINY, TINY_GOLDEN);
    const char *path = tmp_tree_path(s.dirs[PACKED], "model_weights.bin");
    struct original was;
    uint64_t floats = (uint64_t)N_ROWS * s.needs.vocab_size;
    float *want = calloc(floats, sizeof *want), *got = calloc(floats, sizeof *got);
    const struct choice c = {.level = {[LAYOUT] = PACKED, [IO] = MMAP, [BUDGET] = HALF}};
    check_ok(open_choice(&m, &s, &c, &e), &e);
    check_ok(moeflux_session_new(&q, m, N_PROMPT + N_DECODE, &e), &e);
    evaluate(&s, m, q, want);
    check_ok(moeflux_session_clear(q, &e), &e);
    cut(path, &was, 2);
    int rc = moeflux_session_eval(q, s.ids, 1, &(struct moeflux_outputs){.logits = got}, &e);
    if (rc != ERR_IO || !strstr(e.text, "model_weights.bin has ") || !strstr(e.text, "when it was opened"))
        fail_msg("%d, %s", rc, e.text);
    restore(path, &was);
    evaluate(&s, m, q, got);
    assert_memory_equal(got, want, floats * sizeof *got);
    moeflux_session_free(q);
    moeflux_model_close(m);
    free(want);
    free(got);
    close_subject(&s);
}

/* Copies from the page cache take the processors that compute: to read ahead would only copy what is not
 * chosen. */
static void auto_reads_ahead_only_what_a_disk_brings(void **state)
{
    (void)state;
    static const struct {
        enum moeflux_expert_io io;
        const char *mode;
        bool predicts;
    } cases[] = {{MOEFLUX_EXPERT_IO_AUTO, "pread (", false},
                 {MOEFLUX_EXPERT_IO_PREAD, "pread (", false},
                 {MOEFLUX_EXPERT_IO_MMAP, "mmap (", true}};
    struct subject s;
    open_subject(&s, TINY, TINY_GOLDEN);
    float *rows = calloc((uint64_t)N_ROWS * s.needs.vocab_size, sizeof *rows);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct choice c = {.level = {[LAYOUT] = PACKED, [BUDGET] = HALF}};
        struct moeflux_options o = options_for(&s, &c);
        struct moeflux_model *m;
        struct moeflux_session *q;
        struct moeflux_stats t;
        struct moeflux_err e = {0};
        o.expert_io = cases[i].io;
        o.prefetch = MOEFLUX_PREFETCH_AUTO;
        check_ok(device_open_model(&m, &o, &e), &e);
        check_ok(moeflux_session_new(&q, m, N_PROMPT + N_DECODE, &e), &e);
        evaluate(&s, m, q, rows);
        moeflux_model_get_stats(m, &t);
        const char *io = moeflux_model_get_info(m).expert_io;
        if (strncmp(io, cases[i].mode, strlen(cases[i].mode)) != 0 ||
            (t.n_predicted > 0) != cases[i].predicts)
            fail_msg("%s: %" PRIu64 " experts were predicted", io, t.n_predicted);
        moeflux_session_free(q);
        moeflux_model_close(m);
    }
    free(rows);
    close_subject(&s);
}

/* The cpu sees what an early router chose at once. So the first layer's is applied too, to the embedding. */
static void every_layer_of_a_token_is_predicted(void **state)
{
    (void)state;
    struct subject s;
    struct moeflux_model *m;
    struct moeflux_session *q;
    struct moeflux_stats t;
    struct moeflux_err e = {0};
    open_subject(&s, TINY, TINY_GOLDEN);
    float *rows = calloc((uint64_t)N_ROWS * s.needs.vocab_size, sizeof *rows);
    const struct choice c = {
        .level = {[LAYOUT] = PACKED, [IO] = PREAD, [BUDGET] = HALF, [PREFETCH] = ROUTER}};
    check_ok(open_choice(&m, &s, &c, &e), &e);
    check_ok(moeflux_session_new(&q, m, N_PROMPT + N_DECODE, &e), &e);
    evaluate(&s, m, q, rows);
    moeflux_model_get_stats(m, &t);
    assert_int_equal(t.n_predictable, t.n_decode_tokens * s.n_moe_layers * s.needs.top_k);
    assert_true(t.n_decode_tokens > 0);
    moeflux_session_free(q);
    moeflux_model_close(m);
    free(rows);
    close_subject(&s);
}

static void choices_that_there_are_not_are_refused(void **state)
{
    (void)state;
    const struct {
        struct moeflux_options o;
        const char *part;
    } cases[] = {
        {{.dir = ODD, .prefetch = (enum moeflux_prefetch)5}, "`prefetch` is 5, expected 0 to 4"},
        {{.dir = ODD, .cache_policy = (enum moeflux_cache_policy) - 1}, "`cache_policy` is -1"},
        {{.dir = ODD, .expert_io = (enum moeflux_expert_io)5}, "`expert_io` is 5"},
        {{.dir = ODD, .prompt_type = (enum moeflux_prompt_type)3}, "`prompt_type` is 3"},
        {{.dir = ODD, .kv_type = (enum moeflux_kv_type)4}, "`kv_type` is 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moeflux_model *m;
        struct moeflux_err e = {0};
        assert_int_equal(device_open_model(&m, &cases[i].o, &e), ERR_USAGE);
        assert_null(m);
        if (!strstr(e.text, cases[i].part))
            fail_msg("\"%s\" does not name %s", e.text, cases[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(a_file_that_shrinks_ends_the_evaluation_and_no_more),
        cmocka_unit_test(a_trace_is_the_same_wherever_the_experts_are),
        /* Tested with shared experts, whose products fill the waits, and without. */
        cmocka_unit_test(qwen_odd_logits_are_equal_over_all_pairs),
        cmocka_unit_test(qwen3_odd_logits_are_equal_over_all_pairs),
    };
    const struct CMUnitTest of_the_host[] = {
        cmocka_unit_test(deepseek_odd_logits_are_equal_over_all_pairs),
        cmocka_unit_test(tiny_logits_are_equal_over_all_pairs),
        cmocka_unit_test(packed_models_are_read_in_every_way),
        cmocka_unit_test(choices_that_there_are_not_are_refused),
        cmocka_unit_test(all_combinations_give_the_same_logits),
    };
    const struct CMUnitTest of_the_cpu[] = {
        cmocka_unit_test(auto_reads_ahead_only_what_a_disk_brings),
        cmocka_unit_test(every_layer_of_a_token_is_predicted),
        cmocka_unit_test(weights_that_shrink_end_the_evaluation_and_no_more),
    };
    const char *wanted = getenv("MOEFLUX_TESTS");
    if (wanted)
        cmocka_set_test_filter(wanted);
    int n_failed = is_host() ? cmocka_run_group_tests(of_the_host, NULL, NULL) : 0;
    n_failed += is_native() ? cmocka_run_group_tests(of_the_cpu, NULL, NULL) : 0;
    return n_failed + cmocka_run_group_tests(everywhere, NULL, NULL);
}
