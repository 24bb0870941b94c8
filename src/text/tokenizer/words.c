#include "text/tokenizer/words.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer/tokenizer.h"

/* STANDS_FOR_SPACE: a private character that becomes a space, as the published code has it. */
enum { MOST_DECOMPOSED = 32, REPLACEMENT = 0xfffd, STANDS_FOR_SPACE = 0xe000 };

static void add_character(struct str *out, int32_t cp)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char(cp, bytes);
    str_add(out, (const char *)bytes, (size_t)n);
}

/* Returns the next character of the text; -1: its bytes are not UTF-8. */
static int32_t next_character(const char *text, size_t len, size_t *at)
{
    utf8proc_int32_t cp;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)text + *at, (utf8proc_ssize_t)(len - *at), &cp);
    if (n <= 0)
        return -1;
    *at += (size_t)n;
    return cp;
}

/* Returns whether the bytes are UTF-8 without the replacement character. */
static bool is_text(const char *text, size_t len)
{
    int32_t cp = 0;
    for (size_t at = 0; at < len && cp >= 0 && cp != REPLACEMENT;)
        cp = next_character(text, len, &at);
    return cp >= 0 && cp != REPLACEMENT;
}

/* Writes bytes in the byte alphabet: those of visible characters stay, the others follow U+0100. */
static void write_bytes(const char *bytes, size_t len, struct str *out)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        bool is_visible = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        int32_t hidden = byte <= 0x20 ? byte : byte == 0xad ? 0x43 : byte - 0x7f + 0x21;
        add_character(out, is_visible ? byte : 0x100 + hidden);
    }
}

static bool is_space(int32_t cp)
{
    return cp == ' ' || cp == '\t' || cp == '\r' || cp == '\n';
}

static bool is_white(int32_t cp)
{
    return is_space(cp) || cp == 0xb || cp == 0xc || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}

static bool is_mark(int32_t cp)
{
    utf8proc_category_t category = utf8proc_category(cp);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

/* Characters of a text and the room that they take. */
struct letters {
    int32_t *of;
    size_t n, cap;
};

static int add_letter(struct letters *l, int32_t cp, struct moeflux_err *e)
{
    bool is_run = is_space(cp) && l->n > 0 && l->of[l->n - 1] == ' ';
    void *of = l->of;
    int rc = mem_grow(&of, &l->cap, l->n + 1, sizeof *l->of, e);
    l->of = of;
    if (rc == 0 && !is_run)
        l->of[l->n++] = is_space(cp) ? ' ' : cp;
    return rc;
}

/* Appends the decomposed characters of the text in lower case, without marks, runs of spaces as one. The
 * order of marks does not matter, since all are left out. */
static int add_letters(struct letters *l, const char *text, size_t len, struct moeflux_err *e)
{
    const utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    int rc = 0, bound = 0;
    for (size_t at = 0; rc == 0 && at < len;) {
        utf8proc_int32_t parts[MOST_DECOMPOSED];
        int32_t cp = next_character(text, len, &at);
        utf8proc_ssize_t n = utf8proc_decompose_char(cp, parts, MOST_DECOMPOSED, how, &bound);
        for (utf8proc_ssize_t i = 0; rc == 0 && i < n && i < MOST_DECOMPOSED; i++)
            if (!is_mark(parts[i]))
                rc = add_letter(l, utf8proc_tolower(parts[i]), e);
    }
    return rc;
}

/* Appends the word of a token to out. letters: room. */
static int add_word(const char *bytes, size_t len, struct letters *letters, struct str *out,
                    struct moeflux_err *e)
{
    if (!is_text(bytes, len)) {
        write_bytes(bytes, len, out);
        return 0;
    }
    letters->n = 0;
    int rc = add_letters(letters, bytes, len, e);
    size_t from = 0, to = letters->n;
    bool is_one_space = to == 1 && letters->of[0] == ' ';
    while (!is_one_space && from < to && is_white(letters->of[from]))
        from++;
    while (!is_one_space && to > from && is_white(letters->of[to - 1]))
        to--;
    for (size_t i = from; i < to; i++)
        add_character(out, letters->of[i] == STANDS_FOR_SPACE ? ' ' : letters->of[i]);
    if (from == to)
        str_add(out, bytes, len);
    return rc;
}

/* The words so far. */
struct lexicon {
    struct str bytes;
    size_t *ends;    /* [n]: where each word ends in `bytes` */
    uint32_t *table; /* [mask + 1]: word + 1, or 0 */
    size_t mask;
    uint32_t n;
};

static int open_lexicon(struct lexicon *x, uint32_t most, struct moeflux_err *e)
{
    x->mask = 1;
    while (x->mask < 2 * (size_t)most)
        x->mask = 2 * x->mask + 1;
    x->ends = mem_new(most, sizeof *x->ends, e);
    x->table = mem_new(x->mask + 1, sizeof *x->table, e);
    return x->ends && x->table ? 0 : ERR_MEMORY;
}

static void close_lexicon(struct lexicon *x)
{
    str_free(&x->bytes);
    free(x->ends);
    free(x->table);
}

static size_t start_of(const struct lexicon *x, uint32_t word)
{
    return word > 0 ? x->ends[word - 1] : 0;
}

/* Returns the word that lies at the end of x->bytes, which it drops if the word is there already. */
static uint32_t take_word(struct lexicon *x)
{
    size_t from = start_of(x, x->n), len = x->bytes.len - from;
    size_t slot = (size_t)XXH3_64bits(str_text(&x->bytes) + from, len) & x->mask;
    for (; x->table[slot]; slot = (slot + 1) & x->mask) {
        uint32_t word = x->table[slot] - 1;
        size_t at = start_of(x, word);
        if (x->ends[word] - at == len && !memcmp(x->bytes.data + at, x->bytes.data + from, len)) {
            x->bytes.len = from;
            return word;
        }
    }
    x->ends[x->n] = x->bytes.len;
    x->table[slot] = ++x->n;
    return x->n - 1;
}

int64_t words_of_tokens(const struct tokenizer *t, uint32_t n_ids, uint32_t *words, struct moeflux_err *e)
{
    struct lexicon all = {0};
    struct letters room = {0};
    int rc = open_lexicon(&all, n_ids, e);
    for (uint32_t i = 0; rc == 0 && i < n_ids; i++) {
        const char *bytes;
        size_t len = tokenizer_bytes(t, (int32_t)i, &bytes);
        words[i] = 0;
        if (!tokenizer_has(t, (int32_t)i))
            continue;
        rc = add_word(bytes, len, &room, &all.bytes, e);
        if (rc == 0 && !str_ok(&all.bytes))
            rc = err_set(e, ERR_MEMORY, "out of memory");
        if (rc == 0)
            words[i] = take_word(&all);
    }
    int64_t n = all.n;
    close_lexicon(&all);
    free(room.of);
    return rc < 0 ? rc : n;
}
