#include "text/tokenizer/lists.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer/file.h"

/* Each merge makes a token, and hardly ever the same as another merge. */
enum { MAX_MERGES = VOCAB_MAX_IDS, MAX_ENTRY_VALUES = 256 };

struct reading {
    struct tokenizer *t;
    size_t n_tokens;       /* number of tokens in model.vocab */
    int64_t last_id;       /* the largest id in model.vocab and added_tokens */
    struct str scratch[3]; /* buffers for strings with escapes and for look-ups */
};

static int check_id(int64_t id, const char *where, const char *text, size_t len, struct moeflux_err *e)
{
    if (id >= 0 && id < VOCAB_MAX_IDS)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: the id of %s is %lld, expected 0 to %d", where,
                   quote_bytes(text, len).text, (long long)id, VOCAB_MAX_IDS - 1);
}

/* ---- model.vocab, which is read twice: once to size the tables, once to fill them ---- */

static int count_token(void *ctx, struct jsonscan *s, struct jsonscan_text key, struct moeflux_err *e)
{
    struct reading *r = ctx;
    int64_t id;
    int rc = jsonscan_integer(s, &id, e);
    if (rc == 0)
        rc = check_id(id, "model.vocab", key.bytes, key.len, e);
    if (rc < 0)
        return rc;
    if (++r->n_tokens > VOCAB_MAX_IDS)
        return err_set(e, ERR_FORMAT, "model.vocab: more than %d tokens", VOCAB_MAX_IDS);
    r->last_id = id > r->last_id ? id : r->last_id;
    return 0;
}

static int read_token(void *ctx, struct jsonscan *s, struct jsonscan_text key, struct moeflux_err *e)
{
    struct reading *r = ctx;
    int64_t id;
    int rc = jsonscan_integer(s, &id, e);
    return rc < 0 ? rc : vocab_add(&r->t->vocab, (int32_t)id, key.bytes, key.len, true, e);
}

/* ---- added_tokens ---- */

struct added_entry {
    const char *text;
    size_t len;
    int32_t id;
    bool normalised, special;
};

/* Reads one entry. `where` names its place and begins the errors. */
static int read_added_entry(const json_t *item, const char *where, struct added_entry *a,
                            struct moeflux_err *e)
{
    static const char *const unsupported[] = {"lstrip", "rstrip", "single_word"};
    const json_t *content = json_object_get(item, "content"), *id = json_object_get(item, "id");
    if (!json_is_string(content) || json_string_length(content) == 0)
        return err_set(e, ERR_FORMAT, "%s: content is missing, empty or not a string", where);
    if (!json_is_integer(id))
        return err_set(e, ERR_FORMAT, "%s: id is missing or not an integer", where);
    a->text = json_string_value(content);
    a->len = json_string_length(content);
    struct json_view v = json_view_of(item, where, e);
    v.rc = check_id((int64_t)json_integer_value(id), where, a->text, a->len, e);
    a->id = (int32_t)json_integer_value(id);
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        json_view_need_false(&v, unsupported[i], false);
    a->normalised = json_view_bool(&v, "normalized");
    a->special = json_view_bool(&v, "special");
    return v.rc;
}

/* Calls `take` for every entry. Only one entry at a time is a JSON tree, since the list may be large. */
static int each_added(struct reading *r, struct jsonscan s,
                      int (*take)(struct reading *r, const struct added_entry *a, const char *where,
                                  struct moeflux_err *e),
                      struct moeflux_err *e)
{
    int rc = s.text ? jsonscan_open(&s, '[', e) : 0;
    for (size_t i = 0; s.text && rc == 0 && (rc = jsonscan_more(&s, ']', i, e)) > 0; i++) {
        char where[48];
        struct added_entry a = {0};
        json_t *item = NULL;
        bool is_object = jsonscan_peek(&s) == '{';
        size_t start = s.at;
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        rc = is_object ? jsonscan_skip(&s, e) : err_set(e, ERR_FORMAT, "%s: expected an object", where);
        if (rc == 0)
            rc = json_read(s.text + start, s.at - start, where, MAX_ENTRY_VALUES, &item, e);
        if (rc == 0)
            rc = read_added_entry(item, where, &a, e);
        if (rc == 0)
            rc = take(r, &a, where, e);
        json_decref(item);
    }
    return rc;
}

static int count_added(struct reading *r, const struct added_entry *a, const char *where,
                       struct moeflux_err *e)
{
    (void)where;
    (void)e;
    r->last_id = a->id > r->last_id ? a->id : r->last_id;
    return 0;
}

/* A token may be in model.vocab too; then both must give it the same id. */
static int give_added_id(struct reading *r, const struct added_entry *a, struct moeflux_err *e)
{
    int32_t known = vocab_find(&r->t->vocab, a->text, a->len, &r->scratch[0]);
    if (known >= 0 && known != a->id)
        return err_set(e, ERR_FORMAT, "added_tokens: %s has id %d, but %d in model.vocab",
                       quote_bytes(a->text, a->len).text, a->id, known);
    return known == a->id ? 0 : vocab_add(&r->t->vocab, a->id, a->text, a->len, false, e);
}

/* Adds the token to the sets in which it is looked for. */
static int list_added(struct reading *r, const struct added_entry *a, struct moeflux_err *e)
{
    struct tokenizer *t = r->t;
    int rc = added_add(&t->added, a->text, a->len, a->id, e);
    if (rc < 0)
        return rc;
    if (!a->normalised)
        return added_add(&t->added_raw, a->text, a->len, a->id, e);
    struct str *normal = &r->scratch[0];
    str_clear(normal);
    rc = normalise_add(&t->normaliser, a->text, a->len, normal, e);
    return rc < 0 ? rc : added_add(&t->added_normalised, normal->data, normal->len, a->id, e);
}

static int read_added_token(struct reading *r, const struct added_entry *a, const char *where,
                            struct moeflux_err *e)
{
    int rc = give_added_id(r, a, e);
    if (rc < 0)
        return rc;
    struct vocab_token *token = &r->t->vocab.tokens[a->id];
    if (token->added)
        return err_set(e, ERR_FORMAT, "%s: id %d is given twice", where, a->id);
    token->added = true;
    token->special = a->special;
    return list_added(r, a, e);
}

static int read_added(struct reading *r, struct jsonscan added, struct moeflux_err *e)
{
    int rc = each_added(r, added, read_added_token, e);
    if (rc == 0)
        rc = added_sort(&r->t->added, e);
    if (rc == 0)
        rc = added_sort(&r->t->added_raw, e);
    return rc < 0 ? rc : added_sort(&r->t->added_normalised, e);
}

/* ---- bytes and merges ---- */

/* Finds the token of each byte. Bytes C0, C1 and F5..FF occur in no UTF-8 text; every other byte must have a
 * token, so that encoding cannot fail. */
static int find_byte_ids(struct tokenizer *t, struct moeflux_err *e)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_ids[b] = vocab_find_bytes(&t->vocab, &byte, 1);
        bool in_text = b < 0xc0 || (b > 0xc1 && b < 0xf5);
        if (t->byte_ids[b] < 0 && in_text)
            return err_set(e, ERR_FORMAT, "model.vocab: no token stands for the byte 0x%02x", (unsigned)b);
    }
    return 0;
}

/* Fills t->joins_space. */
static void find_joins(struct tokenizer *t)
{
    const struct vocab *v = &t->vocab;
    for (int32_t id = 0; id < v->n_ids; id++)
        for (uint32_t i = 1; i < v->tokens[id].len; i++)
            if (v->bytes.data[v->tokens[id].off + i] == ' ')
                t->joins_space[(uint8_t)v->bytes.data[v->tokens[id].off + i - 1]] = true;
}

struct merge {
    struct jsonscan_text left, right;
};

/* Takes "a b". A token contains no space: it is written U+0120 or U+2581. */
static int take_merge_string(struct reading *r, struct jsonscan *s, size_t rank, struct merge *m,
                             struct moeflux_err *e)
{
    struct jsonscan_text both;
    int rc = jsonscan_string(s, &r->scratch[0], &both, e);
    if (rc < 0)
        return rc;
    const char *gap = memchr(both.bytes, ' ', both.len);
    if (!gap)
        return err_set(e, ERR_FORMAT, "model.merges[%zu]: %s is not two tokens", rank,
                       quote_bytes(both.bytes, both.len).text);
    size_t left_len = (size_t)(gap - both.bytes);
    m->left = (struct jsonscan_text){both.bytes, left_len};
    m->right = (struct jsonscan_text){gap + 1, both.len - left_len - 1};
    return 0;
}

/* Takes ["a", "b"]. */
static int take_merge_pair(struct reading *r, struct jsonscan *s, size_t rank, struct merge *m,
                           struct moeflux_err *e)
{
    int rc = jsonscan_open(s, '[', e);
    struct jsonscan_text *parts[2] = {&m->left, &m->right};
    for (size_t i = 0; rc == 0 && i < 2; i++) {
        rc = jsonscan_more(s, ']', i, e);
        if (rc == 0)
            return err_set(e, ERR_FORMAT, "model.merges[%zu]: %zu tokens, expected 2", rank, i);
        if (rc > 0)
            rc = jsonscan_string(s, &r->scratch[i], parts[i], e);
    }
    if (rc == 0 && (rc = jsonscan_more(s, ']', 2, e)) > 0)
        return err_set(e, ERR_FORMAT, "model.merges[%zu]: more than 2 tokens", rank);
    return rc;
}

static int find_part(struct reading *r, struct jsonscan_text part, size_t rank, int32_t *id,
                     struct moeflux_err *e)
{
    *id = vocab_find(&r->t->vocab, part.bytes, part.len, &r->scratch[2]);
    if (*id >= 0)
        return 0;
    return err_set(e, ERR_FORMAT, "model.merges[%zu]: %s is not in model.vocab", rank,
                   quote_bytes(part.bytes, part.len).text);
}

static int read_merge(struct reading *r, struct jsonscan *s, size_t rank, struct str *whole,
                      struct moeflux_err *e)
{
    struct merge m = {0};
    int32_t left, right, result;
    int rc =
        jsonscan_peek(s) == '[' ? take_merge_pair(r, s, rank, &m, e) : take_merge_string(r, s, rank, &m, e);
    if (rc < 0 || (rc = find_part(r, m.left, rank, &left, e)) < 0 ||
        (rc = find_part(r, m.right, rank, &right, e)) < 0)
        return rc;
    str_clear(whole);
    str_add(whole, m.left.bytes, m.left.len);
    str_add(whole, m.right.bytes, m.right.len);
    if (!str_ok(whole))
        return err_set(e, ERR_MEMORY, "out of memory for merge %zu", rank);
    rc = find_part(r, (struct jsonscan_text){whole->data, whole->len}, rank, &result, e);
    if (rc < 0)
        return rc;
    /* A merge that makes a control token never applies where control tokens are looked for: the search for
     * them comes first. It is left out, because elsewhere a user who types the text would get the token. */
    if (!r->t->vocab.tokens[result].special)
        bpe_add(&r->t->bpe, left, right, (uint32_t)rank, result);
    return 0;
}

static int count_merges(struct jsonscan s, size_t *n, struct moeflux_err *e)
{
    int rc = jsonscan_open(&s, '[', e);
    for (*n = 0; rc == 0 && (rc = jsonscan_more(&s, ']', *n, e)) > 0; ++*n)
        rc = *n < MAX_MERGES ? jsonscan_skip(&s, e)
                             : err_set(e, ERR_FORMAT, "model.merges: more than %d", MAX_MERGES);
    return rc;
}

static int read_merges(struct reading *r, struct jsonscan s, struct moeflux_err *e)
{
    struct str whole = {0};
    size_t n = 0;
    int rc = count_merges(s, &n, e);
    if (rc == 0)
        rc = bpe_init(&r->t->bpe, n, e);
    if (rc == 0)
        rc = jsonscan_open(&s, '[', e);
    for (size_t rank = 0; rc == 0 && (rc = jsonscan_more(&s, ']', rank, e)) > 0; rank++)
        rc = read_merge(r, &s, rank, &whole, e);
    str_free(&whole);
    return rc;
}

static int read_all(struct reading *r, const struct tokenizer_lists *lists, struct moeflux_err *e)
{
    struct jsonscan first = lists->vocab, second = lists->vocab;
    int rc = jsonscan_members(&first, &r->scratch[0], count_token, r, e);
    if (rc == 0)
        rc = each_added(r, lists->added, count_added, e);
    if (rc == 0)
        rc = vocab_init(&r->t->vocab, (int32_t)(r->last_id + 1), r->n_tokens, e);
    if (rc == 0)
        rc = jsonscan_members(&second, &r->scratch[0], read_token, r, e);
    if (rc == 0)
        rc = read_added(r, lists->added, e);
    if (rc == 0)
        rc = find_byte_ids(r->t, e);
    if (rc == 0)
        find_joins(r->t);
    return rc < 0 ? rc : read_merges(r, lists->merges, e);
}

int tokenizer_lists_read(const struct tokenizer_lists *lists, struct tokenizer *t, struct moeflux_err *e)
{
    struct reading r = {.t = t, .last_id = -1};
    int rc = read_all(&r, lists, e);
    for (size_t i = 0; i < sizeof r.scratch / sizeof *r.scratch; i++)
        str_free(&r.scratch[i]);
    return rc;
}
