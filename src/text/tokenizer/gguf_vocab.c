#include "text/tokenizer/gguf_vocab.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/quote.h"
#include "base/gguf.h"
#include "text/tokenizer/gguf_merges.h"
#include "text/utf8.h"

enum { MAX_NAME = 64, KNOWN_TEXT = 320 };
#define MAX_TEMPLATE ((uint64_t)4 << 20)
/* Bytes; the limit of text/tokenizer/file.c. */
#define MAX_FILE ((size_t)256 << 20)

/* tokenizer.ggml.token_type */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

/* How texts are split, from the models' own tokenizer.json files. Up to three patterns, each of which splits
 * the pieces of the one before. */
enum { MAX_PATTERNS = 3 };
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LETTERS      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
/* o200k's pattern of words, which end before a capital. */
#define CAPITALS(upper, lower)                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower     \
    "*" CONTRACTIONS "?|\\p{N}{1,3}|"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NOT_HAN(set) "(?:(?!\\p{sc:Han})" set ")"
#define LLAMA3       CONTRACTIONS "|" LETTERS "|\\p{N}{1,3}|" SIGNS "|" SPACES
#define O200K        CAPITALS(UPPER, LOWER) " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
/* Mistral's, which Nemotron-3 has: o200k's without contractions, and single digits. */
#define TEKKEN                                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER                      \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define QWEN2 CONTRACTIONS "|" LETTERS "|\\p{N}|" SIGNS "|" SPACES
#define DEEPSEEK3                                                                                            \
    {                                                                                                        \
        "\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",                                         \
            "[!\"#$%&'()*+,\\-./"                                                                            \
            ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "               \
            "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES                                                              \
    }
#define BAILING "'(?i:[sdmt]|ll|ve|re)|" LETTERS "|\\p{N}|" SIGNS "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
static const struct split {
    const char *name; /* tokenizer.ggml.pre */
    bool nfc;         /* the tokenizer normalises texts to NFC; the file does not say so */
    bool whole;       /* a piece that is a token is used without merging */
    bool adds_bos;    /* unless the file says otherwise */
    const char *patterns[MAX_PATTERNS];
} splits[] = {
    {"qwen2", true, false, false, {QWEN2}},
    {"qwen35",
     true,
     false,
     false,
     {CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"deepseek-v3", false, false, false, DEEPSEEK3},
    {"joyai-llm", false, false, false, DEEPSEEK3},
    {"kimi-k2",
     false,
     true,
     false,
     {"\\p{sc:Han}+|" CAPITALS(NOT_HAN(UPPER), NOT_HAN(LOWER)) SIGNS "|" SPACES}},
    {"glm4", false, true, false, {LLAMA3}},
    {"glm5", false, true, false, {LLAMA3}},
    {"chatglm-bpe", false, false, false, {LLAMA3}},
    {"llama-bpe", false, true, true, {LLAMA3}},
    {"minimax-m2", true, false, false, {O200K}},
    {"gpt-4o", false, true, false, {O200K}},
    {"tekken", false, true, true, {TEKKEN}},
    {"pixtral", false, true, true, {TEKKEN}},
    {"bailingmoe", false, false, false, {BAILING}},
    {"bailingmoe2", false, false, false, {BAILING}},
    {"solar-open", false, false, false, {QWEN2}},
    {"gemma4", false, false, false, {NULL}}, /* SentencePiece's BPE */
};
enum { N_SPLITS = sizeof splits / sizeof *splits };

static const char *path_of(const struct gguf *g)
{
    return g->files[0].path;
}

static int get_text(const struct gguf *g, const char *key, char **out, struct moeflux_err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    *out = NULL;
    return v ? gguf_text(g, v, MAX_NAME, out, e)
             : err_set(e, ERR_FORMAT, "%s: key %s is missing", path_of(g), key);
}

/* What kind of tokenizer the file has. */
struct kind {
    const struct split *split; /* NULL: SentencePiece's BPE */
    bool has_scores;           /* instead of merges */
    bool space_prefix;         /* a text gets a space in front */
    bool adds_bos;             /* unless the file says otherwise */
    bool is_gemma;
};

static int find_split(const struct gguf *g, const struct split **out, struct moeflux_err *e)
{
    char *pre = NULL, known[KNOWN_TEXT] = "";
    size_t i = 0, at = 0;
    int rc = get_text(g, "tokenizer.ggml.pre", &pre, e);
    while (rc == 0 && i < N_SPLITS && strcmp(splits[i].name, pre) != 0)
        i++;
    for (size_t k = 0; k < N_SPLITS && at < sizeof known; k++)
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s",
                               k == 0             ? ""
                               : k + 1 < N_SPLITS ? ", "
                                                  : " or ",
                               splits[k].name);
    if (rc == 0 && i == N_SPLITS)
        rc = err_set(e, ERR_UNSUPPORTED, "%s: tokenizer.ggml.pre is %s, expected %s", path_of(g), pre, known);
    /* Gemma 4's merges also come with the model gpt2. */
    *out = rc == 0 && splits[i].patterns[0] ? &splits[i] : NULL;
    free(pre);
    return rc;
}

static int get_bool(const struct gguf *g, const char *key, bool missing, bool *out, struct moeflux_err *e)
{
    const struct gguf_value *v = gguf_find(g, key);
    uint64_t n = missing;
    if (v && !gguf_whole(v, &n))
        return err_set(e, ERR_FORMAT, "%s: key %s: expected a bool", path_of(g), key);
    *out = n != 0;
    return 0;
}

static int find_kind(const struct gguf *g, struct kind *k, struct moeflux_err *e)
{
    char *model = NULL;
    *k = (struct kind){0};
    int rc = get_text(g, "tokenizer.ggml.model", &model, e);
    bool is_llama = rc == 0 && !strcmp(model, "llama"), is_gemma = rc == 0 && !strcmp(model, "gemma4");
    if (rc == 0 && !is_llama && !is_gemma && strcmp(model, "gpt2") != 0)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "%s: tokenizer.ggml.model is %s, expected gpt2 (byte-level BPE), llama or gemma4 "
                     "(SentencePiece's BPE)",
                     path_of(g), model);
    if (rc == 0 && !is_llama && !is_gemma)
        rc = find_split(g, &k->split, e);
    k->has_scores = is_llama;
    k->adds_bos = !k->split || k->split->adds_bos;
    k->is_gemma = !k->split && !is_llama;
    free(model);
    return rc || k->split ? rc
                          : get_bool(g, "tokenizer.ggml.add_space_prefix", is_llama, &k->space_prefix, e);
}

/* --- JSON --- */

/* Adds a text in quotes. Returns false if it is not UTF-8. */
static bool add_quoted(struct str *out, const char *text, size_t n)
{
    if (!utf8_is_valid(text, n))
        return false;
    str_add_text(out, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            str_add_text(out, "\\");
        if (c < 0x20)
            str_addf(out, "\\u%04x", (unsigned)c);
        else
            str_add(out, text + i, 1);
    }
    str_add_text(out, "\"");
    return true;
}

static void add_split(struct str *out, const struct split *s)
{
    static const char bytes[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                                "false, \"use_regex\": false}";
    str_addf(out, " \"normalizer\": %s,\n", s->nfc ? "{\"type\": \"NFC\"}" : "null");
    str_add_text(out, " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n");
    for (int i = 0; i < MAX_PATTERNS && s->patterns[i]; i++) {
        str_add_text(out, "  {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        add_quoted(out, s->patterns[i], strlen(s->patterns[i]));
        str_add_text(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n");
    }
    str_addf(out, "  %s]},\n \"post_processor\": null,\n \"decoder\": %s,\n", bytes, bytes);
}

/* Adds what SentencePiece does: spaces become U+2581, and nothing is split. */
static void add_pieces(struct str *out, bool space_prefix)
{
    static const char mark[] =
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" VOCAB_SPACE "\"}",
                      unmark[] = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" VOCAB_SPACE
                                 "\"}, \"content\": \" \"}";
    str_addf(out, " \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s%s]},\n",
             space_prefix ? "{\"type\": \"Prepend\", \"prepend\": \"" VOCAB_SPACE "\"}, " : "", mark);
    str_addf(out,
             " \"pre_tokenizer\": null,\n \"post_processor\": null,\n \"decoder\": {\"type\": \"Sequence\", "
             "\"decoders\": [%s, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}%s]},\n",
             unmark,
             space_prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}" : "");
}

/* --- the lists --- */

enum { N_CONTROLS = 4 };
static const char *const control_keys[N_CONTROLS] = {
    "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id"};

struct lists {
    const struct gguf *g;
    const struct gguf_value *tokens, *merges;
    uint32_t *types; /* NULL: all are normal */
    /* ids that keys of the file give control tokens; UINT64_MAX: the file has no such key */
    uint64_t controls[N_CONTROLS];
};

static int find_lists(struct lists *l, const struct gguf *g, bool has_scores, struct moeflux_err *e)
{
    const struct gguf_value *types = gguf_find(g, "tokenizer.ggml.token_type");
    *l = (struct lists){.g = g,
                        .tokens = gguf_find(g, "tokenizer.ggml.tokens"),
                        .merges = gguf_find(g, "tokenizer.ggml.merges")};
    if (!l->tokens || (!l->merges && !has_scores))
        return err_set(e, ERR_FORMAT, "%s: key tokenizer.ggml.%s is missing", path_of(g),
                       l->tokens ? "merges" : "tokens");
    for (int i = 0; i < N_CONTROLS; i++)
        if (!gguf_whole(gguf_find(g, control_keys[i]), &l->controls[i]))
            l->controls[i] = UINT64_MAX;
    if (!types)
        return 0;
    if (types->n != l->tokens->n)
        return err_set(e, ERR_FORMAT, "%s: %" PRIu64 " types of %" PRIu64 " tokens", path_of(g), types->n,
                       l->tokens->n);
    return gguf_u32_list(g, types, &l->types, e);
}

/* Returns whether the text has the form of a control token: <|...|>, or with fullwidth bars. */
static bool looks_like_control(const struct str *text)
{
    static const char *const forms[][2] = {{"<|", "|>"}, {"<\uff5c", "\uff5c>"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t a = strlen(forms[i][0]), b = strlen(forms[i][1]);
        if (text->len > a + b && !memcmp(text->data, forms[i][0], a) &&
            !memcmp(text->data + text->len - b, forms[i][1], b))
            return true;
    }
    return false;
}

/* Some files mark control tokens as normal ones, whose text a user could write. llama.cpp corrects these,
 * too. */
static uint32_t type_of(const struct lists *l, uint64_t id, const struct str *text)
{
    uint32_t type = l->types ? l->types[id] : TOKEN_NORMAL;
    bool is_named = false;
    for (int i = 0; i < N_CONTROLS; i++)
        is_named = is_named || l->controls[i] == id;
    return type == TOKEN_NORMAL && (is_named || looks_like_control(text)) ? TOKEN_CONTROL : type;
}

static bool is_added(uint32_t type)
{
    return type == TOKEN_CONTROL || type == TOKEN_USER || type == TOKEN_UNKNOWN;
}

static int fail_utf8(const struct lists *l, const char *what, uint64_t i, const struct str *text,
                     struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.%s[%" PRIu64 "]: %s is not UTF-8", path_of(l->g), what,
                   i, quote_bytes(text->data, text->len).text);
}

static int check_size(const struct lists *l, const struct str *out, struct moeflux_err *e)
{
    if (out->len <= MAX_FILE)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: a tokenizer of more than %zu bytes", path_of(l->g), MAX_FILE);
}

/* Adds the tokens that are "added" ones, or the others. */
static int add_tokens(const struct lists *l, bool added, struct str *out, struct moeflux_err *e)
{
    struct gguf_texts t;
    struct str text = {0};
    bool first = true;
    int rc = gguf_texts_open(&t, l->g, l->tokens, e);
    for (uint64_t id = 0; rc == 0 && (rc = gguf_texts_next(&t, &text, e)) > 0; id++) {
        uint32_t type = type_of(l, id, &text);
        rc = 0;
        if (type == TOKEN_UNUSED || is_added(type) != added)
            continue;
        rc = check_size(l, out, e);
        str_add_text(out, first ? "\n  " : ",\n  ");
        first = false;
        if (added)
            str_addf(out, "{\"id\": %" PRIu64 ", \"content\": ", id);
        if (rc == 0 && !add_quoted(out, str_text(&text), text.len))
            rc = fail_utf8(l, "tokens", id, &text, e);
        if (added)
            str_addf(out,
                     ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                     "\"special\": %s}",
                     type == TOKEN_USER ? "false" : "true");
        else
            str_addf(out, ": %" PRIu64, id);
    }
    gguf_texts_close(&t);
    str_free(&text);
    return rc;
}

static int add_merges(const struct lists *l, struct str *out, struct moeflux_err *e)
{
    struct gguf_texts t;
    struct str text = {0};
    int rc = gguf_texts_open(&t, l->g, l->merges, e);
    for (uint64_t i = 0; rc == 0 && (rc = gguf_texts_next(&t, &text, e)) > 0; i++) {
        str_add_text(out, i ? ",\n  " : "\n  ");
        rc = check_size(l, out, e);
        if (rc == 0 && !add_quoted(out, str_text(&text), text.len))
            rc = fail_utf8(l, "merges", i, &text, e);
    }
    gguf_texts_close(&t);
    str_free(&text);
    return rc;
}

/* Adds a token's text as the file writes it. */
static bool add_piece(struct str *out, const struct vocab *v, int32_t id, struct str *scratch)
{
    const char *at = v->bytes.data + v->tokens[id].off;
    str_clear(scratch);
    for (size_t i = 0; i < v->tokens[id].len; i++)
        str_add(scratch, at[i] == ' ' ? VOCAB_SPACE : at + i, at[i] == ' ' ? strlen(VOCAB_SPACE) : 1);
    return add_quoted(out, str_text(scratch), scratch->len);
}

static int add_scored_merges(const struct lists *l, struct str *out, struct moeflux_err *e)
{
    struct gguf_merges m = {0};
    struct moeflux_err fault = {0};
    struct str text = {0};
    int rc = gguf_merges_make(&m, l->g, l->types, &fault);
    if (rc < 0)
        rc = err_set(e, fault.code, "%s: %s", path_of(l->g), fault.text);
    for (size_t i = 0; rc == 0 && i < m.n; i++) {
        rc = check_size(l, out, e);
        str_add_text(out, i ? ",\n  [" : "\n  [");
        bool good = add_piece(out, &m.vocab, m.list[i].left, &text);
        str_add_text(out, ", ");
        if (rc == 0 && (!add_piece(out, &m.vocab, m.list[i].right, &text) || !good))
            rc = fail_utf8(l, "tokens", (uint64_t)m.list[i].right, &text, e);
        str_add_text(out, "]");
    }
    gguf_merges_free(&m);
    str_free(&text);
    return rc;
}

static int check_str(const struct str *s, int rc, struct moeflux_err *e)
{
    return rc == 0 && !str_ok(s) ? err_set(e, ERR_MEMORY, "out of memory for a tokenizer") : rc;
}

int gguf_vocab_tokenizer(const struct gguf *g, struct str *out, struct moeflux_err *e)
{
    struct kind kind;
    struct lists l = {0};
    int rc = find_kind(g, &kind, e);
    if (rc == 0)
        rc = find_lists(&l, g, kind.has_scores, e);
    if (rc == 0) {
        str_add_text(out, "{\n \"version\": \"1.0\",\n \"added_tokens\": [");
        rc = add_tokens(&l, true, out, e);
    }
    if (rc == 0) {
        str_add_text(out, "],\n");
        if (kind.split)
            add_split(out, kind.split);
        else
            add_pieces(out, kind.space_prefix);
        str_addf(out,
                 " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"byte_fallback\": "
                 "%s, \"ignore_merges\": %s,\n \"vocab\": {",
                 kind.split ? "false" : "true", kind.split && kind.split->whole ? "true" : "false");
        rc = add_tokens(&l, false, out, e);
    }
    if (rc == 0) {
        str_add_text(out, "},\n \"merges\": [");
        rc = kind.has_scores ? add_scored_merges(&l, out, e) : add_merges(&l, out, e);
    }
    str_add_text(out, "]}\n}\n");
    free(l.types);
    return check_str(out, rc, e);
}

/* --- tokenizer_config.json --- */

/* Reads the text of token `id`. Returns 1; 0: there is no such token. */
static int find_token(const struct gguf *g, uint64_t id, struct str *text, struct moeflux_err *e)
{
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    struct gguf_texts t;
    if (!tokens || id >= tokens->n)
        return 0;
    int rc = gguf_texts_open(&t, g, tokens, e);
    if (rc == 0)
        rc = 1;
    for (uint64_t i = 0; rc > 0 && i <= id; i++)
        rc = gguf_texts_next(&t, text, e);
    gguf_texts_close(&t);
    return rc;
}

int gguf_vocab_config(const struct gguf *g, struct str *out, struct moeflux_err *e)
{
    static const char *const names[] = {"bos", "eos"};
    uint64_t id;
    bool adds = false;
    struct str text = {0};
    struct kind kind;
    int rc = find_kind(g, &kind, e);
    if (rc == 0)
        rc = get_bool(g, "tokenizer.ggml.add_bos_token",
                      kind.adds_bos && gguf_find(g, "tokenizer.ggml.bos_token_id"), &adds, e);
    /* Files of Gemma 4 were published with false, but the model answers nonsense without its BOS. */
    if (kind.is_gemma && gguf_find(g, "tokenizer.ggml.bos_token_id"))
        adds = true;
    if (rc < 0)
        return rc;
    str_addf(out, "{\n \"add_bos_token\": %s", adds ? "true" : "false");
    for (size_t i = 0; i < 2 && rc == 0; i++) {
        char key[48];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[i]);
        if (!gguf_whole(gguf_find(g, key), &id))
            continue;
        rc = find_token(g, id, &text, e);
        if (rc <= 0)
            continue;
        str_addf(out, ",\n \"%s_token\": ", names[i]);
        rc = add_quoted(out, str_text(&text), text.len)
                 ? 0
                 : err_set(e, ERR_FORMAT, "%s: %s: its token is not UTF-8", path_of(g), key);
    }
    str_add_text(out, "\n}\n");
    str_free(&text);
    return check_str(out, rc, e);
}

int gguf_vocab_template(const struct gguf *g, struct str *out, struct moeflux_err *e)
{
    const struct gguf_value *v = gguf_find(g, "tokenizer.chat_template");
    char *text = NULL;
    int rc = v ? gguf_text(g, v, MAX_TEMPLATE, &text, e) : 0;
    if (text)
        str_add_text(out, text);
    free(text);
    return check_str(out, rc, e);
}
