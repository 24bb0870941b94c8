#include "generate/lookup.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Occurrences that are compared: a text of one repeated token has as many as it has tokens. */
enum { TRIES = 32, LEAST_BITS = 8, MOST_BITS = 16 };

int lookup_open(struct lookup *l, uint32_t most, struct moeflux_err *e)
{
    *l = (struct lookup){.most = most, .bits = LEAST_BITS};
    while (l->bits < MOST_BITS && (1u << l->bits) < most)
        l->bits++;
    l->heads = mem_new(1u << l->bits, sizeof *l->heads, e);
    l->before = l->heads ? mem_new(most, sizeof *l->before, e) : NULL;
    if (l->before)
        return 0;
    lookup_close(l);
    return ERR_MEMORY;
}

void lookup_close(struct lookup *l)
{
    free(l->heads);
    free(l->before);
    *l = (struct lookup){0};
}

void lookup_clear(struct lookup *l)
{
    memset(l->heads, 0, sizeof *l->heads << l->bits);
    l->n = 0;
}

/* Returns the hash of two consecutive tokens. */
static uint32_t hash_of(const struct lookup *l, int32_t a, int32_t b)
{
    uint64_t x = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> (64 - l->bits));
}

void lookup_add(struct lookup *l, const int32_t *text, uint32_t n)
{
    for (n = (uint32_t)size_min(n, l->most); l->n < n; l->n++) {
        uint32_t i = l->n;
        if (i == 0)
            continue;
        uint32_t *head = &l->heads[hash_of(l, text[i - 1], text[i])];
        l->before[i] = *head;
        *head = i + 1;
    }
}

/* Returns how many tokens before position `at` of the text are those at the end of e, its last one
 * included. */
static uint32_t length_at(const int32_t *text, uint32_t at, const struct lookup_end *e)
{
    uint32_t len = 1;
    if (text[at - 1] != e->last)
        return 0;
    while (len < LOOKUP_MOST && len < at && len <= e->n && text[at - 1 - len] == e->ids[e->n - len])
        len++;
    return len;
}

uint32_t lookup_find(const struct lookup *l, const int32_t *text, const struct lookup_end *e, uint32_t least,
                     uint32_t *len)
{
    uint32_t found = 0;
    *len = 0;
    if (e->n == 0)
        return 0;
    uint32_t at = l->heads[hash_of(l, e->ids[e->n - 1], e->last)];
    for (uint32_t i = 0; at && i < TRIES && *len < LOOKUP_MOST; i++, at = l->before[at - 1]) {
        uint32_t here = length_at(text, at, e);
        if (here >= least && here > *len) {
            *len = here;
            found = at;
        }
    }
    return found;
}
