/* cpu/nodes.h, and what stands on it: the order of a team's threads, who computes which rows, where pages are
 * wished. The nodes are made up: each stands for a socket, and no test needs more than two processors.
 *
 * suites: check fast asan tsan */
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cores.h"
#include "cpu/mapped.h"
#include "cpu/nodes.h"
#include "cpu/team.h"
#include "check.h"
#include "exec/exec.h"
#include "fake_nodes.h"
#include "pages.h"
#include "tmp_tree.h"

/* ---- which there are ---- */

struct machine {
    char *root;
    uint32_t cpus[2]; /* the first two that this process may use */
};

static void open_machine(struct machine *m)
{
    uint32_t n, *all = cores_list(&n, NULL);
    assert_non_null(all);
    m->root = NULL;
    if (n >= 2) {
        m->cpus[0] = all[0];
        m->cpus[1] = all[n - 1];
    }
    free(all);
    if (n < 2) {
        puts("SKIP two memory nodes need two processors");
        skip();
    }
    cpu_set_t *set = CPU_ALLOC(m->cpus[1] + 1);
    size_t bytes = CPU_ALLOC_SIZE(m->cpus[1] + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(m->cpus[0], bytes, set);
    CPU_SET_S(m->cpus[1], bytes, set);
    assert_int_equal(sched_setaffinity(0, bytes, set), 0);
    CPU_FREE(set);
    m->root = tmp_tree_new();
}

/* A list of one processor and the rest of it, as ",7-9". */
static void put(const struct machine *m, const char *name, uint32_t cpu, const char *rest)
{
    char text[256];
    snprintf(text, sizeof text, "%u%s\n", cpu, rest);
    fake_nodes_put(m->root, name, text);
}

static void put_both(const struct machine *m, const char *name)
{
    char rest[16];
    snprintf(rest, sizeof rest, ",%u", m->cpus[1]);
    put(m, name, m->cpus[0], rest);
}

static void expect(const struct machine *m, uint32_t n, const uint32_t *ids, const uint32_t *cpus)
{
    struct nodes nodes;
    struct moeflux_err e = {0};
    uint32_t first = 0;
    check_ok(nodes_read(&nodes, m->root, &e), &e);
    assert_int_equal(nodes.n, n);
    assert_int_equal(nodes.n_cpus, 2);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(nodes.at[i].id, ids[i]);
        assert_int_equal(nodes.at[i].first, first);
        first += nodes.at[i].n;
    }
    assert_int_equal(first, 2);
    assert_memory_equal(nodes.cpus, cpus, 2 * sizeof *cpus);
    nodes_free(&nodes);
}

static void processors_stand_node_by_node(void **state)
{
    struct machine m;
    (void)state;
    open_machine(&m);
    fake_nodes_put(m.root, "online", "0-1\n");
    put(&m, "node0/cpulist", m.cpus[1], "");
    put(&m, "node1/cpulist", m.cpus[0], "");
    expect(&m, 2, (uint32_t[]){0, 1}, (uint32_t[]){m.cpus[1], m.cpus[0]});
    put_both(&m, "node0/cpulist");
    fake_nodes_put(m.root, "node1/cpulist", "\n");
    expect(&m, 1, (uint32_t[]){0}, m.cpus);
    tmp_tree_remove(m.root);
}

static void nodes_without_processors_of_ours_do_not_count(void **state)
{
    struct machine m;
    (void)state;
    open_machine(&m);
    /* 1 has memory alone, 2 processors that are offline or not in the mask, and there is no 3. */
    fake_nodes_put(m.root, "online", "0-2,8\n");
    put(&m, "node0/cpulist", m.cpus[0], ",20000-20007");
    fake_nodes_put(m.root, "node1/cpulist", "\n");
    fake_nodes_put(m.root, "node2/cpulist", "20008-20015\n");
    put(&m, "node8/cpulist", m.cpus[1], ",20016");
    expect(&m, 2, (uint32_t[]){0, 8}, m.cpus);
    tmp_tree_remove(m.root);
}

static void the_affinity_mask_leaves_nodes_out(void **state)
{
    struct machine m;
    struct nodes nodes;
    struct moeflux_err e = {0};
    (void)state;
    open_machine(&m);
    fake_nodes_put(m.root, "online", "0-1\n");
    put(&m, "node0/cpulist", m.cpus[0], "");
    put(&m, "node1/cpulist", m.cpus[1], "");
    cpu_set_t *set = CPU_ALLOC(m.cpus[1] + 1);
    size_t bytes = CPU_ALLOC_SIZE(m.cpus[1] + 1);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(m.cpus[1], bytes, set);
    assert_int_equal(sched_setaffinity(0, bytes, set), 0);
    int rc = nodes_read(&nodes, m.root, &e);
    CPU_SET_S(m.cpus[0], bytes, set);
    assert_int_equal(sched_setaffinity(0, bytes, set), 0);
    CPU_FREE(set);
    check_ok(rc, &e);
    assert_int_equal(nodes.n, 1);
    assert_int_equal(nodes.at[0].id, 1);
    assert_int_equal(nodes.n_cpus, 1);
    assert_int_equal(nodes.cpus[0], m.cpus[1]);
    nodes_free(&nodes);
    tmp_tree_remove(m.root);
}

static void a_system_that_does_not_name_each_processor_s_node_has_one(void **state)
{
    struct machine m;
    (void)state;
    open_machine(&m);
    expect(&m, 1, (uint32_t[]){0}, m.cpus);
    fake_nodes_put(m.root, "online", "0-1\n");
    put(&m, "node0/cpulist", m.cpus[0], "");
    expect(&m, 1, (uint32_t[]){0}, m.cpus);
    fake_nodes_put(m.root, "node1/cpulist", "no list\n");
    expect(&m, 1, (uint32_t[]){0}, m.cpus);
    /* One of them twice. */
    put(&m, "node1/cpulist", m.cpus[0], "");
    expect(&m, 1, (uint32_t[]){0}, m.cpus);
    put_both(&m, "node1/cpulist");
    expect(&m, 1, (uint32_t[]){0}, m.cpus);
    tmp_tree_remove(m.root);
}

/* ---- threads ---- */

/* Two nodes, on which n processors in all stand, those of the first node being the machine's first. */
struct pair {
    struct machine machine;
    struct node at[2];
    uint32_t cpus[8];
    struct nodes nodes;
};

static void open_pair(struct pair *p, uint32_t n_first, uint32_t n_second)
{
    open_machine(&p->machine);
    for (uint32_t i = 0; i < n_first + n_second; i++)
        p->cpus[i] = p->machine.cpus[i >= n_first];
    p->at[0] = (struct node){.id = 3, .n = n_first};
    p->at[1] = (struct node){.id = 5, .first = n_first, .n = n_second};
    p->nodes = (struct nodes){p->at, 2, p->cpus, n_first + n_second};
}

static struct team *new_team(const struct pair *p, uint32_t n_threads)
{
    struct moeflux_err e = {0};
    struct team *t = team_new_on(n_threads, &p->nodes, &e);
    if (!t)
        fail_msg("%s", e.text);
    return t;
}

static void expect_shares(const struct pair *p, uint32_t n_threads, uint32_t n_first)
{
    struct team *t = new_team(p, n_threads);
    const struct node_shares *s = team_shares(t);
    assert_int_equal(s->of, n_threads);
    assert_int_equal(s->n, n_first < n_threads ? 2 : 1);
    assert_int_equal(s->at[0].id, 3);
    assert_int_equal(s->at[0].begin, 0);
    assert_int_equal(s->at[0].end, n_first);
    if (s->n > 1) {
        assert_int_equal(s->at[1].id, 5);
        assert_int_equal(s->at[1].begin, n_first);
        assert_int_equal(s->at[1].end, n_threads);
    }
    team_free(t);
}

static void nodes_have_threads_in_proportion_to_their_processors(void **state)
{
    struct pair p;
    (void)state;
    open_pair(&p, 1, 1);
    expect_shares(&p, 1, 1);
    expect_shares(&p, 2, 1);
    expect_shares(&p, 3, 2);
    expect_shares(&p, 8, 4);
    tmp_tree_remove(p.machine.root);
    open_pair(&p, 6, 2);
    expect_shares(&p, 1, 1);
    expect_shares(&p, 2, 2);
    expect_shares(&p, 4, 3);
    expect_shares(&p, 16, 12);
    tmp_tree_remove(p.machine.root);
}

struct places {
    const struct pair *pair;
    const struct node_shares *shares;
    atomic_uint n_met, n_wrong;
};

/* Waits until every thread has one, so that each of them is seen. */
static void look_where_it_runs(void *ctx, uint32_t block, uint32_t thread)
{
    struct places *p = ctx;
    bool is_second = thread >= p->shares->at[0].end;
    (void)block;
    atomic_fetch_add(&p->n_met, 1);
    for (uint32_t i = 0; i < 1000000 && atomic_load(&p->n_met) < p->shares->of; i++)
        sched_yield();
    /* The caller is not bound. */
    if (thread > 0 && (uint32_t)sched_getcpu() != p->pair->machine.cpus[is_second])
        atomic_fetch_add(&p->n_wrong, 1);
}

static void threads_run_on_their_node_and_the_caller_anywhere(void **state)
{
    struct pair p;
    (void)state;
    open_pair(&p, 1, 1);
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    struct team *t = new_team(&p, 4);
    for (uint32_t i = 0; i < 10; i++) {
        struct places places = {.pair = &p, .shares = team_shares(t)};
        team_for(t, 4, look_where_it_runs, &places);
        assert_int_equal(places.n_met, 4);
        assert_int_equal(places.n_wrong, 0);
    }
    team_free(t);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    tmp_tree_remove(p.machine.root);
}

/* ---- who computes what ---- */

enum { MAX_BLOCKS = 600, N_THREADS = 4, FREE_THREAD = 1 };

/* One thread does what it can, the others are held in their first block until it has done all the rest. */
struct watch {
    uint32_t n_blocks;
    atomic_uint n_runs[MAX_BLOCKS], n_done, n_held;
    uint32_t order[MAX_BLOCKS], n_order; /* the free thread's blocks */
    atomic_bool gave_up;
};

static void hold_all_but_one(void *ctx, uint32_t block, uint32_t thread)
{
    struct watch *w = ctx;
    atomic_fetch_add(&w->n_runs[block], 1);
    if (thread == FREE_THREAD) {
        w->order[w->n_order++] = block;
    } else {
        atomic_fetch_add(&w->n_held, 1);
        for (uint32_t i = 0; atomic_load(&w->n_done) + atomic_load(&w->n_held) < w->n_blocks; i++) {
            if (i > 10000000)
                atomic_store(&w->gave_up, true);
            if (atomic_load(&w->gave_up))
                break;
            sched_yield();
        }
        return;
    }
    atomic_fetch_add(&w->n_done, 1);
}

static void expect_once_each(const struct watch *w)
{
    assert_false(w->gave_up);
    for (uint32_t i = 0; i < w->n_blocks; i++)
        assert_int_equal(w->n_runs[i], 1);
}

static void held_threads_are_helped_on_their_own_node_first(void **state)
{
    struct pair p;
    (void)state;
    open_pair(&p, 1, 1);
    struct team *t = new_team(&p, N_THREADS);
    for (uint32_t turn = 0; turn < 20; turn++) {
        struct watch w = {.n_blocks = 400};
        bool is_away = false;
        team_for(t, w.n_blocks, hold_all_but_one, &w);
        expect_once_each(&w);
        assert_true(w.n_order >= w.n_blocks - (N_THREADS - 1));
        /* Blocks 0 to 199 are those of threads 0 and 1. */
        for (uint32_t i = 0; i < w.n_order; i++) {
            assert_false(is_away && w.order[i] < 200);
            is_away |= w.order[i] >= 200;
        }
        /* It begins with its own. */
        assert_in_range(w.order[0], 100, 199);
    }
    team_free(t);
    tmp_tree_remove(p.machine.root);
}

/* Matrices of 10, 1 and 29 blocks, five times. */
static const uint32_t first_block[] = {0, 10, 11, 40};
static const struct team_matrices matrices = {first_block, 3, 5};

/* Whether the rows of a block are the first node's, which has half of each matrix, rounded down. */
static bool is_of_first_node(uint32_t block)
{
    uint32_t b = block % 40;
    return b < 10 ? b < 5 : b >= 11 && b - 11 < 14;
}

static void a_node_begins_with_its_rows_of_every_matrix(void **state)
{
    struct pair p;
    (void)state;
    open_pair(&p, 1, 1);
    struct team *t = new_team(&p, N_THREADS);
    for (uint32_t turn = 0; turn < 20; turn++) {
        struct watch w = {.n_blocks = 200};
        uint32_t n_away = 0;
        team_for_rows(t, &matrices, hold_all_but_one, &w);
        expect_once_each(&w);
        for (uint32_t i = 0; i < w.n_order; i++) {
            bool is_own = is_of_first_node(w.order[i]);
            assert_false(n_away > 0 && is_own);
            n_away += !is_own;
        }
        assert_in_range(n_away, 5 * (40 - 19) - 3, 5 * (40 - 19));
    }
    team_free(t);
    tmp_tree_remove(p.machine.root);
}

struct sweep {
    uint32_t n_runs[MAX_BLOCKS]; /* plain: the team orders what its threads write */
};

static void count_block(void *ctx, uint32_t block, uint32_t thread)
{
    struct sweep *s = ctx;
    (void)thread;
    s->n_runs[block]++;
}

static void every_block_of_rows_runs_once(void **state)
{
    static const uint32_t none[] = {0, 0, 0}, one[] = {0, 1}, some[] = {0, 7, 7, 8, 60};
    static const struct team_matrices shapes[] = {{none, 2, 9}, {one, 1, 1},  {one, 1, 100},
                                                  {some, 4, 1}, {some, 4, 9}, {first_block, 3, 14}};
    struct pair p;
    (void)state;
    for (uint32_t n_first = 1; n_first <= 7; n_first += 2) {
        open_pair(&p, n_first, 8 - n_first);
        for (uint32_t n_threads = 1; n_threads <= 9; n_threads++) {
            struct team *t = new_team(&p, n_threads);
            for (uint32_t i = 0; i < 6 * 5; i++) {
                const struct team_matrices *m = &shapes[i % 6];
                struct sweep s = {0};
                team_for_rows(t, m, count_block, &s);
                for (uint32_t b = 0; b < MAX_BLOCKS; b++)
                    assert_int_equal(s.n_runs[b], b < m->first_block[m->n] * m->n_times);
            }
            team_free(t);
        }
        tmp_tree_remove(p.machine.root);
    }
}

/* ---- where pages lie ---- */

static void shares_cover_everything_once(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 2, 7, 4096, 1000003, UINT64_MAX - 1};
    for (uint32_t of = 1; of <= 200; of += 13) {
        const struct node_shares s = {.of = of};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            assert_int_equal(node_shares_cut(&s, sizes[i], 0), 0);
            assert_int_equal(node_shares_cut(&s, sizes[i], of), sizes[i]);
            for (uint32_t part = 0; part < of; part++)
                assert_true(node_shares_cut(&s, sizes[i], part) <= node_shares_cut(&s, sizes[i], part + 1));
        }
    }
}

/* The policy of the thread, or of the page at `address`. */
static int policy(const void *address, unsigned long *first_nodes)
{
    unsigned long nodes[16] = {0};
    int mode = -1;
    assert_int_equal(syscall(SYS_get_mempolicy, &mode, nodes, 1024UL, address, address ? MPOL_F_ADDR : 0), 0);
    *first_nodes = nodes[0];
    return mode;
}

static void need_policies(void)
{
    if (!nodes_may_place()) {
        puts("SKIP this process may not choose where its pages lie, or numactl has chosen");
        skip();
    }
}

/* Node 0 is there on every machine; of the others the system refuses those that are not. */
static struct node_share halves[] = {{0, 0, 1}, {1, 1, 2}};
static const struct node_shares two = {halves, 2, 2};

static void copied_weights_lie_by_their_rows(void **state)
{
    enum { MIB = 1 << 20 };
    unsigned long nodes;
    (void)state;
    need_policies();
    uint8_t *p = mmap(NULL, 14 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    uint8_t *at = p + (2 * MIB - (uintptr_t)p % (2 * MIB)) % (2 * MIB);
    /* A half that is smaller than a huge page. */
    nodes_place(&two, at, 4 * MIB - 1);
    assert_int_equal(policy(at, &nodes), MPOL_DEFAULT);
    /* Shares are cut at 5 MiB, which belongs to a huge page that the first one has. */
    nodes_place(&two, at, 10 * MIB);
    assert_int_equal(policy(at, &nodes), MPOL_PREFERRED);
    assert_int_equal(nodes, 1);
    assert_int_equal(policy(at + 6 * MIB - 1, &nodes), MPOL_PREFERRED);
    assert_int_equal(nodes, 1);
    int mode = policy(at + 6 * MIB, &nodes);
    assert_true(mode == MPOL_DEFAULT || nodes == 2);
    assert_int_equal(policy(at + 10 * MIB, &nodes), MPOL_DEFAULT);
    munmap(p, 14 * MIB);
}

static void reading_by_node_brings_all_pages_and_leaves_the_thread_s_policy(void **state)
{
    enum { LARGEST_PAGE = 65536, N_PAGES = 37 };
    static uint8_t bytes[N_PAGES * LARGEST_PAGE];
    const size_t page = page_bytes(), n = N_PAGES * page;
    unsigned char is_there[N_PAGES];
    unsigned long nodes;
    struct mapped m;
    struct moeflux_err e = {0};
    (void)state;
    need_policies();
    need_populate();
    char *dir = tmp_tree_new();
    assert_true(page <= LARGEST_PAGE);
    tmp_tree_write(dir, "file", bytes, n);
    FILE *f = fopen(tmp_tree_path(dir, "file"), "rb");
    assert_non_null(f);
    check_ok(mapped_open(&m, fileno(f), "file", n, &e), &e);
    mapped_fetch_by_node(&m, page, n - page, &two);
    assert_int_equal(mincore(m.at, n, is_there), 0);
    for (int i = 1; i < N_PAGES; i++)
        assert_true(is_there[i] & 1);
    assert_int_equal(policy(NULL, &nodes), MPOL_DEFAULT);
    mapped_close(&m);
    fclose(f);
    tmp_tree_remove(dir);
}

static void a_policy_of_the_user_s_is_kept(void **state)
{
    unsigned long nodes, first = 1;
    (void)state;
    need_policies();
    nodes_prefer(0);
    assert_int_equal(policy(NULL, &nodes), MPOL_PREFERRED);
    assert_int_equal(nodes, 1);
    nodes_prefer_own();
    assert_int_equal(policy(NULL, &nodes), MPOL_DEFAULT);

    assert_int_equal(syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &first, 65UL), 0);
    bool may = nodes_may_place();
    struct mapped none = {0};
    mapped_fetch_by_node(&none, 0, 4096, &two);
    int mode = policy(NULL, &nodes);
    nodes_prefer_own();
    assert_false(may);
    assert_int_equal(mode, MPOL_INTERLEAVE);
}

/* ---- the device ---- */

static void the_cpu_names_its_nodes_where_there_are_several(void **state)
{
    struct moeflux_err e = {0};
    struct machine m;
    (void)state;
    open_machine(&m);
    for (uint32_t n = 1; n <= 2; n++) {
        struct exec *x;
        char *root = fake_nodes_new(n);
        const struct exec_options o = {.device = "cpu", .n_threads = 4, .system_root = root};
        check_ok(exec_open(&x, &o, &e), &e);
        const struct exec_caps caps = exec_get_caps(x);
        assert_int_equal(caps.shares != NULL, n > 1);
        assert_int_equal(strstr(caps.name, "4 threads on 2 NUMA nodes)") != NULL, n > 1);
        assert_int_equal(strstr(caps.name, "4 threads)") != NULL, n == 1);
        exec_close(x);
        tmp_tree_remove(root);
    }
    tmp_tree_remove(m.root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_stand_node_by_node),
        cmocka_unit_test(nodes_without_processors_of_ours_do_not_count),
        cmocka_unit_test(the_affinity_mask_leaves_nodes_out),
        cmocka_unit_test(a_system_that_does_not_name_each_processor_s_node_has_one),
        cmocka_unit_test(nodes_have_threads_in_proportion_to_their_processors),
        cmocka_unit_test(threads_run_on_their_node_and_the_caller_anywhere),
        cmocka_unit_test(held_threads_are_helped_on_their_own_node_first),
        cmocka_unit_test(a_node_begins_with_its_rows_of_every_matrix),
        cmocka_unit_test(every_block_of_rows_runs_once),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(copied_weights_lie_by_their_rows),
        cmocka_unit_test(reading_by_node_brings_all_pages_and_leaves_the_thread_s_policy),
        cmocka_unit_test(a_policy_of_the_user_s_is_kept),
        cmocka_unit_test(the_cpu_names_its_nodes_where_there_are_several),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
