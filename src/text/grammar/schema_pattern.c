/* "pattern" of JSON Schema, for simple regular expressions: characters, classes, groups, alternatives,
 * repetitions, and anchors at the two ends. A character is written in its JSON form; the only control
 * characters are those with a short escape. schema_regex.c writes the result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/schema_regex.h"
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
    const char *key; /* the keyword that gives the pattern */
    const char *text;
    size_t len, at;
    unsigned nesting;
    struct regex regex;
};

static void fail(struct pattern *p, const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "byte %zu: %s", p->at + 1, what);
    schema_fail(p->w, ERR_UNSUPPORTED, p->key, text);
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

/* Adds a node for one character of the set, as a JSON string or a plain string has it. */
static uint32_t add_set(struct pattern *p, const struct set *s)
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
    struct str class = {0}, text = {0};
    const char *between = "";
    bool raw = schema_is_raw(p->w);
    write_class(s, raw ? plain : in_json, raw ? 3 : 5, &class);
    str_add_text(&text, "(");
    if (class.len) {
        str_addf(&text, "[%s]", str_text(&class));
        between = " | ";
    }
    for (size_t k = 0; !raw && k < sizeof escapes / sizeof *escapes; k++)
        if (has(s, escapes[k].point)) {
            str_addf(&text, "%s\"%s\"", between, escapes[k].text);
            between = " | ";
        }
    str_add_text(&text, ")");
    if (!*between)
        fail(p, "this class has no character that a text may have");
    if (!str_ok(&class))
        p->w->rc = ERR_MEMORY;
    uint32_t node = regex_add_char(&p->regex, str_text(&text), p->w);
    str_free(&class);
    str_free(&text);
    return node;
}

/* ---- escapes and classes ---- */

/* Adds the set of \d, \w or \s, or its inverse (upper case). */
static bool add_known(struct pattern *p, char c, struct set *out)
{
    /* \S excludes what any reader takes for white space, \s is its ASCII part. */
    static const struct range spaces[] = {
        {'\t', '\r'},     {' ', ' '},       {0x1c, 0x1f},     {0x85, 0x85},     {0xa0, 0xa0},
        {0x1680, 0x1680}, {0x180e, 0x180e}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
        {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
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
        for (size_t i = 0; i < (c == 's' ? 2 : sizeof spaces / sizeof *spaces); i++)
            add_range(p, &s, spaces[i].lo, spaces[i].hi);
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

static uint32_t parse_class(struct pattern *p)
{
    uint32_t node = 0;
    struct set s = {0}, inverse = {0};
    bool inverted = take(p, '^');
    add_members(p, &s);
    p->at++;
    if (inverted)
        add_inverse(p, &s, &inverse);
    if (!p->w->rc)
        node = add_set(p, inverted ? &inverse : &s);
    free(s.ranges);
    free(inverse.ranges);
    return node;
}

/* ---- items ---- */

static uint32_t parse_alternatives(struct pattern *p);

static uint32_t parse_group(struct pattern *p)
{
    if (take(p, '?') && !take(p, ':')) {
        fail(p, "the only supported group with ? is (?:");
        return 0;
    }
    if (++p->nesting > MAX_NESTING) {
        fail(p, "groups nested deeper than 16");
        return 0;
    }
    uint32_t node = parse_alternatives(p);
    if (!p->w->rc && !take(p, ')'))
        fail(p, "a group has no closing parenthesis");
    p->nesting--;
    return node;
}

static uint32_t parse_character(struct pattern *p)
{
    uint32_t node = 0;
    struct set s = {0};
    uint32_t point = 0;
    bool is_point = true;
    char c = peek(p);
    if (strchr("*+?{}]^$", c)) {
        fail(p, "this character needs a backslash here; anchors are only allowed at the ends of the pattern");
        return 0;
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
        node = add_set(p, &s);
    free(s.ranges);
    return node;
}

/* Takes a number of a repetition. */
static uint32_t parse_times(struct pattern *p)
{
    uint32_t n = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        n = n * 10 + (uint32_t)(peek(p) - '0');
        if (n > SCHEMA_MAX_COUNT) {
            fail(p, "more repetitions than 1048576");
            return 0;
        }
    }
    return n;
}

/* Takes the repetition of a node, if there is one. */
static uint32_t parse_repeat(struct pattern *p, uint32_t node)
{
    uint32_t least = 0, most = REGEX_ENDLESS;
    size_t start = p->at;
    if (take(p, '+')) {
        least = 1;
    } else if (take(p, '?')) {
        most = 1;
    } else if (take(p, '{')) {
        bool has_least = peek(p) >= '0' && peek(p) <= '9';
        least = most = parse_times(p);
        if (take(p, ','))
            most = peek(p) == '}' ? REGEX_ENDLESS : parse_times(p);
        if (!has_least || !take(p, '}'))
            fail(p, "expected a repetition as {2}, {2,} or {2,3}");
        else if (most < least)
            fail(p, "this repetition ends before it begins");
    } else if (!take(p, '*')) {
        return node;
    }
    if (p->at > start && peek(p) && strchr("*+?{", peek(p)))
        fail(p, "a repetition of a repetition is not supported");
    return regex_add_repeat(&p->regex, node, least, most, p->w);
}

static uint32_t parse_alternatives(struct pattern *p)
{
    uint32_t all = regex_add_list(&p->regex, REGEX_ANY_OF, p->w);
    for (;;) {
        uint32_t sequence = regex_add_list(&p->regex, REGEX_SEQUENCE, p->w);
        while (!p->w->rc && p->at < p->len && peek(p) != '|' && peek(p) != ')') {
            uint32_t node = take(p, '(')   ? parse_group(p)
                            : take(p, '[') ? parse_class(p)
                                           : parse_character(p);
            if (!p->w->rc)
                regex_append(&p->regex, sequence, parse_repeat(p, node));
        }
        if (!p->w->rc)
            regex_append(&p->regex, all, sequence);
        if (p->w->rc || !take(p, '|'))
            return all;
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

static void add_any(struct pattern *p, uint32_t sequence)
{
    struct schema_writer *w = p->w;
    uint32_t one = regex_add_char(&p->regex, schema_one_char(w), w),
             node = regex_add_repeat(&p->regex, one, 0, REGEX_ENDLESS, w);
    if (!w->rc)
        regex_append(&p->regex, sequence, node);
}

void schema_add_pattern(struct schema_writer *w, const char *key, const char *pattern, size_t len,
                        uint32_t least, uint32_t most, struct str *body)
{
    bool from_start = len > 0 && pattern[0] == '^', to_end = ends_with_anchor(pattern, len);
    struct pattern p = {.w = w, .key = key, .text = pattern, .len = len - to_end, .at = from_start};
    if (len > MAX_BYTES || strlen(pattern) != len) {
        schema_fail(w, ERR_UNSUPPORTED, key, "expected at most 4096 bytes and no NUL");
        return;
    }
    if ((from_start || to_end) && has_alternatives(pattern, len)) {
        schema_fail(w, ERR_UNSUPPORTED, key, "alternatives with an anchor need parentheses: ^(a|b)$");
        return;
    }
    uint32_t all = regex_add_list(&p.regex, REGEX_SEQUENCE, w);
    if (!from_start)
        add_any(&p, all);
    uint32_t inner = parse_alternatives(&p);
    if (!w->rc && p.at < p.len)
        fail(&p, "this parenthesis closes nothing");
    if (!w->rc)
        regex_append(&p.regex, all, inner);
    if (!to_end)
        add_any(&p, all);
    const char *quote = schema_quote(w);
    str_addf(body, "(%s ", quote);
    if (!w->rc && !regex_write(&p.regex, all, least, most == UINT32_MAX ? REGEX_ENDLESS : most, body))
        schema_fail(w, ERR_UNSUPPORTED, key, "together with this minLength or maxLength");
    str_addf(body, " %s)", quote);
    regex_free(&p.regex);
}
