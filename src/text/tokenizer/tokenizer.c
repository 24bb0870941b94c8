#include "text/tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer/work_limit.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/file.h"
#include "text/tokenizer/gguf_file.h"
#include "text/tokenizer/tiktoken.h"
#include "text/utf8.h"

static int read_files(const char *path, struct tokenizer *t, struct moeflux_err *e)
{
    if (gguf_is_file(path))
        return tokenizer_gguf_read(path, t, e);
    int rc =
        tokenizer_is_tiktoken(path) ? tokenizer_tiktoken_read(path, t, e) : tokenizer_file_read(path, t, e);
    return rc < 0 ? rc : tokenizer_config_read(t, path, e);
}

struct tokenizer *tokenizer_open(const char *path, struct moeflux_err *e)
{
    struct tokenizer *t = mem_new(1, sizeof *t, e);
    if (t && read_files(path, t, e) < 0) {
        tokenizer_free(t);
        t = NULL;
    }
    return t;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_free(&t->vocab);
    bpe_free(&t->bpe);
    pretokenize_free(&t->pretokenizer);
    added_free(&t->added);
    added_free(&t->added_raw);
    added_free(&t->added_normalised);
    free(t->chat_template);
    free(t->tool_template);
    json_decref(t->special_texts);
    json_decref(t->variables);
    free(t);
}

void tokenizer_set_progress(struct tokenizer *t, const struct moeflux_progress *p)
{
    t->progress = *p;
}

/* The state of one tokenizer_encode. */
struct encoding {
    const struct tokenizer *t;
    enum token_specials specials;
    struct token_list *out;
    struct str normal; /* normalised form of the current stretch of text */
    struct str lookup; /* scratch of vocab_find */
    struct bpe_scratch scratch;
    struct work_limit limit;
};

/* Adds the tokens of single bytes. */
static int add_bytes(struct encoding *x, const char *bytes, size_t len, struct moeflux_err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < len; i++)
        rc = token_list_add(&x->scratch.piece, x->t->byte_ids[(uint8_t)bytes[i]], e);
    return rc;
}

/* Returns the id of a token of the model by its text as pieces have it; -1: there is none. */
static int32_t find_token(struct encoding *x, const char *text, size_t len)
{
    const struct vocab *v = &x->t->vocab;
    return v->writing == VOCAB_BYTE_LEVEL ? vocab_find_bytes(v, text, len)
                                          : vocab_find(v, text, len, &x->lookup);
}

/* Merges the ids collected so far and begins anew. */
static int merge_piece(struct encoding *x, struct moeflux_err *e)
{
    int rc = bpe_encode(&x->t->bpe, &x->scratch, x->out, e);
    x->scratch.piece.n = 0;
    return rc;
}

/* Adds the token of each character. A character without a token becomes those of its bytes. Merges what comes
 * before a space if no token reaches across. */
static int add_characters(struct encoding *x, const char *text, size_t len, struct moeflux_err *e)
{
    static const size_t n_space = sizeof VOCAB_SPACE - 1;
    bool joins = true;
    int rc = 0;
    for (size_t at = 0, end; rc == 0 && at < len; at = end) {
        for (end = at + 1; end < len && ((uint8_t)text[end] & 0xc0) == 0x80; end++)
            ;
        bool is_space = end - at == n_space && memcmp(text + at, VOCAB_SPACE, n_space) == 0;
        rc = is_space && !joins ? merge_piece(x, e) : 0;
        int32_t id = find_token(x, text + at, end - at);
        if (id >= 0 && tokenizer_is_special(x->t, id))
            id = -1;
        joins = id < 0 || x->t->joins_space[is_space ? ' ' : (uint8_t)text[end - 1]];
        if (rc == 0)
            rc = id >= 0 ? token_list_add(&x->scratch.piece, id, e) : add_bytes(x, text + at, end - at, e);
        if (rc == 0 && !work_limit_ask(&x->limit, 1))
            rc = work_limit_error(&x->limit, "the vocabulary", at, len, e);
    }
    return rc;
}

static int encode_piece(void *ctx, const char *piece, size_t len, struct moeflux_err *e)
{
    struct encoding *x = ctx;
    int32_t id = x->t->ignore_merges ? find_token(x, piece, len) : -1;
    /* Only the search for added tokens may produce one. */
    if (id >= 0 && !x->t->vocab.tokens[id].added)
        return token_list_add(x->out, id, e);
    x->scratch.piece.n = 0;
    int rc = x->t->vocab.writing == VOCAB_BYTE_LEVEL ? add_bytes(x, piece, len, e)
                                                     : add_characters(x, piece, len, e);
    return rc < 0 ? rc : merge_piece(x, e);
}

/* Appends the set's tokens in the text, and calls `rest` for the stretches between them. */
static int encode_between(struct encoding *x, const struct added *set, const char *text, size_t len,
                          int (*rest)(struct encoding *x, const char *text, size_t len,
                                      struct moeflux_err *e),
                          struct moeflux_err *e)
{
    static const struct added none;
    if (x->specials == SPECIALS_AS_TEXT)
        set = &none;
    for (size_t at = 0; at < len;) {
        size_t start, end;
        int32_t id;
        int found = added_next(set, text, len, at, &x->limit, &id, &start, &end, e), rc = found;
        if (found >= 0)
            rc = start > at ? rest(x, text + at, start - at, e) : 0;
        if (rc == 0 && found)
            rc = token_list_add(x->out, id, e);
        if (rc < 0)
            return rc;
        at = end;
    }
    return 0;
}

static int encode_plain(struct encoding *x, const char *text, size_t len, struct moeflux_err *e)
{
    return pretokenize_run(&x->t->pretokenizer, text, len, &x->limit,
                           (struct pretokenize_sink){encode_piece, x}, e);
}

static int encode_raw(struct encoding *x, const char *text, size_t len, struct moeflux_err *e)
{
    str_clear(&x->normal);
    int rc = normalise_add(&x->t->normaliser, text, len, &x->normal, e);
    if (rc < 0)
        return rc;
    return encode_between(x, &x->t->added_normalised, str_text(&x->normal), x->normal.len, encode_plain, e);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, enum token_specials specials,
                     struct token_list *out, size_t *n_replaced, struct moeflux_err *e)
{
    struct encoding x = {.t = t, .specials = specials, .out = out};
    struct str clean = {0};
    size_t n_before = out->n;
    size_t n = utf8_clean(text, len, &clean);
    int rc = 0;
    x.limit = work_limit_for(clean.len, t->pretokenizer.n_splits, &t->progress);
    x.scratch.limit = &x.limit;
    if (!str_ok(&clean))
        rc = err_set(e, ERR_MEMORY, "out of memory for %zu bytes of text", len);
    if (rc == 0)
        rc = encode_between(&x, &t->added_raw, str_text(&clean), clean.len, encode_raw, e);
    if (rc < 0)
        out->n = n_before;
    else if (n_replaced)
        *n_replaced += n;
    bpe_scratch_free(&x.scratch);
    str_free(&x.normal);
    str_free(&x.lookup);
    str_free(&clean);
    return rc;
}

bool tokenizer_has(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n_ids && t->vocab.tokens[id].present;
}

size_t tokenizer_bytes(const struct tokenizer *t, int32_t id, const char **bytes)
{
    *bytes = "";
    if (!tokenizer_has(t, id))
        return 0;
    *bytes = t->vocab.bytes.data + t->vocab.tokens[id].off;
    return t->vocab.tokens[id].len;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return tokenizer_has(t, id) && t->vocab.tokens[id].special;
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id)
{
    return tokenizer_has(t, id) && t->vocab.tokens[id].added;
}

int32_t tokenizer_added_id(const struct tokenizer *t, const char *content)
{
    return added_find(&t->added, content, strlen(content));
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int tokenizer_next_added(const struct tokenizer *t, const char *text, size_t from, size_t to, int32_t *id,
                         size_t *start, size_t *end, struct moeflux_err *e)
{
    struct work_limit limit = work_limit_for(to - from, 1, &t->progress);
    return added_next(&t->added, text, to, from, &limit, id, start, end, e);
}

void tokenizer_swap_templates(struct tokenizer *t, struct tokenizer_templates *with)
{
    struct tokenizer_templates old = {t->chat_template, t->tool_template, t->variables};
    t->chat_template = with->chat;
    t->tool_template = with->tools;
    t->variables = with->variables;
    *with = old;
}

void tokenizer_free_templates(struct tokenizer_templates *of)
{
    free(of->chat);
    free(of->tools);
    json_decref(of->variables);
    *of = (struct tokenizer_templates){0};
}

const struct json_t *tokenizer_variables(const struct tokenizer *t)
{
    return t->variables;
}

const char *tokenizer_tool_template(const struct tokenizer *t)
{
    return t->tool_template;
}

const struct json_t *tokenizer_special_texts(const struct tokenizer *t)
{
    return t->special_texts;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

int32_t tokenizer_n_ids(const struct tokenizer *t)
{
    return t->vocab.n_ids;
}

uint64_t tokenizer_most_bytes(const struct tokenizer *t, uint32_t n)
{
    /* Composition (NFC) leaves at least a third of a text's bytes: a Hangul syllable is three letters. */
    const uint64_t most_composed = 3;
    uint32_t longest = 0;
    for (int32_t id = 0; id < t->vocab.n_ids; id++)
        if (t->vocab.tokens[id].len > longest)
            longest = t->vocab.tokens[id].len;
    return (uint64_t)n * longest * (t->normaliser.nfc ? most_composed : 1);
}

int tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len,
                            enum token_specials specials, struct token_list *out, size_t *n_replaced,
                            struct moeflux_err *e)
{
    int32_t bos = tokenizer_bos(t);
    int rc = bos >= 0 ? token_list_add(out, bos, e) : 0;
    if (rc == 0)
        rc = tokenizer_encode(t, text, len, specials, out, n_replaced, e);
    if (rc == 0 && bos >= 0 && out->n > 1 && out->ids[1] == bos) {
        out->n--;
        memmove(out->ids, out->ids + 1, out->n * sizeof *out->ids);
    }
    return rc;
}
