#include "text/tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "text/tokenizer/work_limit.h"

int added_add(struct added *a, const char *text, size_t len, int32_t id, struct moeflux_err *e)
{
    void *tokens = a->tokens;
    int rc = mem_grow(&tokens, &a->cap, a->n + 1, sizeof *a->tokens, e);
    a->tokens = tokens;
    if (rc < 0)
        return rc;
    char *copy = mem_new(len + 1, 1, e);
    if (!copy)
        return ERR_MEMORY;
    memcpy(copy, text, len);
    a->tokens[a->n++] = (struct added_token){copy, len, id};
    a->starts[(uint8_t)copy[0]] = true;
    return 0;
}

static int compare(const void *left, const void *right)
{
    const struct added_token *a = left, *b = right;
    int order = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

int added_sort(struct added *a, struct moeflux_err *e)
{
    if (a->n)
        qsort(a->tokens, a->n, sizeof *a->tokens, compare);
    for (size_t i = 1; i < a->n; i++)
        if (compare(&a->tokens[i - 1], &a->tokens[i]) == 0)
            return err_set(e, ERR_FORMAT, "added_tokens: %s is there twice, with ids %d and %d",
                           quote_bytes(a->tokens[i].text, a->tokens[i].len).text, a->tokens[i - 1].id,
                           a->tokens[i].id);
    return 0;
}

void added_free(struct added *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->tokens[i].text);
    free(a->tokens);
}

/* Returns the first token in [low, high) whose byte at `depth` is at least `byte`; one that ends before
 * `depth` counts as less. */
static size_t lower_bound(const struct added *a, size_t low, size_t high, size_t depth, int byte)
{
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct added_token *t = &a->tokens[mid];
        int at = t->len > depth ? (uint8_t)t->text[depth] : -1;
        if (at < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Returns the longest token that `text` starts with, or NULL. Walks the sorted list like a tree, one byte a
 * level. *levels: how many. */
static const struct added_token *longest(const struct added *a, const char *text, size_t len, size_t *levels)
{
    const struct added_token *found = NULL;
    size_t low = 0, high = a->n, depth = 0;
    for (; depth < len && low < high; depth++) {
        int byte = (uint8_t)text[depth];
        low = lower_bound(a, low, high, depth, byte);
        high = lower_bound(a, low, high, depth, byte + 1);
        /* The shortest of the tokens that match so far is the first. */
        if (low < high && a->tokens[low].len == depth + 1)
            found = &a->tokens[low];
    }
    *levels = depth;
    return found;
}

int added_next(const struct added *a, const char *text, size_t len, size_t from, struct work_limit *limit,
               int32_t *id, size_t *start, size_t *end, struct moeflux_err *e)
{
    for (size_t at = from, levels; a->n && at < len; at++) {
        if (!a->starts[(uint8_t)text[at]])
            continue;
        const struct added_token *t = longest(a, text + at, len - at, &levels);
        if (!work_limit_take(limit, levels))
            return work_limit_error(limit, "added_tokens", at, len, e);
        if (!t)
            continue;
        *start = at;
        *end = at + t->len;
        *id = t->id;
        return 1;
    }
    *start = *end = len;
    return 0;
}

int32_t added_find(const struct added *a, const char *text, size_t len)
{
    size_t levels;
    const struct added_token *t = longest(a, text, len, &levels);
    return t && t->len == len ? t->id : -1;
}
