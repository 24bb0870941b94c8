/* "pattern" of JSON Schema, for simple regular expressions: characters, classes, groups, alternatives,
 * repetitions, and anchors at the two ends. A character is written in its JSON form; the only control
 * characters are those with a short escape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/schema_writer.h"

enum { MAX_NESTING = 16, MAX_BYTES = 4096, LAST_POINT = 0x10ffff };

struct range {
    uint32_t lo, hi;
};

struct set {
    struct range *ranges;
    size_t n, cap;
};

struct pattern {
    struct schema_writer *w;
    const char *text;
    size_t len, at;
    unsigned nesting;
    struct str *out;
};

static void fail(struct pattern *p, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "byte %zu: %s", p->at + 1, what);
    schema_fail(p->w, ERR_UNSUPPORTED, "pattern", text);
}

static char peek(const struct pattern *p)
{
    if (p->at == p->len)
        return '\0';
    return p->text[p->at];
}

static bool take(struct pattern *p, char c)
{
    bool there = p->at < p->len && p->text[p->at] == c;
    p->at += there;
    return there;
}

/* Takes one character; jansson's strings are valid UTF-8. */
static uint32_t take_point(struct pattern *p)
{
    unsigned char c = (unsigned char)p->text[p->at++];
    unsigned more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
    uint32_t point = more ? c & (0x3fu >> more) : c;
    for (; more > 0 && p->at < p->len; more--)
        point = point << 6 | ((unsigned char)p->text[p->at++] & 0x3f);
    return point;
}

/* ---- sets ---- */

static void add_range(struct pattern *p, struct set *s, uint32_t lo, uint32_t hi)
{
    if (p->w->rc || lo > hi)
        return;
    if (mem_grow((void **)&s->ranges, &s->cap, s->n + 1, sizeof *s->ranges, p->w->e))
        p->w->rc = ERR_MEMORY;
    else
        s->ranges[s->n++] = (struct range){lo, hi};
}

static int by_start(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Adds all characters that are not in `s` to `out`. */
static void add_inverse(struct pattern *p, struct set *s, struct set *out)
{
    uint32_t from = 0;
    if (s->n)
        qsort(s->ranges, s->n, sizeof *s->ranges, by_start);
    for (size_t i = 0; i < s->n; i++) {
        if (s->ranges[i].lo > from)
            add_range(p, out, from, s->ranges[i].lo - 1);
        if (s->ranges[i].hi >= from)
            from = s->ranges[i].hi + 1;
    }
    add_range(p, out, from, LAST_POINT);
}

static bool has(const struct set *s, uint32_t point)
{
    size_t i = 0;
    while (i < s->n && !(s->ranges[i].lo <= point && point <= s->ranges[i].hi))
        i++;
    return i < s->n;
}

/* Writes the part of the set that lies in `within` as a class of the grammar. */
static void write_class(const struct set *s, const struct range *within, size_t n, struct str *class)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < n; k++) {
            uint32_t lo = s->ranges[i].lo > within[k].lo ? s->ranges[i].lo : within[k].lo;
            uint32_t hi = s->ranges[i].hi < within[k].hi ? s->ranges[i].hi : within[k].hi;
            if (lo <= hi)
                str_addf(class, "\\U%08x-\\U%08x", lo, hi);
        }
}

/* Writes an expression of one character of the set, as a JSON string or a plain string has it. */
static void write_set(struct pattern *p, const struct set *s)
{
    static const struct {
        uint32_t point;
        const char *text;
    } escapes[] = {{'"', "\\\\\\\""}, {'\\', "\\\\\\\\"}, {'\n', "\\\\n"}, {'\r', "\\\\r"}, {'\t', "\\\\t"}};
    static const struct range in_json[] = {{0x20, 0x21},
                                           {0x23, 0x5b},
                                           {0x5d, 0x7e},
                                           {0x80, 0xd7ff},
                                           {0xe000, LAST_POINT}},
                              plain[] = {{0x1, '<' - 1}, {'<' + 1, 0xd7ff}, {0xe000, LAST_POINT}};
    struct str class = {0};
    const char *between = "";
    bool raw = schema_is_raw(p->w);
    write_class(s, raw ? plain : in_json, raw ? 3 : 5, &class);
    str_add_text(p->out, " (");
    if (class.len) {
        str_addf(p->out, "[%s]", str_text(&class));
        between = " | ";
    }
    for (size_t k = 0; !raw && k < sizeof escapes / sizeof *escapes; k++)
        if (has(s, escapes[k].point)) {
            str_addf(p->out, "%s\"%s\"", between, escapes[k].text);
            between = " | ";
        }
    str_add_text(p->out, ")");
    if (!*between)
        fail(p, "this class has no character that a text may have");
    if (!str_ok(&class))
        p->w->rc = ERR_MEMORY;
    str_free(&class);
}

/* ---- escapes and classes ---- */

/* Adds the set of \d, \w or \s, or its inverse (upper case). */
static bool add_known(struct pattern *p, char c, struct set *out)
{
    struct set s = {0};
    switch (c | 32) {
    case 'd':
        add_range(p, &s, '0', '9');
        break;
    case 'w':
        add_range(p, &s, '0', '9');
        add_range(p, &s, 'A', 'Z');
        add_range(p, &s, '_', '_');
        add_range(p, &s, 'a', 'z');
        break;
    case 's':
        add_range(p, &s, '\t', '\r');
        add_range(p, &s, ' ', ' ');
        break;
    default:
        return false;
    }
    if (c & 32)
        for (size_t i = 0; i < s.n; i++)
            add_range(p, out, s.ranges[i].lo, s.ranges[i].hi);
    else
        add_inverse(p, &s, out);
    free(s.ranges);
    return true;
}

/* Takes the rest of an escape, after the backslash. Returns true with *point, or false with a set added to
 * `out`. */
static bool take_escape(struct pattern *p, struct set *out, uint32_t *point)
{
    static const char from[] = "nrt", to[] = "\n\r\t";
    char c = peek(p);
    const char *at = c ? strchr(from, c) : NULL;
    bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c && strchr("dwsDWS", c)) {
        p->at++;
        add_known(p, c, out);
        return false;
    }
    if (c == '\0' || (is_word && !at))
        fail(p, "this escape is not supported");
    *point = p->w->rc ? 0 : at ? (uint32_t)to[at - from] : take_point(p);
    p->at += at != NULL;
    return true;
}

static void add_members(struct pattern *p, struct set *s)
{
    while (!p->w->rc && peek(p) != ']') {
        uint32_t lo = 0;
        if (p->at == p->len) {
            fail(p, "a class has no closing bracket");
            return;
        }
        if (!take(p, '\\'))
            lo = take_point(p);
        else if (!take_escape(p, s, &lo))
            continue;
        uint32_t hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->len && p->text[p->at + 1] != ']') {
            p->at++;
            if (!take(p, '\\'))
                hi = take_point(p);
            else if (!take_escape(p, s, &hi))
                fail(p, "a range ends with a class");
        }
        if (hi < lo)
            fail(p, "this range ends before it begins");
        add_range(p, s, lo, hi);
    }
}

static void parse_class(struct pattern *p)
{
    struct set s = {0}, inverse = {0};
    bool inverted = take(p, '^');
    add_members(p, &s);
    p->at++;
    if (inverted)
        add_inverse(p, &s, &inverse);
    if (!p->w->rc)
        write_set(p, inverted ? &inverse : &s);
    free(s.ranges);
    free(inverse.ranges);
}

/* ---- items ---- */

static void parse_alternatives(struct pattern *p);

static void parse_group(struct pattern *p)
{
    if (take(p, '?') && !take(p, ':')) {
        fail(p, "the only supported group with ? is (?:");
        return;
    }
    if (++p->nesting > MAX_NESTING) {
        fail(p, "groups nested deeper than 16");
        return;
    }
    str_add_text(p->out, " (");
    parse_alternatives(p);
    str_add_text(p->out, ")");
    if (!p->w->rc && !take(p, ')'))
        fail(p, "a group has no closing parenthesis");
    p->nesting--;
}

static void parse_character(struct pattern *p)
{
    struct set s = {0};
    uint32_t point = 0;
    bool is_point = true;
    char c = peek(p);
    if (strchr("*+?{}]^$", c)) {
        fail(p, "this character needs a backslash here; anchors are only allowed at the ends of the pattern");
        return;
    }
    if (take(p, '.')) {
        const uint32_t ends[] = {'\n', '\r', 0x2028, 0x2029};
        struct set lines = {0};
        for (size_t i = 0; i < 4; i++)
            add_range(p, &lines, ends[i], ends[i]);
        add_inverse(p, &lines, &s);
        free(lines.ranges);
        is_point = false;
    } else if (take(p, '\\')) {
        is_point = take_escape(p, &s, &point);
    } else {
        point = take_point(p);
    }
    if (is_point)
        add_range(p, &s, point, point);
    if (!p->w->rc)
        write_set(p, &s);
    free(s.ranges);
}

/* Copies a repetition, whose syntax is the same in both languages. */
static void parse_repeat(struct pattern *p)
{
    size_t start = p->at;
    if (!take(p, '*') && !take(p, '+') && !take(p, '?') && take(p, '{'))
        while (peek(p) != '\0' && p->text[p->at++] != '}')
            ;
    if (p->at == start)
        return;
    if (p->text[start] == '{' &&
        (p->text[p->at - 1] != '}' || p->text[start + 1] < '0' || p->text[start + 1] > '9' ||
         p->text[start + 1 + strspn(p->text + start + 1, "0123456789,")] != '}'))
        fail(p, "expected a repetition as {2}, {2,} or {2,3}");
    if (peek(p) && strchr("*+?{", peek(p)))
        fail(p, "a repetition of a repetition is not supported");
    str_add(p->out, p->text + start, p->at - start);
}

static void parse_alternatives(struct pattern *p)
{
    for (;;) {
        str_add_text(p->out, " \"\"");
        while (!p->w->rc && p->at < p->len && peek(p) != '|' && peek(p) != ')') {
            if (take(p, '('))
                parse_group(p);
            else if (take(p, '['))
                parse_class(p);
            else
                parse_character(p);
            if (!p->w->rc)
                parse_repeat(p);
        }
        if (p->w->rc || !take(p, '|'))
            return;
        str_add_text(p->out, " |");
    }
}

/* Returns whether the pattern has alternatives outside of groups: an anchor would
 * belong to one of them only. */
static bool has_alternatives(const char *text, size_t len)
{
    int depth = 0;
    bool in_class = false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\\') {
            i++;
        } else if (in_class) {
            in_class = text[i] != ']';
        } else {
            in_class = text[i] == '[';
            depth += (text[i] == '(') - (text[i] == ')');
            if (text[i] == '|' && depth == 0)
                return true;
        }
    }
    return false;
}

static bool ends_with_anchor(const char *text, size_t len)
{
    size_t n = 0;
    while (n + 1 < len && text[len - 2 - n] == '\\')
        n++;
    return len > 0 && text[len - 1] == '$' && n % 2 == 0;
}

void schema_add_pattern(struct schema_writer *w, const char *pattern, size_t len, struct str *body)
{
    bool from_start = len > 0 && pattern[0] == '^', to_end = ends_with_anchor(pattern, len);
    struct pattern p = {.w = w, .text = pattern, .len = len - to_end, .at = from_start, .out = body};
    if (len > MAX_BYTES || strlen(pattern) != len) {
        schema_fail(w, ERR_UNSUPPORTED, "pattern", "expected at most 4096 bytes and no NUL");
        return;
    }
    if ((from_start || to_end) && has_alternatives(pattern, len)) {
        schema_fail(w, ERR_UNSUPPORTED, "pattern", "alternatives with an anchor need parentheses: ^(a|b)$");
        return;
    }
    const char *any = schema_one_char(w), *quote = schema_quote(w);
    str_addf(body, "(%s %s%s (", quote, from_start ? "" : any, from_start ? "" : "*");
    parse_alternatives(&p);
    if (!w->rc && p.at < p.len)
        fail(&p, "this parenthesis closes nothing");
    str_addf(body, ") %s%s %s)", to_end ? "" : any, to_end ? "" : "*", quote);
}
