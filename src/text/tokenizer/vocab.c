#include "text/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"

/* Returns the byte that the character `cp` of the byte alphabet stands for, or -1. Printable Latin-1 stands
 * for itself; the other 68 bytes follow in order from U+0100: 00..20, 7F..A0, AD. */
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

/* Returns the character at text[*at] (valid UTF-8) and advances *at. The alphabet has no characters of more
 * than two bytes, so a longer one gives UINT32_MAX. */
static uint32_t next_character(const char *text, size_t len, size_t *at)
{
    uint8_t c = (uint8_t)text[(*at)++];
    if (c < 0x80)
        return c;
    if (c > 0xdf || *at == len)
        return UINT32_MAX;
    return (c & 0x1fu) << 6 | ((uint8_t)text[(*at)++] & 0x3fu);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Returns the byte that SentencePiece's token <0x0A> stands for; -1: another token. */
static int byte_token(const char *text, size_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Appends the bytes of SentencePiece's token. Returns whether it is the token of a byte. */
static bool add_piece(const char *text, size_t len, struct str *out)
{
    static const size_t n_space = sizeof VOCAB_SPACE - 1;
    int byte = byte_token(text, len);
    if (byte >= 0) {
        str_add(out, &(char){(char)byte}, 1);
        return true;
    }
    for (const char *end = text + len, *next; text < end; text = next) {
        const char *space = memmem(text, (size_t)(end - text), VOCAB_SPACE, n_space);
        next = space ? space + n_space : end;
        str_add(out, text, (size_t)((space ? space : end) - text));
        str_add(out, " ", space != NULL);
    }
    return false;
}

/* Appends the bytes that `text` (valid UTF-8) stands for. Returns false if they are its own UTF-8. */
static bool add_bytes(enum vocab_writing writing, const char *text, size_t len, struct str *out)
{
    if (writing == VOCAB_SENTENCEPIECE)
        return add_piece(text, len, out);
    size_t start = out->len, n = 0;
    char chunk[64];
    for (size_t at = 0; at < len;) {
        int byte = byte_of(next_character(text, len, &at));
        if (byte < 0) {
            out->len = start;
            str_add(out, text, len);
            return false;
        }
        chunk[n++] = (char)byte;
        if (n == sizeof chunk) {
            str_add(out, chunk, n);
            n = 0;
        }
    }
    str_add(out, chunk, n);
    return true;
}

int vocab_init(struct vocab *v, int32_t n_ids, size_t n_tokens, struct moeflux_err *e)
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

/* Returns the slot of the token that stands for these bytes, or the empty slot where it would go. */
static size_t find_slot(const struct vocab *v, const char *bytes, size_t len, bool is_bytes)
{
    size_t slot = XXH3_64bits_withSeed(bytes, len, is_bytes) & v->mask;
    for (; v->table[slot]; slot = (slot + 1) & v->mask) {
        const struct vocab_token *t = &v->tokens[v->table[slot] - 1];
        if (t->len == len && t->is_bytes == is_bytes && memcmp(v->bytes.data + t->off, bytes, len) == 0)
            break;
    }
    return slot;
}

static int32_t find(const struct vocab *v, const char *bytes, size_t len, bool is_bytes)
{
    return (int32_t)v->table[find_slot(v, bytes, len, is_bytes)] - 1;
}

/* Makes `id` findable. */
static int list_token(struct vocab *v, int32_t id, const char *text, size_t len, struct moeflux_err *e)
{
    const struct vocab_token *t = &v->tokens[id];
    uint32_t *entry = &v->table[find_slot(v, v->bytes.data + t->off, t->len, t->is_bytes)];
    if (*entry)
        return err_set(e, ERR_FORMAT, "%s is there twice, with ids %d and %d", quote_bytes(text, len).text,
                       (int)*entry - 1, id);
    *entry = (uint32_t)id + 1;
    return 0;
}

/* Gives `id` the bytes of v->bytes from `off` on. */
static int keep_token(struct vocab *v, int32_t id, size_t off, bool is_bytes, struct moeflux_err *e)
{
    /* A NUL between tokens keeps each a C string for debuggers, and data non-NULL for an empty first one. */
    str_add(&v->bytes, "", 1);
    if (!str_ok(&v->bytes) || v->bytes.len > UINT32_MAX)
        return err_set(e, ERR_MEMORY, "out of memory for the bytes of %d tokens", v->n_ids);
    v->tokens[id] = (struct vocab_token){.off = (uint32_t)off,
                                         .len = (uint32_t)(v->bytes.len - 1 - off),
                                         .present = true,
                                         .is_bytes = is_bytes};
    return 0;
}

static int check_free(const struct vocab *v, int32_t id, const char *text, size_t len, struct moeflux_err *e)
{
    const struct vocab_token *t = &v->tokens[id];
    if (!t->present)
        return 0;
    return err_set(e, ERR_FORMAT, "id %d is given twice, to %s and to %s", id,
                   quote_bytes(v->bytes.data + t->off, t->len).text, quote_bytes(text, len).text);
}

int vocab_add(struct vocab *v, int32_t id, const char *text, size_t len, bool findable, struct moeflux_err *e)
{
    size_t off = v->bytes.len;
    int rc = check_free(v, id, text, len, e);
    if (rc < 0)
        return rc;
    bool is_bytes = add_bytes(v->writing, text, len, &v->bytes);
    rc = keep_token(v, id, off, is_bytes, e);
    return rc < 0 || !findable ? rc : list_token(v, id, text, len, e);
}

int vocab_add_bytes(struct vocab *v, int32_t id, const char *bytes, size_t len, struct moeflux_err *e)
{
    size_t off = v->bytes.len;
    int rc = check_free(v, id, bytes, len, e);
    if (rc < 0)
        return rc;
    str_add(&v->bytes, bytes, len);
    rc = keep_token(v, id, off, true, e);
    return rc < 0 ? rc : list_token(v, id, bytes, len, e);
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len, struct str *scratch)
{
    str_clear(scratch);
    bool is_bytes = add_bytes(v->writing, text, len, scratch);
    return str_ok(scratch) ? find(v, str_text(scratch), scratch->len, is_bytes) : -1;
}

int32_t vocab_find_bytes(const struct vocab *v, const char *bytes, size_t len)
{
    return find(v, bytes, len, true);
}

int32_t vocab_find_text(const struct vocab *v, const char *bytes, size_t len)
{
    return find(v, bytes, len, false);
}
