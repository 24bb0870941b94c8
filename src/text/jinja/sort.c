#include "text/jinja/sort.h"

#include <string.h>

static void merge(struct jinja_state *s, const struct jinja_entry *from, struct jinja_entry *to,
                  size_t n_left, size_t n, bool reverse)
{
    size_t left = 0, right = n_left;
    for (size_t i = 0; i < n; i++) {
        bool from_left = left < n_left;
        if (from_left && right < n) {
            int order = jinja_order(s, from[right].key, from[left].key);
            from_left = reverse ? order <= 0 : order >= 0;
        }
        to[i] = from_left ? from[left++] : from[right++];
    }
}

void jinja_sort(struct jinja_state *s, struct jinja_entry *entries, size_t n, bool reverse)
{
    if (n < 2)
        return;
    struct jinja_entry *other = jinja_alloc(s, n, sizeof *other), *from = entries, *to = other;
    for (size_t run = 1; run < n; run *= 2) {
        for (size_t i = 0; i < n; i += 2 * run) {
            size_t rest = n - i;
            merge(s, from + i, to + i, run < rest ? run : rest, 2 * run < rest ? 2 * run : rest, reverse);
        }
        struct jinja_entry *swap = from;
        from = to;
        to = swap;
    }
    if (from != entries)
        memcpy(entries, from, n * sizeof *entries);
}
