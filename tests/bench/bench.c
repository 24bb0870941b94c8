#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"

int bench_fill(struct exec *x, struct exec_buffer *b, uint64_t bytes, uint32_t word, struct moeflux_err *e)
{
    enum { PIECE = 1 << 20 };
    static uint32_t v[PIECE / 4];
    for (uint32_t i = 0; i < PIECE / 4; i++)
        v[i] = word;
    int rc = exec_buffer_new(x, b, EXEC_DEVICE, bytes, e);
    for (uint64_t at = 0; rc == 0 && at < bytes; at += PIECE)
        rc = exec_write(x, b, at, v, size_min(PIECE, bytes - at), e);
    return rc;
}

static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void bench_begin(struct exec *x, struct bench_time *t)
{
    exec_reset_stats(x);
    t->processor_ns = processor_ns();
    exec_begin(x);
}

int bench_end(struct exec *x, struct bench_time *t, struct moeflux_err *e)
{
    int rc = exec_finish(x, e);
    t->processor_ns = processor_ns() - t->processor_ns;
    exec_begin(x); /* collects the times */
    exec_abandon(x);
    exec_get_stats(x, &t->stats);
    t->device_ns = 0;
    for (uint32_t i = 0; i < t->stats.n_times; i++)
        t->device_ns += t->stats.times[i].ns;
    return rc;
}

void bench_keep(struct bench_time *best, const struct bench_time *t)
{
    uint64_t least =
        best->processor_ns && best->processor_ns < t->processor_ns ? best->processor_ns : t->processor_ns;
    if (best->device_ns == 0 || t->device_ns < best->device_ns)
        *best = *t;
    best->processor_ns = least;
}

void bench_print_parts(const struct bench_time *t)
{
    for (uint32_t i = 0; i < t->stats.n_times; i++)
        if (t->stats.times[i].ns)
            printf(" %s %.1f", t->stats.times[i].name, (double)t->stats.times[i].ns / 1e3);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
