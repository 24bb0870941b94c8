/* lanes - every kernel against its reference on the interpreter (tests/lib/spirv), 4 to 128 lanes.
 *
 * usage: lanes [full] [-v] [LANES...] [GROUP...]
 *     full: all shapes, else short ones; -v: a line for each case; LANES: 4 to 128
 *     GROUP: the first kernel of a group, as "linear_prefill"
 *
 * A group of kernels on one device is a job; as many jobs run at a time as there are cores, each in a
 * process of its own, so that a crash fails one job. A case is a test, and so is a kernel of the build: it
 * fails where no job ran it. Prints a table of kernels and sizes; the last line has the counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "selftest/selftest.h"
#include "vulkan/pipeline.h"

enum { MOST_JOBS = 256, MOST_KERNELS = 256, N_SIZES = 6, MOST_AT_ONCE = 64 };
static const unsigned sizes[N_SIZES] = {4, 8, 16, 32, 64, 128};

/* The longest first. */
enum { HAS_DENORM = 1, HAS_MATRICES = 2 };
static const struct group {
    const char *kernel;
    unsigned variants;
} groups[] = {{"experts_decode_up", HAS_DENORM | HAS_MATRICES},
              {"mla_prepare", HAS_DENORM | HAS_MATRICES},
              {"linear_prefill", HAS_DENORM | HAS_MATRICES},
              {"gqa_prepare", HAS_MATRICES},
              {"batched", HAS_DENORM | HAS_MATRICES},
              {"indexer_prepare", 0},
              {"delta_decode", 0},
              {"ssd_scan", 0},
              {"compressed_turn", 0},
              {"streams_begin", 0},
              {"ngram_gate", 0},
              {"sample_largest", 0},
              {"router_softmax", 0},
              {"router_sigmoid", 0},
              {"swiglu", 0},
              {"head_gate", 0},
              {"cast_f16", 0},
              {"embed", 0},
              {"normed_add", 0},
              {"add", 0}};
enum { N_GROUPS = sizeof groups / sizeof *groups };

struct job {
    const struct group *group;
    unsigned lanes;
    char device[32];
    FILE *said; /* what its process wrote; a file without a name */
    pid_t pid;
};

static const char *const kernel_names[] = {
#include "lanes/names.inc"
};
enum { N_KERNELS = sizeof kernel_names / sizeof *kernel_names };

struct lanes {
    bool is_full, is_verbose, wants_size[N_SIZES];
    struct job jobs[MOST_JOBS];
    uint32_t n_jobs, n_at_once;
    bool ran[N_KERNELS][N_SIZES];
    int n_passed, n_failed, n_skipped;
};

/* --- one job, in its process --- */

struct teller {
    FILE *to;
    uint64_t since;
};

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* row KERNEL OK SKIPPED ERROR BOUND MS SHAPE */
static void tell_row(void *ctx, const struct selftest_row *row)
{
    struct teller *t = ctx;
    uint64_t now = cpu_ns();
    fprintf(t->to, "row %s %d %d %.2e %.0e %llu %s\n", row->kernel, row->ok, row->skipped, row->error,
            row->bound, (unsigned long long)(now - t->since) / 1000000, row->shape);
    t->since = now;
    fflush(t->to);
}

static void tell_kernel(void *ctx, const char *kernel, uint64_t times)
{
    const struct teller *t = ctx;
    fprintf(t->to, "ran %s %llu\n", kernel, (unsigned long long)times);
}

static int run_job(const struct job *j, bool is_full)
{
    struct moeflux_err e = {0};
    struct teller t = {j->said, cpu_ns()};
    const struct selftest s = {.device = j->device,
                               .kernel = j->group->kernel,
                               .grid = is_full ? SELFTEST_FULL : SELFTEST_SHORT,
                               .row = tell_row,
                               .ran = tell_kernel,
                               .ctx = &t};
    int rc = selftest_run(&s, &e);
    if (rc < 0)
        fprintf(j->said, "error %s\n", e.text);
    fflush(NULL);
    return rc < 0;
}

/* --- all jobs --- */

static uint32_t size_of(unsigned lanes)
{
    uint32_t i = 0;
    while (sizes[i] != lanes)
        i++;
    return i;
}

static void add_job(struct lanes *a, const struct group *g, unsigned lanes, const char *form)
{
    struct job *j = &a->jobs[a->n_jobs];
    if (!a->wants_size[size_of(lanes)])
        return;
    a->n_jobs++;
    *j = (struct job){.group = g, .lanes = lanes};
    snprintf(j->device, sizeof j->device, "interpreted-%u%s", lanes, form);
}

/* Kernels with matrices have 32 lanes on each device: two devices, with one form of matrices each, show
 * them. */
static void add_jobs(struct lanes *a, const struct group *g)
{
    if (g->variants & HAS_MATRICES) {
        add_job(a, g, 32, "");
        add_job(a, g, 64, "-rows");
    }
    for (uint32_t i = 0; i < N_SIZES; i++)
        if (!(g->variants & HAS_MATRICES) || (sizes[i] != 32 && sizes[i] != 64))
            add_job(a, g, sizes[i], g->variants & HAS_DENORM ? "-denorm" : "-plain");
}

static bool start_job(struct lanes *a, struct job *j)
{
    j->said = tmpfile();
    if (!j->said)
        return false;
    fflush(stdout);
    j->pid = fork();
    if (j->pid == 0)
        _exit(run_job(j, a->is_full));
    return j->pid > 0;
}

static void note_kernel(struct lanes *a, const char *name, unsigned lanes)
{
    for (uint32_t i = 0; i < N_KERNELS; i++)
        if (strcmp(kernel_names[i], name) == 0)
            a->ran[i][size_of(lanes)] = true;
}

static void read_row(struct lanes *a, const struct job *j, const char *line)
{
    char kernel[64], error[32], bound[32];
    int ok, skipped, at = 0;
    unsigned ms;
    if (sscanf(line, "row %63s %d %d %31s %31s %u %n", kernel, &ok, &skipped, error, bound, &ms, &at) < 6)
        return;
    a->n_passed += ok && !skipped;
    a->n_failed += !ok;
    a->n_skipped += skipped;
    if (!ok || a->is_verbose)
        printf("%s %-22s %-16s %s (bound %s) %u ms  %s", ok ? skipped ? "SKIP" : "ok  " : "FAIL", j->device,
               kernel, error, bound, ms, line + at);
}

static void end_job(struct lanes *a, struct job *j, int status)
{
    char line[1024], kernel[64];
    bool has_error = false;
    rewind(j->said);
    while (fgets(line, sizeof line, j->said)) {
        if (sscanf(line, "ran %63s", kernel) == 1)
            note_kernel(a, kernel, WIFEXITED(status) && strstr(kernel, "coop") ? 32 : j->lanes);
        else if (strncmp(line, "row ", 4) == 0)
            read_row(a, j, line);
        else
            has_error |= printf("FAIL %s %s: %s", j->device, j->group->kernel, line) > 0;
    }
    fclose(j->said);
    if (!WIFEXITED(status))
        printf("FAIL %s %s: signal %d\n", j->device, j->group->kernel, WTERMSIG(status));
    a->n_failed += has_error || !WIFEXITED(status);
}

static bool await_one(struct lanes *a)
{
    int status;
    pid_t pid = wait(&status);
    for (uint32_t i = 0; pid > 0 && i < a->n_jobs; i++)
        if (a->jobs[i].pid == pid)
            end_job(a, &a->jobs[i], status);
    return pid > 0;
}

static void run_jobs(struct lanes *a)
{
    uint32_t n_running = 0;
    for (uint32_t i = 0; i < a->n_jobs; i++) {
        if (n_running == a->n_at_once && await_one(a))
            n_running--;
        if (start_job(a, &a->jobs[i]))
            n_running++;
        else
            a->n_failed++;
    }
    while (n_running-- && await_one(a))
        ;
}

/* --- the table --- */

static void print_kernel(struct lanes *a, uint32_t i, bool are_all)
{
    bool ran = false;
    for (uint32_t k = 0; k < N_SIZES; k++)
        ran |= a->ran[i][k];
    if (!ran && !are_all)
        return;
    printf("%-36s", kernel_names[i]);
    for (uint32_t k = 0; k < N_SIZES; k++)
        printf(" %4s", a->ran[i][k] ? "x" : ".");
    printf("%s\n", ran ? "" : "  FAILED: it did not run");
    a->n_passed += ran;
    a->n_failed += !ran;
}

/* are_all: all jobs ran; otherwise kernels that did not run are left out. */
static void print_table(struct lanes *a, bool are_all)
{
    printf("%-36s", "kernel");
    for (uint32_t k = 0; k < N_SIZES; k++)
        printf(" %4u", sizes[k]);
    printf("\n");
    for (uint32_t i = 0; i < N_KERNELS; i++)
        print_kernel(a, i, are_all);
}

/* Whether an argument is this, or none names a group; of numbers alike. */
static bool is_wanted(const char *this, bool is_number, int argc, char **argv)
{
    bool is_named = false, are_some = false;
    for (int i = 1; i < argc; i++) {
        bool is_other = strcmp(argv[i], "full") == 0 || argv[i][0] == '-' || (atoi(argv[i]) > 0) != is_number;
        are_some |= !is_other;
        is_named |= !is_other && strcmp(argv[i], this) == 0;
    }
    return is_named || !are_some;
}

int main(int argc, char **argv)
{
    static struct lanes all;
    struct lanes *a = &all;
    uint64_t start = clock_ns();
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    a->n_at_once = cores < 1 ? 1 : cores > MOST_AT_ONCE ? MOST_AT_ONCE : (uint32_t)cores;
    bool are_all = true;
    for (int i = 1; i < argc; i++) {
        a->is_full |= strcmp(argv[i], "full") == 0;
        a->is_verbose |= strcmp(argv[i], "-v") == 0;
    }
    for (uint32_t i = 0; i < N_SIZES; i++) {
        char number[8];
        snprintf(number, sizeof number, "%u", sizes[i]);
        a->wants_size[i] = is_wanted(number, true, argc, argv);
        are_all &= a->wants_size[i];
    }
    for (uint32_t i = 0; i < N_GROUPS; i++) {
        if (is_wanted(groups[i].kernel, false, argc, argv))
            add_jobs(a, &groups[i]);
        else
            are_all = false;
    }
    run_jobs(a);
    print_table(a, are_all);
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("%u jobs, %.0f s, %ld s of processors\n", a->n_jobs, (double)(clock_ns() - start) * 1e-9,
           (long)used.ru_utime.tv_sec);
    printf("%d passed, %d failed, %d skipped\n", a->n_passed, a->n_failed, a->n_skipped);
    return a->n_failed > 0;
}
