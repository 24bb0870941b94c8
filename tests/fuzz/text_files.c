/* The tokenizer's file and its patterns. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz/target.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/work_limit.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"
#include "tmp_tree.h"

/* Whatever the file says, a tokenizer that opened encodes or refuses, and decodes every id it gave. */
static void use_tokenizer(const struct tokenizer *t)
{
    static const char text[] = "abcab <end> 12 e\xcc\x81\xff\n\n  \xe4\xb8\xad!";
    for (int specials = 0; specials < 2; specials++) {
        struct token_list ids = {0};
        struct moeflux_err e = {0};
        int rc = tokenizer_encode(t, text, sizeof text - 1, (enum token_specials)specials, &ids, NULL, &e);
        target_need(target_answered(rc, &e) ? ids.n > 0 : ids.n == 0, "ids that the result does not have");
        for (size_t i = 0; i < ids.n; i++) {
            const char *bytes;
            target_need(tokenizer_has(t, ids.ids[i]), "an id without a token");
            target_need(tokenizer_bytes(t, ids.ids[i], &bytes) <= 1 << 20, "a token without end");
        }
        token_list_free(&ids);
    }
    target_need(tokenizer_bos(t) < (int64_t)1 << 22, "a first token that cannot be");
    tokenizer_added_id(t, "<end>");
}

static void open_and_use(const char *path)
{
    struct moeflux_err e = {0};
    struct tokenizer *t = tokenizer_open(path, &e);
    if (t)
        use_tokenizer(t);
    else
        target_need(!target_answered((int)e.code, &e), "a failure without an error");
    tokenizer_free(t);
}

void target_tokenizer(const uint8_t *data, size_t n)
{
    open_and_use(target_file(data, n));
}

/* The input's file, which stays the same one, by the name that such vocabularies have. */
void target_tiktoken(const uint8_t *data, size_t n)
{
    static const char *path;
    const char *input = target_file(data, n);
    if (!path) {
        const char *dir = target_new_dir("tiktoken");
        tmp_tree_write_text(dir, "tokenizer_config.json",
                            "{\"tokenizer_class\": \"TikTokenTokenizer\", \"added_tokens_decoder\": "
                            "{\"100000\": {\"content\": \"<end>\", \"special\": true}}}");
        path = tmp_tree_path(dir, "tiktoken.model");
        target_need(symlink(input, path) == 0, "no link");
    }
    open_and_use(path);
}

enum { MOST_STEPS = 1 << 14 };

/* The pieces in a row are the text, except for what the split drops, and none is empty. */
struct pieces {
    const char *next;
    size_t left;
    bool drops;
};

static int take_piece(void *ctx, const char *bytes, size_t len, struct moeflux_err *e)
{
    struct pieces *p = ctx;
    (void)e;
    size_t dropped = bytes >= p->next ? (size_t)(bytes - p->next) : SIZE_MAX;
    target_need(len > 0 && dropped <= p->left && len <= p->left - dropped && (p->drops || dropped == 0),
                "a piece that is not the text's next");
    p->next += dropped + len;
    p->left -= dropped + len;
    return 0;
}

void target_pattern(const uint8_t *data, size_t n)
{
    struct pretokenizer p = {0};
    struct moeflux_err e = {0};
    struct str clean = {0}, text = {0};
    const uint8_t *end = n ? memchr(data, '\0', n) : NULL;
    size_t len = end ? (size_t)(end - data) : n, at = end ? len + 1 : n;
    utf8_clean((const char *)data + at, n - at, &clean);
    /* Short texts do not show what squares with their length. */
    for (int i = 0; i < 16; i++)
        str_add(&text, str_text(&clean), clean.len);
    bool literal = len > 0 && data[0] == '=';
    enum pretokenize_join join = (enum pretokenize_join)(len % PRETOKENIZE_N_JOINS);
    bool drops = join == PRETOKENIZE_DROP_MATCHES || join == PRETOKENIZE_DROP_GAPS;
    int rc = pretokenize_add(&p, (const char *)data, len, literal, join, &e);
    if (target_answered(rc, &e)) {
        struct pieces got = {text.data, text.len, drops};
        struct work_limit limit = work_limit_for(text.len, p.n_splits, NULL);
        /* Fewer, for more inputs a second. */
        limit.left = limit.left < MOST_STEPS ? limit.left : MOST_STEPS;
        rc = pretokenize_run(&p, str_text(&text), text.len, &limit,
                             (struct pretokenize_sink){take_piece, &got}, &e);
        target_need(!target_answered(rc, &e) || drops || got.left == 0, "pieces that are not the whole text");
    }
    pretokenize_free(&p);
    str_free(&clean);
    str_free(&text);
}
