#include "text/tokenizer/bpe.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/tokenizer/work_limit.h"
#include "text/tokenizer/tokenizer.h"

#define EMPTY     UINT64_MAX
#define NO_RANK   UINT32_MAX
#define NO_SYMBOL UINT32_MAX
/* ids; up to here rescanning all pairs after each merge beats a heap. Ordinary words are shorter. */
#define SHORT_PIECE 48
/* A heap of a million entries has 20 levels, most of them in slow memory. */
#define STEPS_PER_MERGE 64

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static size_t slot_of(const struct bpe *b, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    return (h ^ h >> 32) & b->mask;
}

int bpe_init(struct bpe *b, size_t n_merges, struct moeflux_err *e)
{
    size_t n_slots = 16;
    while (n_slots / 2 < n_merges)
        n_slots *= 2;
    b->table = mem_new(n_slots, sizeof *b->table, e);
    if (!b->table)
        return ERR_MEMORY;
    b->mask = n_slots - 1;
    for (size_t i = 0; i < n_slots; i++)
        b->table[i].pair = EMPTY;
    return 0;
}

void bpe_free(struct bpe *b)
{
    free(b->table);
}

void bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t result)
{
    uint64_t pair = pair_of(left, right);
    size_t slot = slot_of(b, pair);
    while (b->table[slot].pair != EMPTY && b->table[slot].pair != pair)
        slot = (slot + 1) & b->mask;
    b->table[slot] = (struct bpe_merge){pair, rank, result};
}

static const struct bpe_merge *find(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right);
    for (size_t slot = slot_of(b, pair); b->table[slot].pair != EMPTY; slot = (slot + 1) & b->mask)
        if (b->table[slot].pair == pair)
            return &b->table[slot];
    return NULL;
}

static int add_ids(struct token_list *out, const int32_t *ids, size_t n, struct moeflux_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (token_list_add(out, ids[i], e) < 0)
            return ERR_MEMORY;
    return 0;
}

/* Merges ids[0..n) in place. */
static int encode_short(const struct bpe *b, int32_t *ids, size_t n, struct token_list *out,
                        struct moeflux_err *e)
{
    const struct bpe_merge *pairs[SHORT_PIECE]; /* the merge of ids[i] and ids[i + 1]; NULL: none */
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = find(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (pairs[i] && (best == n || pairs[i]->rank < pairs[best]->rank))
                best = i;
        if (best == n)
            break;
        ids[best] = pairs[best]->result;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            pairs[i - 1] = pairs[i];
        }
        if (best + 1 < n)
            pairs[best] = find(b, ids[best], ids[best + 1]);
        if (best > 0)
            pairs[best - 1] = find(b, ids[best - 1], ids[best]);
    }
    return add_ids(out, ids, n, e);
}

struct symbol {
    int32_t id;
    uint32_t prev, next;
    uint32_t rank; /* rank of the pair with the next symbol; a heap entry with another rank is stale */
};

/* Heap entries are rank << 32 | position, so that the smallest is the lowest rank, leftmost. */
static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t entry = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= entry)
            break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

static void sift_up(uint64_t *heap, size_t at)
{
    uint64_t entry = heap[at];
    for (; at && heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

/* Links the symbols and puts every pair that can be merged on the heap. *count: the number of entries.
 * Returns false if interrupted. */
static bool start_long(const struct bpe *b, const int32_t *ids, uint32_t len, struct symbol *symbols,
                       uint64_t *heap, struct work_limit *limit, size_t *count)
{
    size_t n = 0;
    for (uint32_t i = 0; i < len; i++)
        symbols[i] = (struct symbol){ids[i], i ? i - 1 : NO_SYMBOL, i + 1 < len ? i + 1 : NO_SYMBOL, NO_RANK};
    for (uint32_t i = 0; i + 1 < len; i++) {
        const struct bpe_merge *m = find(b, symbols[i].id, symbols[i + 1].id);
        if (limit && !work_limit_ask(limit, 1))
            return false;
        if (!m)
            continue;
        symbols[i].rank = m->rank;
        heap[n++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i);
    *count = n;
    return true;
}

/* Looks up the pair that starts at `at` again, after one of its halves changed.
 * Returns the heap's new count. */
static size_t refresh(const struct bpe *b, struct symbol *symbols, uint32_t at, uint64_t *heap, size_t n)
{
    if (at == NO_SYMBOL)
        return n;
    struct symbol *s = &symbols[at];
    const struct bpe_merge *m = s->next == NO_SYMBOL ? NULL : find(b, s->id, symbols[s->next].id);
    s->rank = m ? m->rank : NO_RANK;
    if (!m)
        return n;
    heap[n] = (uint64_t)m->rank << 32 | at;
    sift_up(heap, n);
    return n + 1;
}

/* Returns false if interrupted. */
static bool merge_long(const struct bpe *b, struct symbol *symbols, uint64_t *heap, size_t n,
                       struct work_limit *limit)
{
    while (n) {
        if (limit && !work_limit_ask(limit, STEPS_PER_MERGE))
            return false;
        uint32_t at = (uint32_t)heap[0], rank = (uint32_t)(heap[0] >> 32);
        heap[0] = heap[--n];
        if (n)
            sift_down(heap, n, 0);
        struct symbol *left = &symbols[at];
        if (left->rank != rank)
            continue;
        struct symbol *right = &symbols[left->next];
        left->id = find(b, left->id, right->id)->result;
        left->next = right->next;
        right->rank = NO_RANK;
        if (left->next != NO_SYMBOL)
            symbols[left->next].prev = at;
        n = refresh(b, symbols, at, heap, n);
        n = refresh(b, symbols, left->prev, heap, n);
    }
    return true;
}

static int encode_long(const struct bpe *b, uint32_t len, struct bpe_scratch *s, struct token_list *out,
                       struct moeflux_err *e)
{
    void *heap = s->heap;
    /* One entry for each pair at the start; each of at most len - 1 merges removes
     * one and adds at most two. */
    int rc = mem_grow(&heap, &s->heap_cap, 2 * (size_t)len, sizeof *s->heap, e);
    s->heap = heap;
    if (rc == 0)
        rc = mem_grow(&s->symbols, &s->symbols_cap, len, sizeof(struct symbol), e);
    if (rc < 0)
        return rc;
    struct symbol *symbols = s->symbols;
    size_t n = 0;
    if (!start_long(b, s->piece.ids, len, symbols, s->heap, s->limit, &n) ||
        !merge_long(b, symbols, s->heap, n, s->limit))
        return err_set(e, ERR_INTERRUPTED, "interrupted while a piece of text was encoded");
    for (uint32_t i = 0; i != NO_SYMBOL; i = symbols[i].next)
        if (token_list_add(out, symbols[i].id, e) < 0)
            return ERR_MEMORY;
    return 0;
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, struct token_list *out, struct moeflux_err *e)
{
    size_t n = s->piece.n;
    if (n <= SHORT_PIECE)
        return encode_short(b, s->piece.ids, n, out, e);
    if (n >= NO_SYMBOL)
        return err_set(e, ERR_USAGE, "a piece of %zu characters of text is too long to encode", n);
    return encode_long(b, (uint32_t)n, s, out, e);
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    token_list_free(&s->piece);
    free(s->symbols);
    free(s->heap);
}
