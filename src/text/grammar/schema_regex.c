#include "text/grammar/schema_regex.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/schema_writer.h"

enum { MAX_ROOT = 4096 };

/* ---- lengths; REGEX_ENDLESS is the largest one ---- */

static uint32_t plus(uint32_t a, uint32_t b)
{
    return a > REGEX_ENDLESS - b ? REGEX_ENDLESS : a + b;
}

static uint32_t times(uint32_t a, uint32_t b)
{
    uint64_t n = (uint64_t)a * b;
    bool is_endless = a && b && (a == REGEX_ENDLESS || b == REGEX_ENDLESS);
    return is_endless || n > REGEX_ENDLESS ? REGEX_ENDLESS : (uint32_t)n;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Returns a / b, rounded up; b > 0. */
static uint32_t quotient_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* ---- nodes ---- */

static uint32_t add_node(struct regex *r, struct regex_node node, struct schema_writer *w)
{
    if (w->rc)
        return 0;
    if (mem_grow((void **)&r->nodes, &r->cap, r->n + 2, sizeof *r->nodes, w->e)) {
        w->rc = ERR_MEMORY;
        return 0;
    }
    if (r->n == 0)
        r->nodes[r->n++] = (struct regex_node){0};
    r->nodes[r->n] = node;
    return (uint32_t)r->n++;
}

uint32_t regex_add_char(struct regex *r, const char *expression, struct schema_writer *w)
{
    size_t at = r->texts.len;
    str_add_text(&r->texts, expression);
    if (!str_ok(&r->texts))
        w->rc = ERR_MEMORY;
    return add_node(
        r, (struct regex_node){.kind = REGEX_CHAR, .lo = 1, .hi = 1, .text = at, .n_text = r->texts.len - at},
        w);
}

uint32_t regex_add_list(struct regex *r, enum regex_kind kind, struct schema_writer *w)
{
    return add_node(r, (struct regex_node){.kind = kind}, w);
}

uint32_t regex_add_repeat(struct regex *r, uint32_t node, uint32_t min, uint32_t max, struct schema_writer *w)
{
    if (w->rc)
        return 0;
    uint32_t lo = times(r->nodes[node].lo, min), hi = times(r->nodes[node].hi, max);
    return add_node(r,
                    (struct regex_node){.kind = REGEX_REPEAT,
                                        .first = node,
                                        .last = node,
                                        .min_times = min,
                                        .max_times = max,
                                        .lo = lo,
                                        .hi = hi},
                    w);
}

void regex_append(struct regex *r, uint32_t list, uint32_t node)
{
    struct regex_node *l = &r->nodes[list], *n = &r->nodes[node];
    if (l->kind == REGEX_SEQUENCE) {
        l->lo = plus(l->lo, n->lo);
        l->hi = plus(l->hi, n->hi);
    } else {
        l->lo = l->first ? smaller(l->lo, n->lo) : n->lo;
        l->hi = l->first ? larger(l->hi, n->hi) : n->hi;
    }
    if (l->first)
        r->nodes[l->last].next = node;
    else
        l->first = node;
    l->last = node;
}

/* ---- writing ---- */

/* Returns what a child that needs more than its share of `room` characters may have in addition to its
 * least length: children that need less leave the rest to the others. */
static uint32_t share_of(const struct regex *r, const struct regex_node *list, uint32_t room)
{
    uint32_t n = 0, share = room;
    for (uint32_t i = list->first; i; i = r->nodes[i].next)
        n += r->nodes[i].hi > r->nodes[i].lo;
    for (uint32_t pass = 0; pass <= n && n > 0; pass++) {
        uint32_t rest = room, n_large = 0;
        share = pass ? share : room / n;
        for (uint32_t i = list->first; i; i = r->nodes[i].next) {
            uint32_t more = r->nodes[i].hi - r->nodes[i].lo;
            rest -= more <= share ? smaller(more, rest) : 0;
            n_large += more > share;
        }
        if (n_large == 0 || rest / n_large <= share)
            break;
        share = rest / n_large;
    }
    return share;
}

static bool write_sequence(const struct regex *r, const struct regex_node *list, uint32_t lo, uint32_t hi,
                           struct str *body)
{
    uint32_t missing = lo > list->lo ? lo - list->lo : 0;
    uint32_t share = hi == REGEX_ENDLESS ? REGEX_ENDLESS : share_of(r, list, hi - list->lo);
    bool good = true;
    str_add_text(body, "(\"\"");
    for (uint32_t i = list->first; i && good; i = r->nodes[i].next) {
        const struct regex_node *n = &r->nodes[i];
        uint32_t most = smaller(n->hi, plus(n->lo, share)), more = smaller(missing, most - n->lo);
        missing -= more;
        str_add_text(body, " ");
        good = regex_write(r, i, n->lo + more, most, body);
    }
    str_add_text(body, ")");
    return good && missing == 0;
}

static bool write_any_of(const struct regex *r, const struct regex_node *list, uint32_t lo, uint32_t hi,
                         struct str *body)
{
    const char *between = "(";
    for (uint32_t i = list->first; i; i = r->nodes[i].next) {
        const struct regex_node *n = &r->nodes[i];
        if (n->lo > hi || n->hi < lo)
            continue;
        str_add_text(body, between);
        if (!regex_write(r, i, lo, hi, body))
            return false;
        between = " | ";
    }
    str_add_text(body, *between == '(' ? SCHEMA_NEVER : ")");
    return *between != '(';
}

static bool write_times(const struct regex *r, uint32_t node, uint32_t lo, uint32_t hi, uint32_t min,
                        uint32_t max, struct str *body)
{
    str_add_text(body, "(");
    bool good = regex_write(r, node, lo, hi, body);
    str_addf(body, "){%u,", smaller(min, SCHEMA_MAX_COUNT));
    if (max != REGEX_ENDLESS)
        str_addf(body, "%u", smaller(max, SCHEMA_MAX_COUNT));
    str_add_text(body, "}");
    return good && min <= SCHEMA_MAX_COUNT;
}

/* Writes a repetition with narrower lengths. All rounds get the same limit of characters; if there may be
 * several rounds, the limit is about the number of rounds. */
static bool write_repeat(const struct regex *r, const struct regex_node *n, uint32_t lo, uint32_t hi,
                         struct str *body)
{
    const struct regex_node *one = &r->nodes[n->first];
    /* Rounds without characters can be left out. */
    uint32_t least = larger(one->lo, 1), min = one->lo ? n->min_times : 0;
    uint32_t most = one->hi, max = n->max_times;
    if (hi != REGEX_ENDLESS && one->lo < one->hi) {
        uint32_t root = least;
        while (root < MAX_ROOT && times(root + 1, root + 1) <= hi)
            root++;
        most = smaller(most, max == 1 ? larger(hi, least) : min > 0 ? smaller(root, hi / min) : root);
    }
    if (hi != REGEX_ENDLESS)
        max = smaller(max, hi / larger(most, 1));
    /* Rounds of `least` characters or more make up the shortest text. */
    if (lo > times(min, least))
        min = quotient_up(lo, least);
    if (min > max && max > 0) {
        min = max;
        least = larger(least, quotient_up(lo, min));
    }
    if (min > max || (max > 0 && least > most))
        return false;
    return write_times(r, n->first, least, most, min, max, body);
}

bool regex_write(const struct regex *r, uint32_t node, uint32_t lo, uint32_t hi, struct str *body)
{
    const struct regex_node *n = &r->nodes[node];
    if (n->lo > hi || n->hi < lo) {
        str_add_text(body, SCHEMA_NEVER);
        return true;
    }
    switch (n->kind) {
    case REGEX_CHAR:
        str_add(body, r->texts.data + n->text, n->n_text);
        return true;
    case REGEX_SEQUENCE:
        return write_sequence(r, n, lo, hi, body);
    case REGEX_ANY_OF:
        return write_any_of(r, n, lo, hi, body);
    case REGEX_REPEAT:
        break;
    }
    if (n->lo >= lo && n->hi <= hi)
        return write_times(r, n->first, r->nodes[n->first].lo, r->nodes[n->first].hi, n->min_times,
                           n->max_times, body);
    return write_repeat(r, n, lo, hi, body);
}

void regex_free(struct regex *r)
{
    free(r->nodes);
    str_free(&r->texts);
}
