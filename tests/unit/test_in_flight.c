/* Reads on their way into slots, with a disk that waits where the test wants it.
 *
 * suites: check fast asan */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "experts/in_flight.h"
#include "experts/ranking.h"
#include "model/model_dir.h"

enum { N_SLOTS = 3 };
static const char ODD[] = "tests/models/qwen-odd/mlx"; /* nine extents an expert */

/* Holds each read until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    uint32_t n_come;
};

static int64_t pass_gate(void *ctx, const struct read_part *p,
                         uint8_t *dst, /* NOLINT(readability-non-const-parameter): the hook's type */
                         int64_t result)
{
    struct gate *g = ctx;
    (void)p, (void)dst;
    pthread_mutex_lock(&g->lock);
    g->n_come++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return result;
}

static void wait_for_first(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_come == 0)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

struct place {
    struct model_dir model;
    struct gate gate;
    struct reader_hook hook;
    struct reader *reader;
    struct ranking ranking;
    struct cache *cache;
    struct in_flight reads;
    uint8_t *dst;
};

static void open_place(struct place *p)
{
    struct moeflux_err e = {0};
    *p = (struct place){.gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}};
    p->hook = (struct reader_hook){pass_gate, &p->gate};
    check_ok(model_dir_open(&p->model, ODD, &e), &e);
    const struct reader_options o = {.mode = READER_PREAD, .n_threads = 1, .depth = 1, .hook = &p->hook};
    check_ok(reader_open(&p->reader, &p->model, &o, &e), &e);
    check_ok(ranking_open(&p->ranking, p->model.config.n_layers, p->model.config.n_experts, 0, &e), &e);
    p->cache = cache_new(N_SLOTS, p->model.config.n_layers, &p->ranking, &e);
    assert_non_null(p->cache);
    check_ok(in_flight_open(&p->reads, NULL, p->reader, p->cache, N_SLOTS, N_SLOTS, &e), &e);
    p->dst = malloc(N_SLOTS * p->model.max_expert_bytes);
    assert_non_null(p->dst);
    memset(p->dst, 0xa5, N_SLOTS * p->model.max_expert_bytes);
}

static void close_place(struct place *p)
{
    reader_close(p->reader);
    in_flight_close(&p->reads);
    cache_free(p->cache);
    ranking_close(&p->ranking);
    model_dir_close(&p->model);
    free(p->dst);
}

/* The request of a read into slot 0. */
static void check_bytes(const struct place *p, struct expert_key key)
{
    struct extent x[EXPERT_MAX_EXTENTS];
    uint8_t *want = malloc(p->model.max_expert_bytes);
    assert_non_null(want);
    uint32_t n = model_dir_expert(&p->model, key.layer, key.expert, x);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pread(p->model.files[x[i].file].fd, want + x[i].at, x[i].bytes, (off_t)x[i].off),
                         x[i].bytes);
    assert_memory_equal(p->dst, want, p->model.max_expert_bytes);
    free(want);
}

/* A prefetch for a layer ends half way when the layer's choice is known. The expert may be chosen all the
 * same, by a later token or by one of this chunk that had no slot yet. */
static void an_expert_whose_prefetch_was_cut_short_is_read_again(void **state)
{
    (void)state;
    const struct expert_key key = {1, 3};
    struct place p;
    struct expert_key evicted;
    struct moeflux_err e = {0};
    uint32_t slot, again;
    open_place(&p);
    assert_int_equal(cache_pin(p.cache, key, &slot, &evicted, &e), CACHE_MISS);
    in_flight_start(&p.reads, key, slot, p.dst, true);
    wait_for_first(&p.gate);
    assert_int_equal(in_flight_cancel_prefetches(&p.reads, key.layer, NULL, 0), 0); /* it has begun */
    open_gate(&p.gate);
    assert_int_equal(cache_pin(p.cache, key, &again, &evicted, &e), CACHE_BUSY);
    assert_int_equal(again, slot);
    in_flight_claim(&p.reads, slot);
    check_ok(in_flight_await(&p.reads, slot, &e), &e);
    check_bytes(&p, key);
    assert_int_equal(cache_pin(p.cache, key, &again, &evicted, &e), CACHE_HIT);
    assert_int_equal(p.reads.n_prefetching, 0);
    assert_int_equal(p.reads.n_free, p.reads.n);
    close_place(&p);
}

static void prefetch(struct place *p, struct expert_key key)
{
    struct expert_key evicted;
    struct moeflux_err e = {0};
    uint32_t slot;
    assert_int_equal(cache_pin(p->cache, key, &slot, &evicted, &e), CACHE_MISS);
    in_flight_start(&p->reads, key, slot, p->dst + slot * p->model.max_expert_bytes, true);
}

/* A better prediction came: what it names too goes on, begun or not. */
static void prefetches_that_are_kept_go_on_and_others_are_dropped(void **state)
{
    (void)state;
    const uint32_t kept[] = {2, 3};
    struct place p;
    struct moeflux_err e = {0};
    open_place(&p);
    prefetch(&p, (struct expert_key){1, 3});
    wait_for_first(&p.gate);
    prefetch(&p, (struct expert_key){1, 1});
    prefetch(&p, (struct expert_key){1, 2});
    assert_int_equal(in_flight_cancel_prefetches(&p.reads, 1, kept, 2), 1);
    assert_false(cache_has(p.cache, (struct expert_key){1, 1}));
    assert_int_equal(p.reads.n_prefetching, 2);
    open_gate(&p.gate);
    for (uint32_t i = 0; i < 2; i++) {
        struct expert_key evicted, key = {1, kept[i]};
        uint32_t slot;
        assert_int_equal(cache_pin(p.cache, key, &slot, &evicted, &e), CACHE_BUSY);
        in_flight_claim(&p.reads, slot);
        check_ok(in_flight_await(&p.reads, slot, &e), &e);
        assert_int_equal(cache_pin(p.cache, key, &slot, &evicted, &e), CACHE_HIT);
    }
    check_bytes(&p, (struct expert_key){1, 3});
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_expert_whose_prefetch_was_cut_short_is_read_again),
        cmocka_unit_test(prefetches_that_are_kept_go_on_and_others_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
