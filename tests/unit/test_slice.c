/* base/slice.h: a thread's time slice becomes short, its policy and nice value stay.
 *
 * suites: check fast asan */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/slice.h"
#include "check.h"

enum { NICE = 5 };

struct attributes { /* sched_getattr(2) */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

struct change {
    struct attributes before, after;
};

static void *shorten(void *ctx)
{
    struct change *c = ctx;
    setpriority(PRIO_PROCESS, 0, NICE); /* this thread's alone */
    syscall(SYS_sched_getattr, 0, &c->before, sizeof c->before, 0);
    slice_shorten();
    syscall(SYS_sched_getattr, 0, &c->after, sizeof c->after, 0);
    return NULL;
}

static struct change shorten_a_thread(void)
{
    struct change c = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, shorten, &c), 0);
    pthread_join(thread, NULL);
    return c;
}

static void policy_and_nice_value_stay(void **state)
{
    (void)state;
    const struct change c = shorten_a_thread();
    assert_int_equal(c.after.policy, SCHED_OTHER);
    assert_int_equal(c.after.nice, NICE);
}

static void slices_become_short(void **state)
{
    (void)state;
    const struct change c = shorten_a_thread();
    if (c.before.runtime_ns == 0) { /* Linux before 6.12 */
        print_message("SKIP this system gives all threads the same slices\n");
        skip();
    }
    assert_true(c.after.runtime_ns < c.before.runtime_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(policy_and_nice_value_stay),
                                       cmocka_unit_test(slices_become_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
