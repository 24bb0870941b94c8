#include "text/jinja/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/err.h"
#include "text/jinja/jinja.h"

const char jinja_context_authors[1] = {JINJA_CONTEXT};

static char author_at(struct jinja_text t, size_t i)
{
    if (!t.authors)
        return JINJA_TEMPLATE;
    return (char)(t.authors == jinja_context_authors ? JINJA_CONTEXT : t.authors[i]);
}

/* --- building --- */

struct jinja_build jinja_build(struct jinja_state *s)
{
    return (struct jinja_build){.s = s};
}

static void grow(struct jinja_build *b, size_t n)
{
    jinja_count(b->s, n / 64);
    if (n <= b->cap - b->len)
        return;
    size_t cap = b->cap ? b->cap * 2 : n < 64 ? 64 : n;
    while (cap - b->len < n)
        cap *= 2;
    char *bytes = jinja_alloc(b->s, cap, 2);
    if (b->bytes) {
        memcpy(bytes, b->bytes, b->len);
        memcpy(bytes + cap, b->authors, b->len);
    }
    b->bytes = bytes;
    b->authors = bytes + cap;
    b->cap = cap;
}

static void add(struct jinja_build *b, const char *bytes, size_t n, char author)
{
    if (n == 0 || !bytes)
        return;
    grow(b, n);
    memcpy(b->bytes + b->len, bytes, n);
    memset(b->authors + b->len, author, n);
    b->len += n;
    b->has_template |= author == JINJA_TEMPLATE;
    b->has_context |= author != JINJA_TEMPLATE;
}

void jinja_build_text(struct jinja_build *b, struct jinja_text t)
{
    if (t.len == 0 || !t.bytes)
        return;
    if (!t.authors || t.authors == jinja_context_authors) {
        add(b, t.bytes, t.len, author_at(t, 0));
        return;
    }
    grow(b, t.len);
    memcpy(b->bytes + b->len, t.bytes, t.len);
    memcpy(b->authors + b->len, t.authors, t.len);
    b->len += t.len;
    b->has_template = b->has_context = true;
}

void jinja_build_as(struct jinja_build *b, struct jinja_text t, size_t i, const char *bytes, size_t n)
{
    add(b, bytes, n, (char)(t.len ? author_at(t, i < t.len ? i : t.len - 1) : JINJA_TEMPLATE));
}

void jinja_build_bytes(struct jinja_build *b, const char *bytes, size_t n)
{
    add(b, bytes, n, JINJA_TEMPLATE);
}

void jinja_build_literal(struct jinja_build *b, const char *text)
{
    add(b, text, strlen(text), JINJA_TEMPLATE);
}

void jinja_build_escaped(struct jinja_build *b, struct jinja_text t)
{
    static const char *const escapes[] = {"&",    "&amp;", "<",     "&lt;", ">",
                                          "&gt;", "\"",    "&#34;", "'",    "&#39;"};
    for (size_t i = 0; i < t.len; i++) {
        const char *escape = NULL;
        for (size_t k = 0; k < sizeof escapes / sizeof *escapes; k += 2)
            if (*escapes[k] == t.bytes[i])
                escape = escapes[k + 1];
        if (escape)
            jinja_build_as(b, t, i, escape, strlen(escape));
        else
            jinja_build_text(b, jinja_cut(t, i, i + 1));
    }
}

void jinja_build_character(struct jinja_build *b, struct jinja_text t, size_t i, int32_t character)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char(character, bytes);
    jinja_build_as(b, t, i, (const char *)bytes, (size_t)n);
}

struct jinja_text jinja_built(const struct jinja_build *b)
{
    const char *authors = b->authors;
    if (!b->has_context)
        authors = NULL;
    else if (!b->has_template)
        authors = jinja_context_authors;
    return (struct jinja_text){b->len ? b->bytes : "", authors, b->len};
}

/* --- values as texts --- */

void jinja_float_text(double x, char text[JINJA_FLOAT_TEXT])
{
    char digits[32];
    if (isnan(x) || isinf(x)) {
        snprintf(text, JINJA_FLOAT_TEXT, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, x);
    while (precision++ < 16 && strtod(digits, NULL) != x);
    char *mark = strchr(digits, 'e');
    int exponent = (int)strtol(mark + 1, NULL, 10); /* a double's exponent has at most three digits */
    *mark = '\0';
    if (exponent < -4 || exponent >= 16) {
        snprintf(text, JINJA_FLOAT_TEXT, "%.24se%c%02u", digits, exponent < 0 ? '-' : '+',
                 (unsigned)abs(exponent) % 1000);
        return;
    }
    int n_digits = precision - 1; /* digits after the first one */
    int decimals = n_digits > exponent ? n_digits - exponent : 1;
    snprintf(text, JINJA_FLOAT_TEXT, "%.*f", decimals, x);
}

static bool is_printable(int32_t c)
{
    if (c == ' ')
        return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void repr_text(struct jinja_build *b, struct jinja_text t)
{
    char quote = memchr(t.bytes, '\'', t.len) && !memchr(t.bytes, '"', t.len) ? '"' : '\'';
    jinja_build_bytes(b, &quote, 1);
    for (size_t i = 0, n; i < t.len; i += n) {
        int32_t c = jinja_character(t, i);
        char escape[16] = "";
        n = jinja_width(t, i);
        if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c == '\\' || c == quote)
            snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (!is_printable(c))
            snprintf(escape, sizeof escape,
                     c < 0x100     ? "\\x%02x"
                     : c < 0x10000 ? "\\u%04x"
                                   : "\\U%08x",
                     (unsigned)c);
        if (*escape)
            jinja_build_as(b, t, i, escape, strlen(escape));
        else
            jinja_build_text(b, jinja_cut(t, i, i + n));
    }
    jinja_build_bytes(b, &quote, 1);
}

static void repr_list(struct jinja_build *b, struct jinja_value v)
{
    bool tuple = v.kind == JINJA_TUPLE;
    jinja_build_literal(b, tuple ? "(" : "[");
    for (size_t i = 0; i < v.list->n; i++) {
        jinja_build_literal(b, i ? ", " : "");
        jinja_build_repr(b, v.list->items[i]);
    }
    jinja_build_literal(b, tuple ? v.list->n == 1 ? ",)" : ")" : "]");
}

static void repr_dict(struct jinja_build *b, const struct jinja_dict *d)
{
    jinja_build_literal(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        jinja_build_literal(b, i ? ", " : "");
        jinja_build_repr(b, d->entries[i].key);
        jinja_build_literal(b, ": ");
        jinja_build_repr(b, d->entries[i].value);
    }
    jinja_build_literal(b, "}");
}

void jinja_build_repr(struct jinja_build *b, struct jinja_value v)
{
    jinja_enter(b->s);
    jinja_count(b->s, 1);
    if (v.kind == JINJA_TEXT)
        repr_text(b, v.text);
    else if (jinja_is_sequence(v))
        repr_list(b, v);
    else if (v.kind == JINJA_DICT)
        repr_dict(b, v.dict);
    else if (v.kind == JINJA_UNDEFINED)
        jinja_build_literal(b, "Undefined");
    else
        jinja_build_value(b, v);
    jinja_leave(b->s);
}

void jinja_build_value(struct jinja_build *b, struct jinja_value v)
{
    char text[JINJA_FLOAT_TEXT];
    switch (v.kind) {
    case JINJA_UNDEFINED:
        return;
    case JINJA_NONE:
        jinja_build_literal(b, "None");
        return;
    case JINJA_BOOL:
        jinja_build_literal(b, v.truth ? "True" : "False");
        return;
    case JINJA_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.number);
        jinja_build_literal(b, text);
        return;
    case JINJA_FLOAT:
        jinja_float_text(v.real, text);
        jinja_build_literal(b, text);
        return;
    case JINJA_TEXT:
        jinja_build_text(b, v.text);
        return;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_DICT:
        jinja_build_repr(b, v);
        return;
    default:
        jinja_fail(b->s, ERR_FORMAT, "a %s has no text", jinja_type(v));
    }
}

struct jinja_text jinja_str(struct jinja_state *s, struct jinja_value v)
{
    if (v.kind == JINJA_TEXT)
        return v.text;
    struct jinja_build b = jinja_build(s);
    jinja_build_value(&b, v);
    return jinja_built(&b);
}

/* --- parts of texts --- */

struct jinja_text jinja_text_of(const char *text)
{
    return (struct jinja_text){text, NULL, strlen(text)};
}

bool jinja_text_is(struct jinja_text a, const char *b)
{
    return jinja_text_equal(a, jinja_text_of(b));
}

bool jinja_text_equal(struct jinja_text a, struct jinja_text b)
{
    return a.len == b.len && memcmp(a.bytes, b.bytes, a.len) == 0;
}

struct jinja_text jinja_cut(struct jinja_text t, size_t from, size_t to)
{
    bool mixed = t.authors && t.authors != jinja_context_authors;
    return (struct jinja_text){t.bytes + from, mixed ? t.authors + from : t.authors, to - from};
}

size_t jinja_width(struct jinja_text t, size_t i)
{
    unsigned char c = (unsigned char)t.bytes[i];
    size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return n <= t.len - i ? n : t.len - i;
}

size_t jinja_characters(struct jinja_text t)
{
    size_t n = 0;
    for (size_t i = 0; i < t.len; i++)
        n += ((unsigned char)t.bytes[i] & 0xc0) != 0x80;
    return n;
}

size_t jinja_offset(struct jinja_text t, size_t character)
{
    size_t i = 0;
    while (character-- && i < t.len)
        i += jinja_width(t, i);
    return i;
}

int32_t jinja_character(struct jinja_text t, size_t i)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)t.bytes + i, (utf8proc_ssize_t)(t.len - i), &c);
    return n > 0 ? c : 0xfffd;
}

bool jinja_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

size_t jinja_search(struct jinja_text t, struct jinja_text what, size_t from)
{
    if (from > t.len || what.len > t.len - from)
        return t.len + 1;
    const char *p = what.len ? memmem(t.bytes + from, t.len - from, what.bytes, what.len) : t.bytes + from;
    return p ? (size_t)(p - t.bytes) : t.len + 1;
}

size_t jinja_search_last(struct jinja_text t, struct jinja_text what)
{
    if (what.len > t.len)
        return t.len + 1;
    for (size_t i = t.len - what.len + 1; i-- > 0;)
        if (memcmp(t.bytes + i, what.bytes, what.len) == 0)
            return i;
    return t.len + 1;
}

static bool strips(struct jinja_text t, size_t i, const struct jinja_text *set)
{
    if (!set)
        return jinja_is_space(jinja_character(t, i));
    return set->len && memmem(set->bytes, set->len, t.bytes + i, jinja_width(t, i));
}

struct jinja_text jinja_strip(struct jinja_text t, const struct jinja_text *set, int sides)
{
    while ((sides & JINJA_LEFT) && t.len && strips(t, 0, set))
        t = jinja_cut(t, jinja_width(t, 0), t.len);
    while ((sides & JINJA_RIGHT) && t.len) {
        size_t last = t.len - 1;
        while (last > 0 && ((unsigned char)t.bytes[last] & 0xc0) == 0x80)
            last--;
        if (!strips(t, last, set))
            break;
        t.len = last;
    }
    return t;
}

bool jinja_starts(struct jinja_text t, struct jinja_text with)
{
    return with.len <= t.len && memcmp(t.bytes, with.bytes, with.len) == 0;
}

bool jinja_ends(struct jinja_text t, struct jinja_text with)
{
    return with.len <= t.len && memcmp(t.bytes + t.len - with.len, with.bytes, with.len) == 0;
}

/* --- changing --- */

static bool is_letter(int32_t c)
{
    return utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
}

struct jinja_text jinja_to_case(struct jinja_state *s, struct jinja_text t, enum jinja_case how)
{
    struct jinja_build b = jinja_build(s);
    bool inside = false; /* inside a word; CAPITALIZE: inside the text */
    for (size_t i = 0; i < t.len; i += jinja_width(t, i)) {
        int32_t c = jinja_character(t, i);
        bool upper = how == JINJA_UPPER || (how >= JINJA_CAPITALIZE && !inside);
        inside = how == JINJA_CAPITALIZE || is_letter(c);
        /* U+00DF is the one common letter whose upper case is two letters. */
        if (upper && c == 0xdf) {
            jinja_build_as(&b, t, i, how == JINJA_UPPER ? "SS" : "Ss", 2);
            continue;
        }
        if (upper)
            c = how == JINJA_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c);
        else
            c = utf8proc_tolower(c);
        jinja_build_character(&b, t, i, c);
    }
    return jinja_built(&b);
}

struct jinja_text jinja_replace(struct jinja_state *s, struct jinja_text t, struct jinja_text from,
                                struct jinja_text to, int64_t most)
{
    struct jinja_build b = jinja_build(s);
    size_t at = 0;
    for (int64_t n = 0; most < 0 || n < most; n++) {
        size_t found = jinja_search(t, from, at);
        if (found > t.len)
            break;
        jinja_count(s, 1);
        jinja_build_text(&b, jinja_cut(t, at, found));
        jinja_build_text(&b, to);
        at = found + from.len;
        if (from.len == 0) {
            if (at == t.len)
                break;
            size_t width = jinja_width(t, at);
            jinja_build_text(&b, jinja_cut(t, at, at + width));
            at += width;
        }
    }
    jinja_build_text(&b, jinja_cut(t, at, t.len));
    return jinja_built(&b);
}

static bool ends_line(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

struct jinja_value jinja_lines(struct jinja_state *s, struct jinja_text t, bool keep_ends)
{
    struct jinja_value lines = jinja_new_list(s, JINJA_LIST);
    for (size_t i = 0, start = 0; i < t.len; start = i) {
        while (i < t.len && !ends_line(jinja_character(t, i)))
            i += jinja_width(t, i);
        size_t end = i;
        if (i < t.len) {
            bool pair = t.bytes[i] == '\r' && i + 1 < t.len && t.bytes[i + 1] == '\n';
            i += pair ? 2 : jinja_width(t, i);
        }
        jinja_append(s, lines, jinja_of_text(jinja_cut(t, start, keep_ends ? i : end)));
    }
    return lines;
}
