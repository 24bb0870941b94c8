/* Decoding takes no memory: no allocation from token to token, no growth over thousands of them.
 *
 * The Makefile links this test with --wrap for each function below: calls from the program's own objects come
 * here, those from libraries (the Vulkan driver's) do not. MOEFLUX_TESTS names a part of the tests, as
 * "qwen_odd*".
 *
 * suites: gpu vulkan cpu long asan */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "convert/convert.h"
#include "device.h"
#include "moeflux.h"
#include "tmp_tree.h"

/* ---- what is counted ---- */

static atomic_ullong n_allocations; /* allocations by all threads */

/* The linker gives these names. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);

void *__wrap_malloc(size_t n)
{
    n_allocations++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    n_allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    n_allocations++;
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    n_allocations++;
    return __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
    n_allocations++;
    return __real_posix_memalign(p, align, n);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
    n_allocations++;
    return __real_mmap(at, n, prot, flags, fd, off);
}

/* NOLINTEND(bugprone-reserved-identifier) */

/* ---- decoding ---- */

static const char ODD[] = "tests/models/qwen-odd/mlx", TINY[] = "tests/models/tiny";
enum { ODD_SLOT = 24576, TINY_SLOT = 28672, MAX_VOCAB = 2048 };
/* One block of the KV cache has room for them, so that no token has to make another. */
enum { CONTEXT = 200 };

struct running {
    struct moeflux_model *m;
    struct moeflux_session *s;
    uint32_t vocab, n_done;
    float logits[MAX_VOCAB];
};

static void start(struct running *r, const struct moeflux_options *o)
{
    struct moeflux_err e = {0};
    struct moeflux_options here = *o;
    if (!here.device)
        here.device = device_name();
    *r = (struct running){0};
    check_ok(moeflux_model_open(&r->m, &here, &e), &e);
    r->vocab = moeflux_model_get_info(r->m).vocab_size;
    check_ok(moeflux_session_new(&r->s, r->m, CONTEXT, &e), &e);
}

static void end(struct running *r)
{
    moeflux_session_free(r->s);
    moeflux_model_close(r->m);
}

/* n tokens one by one, from an empty sequence again whenever the context is full. */
static void decode(struct running *r, uint32_t n)
{
    struct moeflux_err e = {0};
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = (int32_t)(r->n_done++ * 7919u % r->vocab);
        if (moeflux_session_position(r->s) == CONTEXT)
            check_ok(moeflux_session_clear(r->s, &e), &e);
        check_ok(moeflux_session_eval(r->s, &id, 1, &(struct moeflux_outputs){.logits = r->logits}, &e), &e);
    }
}

static void allocates_nothing(const struct moeflux_options *o, const char *what)
{
    enum { WARM = 5, COUNTED = 50 };
    struct running r;
    start(&r, o);
    decode(&r, WARM);
    uint64_t before = n_allocations;
    decode(&r, COUNTED);
    uint64_t n = n_allocations - before;
    if (n)
        fail_msg("%s, expert_io %d, prefetch %d: %llu allocations in %d tokens", what, (int)o->expert_io,
                 (int)o->prefetch, (unsigned long long)n, COUNTED);
    end(&r);
}

/* Each token is chosen by a sampler; the next one is in flight if the device can begin it. */
static void steps_allocate_nothing(const struct moeflux_sampler_options *o)
{
    enum { WARM = 5, COUNTED = 50 };
    struct running r;
    struct moeflux_sampler *sampler;
    struct moeflux_err e = {0};
    int32_t id = 1;
    start(&r, &(struct moeflux_options){.dir = ODD});
    check_ok(moeflux_sampler_new(&sampler, o, r.vocab, NULL, &e), &e);
    for (int i = 0; i < WARM; i++)
        check_ok(moeflux_session_step(r.s, id, sampler, true, &id, &e), &e);
    uint64_t before = n_allocations;
    for (int i = 0; i < COUNTED; i++)
        check_ok(moeflux_session_step(r.s, id, sampler, true, &id, &e), &e);
    assert_int_equal(n_allocations - before, 0);
    moeflux_sampler_free(sampler);
    end(&r);
}

static const enum moeflux_prefetch PREFETCH[] = {MOEFLUX_PREFETCH_NONE, MOEFLUX_PREFETCH_PREVIOUS,
                                                 MOEFLUX_PREFETCH_ROUTER, MOEFLUX_PREFETCH_BOTH};
enum { N_PREFETCH = sizeof PREFETCH / sizeof *PREFETCH };

/* A Vulkan device gets the last of these combinations only: if a token takes long, the others find nothing
 * more. */
static uint32_t first_combination(void)
{
    return device_is_vulkan() ? N_PREFETCH - 1 : 0;
}

/* ---- the tests ---- */

static void qwen_odd_allocations_are_seen(void **state)
{
    (void)state;
    struct running r;
    uint64_t before = n_allocations;
    start(&r, &(struct moeflux_options){.dir = ODD});
    assert_true(n_allocations > before);
    end(&r);
}

static void qwen_odd_resident_decodes_without_allocation(void **state)
{
    (void)state;
    allocates_nothing(&(struct moeflux_options){.dir = ODD}, "resident");
}

/* Attention over blocks of layers, and experts of a latent. */
static void k3_odd_decodes_without_allocation(void **state)
{
    (void)state;
    allocates_nothing(&(struct moeflux_options){.dir = "tests/models/families/k3-odd"}, "blocks of layers");
}

static void qwen_odd_steps_take_no_allocation(void **state)
{
    (void)state;
    steps_allocate_nothing(&(struct moeflux_sampler_options){.top_p = 1, .repeat_penalty = 1});
    steps_allocate_nothing(&(struct moeflux_sampler_options){
        .temperature = 1, .top_k = 20, .top_p = 0.9f, .repeat_penalty = 1.1f, .repeat_last = 64});
}

static void qwen_odd_streaming_decodes_without_allocation(void **state)
{
    (void)state;
    static const enum moeflux_expert_io modes[] = {MOEFLUX_EXPERT_IO_MMAP, MOEFLUX_EXPERT_IO_PREAD,
                                                   MOEFLUX_EXPERT_IO_URING, MOEFLUX_EXPERT_IO_PREAD};
    for (uint32_t i = first_combination(); i < N_PREFETCH; i++)
        allocates_nothing(&(struct moeflux_options){.dir = ODD,
                                                    .memory_bytes = (i % 2 ? 30 : 5) * ODD_SLOT,
                                                    .expert_io = modes[i],
                                                    .cache_policy = i < 2 ? MOEFLUX_CACHE_POLICY_LRU
                                                                          : MOEFLUX_CACHE_POLICY_FREQUENCY,
                                                    .prefetch = PREFETCH[i]},
                          "streaming");
}

static void direct_reads_decode_without_allocation(void **state)
{
    (void)state;
    struct convert_result r;
    struct moeflux_err e = {0};
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "packed");
    check_ok(convert_run(&(struct convert_options){.src = TINY, .dst = dir}, &r, &e), &e);
    for (uint32_t i = first_combination(); i < N_PREFETCH; i++)
        allocates_nothing(&(struct moeflux_options){.dir = dir,
                                                    .memory_bytes = 64 * TINY_SLOT,
                                                    .expert_io = MOEFLUX_EXPERT_IO_DIRECT,
                                                    .prefetch = PREFETCH[i]},
                          "streaming");
    tmp_tree_remove(tmp);
}

/* Without pages of mapped files: the embedding's come as new tokens need them, and the system takes them
 * back. */
static uint64_t resident_bytes(void)
{
    unsigned long long total, resident = 0, of_files = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu %llu", &total, &resident, &of_files), 3);
    fclose(f);
    return (resident - of_files) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The KV cache has its one block from the first token on: it grows by nothing between the two looks. On the
 * CPU: a driver keeps memory of its own. */
static void a_thousand_tokens_take_no_more_memory_than_two_hundred(void **state)
{
    (void)state;
    enum { EARLY = 200, LATE = 1000, BOUND = 128 << 10 }; /* 160 bytes a token */
    struct running r;
    start(&r, &(struct moeflux_options){.dir = TINY,
                                        .device = "cpu",
                                        .memory_bytes = 128 * TINY_SLOT,
                                        .prefetch = MOEFLUX_PREFETCH_BOTH});
    decode(&r, EARLY);
    uint64_t early = resident_bytes();
    decode(&r, LATE - EARLY);
    uint64_t late = resident_bytes();
    printf("resident after %d tokens %.1f MiB, after %d %.1f MiB\n", EARLY, (double)early / 1048576.0, LATE,
           (double)late / 1048576.0);
    assert_true(late < early + BOUND);
    end(&r);
}

int main(void)
{
    /* First: what other tests leave in the heap is not part of its measure. */
    const struct CMUnitTest on_the_cpu[] = {
        cmocka_unit_test(a_thousand_tokens_take_no_more_memory_than_two_hundred),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_odd_allocations_are_seen),
        cmocka_unit_test(qwen_odd_resident_decodes_without_allocation),
        cmocka_unit_test(k3_odd_decodes_without_allocation),
        cmocka_unit_test(qwen_odd_steps_take_no_allocation),
        cmocka_unit_test(qwen_odd_streaming_decodes_without_allocation),
        cmocka_unit_test(direct_reads_decode_without_allocation),
    };
    const char *wanted = getenv("MOEFLUX_TESTS");
    if (wanted)
        cmocka_set_test_filter(wanted);
    int failed = device_is_vulkan() ? 0 : cmocka_run_group_tests(on_the_cpu, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
