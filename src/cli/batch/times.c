#include "cli/batch/times.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/str.h"
#include "cli/report/stats.h"
#include "moeflux_chat.h"

static bool make_room(struct batch_times *t)
{
    size_t cap = t->cap ? 2 * t->cap : 64;
    if (t->n < t->cap)
        return true;
    struct batch_time *more = realloc(t->of, cap * sizeof *more);
    if (!more)
        return false;
    t->of = more;
    t->cap = cap;
    return true;
}

void batch_times_add(struct batch_times *t, const struct moeflux_answer_info *a)
{
    const struct batch_time one = {stats_first_token_s(a), 1 / stats_rate(a->n_decoded, a->decode_ns)};
    pthread_mutex_lock(&t->lock);
    if (make_room(t))
        t->of[t->n++] = one;
    pthread_mutex_unlock(&t->lock);
}

/* Compares numbers; NaN comes last. */
static int compare(double x, double y)
{
    if (isnan(x) || isnan(y))
        return (isnan(x) != 0) - (isnan(y) != 0);
    return (x > y) - (x < y);
}

static int by_first(const void *a, const void *b)
{
    return compare(((const struct batch_time *)a)->first, ((const struct batch_time *)b)->first);
}

static int by_between(const void *a, const void *b)
{
    return compare(((const struct batch_time *)a)->between, ((const struct batch_time *)b)->between);
}

/* Returns the index of the percentile among n sorted numbers: the smallest that so many percent do not
 * exceed. */
static size_t index_of(size_t n, size_t percent)
{
    return (n * percent + 99) / 100 - 1;
}

void batch_times_print(struct batch_times *t, struct str *to)
{
    size_t n = 0;
    if (t->n == 0)
        return;
    qsort(t->of, t->n, sizeof *t->of, by_first);
    while (n < t->n && !isnan(t->of[n].first))
        n++;
    if (n > 0)
        str_addf(to, "%-12s half of %zu answers within %.3f s, 95 %% within %.3f s\n", "first token", n,
                 t->of[index_of(n, 50)].first, t->of[index_of(n, 95)].first);
    qsort(t->of, t->n, sizeof *t->of, by_between);
    for (n = 0; n < t->n && !isnan(t->of[n].between); n++)
        ;
    if (n > 0)
        str_addf(to, "%-12s half of %zu answers within %.2f ms, 95 %% within %.2f ms\n", "each token", n,
                 1e3 * t->of[index_of(n, 50)].between, 1e3 * t->of[index_of(n, 95)].between);
}

void batch_times_free(struct batch_times *t)
{
    free(t->of);
    pthread_mutex_destroy(&t->lock);
}
