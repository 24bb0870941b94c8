#include "text/grammar/state_tokens.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/states.h"
#include "text/grammar/matcher.h"
#include "text/tokenizer/token_trie.h"

enum { DENSE = 1024 }; /* number of tokens from which a bitmap is faster than a list */

struct counted {
    int32_t id;
    uint32_t rounds;
};

struct counted_list {
    struct counted *items;
    size_t n, cap;
};

/* What is known of a position. */
struct known {
    uint32_t need;     /* the fewest rounds that it needs, including the current one */
    uint32_t n_places; /* 1 + the places before the exits; 0: nothing is known yet */
    uint32_t n_exits;
};

struct walk {
    struct matcher *m;
    const struct token_trie *t;
    uint32_t loop;
    bool may_follow[256]; /* bytes that a caller may take next */
    uint32_t *position;   /* [depth + 1] the position at each level of the trie */
    struct known *known;  /* [positions] */
    size_t cap_known;
    struct counted_list fit, end;
    struct state_tokens_exit *exits;
    size_t n_exits, cap_exits;
    struct moeflux_err *e;
};

/* ---- positions ---- */

/* Returns how many rounds have ended: the frame at the bottom of the stack counts them. */
static uint32_t rounds_of(const struct matcher *m, uint32_t stack)
{
    const struct matcher_stack *s = matcher_get_stack(m, stack);
    while (s->kind != FRAME_FREE)
        s = matcher_get_stack(m, s->parent);
    return s->count;
}

static int look_at(struct walk *w, uint32_t position)
{
    size_t n, n_places;
    size_t before = w->cap_known;
    int rc = mem_grow((void **)&w->known, &w->cap_known, (size_t)position + 1, sizeof *w->known, w->e);
    if (rc)
        return rc;
    for (size_t i = before; i < w->cap_known; i++)
        w->known[i] = (struct known){0};
    const struct matcher_place *p = matcher_places(w->m, position, &n);
    for (n_places = n; n_places > 0 && p[n_places - 1].state == MATCHER_EXIT;)
        n_places--;
    uint32_t least = w->loop == STATE_TOKENS_NO_LOOP ? 0 : UINT32_MAX;
    for (size_t i = 0; i < n_places && least > 0; i++)
        least = (uint32_t)size_min(least, rounds_of(w->m, p[i].stack) + 1);
    w->known[position] = (struct known){least, (uint32_t)n_places + 1, (uint32_t)(n - n_places)};
    return 0;
}

/* ---- one node ---- */

static int add_counted(struct counted_list *l, int32_t id, uint32_t rounds, struct moeflux_err *e)
{
    int rc = mem_grow((void **)&l->items, &l->cap, l->n + 1, sizeof *l->items, e);
    if (rc == 0)
        l->items[l->n++] = (struct counted){id, rounds};
    return rc;
}

/* Records that `rounds` rounds have ended at the end of the tokens of `node`. */
static int add_ends(struct walk *w, uint32_t node, uint32_t rounds)
{
    const struct token_trie *t = w->t;
    int rc = 0;
    for (uint32_t i = t->first[node]; i < t->first[node + 1] && rc == 0; i++)
        rc = add_counted(&w->end, t->ids[i], rounds, w->e);
    return rc;
}

/* Records each exit of the position: before the byte of `node`, or (`ends`) at its end. */
static int take_exits(struct walk *w, uint32_t position, uint32_t node, bool ends)
{
    size_t n;
    int rc = 0;
    const struct matcher_place *p = matcher_places(w->m, position, &n);
    for (uint32_t i = w->known[position].n_places - 1; i < n && rc == 0; i++) {
        uint32_t rounds = w->loop == STATE_TOKENS_NO_LOOP ? 0 : rounds_of(w->m, p[i].stack);
        if (ends)
            rc = add_ends(w, node, rounds);
        else if (!(rc = mem_grow((void **)&w->exits, &w->cap_exits, w->n_exits + 1, sizeof *w->exits, w->e)))
            w->exits[w->n_exits++] = (struct state_tokens_exit){node, rounds};
    }
    return rc;
}

static int take_node(struct walk *w, uint32_t node, uint32_t position)
{
    const struct token_trie *t = w->t;
    int rc = position >= w->cap_known || !w->known[position].n_places ? look_at(w, position) : 0;
    if (rc)
        return rc;
    const struct known *k = &w->known[position];
    /* walk_all has made room for every token. */
    for (uint32_t i = t->first[node]; i < t->first[node + 1]; i++)
        w->fit.items[w->fit.n++] = (struct counted){t->ids[i], k->need};
    bool ends = k->n_exits && w->loop != STATE_TOKENS_NO_LOOP && t->first[node] < t->first[node + 1];
    return ends ? take_exits(w, position, node, true) : 0;
}

static int walk_all(struct walk *w, uint32_t start)
{
    const struct token_trie *t = w->t;
    int rc =
        mem_grow((void **)&w->fit.items, &w->fit.cap, t->first[t->n_nodes] + 1, sizeof *w->fit.items, w->e);
    if (rc == 0)
        rc = look_at(w, start);
    w->position[0] = start;
    for (uint32_t node = 1; node < t->n_nodes && rc == 0;) {
        uint32_t level = t->level[node], before = w->position[level - 1];
        uint8_t byte = t->byte[node];
        if (w->may_follow[byte] && w->known[before].n_exits)
            rc = take_exits(w, before, node, false);
        uint32_t position = matcher_step(w->m, before, byte);
        w->position[level] = position;
        if (position != MATCHER_DEAD && rc == 0)
            rc = take_node(w, node, position);
        node = position == MATCHER_DEAD ? t->end[node] : node + 1;
    }
    return rc ? rc : matcher_failure(w->m, w->e);
}

/* ---- the result ---- */

/* Sorts the ids by rounds; ids of equal rounds keep their order. (*ends)[i]: the
 * end of those with i rounds. */
static int sort_counted(const struct counted_list *l, int32_t **ids, uint32_t **ends, uint32_t *n_ends,
                        struct moeflux_err *e)
{
    uint32_t most = 0;
    for (size_t i = 0; i < l->n; i++)
        most = (uint32_t)size_max(most, l->items[i].rounds);
    *n_ends = most + 1;
    *ids = mem_new(l->n, sizeof **ids, e);
    *ends = mem_new((uint64_t)most + 2, sizeof **ends, e);
    if (!*ids || !*ends)
        return ERR_MEMORY;
    uint32_t *at = *ends + 1;
    for (size_t i = 0; i < l->n; i++)
        at[l->items[i].rounds]++;
    for (uint32_t i = 1; i <= most; i++)
        at[i] += at[i - 1];
    /* Now at[i] is the beginning of the ids of i rounds; the loop moves it to their end. */
    at--;
    for (size_t i = 0; i < l->n; i++)
        (*ids)[at[l->items[i].rounds]++] = l->items[i].id;
    return 0;
}

static int sort_exits(struct walk *w, struct state_tokens *r)
{
    struct counted_list by_rounds = {0};
    uint32_t *ends = NULL, n_ends;
    int32_t *order = NULL;
    int rc = 0;
    for (size_t i = 0; i < w->n_exits && rc == 0; i++)
        rc = add_counted(&by_rounds, (int32_t)i, w->exits[i].rounds, w->e);
    if (rc == 0)
        rc = sort_counted(&by_rounds, &order, &ends, &n_ends, w->e);
    if (rc == 0 && !(r->exits = mem_new(w->n_exits, sizeof *r->exits, w->e)))
        rc = ERR_MEMORY;
    if (rc == 0) {
        uint32_t at[257] = {0};
        for (size_t i = 0; i < w->n_exits; i++)
            at[w->t->byte[w->exits[i].node] + 1]++;
        for (unsigned b = 1; b < 257; b++)
            at[b] += at[b - 1];
        for (unsigned b = 0; b < 257; b++)
            r->by_byte[b] = at[b];
        for (size_t i = 0; i < w->n_exits; i++) {
            const struct state_tokens_exit *x = &w->exits[order[i]];
            r->exits[at[w->t->byte[x->node]]++] = *x;
            r->most_rounds = (uint32_t)size_max(r->most_rounds, x->rounds);
        }
    }
    free(by_rounds.items);
    free(ends);
    free(order);
    return rc;
}

void state_tokens_follow(struct matcher *m, const struct grammar *g, uint32_t loop, struct byte_set *out)
{
    *out = (struct byte_set){0};
    uint32_t after = matcher_enter(m, g->loops[loop].next, MATCHER_BOTTOM);
    bool any = matcher_may_end(m, after);
    for (unsigned b = 0; b < 256; b++)
        if (any || matcher_step(m, after, (uint8_t)b) != MATCHER_DEAD)
            out->bits[b / 64] |= (uint64_t)1 << b % 64;
}

static int finish(struct walk *w, struct state_tokens *r)
{
    int rc = sort_counted(&w->fit, &r->fit, &r->fit_end, &r->n_needs, w->e);
    if (rc == 0)
        rc = sort_counted(&w->end, &r->end, &r->end_end, &r->n_ends, w->e);
    if (rc == 0)
        rc = sort_exits(w, r);
    if (rc == 0 && !(r->prefix = mem_new(r->n_needs, sizeof *r->prefix, w->e)))
        rc = ERR_MEMORY;
    r->most_rounds = (uint32_t)size_max(r->most_rounds, size_max(r->n_needs, r->n_ends));
    r->bytes = (w->fit.n + w->end.n) * sizeof(int32_t) + w->n_exits * sizeof *r->exits +
               r->n_needs * sizeof *r->prefix + sizeof *r;
    return rc;
}

struct state_tokens *state_tokens_new(struct matcher *m, const struct token_trie *t, uint32_t state,
                                      uint32_t loop, const struct byte_set *follow, struct moeflux_err *e)
{
    struct walk w = {.m = m, .t = t, .loop = loop, .e = e};
    struct state_tokens *r = mem_new(1, sizeof *r, e);
    uint32_t stack = MATCHER_BOTTOM;
    w.position = mem_new((uint64_t)t->depth + 1, sizeof *w.position, e);
    int rc = r && w.position ? 0 : ERR_MEMORY;
    if (rc == 0) {
        for (unsigned b = 0; b < 256; b++)
            w.may_follow[b] = follow->bits[b / 64] >> b % 64 & 1;
        r->follow = *follow;
        if (loop != STATE_TOKENS_NO_LOOP)
            stack = matcher_push(m, (struct matcher_stack){.value = loop, .kind = FRAME_FREE});
        rc = walk_all(&w, matcher_enter(m, state, stack));
    }
    if (rc == 0)
        rc = finish(&w, r);
    free(w.position);
    free(w.known);
    free(w.fit.items);
    free(w.end.items);
    free(w.exits);
    if (rc == 0)
        return r;
    state_tokens_free(r);
    return NULL;
}

void state_tokens_free(struct state_tokens *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->prefix && i < r->n_needs; i++)
        free(r->prefix[i]);
    free(r->prefix);
    free(r->fit);
    free(r->fit_end);
    free(r->end);
    free(r->end_end);
    free(r->exits);
    free(r);
}

/* ---- queries ---- */

static void set_bits(uint64_t *bits, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        bits[(uint32_t)ids[i] / 64] |= (uint64_t)1 << ((uint32_t)ids[i] % 64);
}

int state_tokens_add_fit(struct state_tokens *r, const struct token_trie *t, uint32_t rounds, uint64_t *bits,
                         struct moeflux_err *e)
{
    uint32_t words = div_up(t->n_ids, 64), i = (uint32_t)size_min(rounds, r->n_needs - 1);
    if (r->fit_end[i] < DENSE) {
        set_bits(bits, r->fit, r->fit_end[i]);
        return 0;
    }
    if (!r->prefix[i]) {
        if (!(r->prefix[i] = mem_new(words, sizeof **r->prefix, e)))
            return ERR_MEMORY;
        r->bytes += words * sizeof **r->prefix;
        set_bits(r->prefix[i], r->fit, r->fit_end[i]);
    }
    for (uint32_t k = 0; k < words; k++)
        bits[k] |= r->prefix[i][k];
    return 0;
}

void state_tokens_add_ends(const struct state_tokens *r, uint32_t rounds, uint64_t *bits)
{
    if (rounds >= r->n_ends)
        return;
    uint32_t from = rounds ? r->end_end[rounds - 1] : 0;
    set_bits(bits, r->end + from, r->end_end[rounds] - from);
}

/* Returns the first exit in [from, to) with at least `rounds` rounds. */
static uint32_t find_rounds(const struct state_tokens *r, uint32_t from, uint32_t to, uint32_t rounds)
{
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (r->exits[middle].rounds < rounds)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

const struct state_tokens_exit *state_tokens_exits(const struct state_tokens *r, uint8_t byte, uint32_t least,
                                                   uint32_t most, size_t *n)
{
    uint32_t from = r->by_byte[byte], to = r->by_byte[byte + 1];
    uint32_t first = find_rounds(r, from, to, least);
    *n = (most == UINT32_MAX ? to : find_rounds(r, first, to, most + 1)) - first;
    return r->exits + first;
}
