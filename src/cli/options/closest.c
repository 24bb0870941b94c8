#include "cli/options/closest.h"

#include <string.h>

/* MOST: no flag or command has more letters. */
enum { MOST = 32, MAX_SLIPS = 3 };

struct closest closest_begin(const char *word)
{
    return (struct closest){.word = word};
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the optimal string alignment distance. Three rows of its table are enough. */
static size_t distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t rows[3][MOST + 1], *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t k = 0; k <= n_b; k++)
        last[k] = k;
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = i;
        for (size_t k = 1; k <= n_b; k++) {
            now[k] = least(least(last[k], now[k - 1]) + 1, last[k - 1] + (a[i - 1] != b[k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                now[k] = least(now[k], before[k - 2] + 1);
        }
        size_t *oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[n_b];
}

void closest_try(struct closest *x, const char *candidate, size_t n)
{
    size_t len = strlen(x->word);
    if (len > MOST || n > MOST)
        return;
    size_t d = distance(x->word, len, candidate, n), most = least(MAX_SLIPS, (len > n ? len : n) / 3);
    if (d > most || (x->best && d >= x->distance))
        return;
    x->best = candidate;
    x->n = n;
    x->distance = d;
}
