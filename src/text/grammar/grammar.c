#include "text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "text/grammar/check.h"
#include "text/grammar/states.h"
#include "text/grammar/tree.h"

enum {
    MAX_SHARED_ROUNDS = 32, /* bodies of counted repetitions that may be shared */
    MAX_COPIES = 8,         /* rounds that are copied rather than counted */
    MAX_EMPTY_COPIES = 16,  /* rounds of a body that may be empty, which cannot be counted */
    SMALL_RULE = 32,        /* nodes; rules up to this size are copied to where they are used */
    SMALL_PASSES = 4,       /* passes that look for small rules, which may use small rules */
    NARROW_CLASS = 0x40,    /* characters; a class up to this size fits few tokens */
    SHARED_STATES = 64,     /* latest states, among which an equal one is looked for */
};

/* The first failure sticks in `rc`. */
struct builder {
    const struct grammar_tree *tree;
    struct grammar *grammar;
    bool *nullable; /* [rules] */
    bool *is_small; /* [rules] */
    struct round {
        int32_t child;
        uint32_t body;
    } rounds[MAX_SHARED_ROUNDS]; /* bodies of the first counted repetitions */
    size_t n_rounds;
    int rc;
    const char *name;
    struct moeflux_err *e;
};

/* ---- properties of rules ---- */

static bool is_nullable(const struct builder *b, int32_t node)
{
    const struct tree_node *nodes = b->tree->nodes, *n = &nodes[node];
    bool all = true, any = false;
    switch (n->kind) {
    case TREE_EMPTY:
        return true;
    case TREE_CHARS:
        return false;
    case TREE_RULE:
        return b->nullable[n->rule];
    case TREE_REPEAT:
        return n->min == 0 || is_nullable(b, n->child);
    case TREE_SEQ:
    case TREE_ALT:
        break;
    }
    for (int32_t c = n->child; c != TREE_NONE; c = nodes[c].sibling) {
        bool one = is_nullable(b, c);
        all = all && one;
        any = any || one;
    }
    return n->kind == TREE_SEQ ? all : any;
}

static void find_nullable(struct builder *b)
{
    const struct grammar_tree *t = b->tree;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < t->n_rules; i++)
            if (!b->nullable[i] && is_nullable(b, t->rules[i].body))
                b->nullable[i] = changed = true;
    }
}

static uint32_t n_chars(const struct builder *b, const struct tree_node *n)
{
    uint32_t sum = 0;
    for (uint32_t i = n->first; i < n->first + n->n_ranges; i++)
        sum += b->tree->ranges[i].hi - b->tree->ranges[i].lo + 1;
    return sum;
}

/* Returns the number of nodes, or a number over SMALL_RULE if they are more, or if a repetition is counted or
 * unlimited. */
static uint32_t weight(const struct builder *b, int32_t node)
{
    const struct tree_node *nodes = b->tree->nodes, *n = &nodes[node];
    uint32_t sum = 1, most = 1;
    if (n->kind == TREE_RULE)
        return b->is_small[n->rule] ? weight(b, b->tree->rules[n->rule].body) : SMALL_RULE + 1;
    if (n->kind == TREE_CHARS)
        return n_chars(b, n) > NARROW_CLASS ? 8 : 1;
    if (n->kind == TREE_REPEAT) {
        if (n->max == TREE_NO_MAX || n->max > MAX_COPIES)
            return SMALL_RULE + 1;
        most = (uint32_t)n->max;
    }
    for (int32_t c = n->child; c != TREE_NONE && sum <= SMALL_RULE; c = nodes[c].sibling)
        sum += weight(b, c) * most;
    return sum;
}

/* Finds the small rules. Rules without repetitions, such as "a character of a string", are better copied:
 * then the states inside a text do not depend on a caller. A recursive rule never becomes small, since a rule
 * becomes small only after the rules it uses. */
static void find_small(struct builder *b)
{
    for (unsigned pass = 0; pass < SMALL_PASSES; pass++)
        for (size_t i = b->tree->n_rules; i-- > 0;)
            b->is_small[i] = b->is_small[i] || weight(b, b->tree->rules[i].body) <= SMALL_RULE;
}

/* ---- states ---- */

static uint32_t add_state(struct builder *b, struct grammar_state s)
{
    struct grammar *g = b->grammar;
    if (b->rc)
        return 0;
    if (g->n_states == GRAMMAR_MAX_STATES)
        b->rc = err_set(b->e, ERR_UNSUPPORTED, "%s: the grammar is too large: more than %d states", b->name,
                        GRAMMAR_MAX_STATES);
    else
        b->rc = mem_grow((void **)&g->states, &g->cap_states, g->n_states + 1, sizeof *g->states, b->e);
    if (b->rc)
        return 0;
    g->states[g->n_states] = s;
    return (uint32_t)g->n_states++;
}

static uint32_t add_split(struct builder *b, uint32_t next, uint32_t other)
{
    return add_state(b, (struct grammar_state){.kind = STATE_SPLIT, .next = next, .other = other});
}

static void add_byte_range(struct builder *b, uint8_t lo, uint8_t hi)
{
    struct grammar *g = b->grammar;
    if (!b->rc)
        b->rc = mem_grow((void **)&g->bytes, &g->cap_bytes, g->n_bytes + 1, sizeof *g->bytes, b->e);
    if (!b->rc)
        g->bytes[g->n_bytes++] = (struct byte_range){lo, hi};
}

/* Returns a state for one byte from lo to hi, then `next`. Reuses an equal one of the latest states from
 * `since` on: UTF-8 sequences often have the same ends. */
static uint32_t byte_state(struct builder *b, uint32_t since, uint8_t lo, uint8_t hi, uint32_t next)
{
    const struct grammar *g = b->grammar;
    uint32_t back = g->n_states > SHARED_STATES ? (uint32_t)g->n_states - SHARED_STATES : 0;
    for (uint32_t i = since > back ? since : back; i < g->n_states; i++) {
        const struct grammar_state *s = &g->states[i];
        if (s->kind == STATE_BYTES && s->next == next && s->n_bytes == 1 && g->bytes[s->first].lo == lo &&
            g->bytes[s->first].hi == hi)
            return i;
    }
    uint32_t first = (uint32_t)g->n_bytes;
    add_byte_range(b, lo, hi);
    return add_state(b,
                     (struct grammar_state){.kind = STATE_BYTES, .n_bytes = 1, .first = first, .next = next});
}

static unsigned encode(uint32_t point, uint8_t *out)
{
    if (point < 0x80) {
        out[0] = (uint8_t)point;
        return 1;
    }
    unsigned n = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (unsigned i = n; i-- > 1; point >>= 6)
        out[i] = (uint8_t)(0x80 | (point & 0x3f));
    out[0] = (uint8_t)((0xf00 >> n & 0xff) | point);
    return n;
}

/* Adds the characters lo to hi, whose UTF-8 has the same length, as sequences of byte ranges. The range is
 * cut so that the bytes of each part are independent: only full ranges may follow a
 * range of several bytes. */
static uint32_t add_sequences(struct builder *b, uint32_t since, uint32_t lo, uint32_t hi, uint32_t next,
                              uint32_t start)
{
    while (lo <= hi && !b->rc) {
        uint8_t from[4], to[4];
        uint32_t end = hi;
        for (unsigned shift = 18; shift >= 6; shift -= 6) {
            uint32_t low = (1u << shift) - 1;
            if ((lo & ~low) == (end & ~low))
                continue;
            if (lo & low)
                end = lo | low;
            else if ((end & low) != low)
                end = (end & ~low) - 1;
        }
        unsigned n = encode(lo, from);
        encode(end, to);
        uint32_t at = next;
        for (unsigned i = n; i-- > 0;)
            at = byte_state(b, since, from[i], to[i], at);
        start = start == UINT32_MAX ? at : add_split(b, at, start);
        lo = end + 1;
    }
    return start;
}

static uint32_t build_chars(struct builder *b, const struct tree_node *n, uint32_t next)
{
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    struct grammar *g = b->grammar;
    uint32_t since = (uint32_t)g->n_states, first = (uint32_t)g->n_bytes, start = UINT32_MAX;
    const struct tree_range *ranges = b->tree->ranges + n->first;
    if (ranges->lo >= TREE_FIRST_MARK) {
        uint8_t byte = (uint8_t)(GRAMMAR_FIRST_MARK + (ranges->lo - TREE_FIRST_MARK));
        add_byte_range(b, byte, byte);
    }
    for (uint32_t i = 0; i < n->n_ranges && ranges[i].lo < 0x80; i++)
        add_byte_range(b, (uint8_t)ranges[i].lo, (uint8_t)(ranges[i].hi < 0x7f ? ranges[i].hi : 0x7f));
    if (g->n_bytes > first)
        start = add_state(b, (struct grammar_state){.kind = STATE_BYTES,
                                                    .n_bytes = (uint16_t)(g->n_bytes - first),
                                                    .first = first,
                                                    .next = next});
    for (uint32_t i = 0; i < n->n_ranges && !b->rc; i++)
        for (unsigned k = 1; k < 4; k++) {
            uint32_t lo = ranges[i].lo > ends[k - 1] ? ranges[i].lo : ends[k - 1] + 1;
            uint32_t hi = ranges[i].hi < ends[k] ? ranges[i].hi : ends[k];
            if (lo <= hi)
                start = add_sequences(b, since, lo, hi, next, start);
        }
    return start;
}

/* ---- nodes ---- */

static uint32_t build(struct builder *b, int32_t node, uint32_t next);

/* Writes the rounds out; after round `min` each may be the last. */
static uint32_t build_copies(struct builder *b, const struct tree_node *n, uint32_t next)
{
    uint32_t at = next;
    for (int32_t i = n->max; i-- > 0 && !b->rc;) {
        at = build(b, n->child, at);
        if (i >= n->min)
            at = add_split(b, at, next);
    }
    return at;
}

static bool are_equal(const struct builder *b, int32_t x, int32_t y)
{
    const struct tree_node *nodes = b->tree->nodes, *m = &nodes[x], *n = &nodes[y];
    bool same = m->kind == n->kind && m->n_ranges == n->n_ranges && m->min == n->min && m->max == n->max &&
                m->rule == n->rule;
    for (uint32_t i = 0; same && i < m->n_ranges; i++) {
        const struct tree_range *p = &b->tree->ranges[m->first + i], *q = &b->tree->ranges[n->first + i];
        same = p->lo == q->lo && p->hi == q->hi;
    }
    for (x = m->child, y = n->child; same && x != TREE_NONE && y != TREE_NONE;) {
        same = are_equal(b, x, y);
        x = nodes[x].sibling;
        y = nodes[y].sibling;
    }
    return same && x == y;
}

/* Returns the first state of a loop's body. Equal bodies share their states, so their tokens are computed
 * once. */
static uint32_t build_round(struct builder *b, int32_t child)
{
    for (size_t i = 0; i < b->n_rounds; i++)
        if (are_equal(b, b->rounds[i].child, child))
            return b->rounds[i].body;
    uint32_t end = add_state(b, (struct grammar_state){.kind = STATE_ROUND});
    uint32_t body = build(b, child, end);
    if (b->n_rounds < MAX_SHARED_ROUNDS)
        b->rounds[b->n_rounds++] = (struct round){child, body};
    return body;
}

/* Builds min to max rounds, which are counted at run time. */
static uint32_t build_counted(struct builder *b, int32_t child, uint32_t min, uint32_t max, uint32_t next)
{
    struct grammar *g = b->grammar;
    uint32_t loop = (uint32_t)g->n_loops;
    if (!b->rc)
        b->rc = mem_grow((void **)&g->loops, &g->cap_loops, g->n_loops + 1, sizeof *g->loops, b->e);
    if (b->rc)
        return 0;
    g->loops[g->n_loops++] = (struct grammar_loop){.min = min, .max = max, .next = next};
    uint32_t body = build_round(b, child);
    g->loops[loop].body = body;
    return add_state(b, (struct grammar_state){.kind = STATE_LOOP, .next = next, .other = loop});
}

/* Builds one or more rounds; may_skip: zero or more. */
static uint32_t build_endless(struct builder *b, int32_t child, bool may_skip, uint32_t next)
{
    uint32_t again = add_split(b, next, next);
    uint32_t body = build(b, child, again);
    if (b->rc)
        return 0;
    b->grammar->states[again].next = body;
    return may_skip ? again : body;
}

static bool is_narrow(const struct builder *b, int32_t node)
{
    const struct tree_node *n = &b->tree->nodes[node];
    if (n->kind == TREE_SEQ && n->child != TREE_NONE && b->tree->nodes[n->child].sibling == TREE_NONE)
        return is_narrow(b, n->child);
    return n->kind == TREE_CHARS && n_chars(b, n) <= NARROW_CLASS;
}

static uint32_t build_repeat(struct builder *b, const struct tree_node *n, uint32_t next)
{
    bool empty = is_nullable(b, n->child);
    if (n->max == TREE_NO_MAX) {
        if (n->min <= 1 || empty)
            return build_endless(b, n->child, n->min == 0, next);
        uint32_t rest = build_endless(b, n->child, false, next);
        return n->min == 2 ? build(b, n->child, rest)
                           : build_counted(b, n->child, (uint32_t)n->min - 1, (uint32_t)n->min - 1, rest);
    }
    if (empty && n->max > MAX_EMPTY_COPIES) {
        b->rc = b->rc ? b->rc
                      : err_set(b->e, ERR_UNSUPPORTED,
                                "%s: a repetition up to %d times of what may be empty, expected at most %d",
                                b->name, n->max, MAX_EMPTY_COPIES);
        return 0;
    }
    if (empty || n->max <= 2 || (n->max <= MAX_COPIES && is_narrow(b, n->child)))
        return build_copies(b, n, next);
    return build_counted(b, n->child, (uint32_t)n->min, (uint32_t)n->max, next);
}

static uint32_t build_rule(struct builder *b, uint32_t rule, uint32_t next)
{
    if (!b->is_small[rule])
        return add_state(b, (struct grammar_state){.kind = STATE_CALL, .next = next, .other = rule});
    return build(b, b->tree->rules[rule].body, next);
}

/* Builds the states of the node, after which `next` follows. Returns the first one. */
static uint32_t build(struct builder *b, int32_t node, uint32_t next)
{
    const struct tree_node *nodes = b->tree->nodes, *n = &nodes[node];
    uint32_t at = next;
    if (b->rc)
        return 0;
    switch (n->kind) {
    case TREE_EMPTY:
        return next;
    case TREE_CHARS:
        return build_chars(b, n, next);
    case TREE_RULE:
        return build_rule(b, n->rule, next);
    case TREE_REPEAT:
        return build_repeat(b, n, next);
    case TREE_SEQ:
        for (int32_t c = n->child; c != TREE_NONE && !b->rc; c = nodes[c].sibling)
            at = build(b, c, at);
        return at;
    case TREE_ALT:
        at = build(b, n->child, next);
        for (int32_t c = nodes[n->child].sibling; c != TREE_NONE && !b->rc; c = nodes[c].sibling)
            at = add_split(b, build(b, c, next), at);
        return at;
    }
    return at;
}

static int build_all(struct builder *b)
{
    const struct grammar_tree *t = b->tree;
    struct grammar *g = b->grammar;
    b->nullable = mem_new(t->n_rules, sizeof *b->nullable, b->e);
    b->is_small = mem_new(t->n_rules, sizeof *b->is_small, b->e);
    g->starts = mem_new(t->n_rules, sizeof *g->starts, b->e);
    if (!b->nullable || !b->is_small || !g->starts)
        return ERR_MEMORY;
    g->n_rules = (uint32_t)t->n_rules;
    g->root = t->root;
    find_nullable(b);
    find_small(b);
    for (uint32_t i = 0; i < g->n_rules && !b->rc; i++) {
        uint32_t end = add_state(b, (struct grammar_state){.kind = STATE_END});
        g->starts[i] = build(b, t->rules[i].body, end);
    }
    return b->rc;
}

int grammar_compile_marked(struct grammar **out, const char *text, size_t len, const char *name,
                           const struct grammar_marks *marks, struct moeflux_err *e)
{
    struct grammar_tree tree = {0};
    struct grammar *g = mem_new(1, sizeof *g, e);
    struct builder b = {.tree = &tree, .grammar = g, .name = name, .e = e};
    int rc = g ? grammar_tree_parse(&tree, text, len, name, marks, e) : ERR_MEMORY;
    if (rc == 0)
        g->marks = marks;
    if (rc == 0)
        rc = build_all(&b);
    if (rc == 0)
        rc = grammar_check(g, &tree, b.nullable, name, e);
    free(b.nullable);
    free(b.is_small);
    grammar_tree_free(&tree);
    if (rc == 0)
        *out = g;
    else
        grammar_free(g);
    return rc;
}

int grammar_compile(struct grammar **out, const char *text, size_t len, const char *name,
                    struct moeflux_err *e)
{
    return grammar_compile_marked(out, text, len, name, NULL, e);
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    free(g->states);
    free(g->bytes);
    free(g->loops);
    free(g->starts);
    free(g);
}
