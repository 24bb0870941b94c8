#include "text/grammar/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "base/str.h"
#include "text/grammar/grammar.h"

#define LAST_POINT 0x10ffffu

/* The first failure sticks: later calls do nothing and return TREE_NONE. */
struct parser {
    struct grammar_tree *tree;
    const char *text, *name;
    const struct grammar_marks *marks; /* NULL: none */
    size_t len, at;
    unsigned nesting;
    int rc;
    struct moeflux_err *e;
};

/* ---- errors ---- */

static int32_t fail_at(struct parser *p, size_t at, int code, const char *what)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        column = p->text[i] == '\n' ? 1 : column + ((p->text[i] & 0xc0) != 0x80);
        line += p->text[i] == '\n';
    }
    if (!p->rc)
        p->rc = err_set(p->e, code, "%s: line %zu, column %zu: %s", p->name, line, column, what);
    return TREE_NONE;
}

/* Fails with what was expected here and what was found. */
static int32_t expected(struct parser *p, const char *what)
{
    char text[160];
    size_t n = 0;
    while (p->at + n < p->len && n < 12 && p->text[p->at + n] != '\n')
        n++;
    snprintf(text, sizeof text, "expected %s, found %s", what,
             p->at == p->len ? "the end of the grammar"
             : n == 0        ? "the end of the line"
                             : quote_bytes(p->text + p->at, n).text);
    return fail_at(p, p->at, ERR_FORMAT, text);
}

static int32_t no_memory(struct parser *p)
{
    p->rc = p->rc ? p->rc : ERR_MEMORY;
    return TREE_NONE;
}

/* ---- nodes ---- */

static int32_t add_node(struct parser *p, struct tree_node node)
{
    struct grammar_tree *t = p->tree;
    if (p->rc)
        return TREE_NONE;
    int rc = mem_grow((void **)&t->nodes, &t->cap_nodes, t->n_nodes + 1, sizeof *t->nodes, p->e);
    if (rc)
        return no_memory(p);
    node.sibling = TREE_NONE;
    t->nodes[t->n_nodes] = node;
    return (int32_t)t->n_nodes++;
}

/* Adds `child` as the last child of `parent`. */
static void adopt(struct parser *p, int32_t parent, int32_t child)
{
    if (p->rc)
        return;
    struct tree_node *nodes = p->tree->nodes;
    nodes[child].sibling = nodes[parent].child;
    nodes[parent].child = child;
}

static void add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    struct grammar_tree *t = p->tree;
    if (p->rc || lo > hi)
        return;
    if (mem_grow((void **)&t->ranges, &t->cap_ranges, t->n_ranges + 1, sizeof *t->ranges, p->e))
        no_memory(p);
    else
        t->ranges[t->n_ranges++] = (struct tree_range){lo, hi};
}

static int by_start(const void *a, const void *b)
{
    const struct tree_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorts the ranges from `first` on and makes them disjoint; inverted: replaces them
 * by all other characters. */
static void tidy_ranges(struct parser *p, size_t first, bool inverted)
{
    struct grammar_tree *t = p->tree;
    size_t n = t->n_ranges;
    uint32_t from = 0; /* the code point after the range before */
    if (n > first)
        qsort(t->ranges + first, n - first, sizeof *t->ranges, by_start);
    for (size_t i = first; i < n && !p->rc; i++) {
        struct tree_range r = t->ranges[i];
        if (!inverted)
            add_range(p, r.lo > from ? r.lo : from, r.hi);
        else if (r.lo > from)
            add_range(p, from, r.lo - 1);
        if (r.hi >= from)
            from = r.hi + 1;
    }
    if (inverted)
        add_range(p, from, LAST_POINT);
    if (p->rc || t->n_ranges == 0)
        return;
    memmove(t->ranges + first, t->ranges + n, (t->n_ranges - n) * sizeof *t->ranges);
    t->n_ranges -= n - first;
}

/* Removes surrogates, which no text has, from the ranges from `first` on. */
static void cut_surrogates(struct parser *p, size_t first)
{
    struct grammar_tree *t = p->tree;
    size_t n = t->n_ranges, kept = first;
    for (size_t i = first; i < n; i++) {
        struct tree_range r = t->ranges[i];
        if (r.lo < 0xd800 && r.hi > 0xdfff)
            add_range(p, 0xe000, r.hi);
        if (r.lo < 0xd800 && r.hi >= 0xd800)
            r.hi = 0xd7ff;
        if (r.lo >= 0xd800 && r.lo <= 0xdfff)
            r.lo = 0xe000;
        if (r.lo <= r.hi)
            t->ranges[kept++] = r;
    }
    /* Only one range can have been cut in two. */
    if (t->n_ranges > n)
        t->ranges[kept++] = t->ranges[n];
    t->n_ranges = kept;
}

/* Makes a node of the ranges from `first` on. */
static int32_t chars_node(struct parser *p, size_t first, bool inverted, size_t at)
{
    if (p->rc)
        return TREE_NONE;
    tidy_ranges(p, first, inverted);
    cut_surrogates(p, first);
    if (!p->rc && p->tree->n_ranges == first)
        return fail_at(p, at, ERR_FORMAT, "no character is in this class");
    return add_node(p, (struct tree_node){.kind = TREE_CHARS,
                                          .child = TREE_NONE,
                                          .first = (uint32_t)first,
                                          .n_ranges = (uint32_t)(p->tree->n_ranges - first)});
}

/* ---- names, literals, classes ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Returns the end of what begins here and names no rule: a literal, a class, a count, a comment. */
static const char *skip_other(const char *p)
{
    static const char opens[] = "\"[{#", closes[] = "\"]}\n";
    const char *kind = strchr(opens, *p);
    if (!kind)
        return p + 1;
    char end = closes[kind - opens];
    for (p++; *p && *p != end; p++)
        p += end != '\n' && *p == '\\' && p[1];
    return *p ? p + 1 : p;
}

void grammar_rename(const char *text, const char *prefix, struct str *out)
{
    for (const char *p = text, *end; *p; p = end) {
        for (end = p; is_name(*end); end++)
            ;
        if (end > p)
            str_add_text(out, prefix);
        else
            end = skip_other(p);
        str_add(out, p, (size_t)(end - p));
    }
}

static char peek(const struct parser *p)
{
    if (p->at == p->len)
        return '\0';
    return p->text[p->at];
}

static bool take(struct parser *p, const char *what)
{
    size_t n = strlen(what);
    if (p->len - p->at < n || memcmp(p->text + p->at, what, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* Skips white space and comments. */
static void skip_space(struct parser *p, bool newlines)
{
    for (; p->at < p->len; p->at++) {
        char c = p->text[p->at];
        if (c == '#')
            while (p->at + 1 < p->len && p->text[p->at + 1] != '\n')
                p->at++;
        else if (c != ' ' && c != '\t' && !(newlines && (c == '\n' || c == '\r')) && c != '\r')
            return;
    }
}

static uint32_t hash_of(const char *name, size_t len)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)name[i]) * 16777619u;
    return h % 1024;
}

/* Takes a name. Returns the rule of this name, which may be new. */
static uint32_t rule_here(struct parser *p)
{
    struct grammar_tree *t = p->tree;
    size_t start = p->at;
    while (is_name(peek(p)))
        p->at++;
    size_t len = p->at - start;
    if (len == 0) {
        expected(p, "a rule's name");
        return 0;
    }
    uint32_t *bucket = &t->buckets[hash_of(p->text + start, len)];
    for (uint32_t i = *bucket; i; i = t->rules[i - 1].next)
        if (t->rules[i - 1].len == len && memcmp(t->rules[i - 1].name, p->text + start, len) == 0)
            return i - 1;
    if (t->n_rules == GRAMMAR_MAX_RULES) {
        fail_at(p, start, ERR_UNSUPPORTED, "more rules than 8192");
        return 0;
    }
    if (mem_grow((void **)&t->rules, &t->cap_rules, t->n_rules + 1, sizeof *t->rules, p->e)) {
        no_memory(p);
        return 0;
    }
    t->rules[t->n_rules++] = (struct tree_rule){p->text + start, len, TREE_NONE, start, *bucket};
    *bucket = (uint32_t)t->n_rules;
    return *bucket - 1;
}

static uint32_t hex_digits(struct parser *p, unsigned n)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < n; i++, p->at++) {
        char c = peek(p);
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) {
            expected(p, n == 2   ? "2 hexadecimal digits"
                        : n == 4 ? "4 hexadecimal digits"
                                 : "8 hexadecimal digits");
            return 0;
        }
        value = value * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (value > LAST_POINT || (value >= 0xd800 && value <= 0xdfff))
        fail_at(p, p->at - n, ERR_FORMAT, "this is no character's number");
    return value;
}

static uint32_t escaped(struct parser *p)
{
    static const char from[] = "nrt\\\"[]-^/", to[] = "\n\r\t\\\"[]-^/";
    char c = peek(p);
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        p->at++;
        return (uint8_t)to[at - from];
    }
    if (c != 'x' && c != 'u' && c != 'U') {
        expected(p, "one of n r t \\ \" [ ] x u U after the backslash");
        return 0;
    }
    p->at++;
    return hex_digits(p, c == 'x' ? 2 : c == 'u' ? 4 : 8);
}

/* Takes a character of a literal or a class. */
static uint32_t character(struct parser *p)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t c = (uint8_t)p->text[p->at];
    if (c == '\\') {
        p->at++;
        return escaped(p);
    }
    size_t n = c < 0x80                ? 1
               : c >= 0xf0 && c < 0xf8 ? 4
               : c >= 0xe0 && c < 0xf0 ? 3
               : c >= 0xc0 && c < 0xe0 ? 2
                                       : 0;
    uint32_t value = n == 1 ? c : n ? c & (0x7fu >> n) : 0;
    bool good = n > 0 && n <= p->len - p->at;
    for (size_t i = 1; good && i < n; i++) {
        good = (p->text[p->at + i] & 0xc0) == 0x80;
        value = value << 6 | ((uint8_t)p->text[p->at + i] & 0x3f);
    }
    if (!good || value < least[n] || value > LAST_POINT || (value >= 0xd800 && value <= 0xdfff)) {
        fail_at(p, p->at, ERR_FORMAT, "this is not UTF-8");
        return 0;
    }
    p->at += n;
    return value;
}

unsigned grammar_find_mark(const struct grammar_marks *marks, const char *text, size_t len)
{
    unsigned found = GRAMMAR_MAX_MARKS;
    for (unsigned i = 0; marks && i < marks->n; i++) {
        size_t n = marks->len[i];
        if (n <= len && memcmp(marks->text[i], text, n) == 0 &&
            (found == GRAMMAR_MAX_MARKS || n > marks->len[found]))
            found = i;
    }
    return found;
}

/* Returns the length in the grammar of a mark in a literal here, where quotes and backslashes are escaped; 0:
 * something else is here. */
static size_t written_mark(const struct parser *p, const char *mark, size_t n)
{
    size_t at = p->at;
    for (size_t i = 0; i < n; i++) {
        bool is_escaped = mark[i] == '"' || mark[i] == '\\';
        if (is_escaped && (at == p->len || p->text[at++] != '\\'))
            return 0;
        if (at == p->len || p->text[at++] != mark[i])
            return 0;
    }
    return at - p->at;
}

/* Takes a character of a literal, or a mark. */
static uint32_t character_or_mark(struct parser *p)
{
    size_t most = 0;
    unsigned found = 0;
    for (unsigned i = 0; p->marks && i < p->marks->n; i++) {
        size_t n = written_mark(p, p->marks->text[i], p->marks->len[i]);
        if (n > most) {
            most = n;
            found = i;
        }
    }
    if (!most)
        return character(p);
    p->at += most;
    return TREE_FIRST_MARK + found;
}

static int32_t literal(struct parser *p)
{
    size_t start = p->at++;
    int32_t seq = add_node(p, (struct tree_node){.kind = TREE_SEQ, .child = TREE_NONE});
    while (!p->rc && peek(p) != '"') {
        if (p->at == p->len || peek(p) == '\n')
            return fail_at(p, start, ERR_FORMAT, "this text has no closing quotation mark in its line");
        size_t first = p->tree->n_ranges;
        uint32_t c = character_or_mark(p);
        add_range(p, c, c);
        adopt(p, seq, chars_node(p, first, false, start));
    }
    p->at++;
    return seq;
}

static int32_t class(struct parser *p)
{
    size_t start = p->at++, first = p->tree->n_ranges;
    bool inverted = take(p, "^");
    while (!p->rc && peek(p) != ']') {
        if (p->at == p->len || peek(p) == '\n')
            return fail_at(p, start, ERR_FORMAT, "this class has no closing bracket in its line");
        size_t at = p->at;
        uint32_t lo = character(p), hi = lo;
        if (peek(p) == '-' && p->at + 1 < p->len && p->text[p->at + 1] != ']') {
            p->at++;
            hi = p->rc ? lo : character(p);
        }
        if (hi < lo && !p->rc)
            return fail_at(p, at, ERR_FORMAT, "this range ends before it begins");
        add_range(p, lo, hi);
    }
    p->at++;
    return chars_node(p, first, inverted, start);
}

/* ---- repetitions ---- */

static int32_t number(struct parser *p)
{
    int32_t n = 0;
    size_t start = p->at;
    if (peek(p) < '0' || peek(p) > '9')
        return expected(p, "a number");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        n = n * 10 + (peek(p) - '0');
        if (n > GRAMMAR_MAX_REPEAT)
            return fail_at(p, start, ERR_UNSUPPORTED, "more repetitions than 1048576");
    }
    return n;
}

/* Takes {m}, {m,}, {m,n} or, as llama.cpp does, {,n}. */
static bool braces(struct parser *p, int32_t *min, int32_t *max)
{
    size_t start = p->at++;
    skip_space(p, false);
    *min = peek(p) == ',' ? 0 : number(p);
    *max = *min;
    skip_space(p, false);
    if (take(p, ",")) {
        skip_space(p, false);
        *max = peek(p) == '}' ? TREE_NO_MAX : number(p);
        skip_space(p, false);
    }
    if (!p->rc && !take(p, "}"))
        expected(p, "}");
    if (!p->rc && *max != TREE_NO_MAX && *max < *min)
        fail_at(p, start, ERR_FORMAT, "this repetition ends before it begins");
    return !p->rc;
}

static int32_t repeated(struct parser *p, int32_t item)
{
    int32_t min = 0, max = TREE_NO_MAX;
    char c = peek(p);
    if (c == '{') {
        if (!braces(p, &min, &max))
            return TREE_NONE;
    } else if (c == '*' || c == '+' || c == '?') {
        p->at++;
        min = c == '+';
        max = c == '?' ? 1 : TREE_NO_MAX;
    } else {
        return item;
    }
    c = peek(p);
    if (!p->rc && (c == '*' || c == '+' || c == '?' || c == '{'))
        return fail_at(p, p->at, ERR_FORMAT, "a repetition of a repetition needs parentheses");
    if (max == 0)
        return add_node(p, (struct tree_node){.kind = TREE_EMPTY, .child = TREE_NONE});
    int32_t node =
        add_node(p, (struct tree_node){.kind = TREE_REPEAT, .child = TREE_NONE, .min = min, .max = max});
    adopt(p, node, item);
    return node;
}

/* ---- rules ---- */

static int32_t alternatives(struct parser *p, bool nested);

static int32_t group(struct parser *p)
{
    size_t start = p->at++;
    if (++p->nesting > GRAMMAR_MAX_NESTING)
        return fail_at(p, start, ERR_UNSUPPORTED, "parentheses nested deeper than 64");
    skip_space(p, true);
    int32_t node = alternatives(p, true);
    if (!p->rc && !take(p, ")"))
        return expected(p, "| or )");
    p->nesting--;
    return node;
}

/* Takes an item. Returns TREE_NONE without a failure if there is none here. */
static int32_t item(struct parser *p)
{
    char c = peek(p);
    if (c == '"')
        return literal(p);
    if (c == '[')
        return class(p);
    if (c == '(')
        return group(p);
    if (c == '<' || c == '!')
        return fail_at(p, p->at, ERR_UNSUPPORTED, "tokens as parts of a grammar are not supported");
    if (c == '.') {
        p->at++;
        return chars_node(p, p->tree->n_ranges, true, p->at - 1);
    }
    if (!is_name(c))
        return TREE_NONE;
    uint32_t rule = rule_here(p);
    return add_node(p, (struct tree_node){.kind = TREE_RULE, .child = TREE_NONE, .rule = rule});
}

static int32_t sequence(struct parser *p, bool nested)
{
    int32_t seq = add_node(p, (struct tree_node){.kind = TREE_SEQ, .child = TREE_NONE});
    while (!p->rc) {
        int32_t one = item(p);
        if (p->rc || one == TREE_NONE)
            break;
        adopt(p, seq, repeated(p, one));
        skip_space(p, nested);
    }
    return seq;
}

static int32_t alternatives(struct parser *p, bool nested)
{
    int32_t alt = add_node(p, (struct tree_node){.kind = TREE_ALT, .child = TREE_NONE});
    do {
        skip_space(p, true);
        adopt(p, alt, sequence(p, nested));
    } while (!p->rc && take(p, "|"));
    return alt;
}

static void rule(struct parser *p)
{
    size_t start = p->at;
    uint32_t idx = rule_here(p);
    skip_space(p, false);
    if (!p->rc && !take(p, "::="))
        expected(p, "::= after the rule's name");
    if (!p->rc && p->tree->rules[idx].body != TREE_NONE)
        fail_at(p, start, ERR_FORMAT, "this rule is defined already");
    skip_space(p, true);
    int32_t body = p->rc ? TREE_NONE : alternatives(p, false);
    if (p->rc)
        return;
    p->tree->rules[idx].body = body;
    if (p->at < p->len && peek(p) != '\n')
        expected(p, "a text in quotation marks, a class, a rule, (, | or the end of the line");
}

static void check_rules(struct parser *p)
{
    struct grammar_tree *t = p->tree;
    bool has_root = false;
    for (uint32_t i = 0; i < t->n_rules && !p->rc; i++) {
        const struct tree_rule *r = &t->rules[i];
        char text[80];
        snprintf(text, sizeof text, "the rule %.40s is not defined", quote_bytes(r->name, r->len).text);
        if (r->body == TREE_NONE)
            fail_at(p, r->at, ERR_FORMAT, text);
        if (r->len == 4 && memcmp(r->name, "root", 4) == 0) {
            t->root = i;
            has_root = true;
        }
    }
    if (!p->rc && !has_root)
        p->rc =
            err_set(p->e, ERR_FORMAT, "%s: there is no rule \"root\", with which a grammar begins", p->name);
}

int grammar_tree_parse(struct grammar_tree *t, const char *text, size_t len, const char *name,
                       const struct grammar_marks *marks, struct moeflux_err *e)
{
    struct parser p = {.tree = t, .text = text, .name = name, .marks = marks, .len = len, .e = e};
    if (len > GRAMMAR_MAX_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "%s: a grammar of %zu bytes, expected at most %d", name, len,
                       GRAMMAR_MAX_BYTES);
    skip_space(&p, true);
    while (!p.rc && p.at < len) {
        rule(&p);
        skip_space(&p, true);
    }
    check_rules(&p);
    return p.rc;
}

void grammar_tree_free(struct grammar_tree *t)
{
    free(t->nodes);
    free(t->ranges);
    free(t->rules);
    *t = (struct grammar_tree){0};
}
