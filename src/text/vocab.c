#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/quote.h"

/* The byte that the character `cp` of the byte alphabet stands for, or -1. Printable Latin-1 stands for itself;
 * the other 68 bytes follow in order from U+0100: 00..20, 7F..A0, AD. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xff && cp != 0xad))
        return (int)cp;
    if (cp < 0x100 || cp > 0x143)
        return -1;
    uint32_t n = cp - 0x100;
    if (n <= 0x20)
        return (int)n;
    return n <= 66 ? (int)(0x7f + n - 33) : 0xad;
}

/* Appends what `text` (valid UTF-8) stands for; false when that is its own UTF-8. */
static bool add_bytes(const char *text, size_t len, struct str *out)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t start = out->len;
    for (size_t i = 0; i < len; i++) {
        uint32_t cp = p[i];
        /* Nothing past two bytes of UTF-8 is in the alphabet: a longer lead gives a cp out of its range. */
        if (cp >= 0xc0 && cp <= 0xdf && i + 1 < len)
            cp = (cp & 0x1f) << 6 | (p[++i] & 0x3f);
        else if (cp >= 0x80)
            cp = UINT32_MAX;
        int byte = byte_of(cp);
        if (byte < 0) {
            if (out->len > start)
                out->len = start;
            str_add(out, text, len);
            return false;
        }
        char c = (char)byte;
        str_add(out, &c, 1);
    }
    return true;
}

static size_t slot_of(const struct vocab *v, const char *bytes, size_t len, bool is_bytes)
{
    return XXH3_64bits_withSeed(bytes, len, is_bytes) & v->mask;
}

int vocab_init(struct vocab *v, int32_t n_ids, size_t n_tokens, struct err *e)
{
    size_t n_slots = 16;
    while (n_slots / 2 < n_tokens)
        n_slots *= 2;
    v->n_ids = n_ids;
    v->mask = n_slots - 1;
    v->tokens = mem_new((uint64_t)n_ids, sizeof *v->tokens, e);
    v->table = mem_new(n_slots, sizeof *v->table, e);
    return v->tokens && v->table ? 0 : ERR_MEMORY;
}

void vocab_free(struct vocab *v)
{
    free(v->tokens);
    free(v->table);
    str_free(&v->bytes);
}

int vocab_add(struct vocab *v, int32_t id, const char *text, size_t len, bool findable, struct err *e)
{
    struct vocab_token *t = &v->tokens[id];
    if (t->present)
        return err_set(e, ERR_FORMAT, "id %d is given twice, to %s and to %s", id,
                       quote_bytes(v->bytes.data + t->off, t->len).text, quote_bytes(text, len).text);
    size_t off = v->bytes.len;
    t->is_bytes = add_bytes(text, len, &v->bytes);
    /* A NUL between tokens keeps each a C string for debuggers, and data non-NULL for an empty first one. */
    str_add(&v->bytes, "", 1);
    if (!str_ok(&v->bytes) || v->bytes.len > UINT32_MAX)
        return err_set(e, ERR_MEMORY, "out of memory for the bytes of %d tokens", v->n_ids);
    t->present = true;
    t->off = (uint32_t)off;
    t->len = (uint32_t)(v->bytes.len - 1 - off);
    if (!findable)
        return 0;
    size_t slot = slot_of(v, v->bytes.data + off, t->len, t->is_bytes);
    while (v->table[slot])
        slot = (slot + 1) & v->mask;
    v->table[slot] = (uint32_t)id + 1;
    return 0;
}

static int32_t find(const struct vocab *v, const char *bytes, size_t len, bool is_bytes)
{
    for (size_t slot = slot_of(v, bytes, len, is_bytes); v->table[slot]; slot = (slot + 1) & v->mask) {
        int32_t id = (int32_t)(v->table[slot] - 1);
        const struct vocab_token *t = &v->tokens[id];
        if (t->len == len && t->is_bytes == is_bytes && memcmp(v->bytes.data + t->off, bytes, len) == 0)
            return id;
    }
    return -1;
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len, struct str *scratch)
{
    str_clear(scratch);
    bool is_bytes = add_bytes(text, len, scratch);
    return str_ok(scratch) ? find(v, str_text(scratch), scratch->len, is_bytes) : -1;
}

int32_t vocab_find_bytes(const struct vocab *v, const char *bytes, size_t len)
{
    return find(v, bytes, len, true);
}
