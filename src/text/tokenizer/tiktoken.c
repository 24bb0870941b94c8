#include "text/tokenizer/tiktoken.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/quote.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/file.h"
#include "text/utf8.h"

#define MAX_FILE_BYTES   ((uint64_t)64 << 20)
#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)
enum { MAX_CONFIG_VALUES = 1 << 19, MAX_TOKEN = 1 << 12 };

/* The split pattern of each tokenizer_class. tiktoken's own pattern writes sets without Han as
 * "[...&&[^\p{Han}]]"; PCRE2 has no such intersection, so a look-ahead excludes Han. */
#define NOT_HAN(set) "(?:(?!\\p{sc:Han})[" set "])"
#define UPPER        NOT_HAN("\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}")
#define LOWER        NOT_HAN("\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}")
#define LEAD         "[^\\r\\n\\p{L}\\p{N}]?"
#define CONTRACTION  "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const struct {
    const char *tokenizer_class, *pattern;
} splits[] = {
    {"TikTokenTokenizer",
     "\\p{sc:Han}+|" LEAD UPPER "*" LOWER "+" CONTRACTION "|" LEAD UPPER "+" LOWER "*" CONTRACTION
     "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

bool tokenizer_is_tiktoken(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (!strcmp(dot, ".model") || !strcmp(dot, ".tiktoken"));
}

/* --- the file's lines --- */

struct lines {
    const char *at, *end;
    uint64_t number; /* number of the last line read, from 1 */
};

struct line {
    char bytes[MAX_TOKEN];
    size_t len;
    int32_t id;
};

static int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes text[0..n). Returns false if it is not base64 of 1 to MAX_TOKEN bytes. */
static bool decode(const char *text, size_t n, struct line *out)
{
    uint32_t bits = 0;
    size_t pad = n >= 2 && text[n - 1] == '=' ? 1 + (text[n - 2] == '=') : 0;
    if (n == 0 || n % 4 || n / 4 * 3 > sizeof out->bytes)
        return false;
    out->len = 0;
    for (size_t i = 0; i < n - pad; i++) {
        int digit = base64_digit(text[i]);
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 > 0)
            out->bytes[out->len++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    return out->len > 0;
}

/* Reads the next line that is not empty. Returns 1, or 0 at the end. */
static int next_line(struct lines *l, struct line *out, struct moeflux_err *e)
{
    while (l->at < l->end && *l->at == '\n') {
        l->at++;
        l->number++;
    }
    if (l->at == l->end)
        return 0;
    const char *end = memchr(l->at, '\n', (size_t)(l->end - l->at));
    end = end ? end : l->end;
    const char *gap = memchr(l->at, ' ', (size_t)(end - l->at));
    char rest[16] = "", tail = 0;
    long id = -1;
    l->number++;
    if (gap && (size_t)(end - gap - 1) < sizeof rest)
        memcpy(rest, gap + 1, (size_t)(end - gap - 1));
    if (!gap || !decode(l->at, (size_t)(gap - l->at), out) || sscanf(rest, "%ld%c", &id, &tail) != 1 ||
        id < 0 || id >= VOCAB_MAX_IDS)
        return err_set(e, ERR_FORMAT, "line %" PRIu64 ": %s, expected a token in base64 and its rank",
                       l->number, quote_bytes(l->at, (size_t)(end - l->at)).text);
    out->id = (int32_t)id;
    l->at = end < l->end ? end + 1 : end;
    return 1;
}

static int count(struct lines l, size_t *n, int32_t *last, struct moeflux_err *e)
{
    struct line line;
    int rc;
    while ((rc = next_line(&l, &line, e)) > 0) {
        ++*n;
        *last = line.id > *last ? line.id : *last;
    }
    return rc < 0 || *n ? rc : err_set(e, ERR_FORMAT, "no token, expected lines of base64 and a rank");
}

static int add_tokens(struct lines l, struct tokenizer *t, struct moeflux_err *e)
{
    struct line line;
    int rc;
    while ((rc = next_line(&l, &line, e)) > 0)
        if ((rc = vocab_add_bytes(&t->vocab, line.id, line.bytes, line.len, e)) < 0)
            return rc;
    return rc;
}

/* --- merges --- */

/* Adds (or only counts) a merge for each way to cut token `id` into two tokens.
 * Returns how many there are. */
static size_t merge_token(struct tokenizer *t, int32_t id, bool is_counting)
{
    const struct vocab_token *token = &t->vocab.tokens[id];
    const char *bytes = t->vocab.bytes.data + token->off;
    size_t n = 0;
    for (size_t i = 1; token->present && i < token->len; i++) {
        int32_t left = vocab_find_bytes(&t->vocab, bytes, i);
        int32_t right = left < 0 ? -1 : vocab_find_bytes(&t->vocab, bytes + i, token->len - i);
        if (right < 0)
            continue;
        n++;
        if (!is_counting)
            bpe_add(&t->bpe, left, right, (uint32_t)id, id);
    }
    return n;
}

static int add_merges(struct tokenizer *t, int32_t last, struct moeflux_err *e)
{
    size_t n = 0;
    for (int32_t id = 0; id <= last; id++)
        n += merge_token(t, id, true);
    int rc = bpe_init(&t->bpe, n, e);
    for (int b = 0; b < 256 && rc == 0; b++) {
        char byte = (char)b;
        t->byte_ids[b] = vocab_find_bytes(&t->vocab, &byte, 1);
        if (t->byte_ids[b] < 0)
            rc = err_set(e, ERR_FORMAT, "no token stands for the byte 0x%02x", (unsigned)b);
    }
    for (int32_t id = 0; rc == 0 && id <= last; id++)
        merge_token(t, id, false);
    return rc;
}

/* --- tokenizer_config.json --- */

static int add_added(struct tokenizer *t, const char *key, const json_t *entry, const char *where,
                     struct moeflux_err *e)
{
    const json_t *content = json_object_get(entry, "content");
    char *end;
    long id = strtol(key, &end, 10);
    if (*end || end == key || id < 0 || id >= t->vocab.n_ids || !json_is_string(content) ||
        json_string_length(content) == 0)
        return err_set(e, ERR_FORMAT, "%s: added_tokens_decoder: %s is no id with a content", where,
                       quote_bytes(key, strlen(key)).text);
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    int rc = vocab_add(&t->vocab, (int32_t)id, text, len, false, e);
    if (rc < 0)
        return rc;
    t->vocab.tokens[id].added = true;
    t->vocab.tokens[id].special = json_is_true(json_object_get(entry, "special"));
    rc = added_add(&t->added, text, len, (int32_t)id, e);
    return rc < 0 ? rc : added_add(&t->added_raw, text, len, (int32_t)id, e);
}

static int32_t last_added(const json_t *added)
{
    const char *key;
    json_t *entry;
    int32_t last = -1;
    json_object_foreach((json_t *)(uintptr_t)added, key, entry)
    {
        long id = strtol(key, NULL, 10);
        if (id > last && id < VOCAB_MAX_IDS)
            last = (int32_t)id;
    }
    return last;
}

static int read_added(struct tokenizer *t, json_t *added, const char *where, struct moeflux_err *e)
{
    const char *key;
    json_t *entry;
    int rc = 0;
    json_object_foreach(added, key, entry)
    {
        if (rc == 0)
            rc = add_added(t, key, entry, where, e);
    }
    if (rc == 0)
        rc = added_sort(&t->added, e);
    return rc < 0 ? rc : added_sort(&t->added_raw, e);
}

static int read_split(struct tokenizer *t, const json_t *config, const char *where, struct moeflux_err *e)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    for (size_t i = 0; name && i < sizeof splits / sizeof *splits; i++)
        if (!strcmp(name, splits[i].tokenizer_class))
            return pretokenize_add(&t->pretokenizer, splits[i].pattern, strlen(splits[i].pattern), false,
                                   PRETOKENIZE_ISOLATED, e);
    return err_set(e, ERR_UNSUPPORTED, "%s: tokenizer_class is %s, expected TikTokenTokenizer", where,
                   name ? name : "missing");
}

/* --- both files --- */

static int read_parts(struct tokenizer *t, struct lines lines, json_t *config, const char *where,
                      struct moeflux_err *e)
{
    json_t *added = json_object_get(config, "added_tokens_decoder");
    size_t n = 0;
    int32_t last = -1, all = last_added(added);
    t->bos = -1;
    t->ignore_merges = true;
    int rc = read_split(t, config, where, e);
    if (rc == 0)
        rc = count(lines, &n, &last, e);
    if (rc == 0)
        rc = vocab_init(&t->vocab, (all > last ? all : last) + 1, n, e);
    if (rc == 0)
        rc = add_tokens(lines, t, e);
    if (rc == 0)
        rc = add_merges(t, last, e);
    return rc < 0 ? rc : read_added(t, added, where, e);
}

int tokenizer_tiktoken_read(const char *path, struct tokenizer *t, struct moeflux_err *e)
{
    char *text = NULL, *config_text = NULL, *where = NULL;
    size_t len = 0, config_len = 0;
    json_t *config = NULL;
    struct moeflux_err fault = {0};
    int rc = file_read_text(path, MAX_FILE_BYTES, &text, &len, e);
    if (rc == 0)
        rc = tokenizer_config_sibling(path, "tokenizer_config.json", &where, &config_text, &config_len, e);
    if (rc == 0 && !config_text)
        rc = err_set(e, ERR_IO, "%s: not found; %s needs it", where, path);
    if (rc == 0)
        rc = json_read(config_text, config_len, where, MAX_CONFIG_VALUES, &config, e);
    if (rc == 0 && (rc = read_parts(t, (struct lines){text, text + len, 0}, config, where, &fault)) < 0)
        rc = err_set(e, fault.code, "%s: %s", path, fault.text);
    json_decref(config);
    free(text);
    free(config_text);
    free(where);
    return rc;
}
