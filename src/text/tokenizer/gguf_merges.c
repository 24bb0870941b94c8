#include "text/tokenizer/gguf_merges.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/gguf.h"
#include "base/mem.h"
#include "base/str.h"

enum { TOKEN_NORMAL = 1 };
/* Bytes of a token that is made by merges. SentencePiece's have at most 16 characters, Gemma's 32. */
#define MAX_PIECE 1024

static bool is_normal(const uint32_t *types, int32_t id)
{
    return !types || types[id] == TOKEN_NORMAL;
}

static int read_vocab(struct gguf_merges *m, const struct gguf *g, const struct gguf_value *tokens,
                      const uint32_t *types, struct moeflux_err *e)
{
    struct gguf_texts t;
    struct str text = {0};
    m->vocab.writing = VOCAB_SENTENCEPIECE;
    int rc = vocab_init(&m->vocab, (int32_t)tokens->n, tokens->n, e);
    if (rc == 0)
        rc = gguf_texts_open(&t, g, tokens, e);
    if (rc < 0)
        return rc;
    for (int32_t id = 0; rc == 0 && (rc = gguf_texts_next(&t, &text, e)) > 0; id++) {
        rc = 0;
        if (is_normal(types, id) && text.len > MAX_PIECE)
            rc = err_set(e, ERR_FORMAT, "tokenizer.ggml.tokens[%d]: %zu bytes, expected at most %d", id,
                         text.len, MAX_PIECE);
        else if (is_normal(types, id))
            rc = vocab_add(&m->vocab, id, str_text(&text), text.len, true, e);
    }
    gguf_texts_close(&t);
    str_free(&text);
    return rc;
}

static bool begins_character(char c)
{
    return ((uint8_t)c & 0xc0) != 0x80;
}

static int by_parts(const void *a, const void *b)
{
    const struct gguf_merge *x = a, *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

/* Adds the merges that make token `id`. */
static int add_merges(struct gguf_merges *m, int32_t id, float score, struct moeflux_err *e)
{
    const struct vocab_token *token = &m->vocab.tokens[id];
    const char *bytes = m->vocab.bytes.data + token->off;
    size_t first = m->n;
    uint32_t n_chars = 0, n_left = 0;
    for (size_t i = 0; i < token->len; i++)
        n_chars += begins_character(bytes[i]);
    for (size_t i = 0; i < token->len; i++) {
        if (!begins_character(bytes[i]) || n_left++ == 0)
            continue;
        int32_t left = vocab_find_text(&m->vocab, bytes, i);
        int32_t right = left < 0 ? -1 : vocab_find_text(&m->vocab, bytes + i, token->len - i);
        void *list = m->list;
        if (right < 0)
            continue;
        if (m->n == VOCAB_MAX_IDS)
            return err_set(e, ERR_FORMAT, "tokenizer.ggml.tokens: more than %d merges", VOCAB_MAX_IDS);
        if (mem_grow(&list, &m->cap, m->n + 1, sizeof *m->list, e) < 0)
            return ERR_MEMORY;
        m->list = list;
        m->list[m->n++] = (struct gguf_merge){left, right, n_left - 1, n_chars - n_left + 1, score, 0};
    }
    if (m->n > first)
        qsort(m->list + first, m->n - first, sizeof *m->list, by_parts);
    return 0;
}

static int by_score(const void *a, const void *b)
{
    const struct gguf_merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left)
        return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right)
        return x->n_right > y->n_right ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

int gguf_merges_make(struct gguf_merges *m, const struct gguf *g, const uint32_t *types,
                     struct moeflux_err *e)
{
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens"),
                            *scores = gguf_find(g, "tokenizer.ggml.scores");
    double *list = NULL;
    if (!scores || !tokens)
        return err_set(e, ERR_FORMAT, "key tokenizer.ggml.%s is missing", tokens ? "scores" : "tokens");
    if (scores->n != tokens->n || tokens->n > VOCAB_MAX_IDS)
        return err_set(e, ERR_FORMAT,
                       "%" PRIu64 " scores of %" PRIu64 " tokens, expected one each, of at "
                       "most %d tokens",
                       scores->n, tokens->n, VOCAB_MAX_IDS);
    int rc = gguf_real_list(g, scores, &list, e);
    if (rc == 0)
        rc = read_vocab(m, g, tokens, types, e);
    for (int32_t id = 0; rc == 0 && id < m->vocab.n_ids; id++)
        if (m->vocab.tokens[id].present && !m->vocab.tokens[id].is_bytes)
            rc = add_merges(m, id, (float)list[id], e);
    free(list);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < m->n; i++)
        m->list[i].order = (uint32_t)i;
    if (m->n)
        qsort(m->list, m->n, sizeof *m->list, by_score);
    return 0;
}

void gguf_merges_free(struct gguf_merges *m)
{
    vocab_free(&m->vocab);
    free(m->list);
    *m = (struct gguf_merges){0};
}
