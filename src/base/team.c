#include "base/team.h"

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

enum { CACHE_LINE = 64, SPIN_NS = 30000, ALERT_NS = 1000000 };

/* The blocks of a thread that nobody took yet: the next one below, the end above. */
struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t range;
};

struct worker {
    struct team *team;
    pthread_t handle;
    uint32_t thread;
};

struct team {
    /* Each of the two on a cache line of its own, away from what is only read. */
    _Alignas(CACHE_LINE) atomic_uint n_left; /* blocks that are not done; the caller sleeps on it */
    atomic_bool caller_sleeps;
    _Alignas(CACHE_LINE) atomic_uint n_calls; /* the others sleep on it */
    atomic_uint n_asleep;
    atomic_bool stopping;

    _Alignas(CACHE_LINE) struct share *shares; /* [n_threads] */
    struct worker *workers;
    uint32_t n_threads, n_started; /* the caller's counts as started */
    uint64_t spin_ns;
    _Atomic uint64_t alert_until; /* clock_ns; workers look for a call until then */
    /* The call: written while no block is out, read by who has taken one. */
    team_fn *fn;
    void *ctx;
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

/* Looks at *word until it is (want_equal) or is not `value`. False when that took too long: spin_ns, or until `end`. */
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

/* Takes one block. It belongs to the call that is running now, which cannot end without it: so a thread that comes late
 * from the call before may take one too. */
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

/* Runs what is left, the thread's own share first. */
static void work(struct team *t, uint32_t thread)
{
    uint32_t block, n_done = 0;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        struct share *s = &t->shares[(thread + i) % t->n_threads];
        for (; take(s, &block); n_done++)
            t->fn(t->ctx, block, thread);
    }
    /* Sequentially consistent, as caller_sleeps is: either the caller sees the 0 or this thread sees it asleep. */
    if (n_done > 0 && atomic_fetch_sub(&t->n_left, n_done) == n_done && atomic_load(&t->caller_sleeps))
        futex_wake(&t->n_left, 1);
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct team *t = w->team;
    uint32_t seen = 0;
    while (!atomic_load(&t->stopping)) {
        if (!spin_until(t, &t->n_calls, seen, false, &t->alert_until)) {
            atomic_fetch_add(&t->n_asleep, 1);
            futex_wait(&t->n_calls, seen); /* returns at once when there is a call, and on an alert */
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

struct team *team_new(uint32_t n_threads, struct moeflux_err *e)
{
    struct team *t = aligned_alloc(CACHE_LINE, sizeof *t);
    if (!t) {
        err_set(e, ERR_MEMORY, "no memory for %u threads", n_threads);
        return NULL;
    }
    /* Where the threads cannot all run at once, one that spins keeps another from working. */
    *t = (struct team){
        .n_threads = n_threads, .n_started = 1, .spin_ns = n_threads <= cores_allowed() ? SPIN_NS : 0};
    t->workers = mem_new(n_threads, sizeof *t->workers, e);
    t->shares = aligned_alloc(CACHE_LINE, n_threads * sizeof *t->shares);
    if (!t->workers || !t->shares) {
        err_set(e, ERR_MEMORY, "no memory for %u threads", n_threads);
        goto fail;
    }
    for (uint32_t i = 0; i < n_threads; i++)
        atomic_init(&t->shares[i].range, 0);
    for (; t->n_started < n_threads; t->n_started++) {
        struct worker *w = &t->workers[t->n_started];
        *w = (struct worker){.team = t, .thread = t->n_started};
        if (pthread_create(&w->handle, NULL, worker_main, w) != 0) {
            err_set(e, ERR_MEMORY, "thread %u of %u could not be started", t->n_started + 1, n_threads);
            goto fail;
        }
    }
    return t;
fail:
    team_free(t);
    return NULL;
}

static void wait_for_the_others(struct team *t)
{
    if (spin_until(t, &t->n_left, 0, true, NULL))
        return;
    atomic_store(&t->caller_sleeps, true);
    for (uint32_t left; (left = atomic_load(&t->n_left)) > 0;)
        futex_wait(&t->n_left, left);
    atomic_store(&t->caller_sleeps, false);
}

void team_for(struct team *t, uint32_t n_blocks, team_fn *fn, void *ctx)
{
    if (n_blocks <= 1 || t->n_threads == 1) {
        for (uint32_t i = 0; i < n_blocks; i++)
            fn(ctx, i, 0);
        return;
    }
    t->fn = fn;
    t->ctx = ctx;
    atomic_store_explicit(&t->n_left, n_blocks, memory_order_relaxed);
    uint64_t begin = 0;
    for (uint32_t i = 0; i < t->n_threads; i++) {
        uint64_t end = (uint64_t)n_blocks * (i + 1) / t->n_threads;
        atomic_store_explicit(&t->shares[i].range, end << 32 | begin, memory_order_release);
        begin = end;
    }
    call_workers(t, n_blocks - 1);
    work(t, 0);
    wait_for_the_others(t);
}

void team_alert(struct team *t)
{
    if (t->n_threads == 1 || t->spin_ns == 0)
        return;
    atomic_store_explicit(&t->alert_until, clock_ns() + ALERT_NS, memory_order_relaxed);
    if (atomic_load(&t->n_asleep) > 0)
        futex_wake(&t->n_calls, INT_MAX);
}

uint32_t team_n_threads(const struct team *t)
{
    return t->n_threads;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    atomic_store(&t->stopping, true);
    call_workers(t, UINT32_MAX);
    for (uint32_t i = 1; i < t->n_started; i++)
        pthread_join(t->workers[i].handle, NULL);
    free(t->workers);
    free(t->shares);
    free(t);
}
