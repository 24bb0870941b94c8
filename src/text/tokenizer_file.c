#include "text/tokenizer_file.h"

#include <jansson.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/nfc.h"
#include "text/quote.h"

#define MAX_FILE_BYTES ((uint64_t)256 << 20)

static struct quote quote_json(const json_t *text)
{
    return quote_bytes(json_string_value(text), json_string_length(text));
}

/* The member `key` of an object, NULL where it is absent or null. */
static const json_t *member(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

/* The member's text for an error line. */
static struct quote quote_member(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? quote_json(v) : quote_bytes("", 0);
}

/* Members that must be false: set means something this program does not do. An absent one counts as `absent`. */
static int need_false(const json_t *object, const char *where, const char *key, bool absent, struct err *e)
{
    const json_t *v = member(object, key);
    if (v && !json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: %s is not a boolean", where, key);
    if (v ? json_is_true(v) : absent)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s is true, only false is supported", where, key);
    return 0;
}

static int read_bool(const json_t *object, const char *where, const char *key, bool *value, struct err *e)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: %s is missing or not a boolean", where, key);
    *value = json_is_true(v);
    return 0;
}

static int check_id(const json_t *v, const char *where, struct quote text, struct err *e)
{
    if (!json_is_integer(v))
        return err_set(e, ERR_FORMAT, "%s: the id of %s is missing or not an integer", where, text.text);
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= VOCAB_MAX_IDS)
        return err_set(e, ERR_FORMAT, "%s: the id of %s is %lld, expected 0 to %d", where, text.text,
                       (long long)id, VOCAB_MAX_IDS - 1);
    return 0;
}

/* ---- vocabulary and added tokens ---- */

static int check_added_token(const json_t *item, size_t idx, struct err *e)
{
    static const char *const unsupported[] = {"lstrip", "rstrip", "single_word"};
    const json_t *content = json_object_get(item, "content");
    char where[48];
    snprintf(where, sizeof where, "added_tokens[%zu]", idx);
    if (!json_is_string(content) || json_string_length(content) == 0)
        return err_set(e, ERR_FORMAT, "%s: content is missing, empty or not a string", where);
    int rc = check_id(json_object_get(item, "id"), where, quote_json(content), e);
    for (size_t i = 0; rc == 0 && i < sizeof unsupported / sizeof *unsupported; i++)
        rc = need_false(item, where, unsupported[i], false, e);
    return rc;
}

static int64_t id_of(const json_t *v)
{
    return (int64_t)json_integer_value(v);
}

/* Checks both lists of ids and finds how many ids there are. */
static int count_ids(json_t *vocab, const json_t *added, int32_t *n_ids, struct err *e)
{
    const char *key;
    size_t len, i;
    json_t *v;
    int64_t last = -1;
    int rc;
    json_object_keylen_foreach(vocab, key, len, v)
    {
        if ((rc = check_id(v, "model.vocab", quote_bytes(key, len), e)) < 0)
            return rc;
        last = id_of(v) > last ? id_of(v) : last;
    }
    json_array_foreach(added, i, v)
    {
        if ((rc = check_added_token(v, i, e)) < 0)
            return rc;
        const json_t *id = json_object_get(v, "id");
        last = id_of(id) > last ? id_of(id) : last;
    }
    *n_ids = (int32_t)(last + 1);
    return 0;
}

static int read_vocab(struct tokenizer *t, json_t *vocab, struct err *e)
{
    const char *key;
    size_t len;
    json_t *v;
    json_object_keylen_foreach(vocab, key, len, v)
    {
        int rc = vocab_add(&t->vocab, (int32_t)json_integer_value(v), key, len, true, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The token may stand in the model's vocabulary too; then both must agree. */
static int give_added_id(struct tokenizer *t, int32_t id, const char *text, size_t len, struct str *scratch,
                         struct err *e)
{
    int32_t known = vocab_find(&t->vocab, text, len, scratch);
    if (known >= 0 && known != id)
        return err_set(e, ERR_FORMAT, "added_tokens: %s has id %d, but %d in model.vocab",
                       quote_bytes(text, len).text, id, known);
    return known == id ? 0 : vocab_add(&t->vocab, id, text, len, false, e);
}

/* Puts the token where it will be looked for. */
static int list_added(struct tokenizer *t, int32_t id, const char *text, size_t len, bool normalised,
                      struct str *scratch, struct err *e)
{
    int rc = added_add(&t->added, text, len, id, e);
    if (rc < 0 || !normalised)
        return rc < 0 ? rc : added_add(&t->added_raw, text, len, id, e);
    if (!t->nfc)
        return added_add(&t->added_normalised, text, len, id, e);
    str_clear(scratch);
    rc = nfc_add(text, len, scratch, e);
    return rc < 0 ? rc : added_add(&t->added_normalised, scratch->data, scratch->len, id, e);
}

static int read_added_token(struct tokenizer *t, const json_t *item, size_t idx, struct str *scratch,
                            struct err *e)
{
    const json_t *content = json_object_get(item, "content");
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    int32_t id = (int32_t)json_integer_value(json_object_get(item, "id"));
    bool normalised = false, special = false;
    char where[48];
    snprintf(where, sizeof where, "added_tokens[%zu]", idx);
    int rc = read_bool(item, where, "normalized", &normalised, e);
    if (rc == 0)
        rc = read_bool(item, where, "special", &special, e);
    if (rc == 0)
        rc = give_added_id(t, id, text, len, scratch, e);
    if (rc < 0)
        return rc;
    struct vocab_token *token = &t->vocab.tokens[id];
    if (token->added)
        return err_set(e, ERR_FORMAT, "%s: id %d is given twice", where, id);
    token->added = true;
    token->special = special;
    return list_added(t, id, text, len, normalised, scratch, e);
}

static int read_added(struct tokenizer *t, const json_t *added, struct str *scratch, struct err *e)
{
    size_t i;
    json_t *item;
    json_array_foreach(added, i, item)
    {
        int rc = read_added_token(t, item, i, scratch, e);
        if (rc < 0)
            return rc;
    }
    int rc = added_sort(&t->added, e);
    if (rc == 0)
        rc = added_sort(&t->added_raw, e);
    return rc < 0 ? rc : added_sort(&t->added_normalised, e);
}

/* Bytes C0, C1 and F5..FF are in no UTF-8 text; every other byte must have its token, so that encoding never
 * meets one without. */
static int find_byte_ids(struct tokenizer *t, struct err *e)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->bpe.byte_ids[b] = vocab_find_bytes(&t->vocab, &byte, 1);
        bool in_text = b < 0xc0 || (b > 0xc1 && b < 0xf5);
        if (t->bpe.byte_ids[b] < 0 && in_text)
            return err_set(e, ERR_FORMAT, "model.vocab: no token stands for the byte 0x%02x", (unsigned)b);
    }
    return 0;
}

/* ---- merges ---- */

struct merge_text {
    const char *left, *right;
    size_t left_len, right_len;
};

static int split_merge(const json_t *item, size_t rank, struct merge_text *m, struct err *e)
{
    if (json_is_string(item)) {
        const char *text = json_string_value(item), *gap = strchr(text, ' ');
        if (!gap)
            return err_set(e, ERR_FORMAT, "model.merges[%zu]: %s is not two tokens", rank,
                           quote_json(item).text);
        size_t len = json_string_length(item), left_len = (size_t)(gap - text);
        *m = (struct merge_text){text, gap + 1, left_len, len - left_len - 1};
        return 0;
    }
    const json_t *left = json_array_get(item, 0), *right = json_array_get(item, 1);
    if (json_array_size(item) != 2 || !json_is_string(left) || !json_is_string(right))
        return err_set(e, ERR_FORMAT, "model.merges[%zu]: neither a string nor two strings", rank);
    *m = (struct merge_text){json_string_value(left), json_string_value(right), json_string_length(left),
                             json_string_length(right)};
    return 0;
}

static int no_such_token(size_t rank, const char *text, size_t len, struct err *e)
{
    return err_set(e, ERR_FORMAT, "model.merges[%zu]: %s is not in model.vocab", rank,
                   quote_bytes(text, len).text);
}

/* texts: scratch for the result's text and for the lookup. */
static int read_merge(struct tokenizer *t, const json_t *item, size_t rank, struct str texts[2],
                      struct err *e)
{
    struct merge_text m = {0};
    int rc = split_merge(item, rank, &m, e);
    if (rc < 0)
        return rc;
    int32_t left = vocab_find(&t->vocab, m.left, m.left_len, &texts[1]);
    if (left < 0)
        return no_such_token(rank, m.left, m.left_len, e);
    int32_t right = vocab_find(&t->vocab, m.right, m.right_len, &texts[1]);
    if (right < 0)
        return no_such_token(rank, m.right, m.right_len, e);
    str_clear(&texts[0]);
    str_add(&texts[0], m.left, m.left_len);
    str_add(&texts[0], m.right, m.right_len);
    if (!str_ok(&texts[0]))
        return err_set(e, ERR_MEMORY, "out of memory for merge %zu", rank);
    int32_t result = vocab_find(&t->vocab, texts[0].data, texts[0].len, &texts[1]);
    if (result < 0)
        return no_such_token(rank, texts[0].data, texts[0].len, e);
    /* Otherwise a user who types a control token's text would get the token. */
    if (t->vocab.tokens[result].special)
        return err_set(e, ERR_FORMAT, "model.merges[%zu]: makes the control token %s", rank,
                       quote_bytes(texts[0].data, texts[0].len).text);
    bpe_add(&t->bpe, left, right, (uint32_t)rank, result);
    return 0;
}

static int read_merges(struct tokenizer *t, const json_t *merges, struct err *e)
{
    struct str texts[2] = {{0}};
    size_t rank;
    json_t *item;
    int rc = bpe_init(&t->bpe, json_array_size(merges), e);
    json_array_foreach(merges, rank, item)
    {
        if (rc < 0)
            break;
        rc = read_merge(t, item, rank, texts, e);
    }
    str_free(&texts[0]);
    str_free(&texts[1]);
    return rc;
}

/* ---- model ---- */

static int refuse_affixes(const json_t *model, struct err *e)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++) {
        const json_t *v = member(model, affixes[i]);
        if (v && !is_text(v, ""))
            return err_set(e, ERR_UNSUPPORTED, "model: %s is set, only null is supported", affixes[i]);
    }
    const json_t *dropout = member(model, "dropout");
    if (dropout && json_number_value(dropout) != 0.0)
        return err_set(e, ERR_UNSUPPORTED, "model: dropout is set, only null is supported");
    return 0;
}

static int check_model(const json_t *model, struct err *e)
{
    if (!json_is_object(model))
        return err_set(e, ERR_FORMAT, "model is missing or not an object");
    if (!is_text(json_object_get(model, "type"), "BPE"))
        return err_set(e, ERR_UNSUPPORTED, "model: type %s, only \"BPE\" is supported",
                       quote_member(model, "type").text);
    if (!json_is_object(json_object_get(model, "vocab")) ||
        !json_object_size(json_object_get(model, "vocab")))
        return err_set(e, ERR_FORMAT, "model.vocab is missing, empty or not an object");
    if (!json_is_array(json_object_get(model, "merges")))
        return err_set(e, ERR_FORMAT, "model.merges is missing or not an array");
    int rc = need_false(model, "model", "byte_fallback", false, e);
    return rc < 0 ? rc : refuse_affixes(model, e);
}

static int read_model(struct tokenizer *t, const json_t *root, struct err *e)
{
    json_t *model = json_object_get(root, "model");
    const json_t *added = member(root, "added_tokens");
    int rc = check_model(model, e);
    if (rc < 0)
        return rc;
    if (added && !json_is_array(added))
        return err_set(e, ERR_FORMAT, "added_tokens is not an array");
    const json_t *ignore = member(model, "ignore_merges");
    if (ignore && (rc = read_bool(model, "model", "ignore_merges", &t->ignore_merges, e)) < 0)
        return rc;
    json_t *vocab = json_object_get(model, "vocab");
    struct str scratch = {0};
    int32_t n_ids = 0;
    rc = count_ids(vocab, added, &n_ids, e);
    if (rc == 0)
        rc = vocab_init(&t->vocab, n_ids, json_object_size(vocab), e);
    if (rc == 0)
        rc = read_vocab(t, vocab, e);
    if (rc == 0)
        rc = read_added(t, added, &scratch, e);
    if (rc == 0)
        rc = find_byte_ids(t, e);
    if (rc == 0)
        rc = read_merges(t, json_object_get(model, "merges"), e);
    str_free(&scratch);
    return rc;
}

/* ---- normalizer ---- */

static int read_normalizer_step(struct tokenizer *t, const json_t *step, struct err *e)
{
    if (!is_text(json_object_get(step, "type"), "NFC"))
        return err_set(e, ERR_UNSUPPORTED, "normalizer: type %s, only \"NFC\" is supported",
                       quote_member(step, "type").text);
    t->nfc = true;
    return 0;
}

static int read_normalizer(struct tokenizer *t, const json_t *root, struct err *e)
{
    const json_t *normalizer = member(root, "normalizer");
    if (!normalizer)
        return 0;
    if (!is_text(json_object_get(normalizer, "type"), "Sequence"))
        return read_normalizer_step(t, normalizer, e);
    const json_t *steps = json_object_get(normalizer, "normalizers");
    if (!json_is_array(steps))
        return err_set(e, ERR_FORMAT, "normalizer: normalizers is missing or not an array");
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step)
    {
        int rc = read_normalizer_step(t, step, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- pre_tokenizer ---- */

static int read_split(struct tokenizer *t, const json_t *step, const char *where, struct err *e)
{
    if (!is_text(json_object_get(step, "behavior"), "Isolated"))
        return err_set(e, ERR_UNSUPPORTED, "%s: behavior %s, only \"Isolated\" is supported", where,
                       quote_member(step, "behavior").text);
    int rc = need_false(step, where, "invert", false, e);
    if (rc < 0)
        return rc;
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = regex ? regex : json_object_get(pattern, "String");
    if (!json_is_string(text))
        return err_set(e, ERR_FORMAT, "%s: pattern has neither a Regex nor a String", where);
    return pretokenize_add(&t->pretokenizer, json_string_value(text), json_string_length(text), !regex, e);
}

static int read_byte_level(const json_t *step, const char *where, struct err *e)
{
    int rc = need_false(step, where, "add_prefix_space", true, e);
    return rc < 0 ? rc : need_false(step, where, "use_regex", true, e);
}

/* ByteLevel turns text into the byte alphabet: what comes after it would see other characters, so it is last. */
static int read_pretokenizer_step(struct tokenizer *t, const json_t *step, size_t idx, size_t n_steps,
                                  struct err *e)
{
    const json_t *type = json_object_get(step, "type");
    char where[48];
    snprintf(where, sizeof where, "pre_tokenizer step %zu of %zu", idx + 1, n_steps);
    if (is_text(type, "Split") && idx + 1 < n_steps)
        return read_split(t, step, where, e);
    if (is_text(type, "ByteLevel") && idx + 1 == n_steps)
        return read_byte_level(step, where, e);
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: type %s, expected \"Split\" steps and one \"ByteLevel\" at the end", where,
                   quote_member(step, "type").text);
}

static int read_pretokenizer(struct tokenizer *t, const json_t *root, struct err *e)
{
    const json_t *pre = member(root, "pre_tokenizer");
    if (!pre)
        return err_set(e, ERR_UNSUPPORTED,
                       "pre_tokenizer is missing, only byte-level tokenizers are supported");
    if (!is_text(json_object_get(pre, "type"), "Sequence"))
        return read_pretokenizer_step(t, pre, 0, 1, e);
    const json_t *steps = json_object_get(pre, "pretokenizers");
    if (!json_is_array(steps) || json_array_size(steps) == 0)
        return err_set(e, ERR_FORMAT, "pre_tokenizer: pretokenizers is missing, empty or not an array");
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step)
    {
        int rc = read_pretokenizer_step(t, step, i, json_array_size(steps), e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- the file ---- */

static int read_root(struct tokenizer *t, const json_t *root, struct err *e)
{
    if (!json_is_object(root))
        return err_set(e, ERR_FORMAT, "the file is not a JSON object");
    int rc = read_normalizer(t, root, e);
    if (rc == 0)
        rc = read_pretokenizer(t, root, e);
    return rc < 0 ? rc : read_model(t, root, e);
}

static json_t *parse(const char *text, size_t len, struct err *e)
{
    json_error_t fault;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &fault);
    if (root)
        return root;
    bool memory = json_error_code(&fault) == json_error_out_of_memory;
    struct quote what = quote_bytes(fault.text, strlen(fault.text));
    err_set(e, memory ? ERR_MEMORY : ERR_FORMAT, "not valid JSON: %s (line %d, column %d)", what.text,
            fault.line, fault.column);
    return NULL;
}

int tokenizer_file_read(const char *path, struct tokenizer *t, struct err *e)
{
    char *text = NULL;
    size_t len = 0;
    struct err fault = {0};
    int rc = file_read_text(path, MAX_FILE_BYTES, &text, &len, e);
    if (rc < 0)
        return rc;
    json_t *root = parse(text, len, &fault);
    free(text);
    rc = root ? read_root(t, root, &fault) : (int)fault.code;
    json_decref(root);
    /* The tree of a large vocabulary is 150 MB of small blocks; the allocator keeps them unless it is told. */
    malloc_trim(0);
    if (rc < 0)
        return err_set(e, fault.code, "%s: %s", path, fault.text);
    return 0;
}
