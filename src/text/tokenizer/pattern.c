#include "text/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/quote.h"
#include "base/str.h"
#include "text/tokenizer/newer_unicode.h"

#define SPACES                                                                                               \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
/* The complement of SPACES, for \S inside a set. */
#define NOT_SPACES                                                                                           \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"          \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

/* The callouts PATTERN_START and PATTERN_MARK. */
static const char START[] = "(?C1)", MARK[] = "(?C2)";

enum { MAX_DEPTH = 250 }; /* nested groups; PCRE2's own limit */
#define NO_ITEM SIZE_MAX

struct translation {
    const char *p;
    size_t len, at;
    bool in_set;
    struct str *out;
    /* offset in `out` of the last character, set or group, which a quantifier would repeat; or NO_ITEM */
    size_t item;
    size_t after_mark;      /* offset in `out` of the last mark's end */
    size_t open[MAX_DEPTH]; /* offsets in `out` of the open groups */
    size_t depth;
    struct moeflux_err *e;
};

static int refuse(const struct translation *t, const char *why)
{
    return err_set(t->e, ERR_UNSUPPORTED, "pattern %s: %s at character %zu", quote_bytes(t->p, t->len).text,
                   why, t->at);
}

static bool looking_at(const struct translation *t, const char *text)
{
    size_t n = strlen(text);
    return t->len - t->at >= n && memcmp(t->p + t->at, text, n) == 0;
}

static void mark(struct translation *t)
{
    if (t->out->len != t->after_mark)
        str_add_text(t->out, MARK);
    t->after_mark = t->out->len;
}

/* Inserts a mark before the last item. */
static void mark_item(struct translation *t)
{
    size_t n = t->out->len - t->item;
    if (t->item == t->after_mark)
        return;
    str_add_text(t->out, MARK);
    if (!str_ok(t->out))
        return;
    memmove(t->out->data + t->item + strlen(MARK), t->out->data + t->item, n);
    memcpy(t->out->data + t->item, MARK, strlen(MARK));
}

/* Copies n bytes as they are. */
static void keep(struct translation *t, size_t n)
{
    str_add(t->out, t->p + t->at, n);
    t->at += n;
}

static bool is_script(const char *name, size_t len)
{
    char pattern[32];
    int code, n = snprintf(pattern, sizeof pattern, "\\p{sc:%.*s}", (int)len, name);
    PCRE2_SIZE at;
    if (n < 0 || (size_t)n >= sizeof pattern)
        return false;
    pcre2_code *script = pcre2_compile((PCRE2_SPTR)pattern, (PCRE2_SIZE)n, PCRE2_UTF, &code, &at, NULL);
    pcre2_code_free(script);
    return script != NULL;
}

/* Writes \p{name} or \P{name}. PCRE2 means a script's extensions by its name, Oniguruma the script. A set's
 * members cannot express the complement of several ranges; there \P{..} has PCRE2's characters. */
static void add_property(struct translation *t, bool negated, const char *name, size_t len)
{
    struct str newer = {0};
    newer_unicode_add(name, len, &newer);
    bool is_set = newer.len > 0 && !t->in_set;
    if (is_set)
        str_add_text(t->out, negated ? "[^" : "[");
    str_addf(t->out, "\\%c{%s%.*s}", negated && !is_set ? 'P' : 'p', is_script(name, len) ? "sc:" : "",
             (int)len, name);
    if (!negated || is_set)
        str_add(t->out, str_text(&newer), newer.len);
    if (is_set)
        str_add_text(t->out, "]");
    str_free(&newer);
}

/* Takes \p{..}, \P{..} or \x{..} whole: their braces are not a quantifier. */
static int take_braced_escape(struct translation *t)
{
    if (t->at + 2 >= t->len || t->p[t->at + 2] != '{')
        return refuse(t, "an escape that needs {braces}");
    const char *close = memchr(t->p + t->at, '}', t->len - t->at);
    if (!close)
        return refuse(t, "an escape without its closing brace");
    const char *name = t->p + t->at + 3;
    size_t len = (size_t)(close - name);
    if (t->p[t->at + 1] == 'x') {
        keep(t, len + 4);
        return 0;
    }
    add_property(t, t->p[t->at + 1] == 'P', name, len);
    t->at += len + 4;
    return 0;
}

static int translate_escape(struct translation *t)
{
    if (t->at + 1 >= t->len)
        return refuse(t, "a lone backslash");
    char c = t->p[t->at + 1];
    if (c == 's' || c == 'S') {
        const char *open = t->in_set ? "" : c == 's' ? "[" : "[^";
        str_add_text(t->out, open);
        str_add_text(t->out, c == 'S' && t->in_set ? NOT_SPACES : SPACES);
        str_add_text(t->out, t->in_set ? "" : "]");
        t->at += 2;
        return 0;
    }
    if (c == 'p' || c == 'P' || c == 'x')
        return take_braced_escape(t);
    if (c == 'd' || c == 'D') {
        add_property(t, c == 'D', "Nd", 2);
        t->at += 2;
        return 0;
    }
    bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_word && !strchr("rntf", c))
        return refuse(t, "an escape whose meaning differs between regular expression engines");
    keep(t, 2);
    return 0;
}

/* Translates one character or escape inside [...]. */
static int translate_set(struct translation *t)
{
    char c = t->p[t->at];
    if (c == '\\')
        return translate_escape(t);
    if (c == '[')
        return refuse(t, "a set inside a set");
    if (looking_at(t, "&&"))
        return refuse(t, "an intersection of sets");
    t->in_set = c != ']';
    keep(t, 1);
    return 0;
}

static int open_set(struct translation *t)
{
    t->item = t->out->len;
    keep(t, looking_at(t, "[^") ? 2 : 1);
    if (looking_at(t, "]"))
        return refuse(t, "an empty set");
    t->in_set = true;
    return 0;
}

static int push_group(struct translation *t)
{
    if (t->depth == MAX_DEPTH)
        return refuse(t, "groups nested too deep");
    t->open[t->depth++] = t->out->len;
    t->item = NO_ITEM;
    return 0;
}

static int open_group(struct translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    static const char fold[] = "(?i)";
    if (looking_at(t, "(*"))
        return refuse(t, "a backtracking verb");
    if (looking_at(t, fold)) {
        t->item = NO_ITEM;
        keep(t, strlen(fold));
        return 0;
    }
    size_t n = looking_at(t, "(?") ? 0 : 1;
    for (size_t i = 0; n == 0 && i < sizeof kinds / sizeof *kinds; i++)
        n = looking_at(t, kinds[i]) ? strlen(kinds[i]) : 0;
    if (n == 0)
        return refuse(t, "an unknown kind of group");
    int rc = push_group(t);
    if (rc == 0)
        keep(t, n);
    return rc;
}

static bool at_quantifier(const struct translation *t)
{
    return t->at < t->len && memchr("*+?{", t->p[t->at], 4);
}

static int close_group(struct translation *t)
{
    t->item = t->depth ? t->open[--t->depth] : NO_ITEM;
    keep(t, 1);
    if (!at_quantifier(t))
        mark(t);
    return 0;
}

/* Copies the n bytes of a quantifier. */
static int keep_quantifier(struct translation *t, size_t n, bool unlimited)
{
    /* PCRE2 refuses a quantifier that has nothing to repeat. */
    if (t->item != NO_ITEM && unlimited)
        mark_item(t);
    keep(t, n);
    mark(t);
    t->item = NO_ITEM;
    return 0;
}

static int translate_star(struct translation *t)
{
    bool has_kind = t->at + 1 < t->len && (t->p[t->at + 1] == '+' || t->p[t->at + 1] == '?');
    return keep_quantifier(t, has_kind ? 2 : 1, t->p[t->at] != '?');
}

/* Takes the digits at *at, if any. Returns false if their value is over PATTERN_MAX_COUNT. */
static bool take_count(const struct translation *t, size_t *at)
{
    unsigned n = 0;
    for (; *at < t->len && t->p[*at] >= '0' && t->p[*at] <= '9'; ++*at)
        if ((n = n * 10 + (unsigned)(t->p[*at] - '0')) > PATTERN_MAX_COUNT)
            return false;
    return true;
}

/* Translates {n}, {n,} and {n,m}. Anything else in braces is text in one engine and a quantifier in the
 * other. {n}? is refused: it is optional in one engine and means {n} in the other. */
static int translate_braces(struct translation *t)
{
    size_t start = t->at + 1, i = start, most;
    bool small = take_count(t, &i), is_range = i < t->len && t->p[i] == ',';
    if (small && i == start)
        return refuse(t, "an unescaped brace");
    most = i + is_range;
    i = most;
    if (small && is_range)
        small = take_count(t, &i);
    if (!small)
        return refuse(t, "a count over 1000");
    if (i >= t->len || t->p[i] != '}')
        return refuse(t, "an unescaped brace");
    bool lazy = i + 1 < t->len && t->p[i + 1] == '?';
    if ((i + 1 < t->len && t->p[i + 1] == '+') || (lazy && !is_range))
        return refuse(t, "a quantifier of a quantifier");
    return keep_quantifier(t, i + 1 + lazy - t->at, is_range && i == most);
}

/* Copies one byte. A character of several bytes is one item, which begins at its first. */
static void keep_character(struct translation *t)
{
    if (((uint8_t)t->p[t->at] & 0xc0) != 0x80)
        t->item = t->p[t->at] == '|' ? NO_ITEM : t->out->len;
    keep(t, 1);
}

static int translate_outside(struct translation *t)
{
    switch (t->p[t->at]) {
    case '\\':
        t->item = t->out->len;
        return translate_escape(t);
    case '[':
        return open_set(t);
    case '(':
        return open_group(t);
    case ')':
        return close_group(t);
    case '{':
        return translate_braces(t);
    case '*':
    case '+':
    case '?':
        return translate_star(t);
    default:
        keep_character(t);
        return 0;
    }
}

static int end(const struct str *out, size_t len, struct moeflux_err *e)
{
    return str_ok(out) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a pattern of %zu bytes", len);
}

int pattern_translate(const char *pattern, size_t len, struct str *out, struct moeflux_err *e)
{
    struct translation t = {
        .p = pattern, .len = len, .out = out, .item = NO_ITEM, .after_mark = NO_ITEM, .e = e};
    str_add_text(out, START);
    while (t.at < len) {
        int rc = t.in_set ? translate_set(&t) : translate_outside(&t);
        if (rc < 0)
            return rc;
    }
    return end(out, len, e);
}

int pattern_quote(const char *text, size_t len, struct str *out, struct moeflux_err *e)
{
    str_add_text(out, START);
    for (size_t i = 0; i < len; i++) {
        /* A backslash before a letter or digit may have a meaning; before anything else it has none. */
        if ((uint8_t)text[i] < 0x80 && !isalnum((unsigned char)text[i]))
            str_add_text(out, "\\");
        str_add(out, text + i, 1);
    }
    return end(out, len, e);
}
