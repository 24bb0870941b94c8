/* cpu/team.h and base/cores.h: a team's threads run each block once; how many cores the process may use.
 *
 * suites: check fast asan tsan */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cores.h"
#include "cpu/team.h"
#include "check.h"

enum { MAX_BLOCKS = 3000 };

struct sweep {
    uint32_t n_threads;
    uint32_t n_runs[MAX_BLOCKS]; /* plain: the team orders what its threads write */
    atomic_uint n_bad;
};

static void count_block(void *ctx, uint32_t block, uint32_t thread)
{
    struct sweep *s = ctx;
    s->n_runs[block]++;
    if (thread >= s->n_threads)
        atomic_fetch_add(&s->n_bad, 1);
}

static struct team *new_team(uint32_t n)
{
    struct moeflux_err e = {0};
    struct team *t = team_new(n, &e);
    if (!t)
        fail_msg("%s", e.text);
    assert_int_equal(team_n_threads(t), n);
    return t;
}

static void every_block_runs_once_with_any_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {0, 1, 2, 3, 7, 64, MAX_BLOCKS};
    for (uint32_t n = 1; n <= 9; n += n < 4 ? 1 : 5) {
        struct team *t = new_team(n);
        for (uint32_t i = 0; i < 7 * 20; i++) {
            static struct sweep s;
            s = (struct sweep){.n_threads = n};
            uint32_t n_blocks = blocks[i % 7];
            team_for(t, n_blocks, count_block, &s);
            for (uint32_t b = 0; b < MAX_BLOCKS; b++)
                assert_int_equal(s.n_runs[b], b < n_blocks);
            assert_int_equal(s.n_bad, 0);
        }
        team_free(t);
    }
}

struct stuck {
    atomic_uint n_done;
    bool gave_up;
};

/* Block 0 ends after all others. */
static void wait_for_all_others(void *ctx, uint32_t block, uint32_t thread)
{
    struct stuck *s = ctx;
    (void)thread;
    uint64_t tries = 0;
    while (block == 0 && atomic_load(&s->n_done) < 99 && !s->gave_up) {
        sched_yield();
        s->gave_up = ++tries > 1000000;
    }
    atomic_fetch_add(&s->n_done, 1);
}

static void a_slow_block_holds_no_other(void **state)
{
    (void)state;
    struct team *t = new_team(2);
    for (uint32_t i = 0; i < 20; i++) {
        struct stuck s = {0};
        team_for(t, 100, wait_for_all_others, &s);
        assert_false(s.gave_up);
        assert_int_equal(s.n_done, 100);
    }
    team_free(t);
}

static void add_one(void *ctx, uint32_t block, uint32_t thread)
{
    (void)block;
    (void)thread;
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

static void a_call_wakes_threads_that_fell_asleep(void **state)
{
    (void)state;
    struct team *t = new_team(4);
    atomic_uint n = 0;
    for (uint32_t i = 0; i < 50; i++) {
        nanosleep(&(struct timespec){.tv_nsec = (long)(i % 5) * 100000}, NULL);
        team_for(t, 10, add_one, &n);
        assert_int_equal(n, 10 * (i + 1));
    }
    team_free(t);
}

static double processor_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void idle_threads_sleep(void **state)
{
    (void)state;
    struct team *t = new_team(2);
    atomic_uint n = 0;
    team_for(t, 10, add_one, &n);
    bool sleeps = false;
    for (int i = 0; i < 600 && !sleeps; i++) { /* a minute at most */
        double before = processor_seconds();
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        sleeps = processor_seconds() - before < 0.01;
    }
    assert_true(sleeps);
    team_free(t);
}

/* A call of an owner: how many of all owners' blocks run at once. */
struct turns {
    struct team *team;
    atomic_uint n_running, most, n_done;
};

static void count_running(void *ctx, uint32_t block, uint32_t thread)
{
    struct turns *s = ctx;
    (void)block, (void)thread;
    uint32_t now = atomic_fetch_add(&s->n_running, 1) + 1, most = atomic_load(&s->most);
    while (now > most && !atomic_compare_exchange_weak(&s->most, &most, now))
        ;
    sched_yield();
    atomic_fetch_sub(&s->n_running, 1);
    atomic_fetch_add(&s->n_done, 1);
}

static void *call_as_an_owner(void *arg)
{
    struct turns *s = arg;
    for (uint32_t i = 0; i < 500; i++)
        team_for(s->team, 5, count_running, s);
    team_free(s->team);
    return NULL;
}

static void owners_take_turns(void **state)
{
    (void)state;
    enum { N_OWNERS = 4 };
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
        pthread_t threads[N_OWNERS];
        struct turns s = {.team = new_team(n_threads)};
        for (int i = 1; i < N_OWNERS; i++)
            assert_ptr_equal(team_share(s.team), s.team);
        for (int i = 0; i < N_OWNERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, call_as_an_owner, &s), 0);
        for (int i = 0; i < N_OWNERS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(s.n_done, N_OWNERS * 500 * 5);
        assert_true(s.most <= n_threads);
    }
}

static void *sum_with_own_team(void *arg)
{
    struct team *t = new_team(3);
    for (uint32_t i = 0; i < 2000; i++)
        team_for(t, 5, add_one, arg);
    team_free(t);
    return NULL;
}

static void two_teams_work_at_the_same_time(void **state)
{
    (void)state;
    atomic_uint here = 0, there = 0;
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, sum_with_own_team, &there), 0);
    sum_with_own_team(&here);
    pthread_join(other, NULL);
    assert_int_equal(here, 10000);
    assert_int_equal(there, 10000);
}

/* ---- cores.h: a directory that stands for the system's */
static char root[] = "/tmp/moeflux-cores-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(path, 0755);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_quota_of_the_group_or_its_parent_limits_the_cores(void **state)
{
    (void)state;
    uint32_t all = cores_useful(root);
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(cores_useful(root), all);
    put("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
    assert_int_equal(cores_useful(root), 1);
    put("sys/fs/cgroup/a/cpu.max", "100001 100000\n");
    assert_int_equal(cores_useful(root), all < 2 ? all : 2);
    put("sys/fs/cgroup/a/b/cpu.max", "20000 100000\n");
    assert_int_equal(cores_useful(root), 1);

    put("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/c\n");
    put("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "50000\n");
    assert_int_equal(cores_useful(root), all);
    put("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "40000\n");
    assert_int_equal(cores_useful(root), 1);
    put("proc/self/cgroup", "");
}

static void two_processors_of_one_core_count_once(void **state)
{
    (void)state;
    cpu_set_t set;
    char name[128], pair[64];
    uint32_t found[2], n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &set))
            found[n++] = cpu;
    uint32_t all = cores_useful(root);
    assert_int_equal(all, cores_allowed());
    if (n < 2)
        skip();
    static const char *const forms[] = {"%u,%u\n", "%u-%u\n"};
    for (uint32_t form = 0; form < 2; form++) {
        if (form == 1 && found[1] != found[0] + 1)
            break;
        snprintf(pair, sizeof pair, forms[form], found[0], found[1]);
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
                     found[i]);
            put(name, pair);
        }
        assert_int_equal(cores_useful(root), all - 1);
    }
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_runs_once_with_any_number_of_threads),
        cmocka_unit_test(a_slow_block_holds_no_other),
        cmocka_unit_test(a_call_wakes_threads_that_fell_asleep),
        cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(owners_take_turns),
        cmocka_unit_test(two_teams_work_at_the_same_time),
        cmocka_unit_test(a_quota_of_the_group_or_its_parent_limits_the_cores),
        cmocka_unit_test(two_processors_of_one_core_count_once),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
