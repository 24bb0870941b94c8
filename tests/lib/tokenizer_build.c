#include "tokenizer_build.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "text/tokenizer/tokenizer.h"

static void add_visible(struct str *out, unsigned byte)
{
    unsigned cp = byte;
    bool visible = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    if (!visible)
        cp = byte <= 0x20 ? 0x100 + byte : byte == 0xad ? 0x143 : 0x121 + byte - 0x7f;
    if (cp < 0x80)
        str_addf(out, "%c", (int)cp);
    else
        str_addf(out, "%c%c", (int)(0xc0 | cp >> 6), (int)(0x80 | (cp & 0x3f)));
}

static struct str visible(const char *text, size_t len)
{
    struct str out = {0};
    for (size_t i = 0; i < len; i++)
        add_visible(&out, (unsigned char)text[i]);
    return out;
}

static json_t *model(json_t *root, const char *key)
{
    return json_object_get(json_object_get(root, "model"), key);
}

void tokenizer_build_token(json_t *root, const char *text, size_t len, int32_t id)
{
    struct str name = visible(text, len);
    int rc = json_object_set_new(model(root, "vocab"), str_text(&name), json_integer(id));
    assert(rc == 0);
    (void)rc;
    str_free(&name);
}

void tokenizer_build_merge(json_t *root, const char *left, const char *right)
{
    struct str a = visible(left, strlen(left)), b = visible(right, strlen(right));
    json_array_append_new(model(root, "merges"), json_pack("[ss]", str_text(&a), str_text(&b)));
    str_free(&a);
    str_free(&b);
}

void tokenizer_build_added(json_t *root, const char *content, int32_t id, bool normalised, bool special)
{
    json_t *token = json_pack("{si ss sb sb sb sb sb}", "id", id, "content", content, "single_word", 0,
                              "lstrip", 0, "rstrip", 0, "normalized", normalised, "special", special);
    json_array_append_new(json_object_get(root, "added_tokens"), token);
}

void tokenizer_build_splits(json_t *root, const json_t *patterns)
{
    json_t *steps = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    size_t i;
    json_t *pattern;
    while (json_array_size(steps) > 1)
        json_array_remove(steps, 0);
    json_array_foreach(patterns, i, pattern)
    {
        json_t *step = json_pack("{ss s{sO} ss sb}", "type", "Split", "pattern", "Regex", pattern, "behavior",
                                 "Isolated", "invert", 0);
        json_array_insert_new(steps, i, step);
    }
}

json_t *tokenizer_build(void)
{
    json_t *level = json_pack("{ss sb sb}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    json_t *steps = json_pack("{ss s[o]}", "type", "Sequence", "pretokenizers", level);
    json_t *bpe = json_pack("{ss sn sb sb s{} s[]}", "type", "BPE", "dropout", "byte_fallback", 0,
                            "ignore_merges", 0, "vocab", "merges");
    json_t *root = json_pack("{s[] s{ss} so so}", "added_tokens", "normalizer", "type", "NFC",
                             "pre_tokenizer", steps, "model", bpe);
    assert(root);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        tokenizer_build_token(root, &byte, 1, b);
    }
    tokenizer_build_token(root, "ab", 2, 256);
    tokenizer_build_token(root, "abc", 3, 257);
    tokenizer_build_merge(root, "a", "b");
    tokenizer_build_merge(root, "ab", "c");
    tokenizer_build_added(root, "<end>", 258, false, true);
    json_t *patterns = json_pack("[s]", "\\s+|\\S+");
    tokenizer_build_splits(root, patterns);
    json_decref(patterns);
    return root;
}

/* Uses an anonymous file: nothing remains on disk, even if the test crashes. */
struct tokenizer *tokenizer_build_open_text(const char *text, size_t len, struct moeflux_err *e)
{
    char path[64];
    int fd = memfd_create("tokenizer.json", MFD_CLOEXEC);
    if (fd < 0) {
        err_errno(e, ERR_IO, "memfd_create");
        return NULL;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct tokenizer *t = NULL;
    if (file_write(fd, path, text, len, e) == 0)
        t = tokenizer_open(path, e);
    close(fd);
    return t;
}

struct tokenizer *tokenizer_build_open(json_t *root, struct moeflux_err *e)
{
    char *text = json_dumps(root, JSON_COMPACT);
    assert(text);
    json_decref(root);
    struct tokenizer *t = tokenizer_build_open_text(text, strlen(text), e);
    free(text);
    return t;
}
