#include "cpu/team.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/err.h"
#include "base/mem.h"
#include "cpu/nodes.h"

enum { CACHE_LINE = 64, SPIN_NS = 30000, WAKE_NS = 1000000 };

/* The blocks of a thread that nobody has taken yet. Lower half: the next one; upper half: the end. */
struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t range;
};

struct worker {
    struct team *team;
    pthread_t handle;
    uint32_t thread, node; /* node: index in team.nodes */
};

struct team {
    /* Both groups have cache lines of their own, apart from what is only read. */
    _Alignas(CACHE_LINE) atomic_uint n_left; /* blocks not done yet; the caller sleeps on it */
    atomic_bool caller_sleeps;
    atomic_uint n_owners;
    pthread_mutex_t turn;                     /* held by the owner who calls */
    _Alignas(CACHE_LINE) atomic_uint n_calls; /* the workers sleep on it */
    atomic_uint n_asleep;
    atomic_bool stopping;

    _Alignas(CACHE_LINE) struct share *shares; /* [n_threads] */
    struct worker *workers;                    /* [n_threads], including the caller's place */
    uint32_t n_threads, n_started;             /* the caller counts as started */
    struct node_shares nodes;                  /* the threads' shares */
    uint64_t spin_ns;
    _Atomic uint64_t wake_until; /* clock_ns; until then workers look for a call */
    /* The call: written while no block is taken, read by those who have taken one. */
    team_fn *fn;
    void *ctx;
    bool is_by_rows; /* taken numbers are turned into blocks by find_block */
    struct team_matrices matrices;
    uint32_t *node_begin; /* [nodes.n + 1]: the first number of each node */
};

static void futex_wait(atomic_uint *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_a_little(void)
{
    for (int i = 0; i < 8; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory");
#endif
    }
}

/* Looks at *word until it equals `value` (want_equal) or differs from it. Returns false if that takes longer
 * than spin_ns, or lasts beyond `end`. */
static bool spin_until(const struct team *t, atomic_uint *word, uint32_t value, bool want_equal,
                       const _Atomic uint64_t *end)
{
    uint64_t begin = 0;
    for (;;) {
        for (int i = 0; i < 4; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == want_equal)
                return true;
            if (t->spin_ns == 0)
                return false;
            pause_a_little();
        }
        uint64_t now = clock_ns();
        if (begin == 0)
            begin = now;
        if (now - begin <= t->spin_ns)
            continue;
        if (!end || now >= atomic_load_explicit(end, memory_order_relaxed))
            return false;
        sched_yield();
    }
}

/* Takes one block. It always belongs to the running call, which cannot end without it: so a thread that is
 * late from the previous call may take one, too. */
static bool take(struct share *s, uint32_t *block)
{
    uint64_t range = atomic_load_explicit(&s->range, memory_order_relaxed);
    do {
        if ((uint32_t)range >= range >> 32)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&s->range, &range, range + 1, memory_order_acq_rel,
                                                    memory_order_relaxed));
    *block = (uint32_t)range;
    return true;
}

/* ---- rows by node ---- */

/* Returns a node's number of blocks of matrix m, and the first. */
static uint32_t node_blocks(const struct team *t, uint32_t node, uint32_t m, uint32_t *begin)
{
    const struct node_share *s = &t->nodes.at[node];
    uint32_t n = t->matrices.first_block[m + 1] - t->matrices.first_block[m];
    *begin = (uint32_t)node_shares_cut(&t->nodes, n, s->begin);
    return (uint32_t)node_shares_cut(&t->nodes, n, s->end) - *begin;
}

/* Returns a node's number of blocks of all matrices, counted once. */
static uint32_t node_blocks_of_all(const struct team *t, uint32_t node)
{
    uint32_t n = 0, begin;
    for (uint32_t m = 0; m < t->matrices.n; m++)
        n += node_blocks(t, node, m, &begin);
    return n;
}

/* Returns the block for a number taken from a share of the node. Numbers count the first node's blocks in
 * their order, then those of the next. */
static uint32_t find_block(const struct team *t, uint32_t node, uint32_t number)
{
    const struct team_matrices *all = &t->matrices;
    uint32_t once = node_blocks_of_all(t, node), n, begin, m = 0;
    assert(once > 0);
    uint32_t time = (number - t->node_begin[node]) / once, i = (number - t->node_begin[node]) % once;
    for (; i >= (n = node_blocks(t, node, m, &begin)); m++)
        i -= n;
    return time * all->first_block[all->n] + all->first_block[m] + begin + i;
}

/* ---- working ---- */

/* Runs what is left of the thread's own share, then of its node's, then of all. */
static void work(struct team *t, uint32_t thread)
{
    uint32_t number, n_done = 0;
    const struct node_share *own = &t->nodes.at[t->workers[thread].node];
    uint32_t n_own = own->end - own->begin;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        uint32_t whose =
            i < n_own ? own->begin + (thread - own->begin + i) % n_own : (own->begin + i) % t->n_threads;
        for (; take(&t->shares[whose], &number); n_done++)
            t->fn(t->ctx, t->is_by_rows ? find_block(t, t->workers[whose].node, number) : number, thread);
    }
    /* Sequentially consistent, like caller_sleeps: either the caller sees the 0, or this thread sees that it
     * sleeps. */
    if (n_done > 0 && atomic_fetch_sub(&t->n_left, n_done) == n_done && atomic_load(&t->caller_sleeps))
        futex_wake(&t->n_left, 1);
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct team *t = w->team;
    uint32_t seen = 0;
    while (!atomic_load(&t->stopping)) {
        if (!spin_until(t, &t->n_calls, seen, false, &t->wake_until)) {
            atomic_fetch_add(&t->n_asleep, 1);
            futex_wait(&t->n_calls, seen); /* returns at once if there is a call, and on team_wake */
            atomic_fetch_sub(&t->n_asleep, 1);
            if (atomic_load(&t->n_calls) == seen)
                continue;
        }
        seen = atomic_load(&t->n_calls);
        work(t, w->thread);
    }
    return NULL;
}

static void call_workers(struct team *t, uint32_t n)
{
    atomic_fetch_add(&t->n_calls, 1);
    if (atomic_load(&t->n_asleep) > 0)
        futex_wake(&t->n_calls, (int)size_min(n, INT_MAX));
}

/* ---- threads ---- */

/* Gives each thread a node: as threads go from 0 to n_threads, processors go from the first node's to the
 * last node's. */
static void divide_threads(struct team *t, const struct nodes *nodes)
{
    uint32_t node = 0;
    t->nodes.of = t->n_threads;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        uint64_t cpu = (uint64_t)i * nodes->n_cpus / t->n_threads;
        while (cpu >= (uint64_t)nodes->at[node].first + nodes->at[node].n)
            node++;
        struct node_share *last = t->nodes.n ? &t->nodes.at[t->nodes.n - 1] : NULL;
        if (!last || last->id != nodes->at[node].id) {
            last = &t->nodes.at[t->nodes.n++];
            *last = (struct node_share){.id = nodes->at[node].id, .begin = i};
        }
        last->end = i + 1;
        t->workers[i].node = t->nodes.n - 1;
    }
}

/* Restricts the thread to its node. If the system refuses, it runs anywhere, at worst more slowly. */
static void bind_to_node(const struct worker *w, const struct nodes *nodes)
{
    const struct node *at = nodes->at;
    while (at->id != w->team->nodes.at[w->node].id)
        at++;
    uint32_t last = nodes->cpus[at->first + at->n - 1];
    cpu_set_t *set = CPU_ALLOC(last + 1);
    size_t bytes = CPU_ALLOC_SIZE(last + 1);
    if (!set)
        return;
    CPU_ZERO_S(bytes, set);
    for (uint32_t i = 0; i < at->n; i++)
        CPU_SET_S(nodes->cpus[at->first + i], bytes, set);
    pthread_setaffinity_np(w->handle, bytes, set);
    CPU_FREE(set);
}

static int start_threads(struct team *t, const struct nodes *nodes, struct moeflux_err *e)
{
    for (; t->n_started < t->n_threads; t->n_started++) {
        struct worker *w = &t->workers[t->n_started];
        w->team = t;
        w->thread = t->n_started;
        if (pthread_create(&w->handle, NULL, worker_main, w) != 0)
            return err_set(e, ERR_MEMORY, "thread %u of %u could not be started", t->n_started + 1,
                           t->n_threads);
        if (t->nodes.n > 1)
            bind_to_node(w, nodes);
    }
    return 0;
}

struct team *team_new(uint32_t n_threads, struct moeflux_err *e)
{
    struct nodes nodes;
    if (nodes_read(&nodes, "", e) < 0)
        return NULL;
    struct team *t = team_new_on(n_threads, &nodes, e);
    nodes_free(&nodes);
    return t;
}

struct team *team_new_on(uint32_t n_threads, const struct nodes *nodes, struct moeflux_err *e)
{
    struct team *t = aligned_alloc(CACHE_LINE, sizeof *t);
    if (!t) {
        err_set(e, ERR_MEMORY, "no memory for %u threads", n_threads);
        return NULL;
    }
    /* If the threads cannot all run at once, a spinning one keeps another from working. */
    *t = (struct team){
        .n_threads = n_threads, .n_started = 1, .spin_ns = n_threads <= cores_allowed() ? SPIN_NS : 0};
    atomic_init(&t->n_owners, 1);
    pthread_mutex_init(&t->turn, NULL);
    t->workers = mem_new(n_threads, sizeof *t->workers, e);
    t->shares = aligned_alloc(CACHE_LINE, n_threads * sizeof *t->shares);
    t->nodes.at = mem_new(nodes->n, sizeof *t->nodes.at, e);
    t->node_begin = mem_new((uint64_t)nodes->n + 1, sizeof *t->node_begin, e);
    if (!t->workers || !t->shares || !t->nodes.at || !t->node_begin) {
        err_set(e, ERR_MEMORY, "no memory for %u threads", n_threads);
        goto fail;
    }
    for (uint32_t i = 0; i < n_threads; i++)
        atomic_init(&t->shares[i].range, 0);
    divide_threads(t, nodes);
    if (start_threads(t, nodes, e) == 0)
        return t;
fail:
    team_free(t);
    return NULL;
}

struct team *team_share(struct team *t)
{
    atomic_fetch_add(&t->n_owners, 1);
    return t;
}

/* ---- calls ---- */

static void wait_for_the_others(struct team *t)
{
    if (spin_until(t, &t->n_left, 0, true, NULL))
        return;
    atomic_store(&t->caller_sleeps, true);
    for (uint32_t left; (left = atomic_load(&t->n_left)) > 0;)
        futex_wait(&t->n_left, left);
    atomic_store(&t->caller_sleeps, false);
}

static void hand_out(struct team *t, uint32_t thread, uint64_t begin, uint64_t end)
{
    atomic_store_explicit(&t->shares[thread].range, end << 32 | begin, memory_order_release);
}

static void begin_call(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx)
{
    t->fn = fn;
    t->ctx = ctx;
    atomic_store_explicit(&t->n_left, n_blocks, memory_order_relaxed);
}

static void run_call(struct team *t, uint32_t n_blocks)
{
    call_workers(t, n_blocks - 1);
    work(t, 0);
    wait_for_the_others(t);
}

static void call_plainly(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx)
{
    if (n_blocks <= 1 || t->n_threads == 1) {
        for (uint32_t i = 0; i < n_blocks; i++)
            fn(ctx, i, 0);
        return;
    }
    begin_call(t, n_blocks, fn, ctx);
    t->is_by_rows = false;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        uint64_t end = (uint64_t)n_blocks * (i + 1) / t->n_threads;
        hand_out(t, i, begin, end);
        begin = end;
    }
    run_call(t, n_blocks);
}

static void call_by_rows(struct team *t, const struct team_matrices *m, team_fn *fn, void *ctx)
{
    uint32_t n_blocks = m->first_block[m->n] * m->n_times;
    if (t->nodes.n == 1 || n_blocks <= 1) {
        call_plainly(t, n_blocks, fn, ctx);
        return;
    }
    begin_call(t, n_blocks, fn, ctx);
    t->is_by_rows = true;
    t->matrices = *m;
    for (uint32_t k = 0; k < t->nodes.n; k++)
        t->node_begin[k + 1] = t->node_begin[k] + node_blocks_of_all(t, k) * m->n_times;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        uint32_t node = t->workers[i].node, first = t->nodes.at[node].begin;
        uint32_t n_own = t->nodes.at[node].end - first, begin = t->node_begin[node];
        uint64_t n = t->node_begin[node + 1] - begin;
        hand_out(t, i, begin + n * (i - first) / n_own, begin + n * (i - first + 1) / n_own);
    }
    run_call(t, n_blocks);
}

void team_for(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx)
{
    pthread_mutex_lock(&t->turn);
    call_plainly(t, n_blocks, fn, ctx);
    pthread_mutex_unlock(&t->turn);
}

void team_for_rows(struct team *t, const struct team_matrices *m, team_fn *fn, void *ctx)
{
    pthread_mutex_lock(&t->turn);
    call_by_rows(t, m, fn, ctx);
    pthread_mutex_unlock(&t->turn);
}

const struct node_shares *team_shares(const struct team *t)
{
    return &t->nodes;
}

void team_wake(struct team *t)
{
    if (t->n_threads == 1 || t->spin_ns == 0)
        return;
    atomic_store_explicit(&t->wake_until, clock_ns() + WAKE_NS, memory_order_relaxed);
    if (atomic_load(&t->n_asleep) > 0)
        futex_wake(&t->n_calls, INT_MAX);
}

uint32_t team_n_threads(const struct team *t)
{
    return t->n_threads;
}

void team_free(struct team *t)
{
    if (!t || atomic_fetch_sub(&t->n_owners, 1) > 1)
        return;
    atomic_store(&t->stopping, true);
    call_workers(t, UINT32_MAX);
    for (uint32_t i = 1; i < t->n_started; i++)
        pthread_join(t->workers[i].handle, NULL);
    free(t->workers);
    free(t->shares);
    free(t->nodes.at);
    free(t->node_begin);
    pthread_mutex_destroy(&t->turn);
    free(t);
}
