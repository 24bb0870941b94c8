#include "text/tokenizer/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"

struct item {
    struct token_text text;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    size_t n = size_min(x->text.len, y->text.len);
    int order = memcmp(x->text.bytes, y->text.bytes, n);
    if (order)
        return order;
    if (x->text.len != y->text.len)
        return x->text.len < y->text.len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static size_t common(const struct token_text *a, const struct token_text *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Returns how many nodes the sorted items need, including the root. */
static uint64_t count_nodes(const struct item *items, size_t n, size_t *depth)
{
    uint64_t nodes = 1;
    for (size_t i = 0; i < n; i++) {
        nodes += items[i].text.len - (i ? common(&items[i - 1].text, &items[i].text) : 0);
        *depth = size_max(*depth, items[i].text.len);
    }
    return nodes;
}

/* Fills the nodes. path: the open node of each level. */
static void place(struct token_trie *t, const struct item *items, size_t n, uint32_t *path)
{
    uint32_t nodes = 1;
    path[0] = 0;
    for (size_t i = 0, level = 0; i <= n; i++) {
        size_t same = i && i < n ? common(&items[i - 1].text, &items[i].text) : 0;
        for (; level > same; level--)
            t->end[path[level]] = nodes;
        for (; i < n && level < items[i].text.len; nodes++) {
            path[++level] = nodes;
            t->byte[nodes] = (uint8_t)items[i].text.bytes[level - 1];
            t->level[nodes] = (uint32_t)level;
            t->first[nodes] = (uint32_t)i;
        }
        if (i < n)
            t->ids[i] = items[i].id;
    }
    t->end[0] = nodes;
    t->first[nodes] = (uint32_t)n;
}

static int build(struct token_trie *t, struct item *items, size_t n, struct moeflux_err *e)
{
    size_t depth = 0;
    qsort(items, n, sizeof *items, by_bytes);
    uint64_t nodes = count_nodes(items, n, &depth);
    if (nodes > UINT32_MAX / 2)
        return err_set(e, ERR_UNSUPPORTED, "the tokens have too many bytes for a grammar");
    t->n_nodes = (uint32_t)nodes;
    t->depth = (uint32_t)depth;
    uint32_t *path = mem_new(depth + 1, sizeof *path, e);
    if (!path || !(t->byte = mem_new(nodes, 1, e)) || !(t->level = mem_new(nodes, sizeof *t->level, e)) ||
        !(t->end = mem_new(nodes, sizeof *t->end, e)) ||
        !(t->first = mem_new(nodes + 1, sizeof *t->first, e)) || !(t->ids = mem_new(n, sizeof *t->ids, e))) {
        free(path);
        return ERR_MEMORY;
    }
    place(t, items, n, path);
    free(path);
    return 0;
}

int token_trie_new(struct token_trie **out, const struct token_source *source, struct moeflux_err *e)
{
    size_t n = 0;
    struct token_trie *t = mem_new(1, sizeof *t, e);
    struct item *items = mem_new(source->n_ids, sizeof *items, e);
    if (!t || !items || !(t->texts = mem_new(source->n_ids, sizeof *t->texts, e)))
        goto no_memory;
    t->n_ids = source->n_ids;
    for (uint32_t id = 0; id < source->n_ids; id++) {
        struct token_text *text = &t->texts[id];
        if (!source->text(source->ctx, (int32_t)id, text) || text->len == 0)
            *text = (struct token_text){0};
        else
            items[n++] = (struct item){*text, (int32_t)id};
    }
    int rc = build(t, items, n, e);
    free(items);
    if (rc)
        token_trie_free(t);
    else
        *out = t;
    return rc;
no_memory:
    free(items);
    token_trie_free(t);
    return ERR_MEMORY;
}

/* Leaves out all added tokens: a template's tag must not occur in text that a grammar describes, whether the
 * tokenizer's file marks it special or not. */
static bool ordinary_text(const void *ctx, int32_t id, struct token_text *out)
{
    const struct tokenizer *t = ctx;
    if (!tokenizer_has(t, id) || tokenizer_is_added(t, id) || tokenizer_is_special(t, id))
        return false;
    out->len = tokenizer_bytes(t, id, &out->bytes);
    return true;
}

int token_trie_of(struct token_trie **out, const struct tokenizer *t, uint32_t n_ids, struct moeflux_err *e)
{
    return token_trie_new(out, &(struct token_source){n_ids, ordinary_text, t}, e);
}

void token_trie_free(struct token_trie *t)
{
    if (!t)
        return;
    free(t->byte);
    free(t->level);
    free(t->end);
    free(t->first);
    free(t->ids);
    free(t->texts);
    free(t);
}
