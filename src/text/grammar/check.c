#include "text/grammar/check.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/quote.h"
#include "text/grammar/states.h"
#include "text/grammar/tree.h"

/* ---- states from which the end can be reached ---- */

static bool can_end(const struct grammar *g, const struct grammar_state *s)
{
    const struct grammar_state *all = g->states;
    const struct grammar_loop *loop;
    switch ((enum state_kind)s->kind) {
    case STATE_BYTES:
        return all[s->next].live;
    case STATE_SPLIT:
        return all[s->next].live || all[s->other].live;
    case STATE_CALL:
        return all[g->starts[s->other]].live && all[s->next].live;
    case STATE_LOOP:
        loop = &g->loops[s->other];
        return (loop->min == 0 || all[loop->body].live) && all[loop->next].live;
    case STATE_ROUND:
    case STATE_END:
        break;
    }
    return true;
}

/* Marks the live states. Successors have lower numbers, except in repetitions and calls, so few passes
 * suffice. */
static void find_live(struct grammar *g)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < g->n_states; i++)
            if (!g->states[i].live && can_end(g, &g->states[i]))
                g->states[i].live = changed = true;
    }
}

/* ---- rules that begin with themselves ---- */

struct edge { /* a rule that another may begin with */
    uint32_t rule, next;
};

struct finder {
    const struct grammar *g;
    const bool *nullable;
    uint8_t *seen; /* [states] */
    uint32_t *stack;
    uint32_t *heads; /* [rules] edge + 1 */
    struct edge *edges;
    size_t n_edges, cap_edges;
};

static void visit(struct finder *f, uint32_t state, size_t *n)
{
    if (f->seen[state])
        return;
    f->seen[state] = 1;
    f->stack[(*n)++] = state;
}

static int add_edge(struct finder *f, uint32_t from, uint32_t to, struct moeflux_err *e)
{
    int rc = mem_grow((void **)&f->edges, &f->cap_edges, f->n_edges + 1, sizeof *f->edges, e);
    if (rc)
        return rc;
    f->edges[f->n_edges++] = (struct edge){to, f->heads[from]};
    f->heads[from] = (uint32_t)f->n_edges;
    return 0;
}

/* Adds an edge to each rule that `rule` may begin with. */
static int find_firsts(struct finder *f, uint32_t rule, struct moeflux_err *e)
{
    const struct grammar *g = f->g;
    size_t n = 0;
    int rc = 0;
    visit(f, g->starts[rule], &n);
    while (n > 0 && rc == 0) {
        const struct grammar_state *s = &g->states[f->stack[--n]];
        if (s->kind == STATE_SPLIT) {
            visit(f, s->next, &n);
            visit(f, s->other, &n);
        } else if (s->kind == STATE_CALL) {
            rc = add_edge(f, rule, s->other, e);
            if (f->nullable[s->other])
                visit(f, s->next, &n);
        } else if (s->kind == STATE_LOOP) {
            visit(f, g->loops[s->other].body, &n);
            if (g->loops[s->other].min == 0)
                visit(f, s->next, &n);
        }
    }
    return rc;
}

/* Returns a rule on a cycle of edges; n_rules: there is no cycle. Depth first; path: the stack. state:
 * [n_rules] 0 not seen, 1 on the path, 2 done. at: [n_rules] the next edge. */
static uint32_t find_cycle(struct finder *f, uint8_t *state, uint32_t *path, uint32_t *at)
{
    for (uint32_t start = 0; start < f->g->n_rules; start++) {
        size_t n = 0;
        if (state[start])
            continue;
        path[n++] = start;
        state[start] = 1;
        at[start] = f->heads[start];
        while (n > 0) {
            uint32_t rule = path[n - 1], edge = at[rule];
            if (!edge || !f->edges) {
                state[rule] = 2;
                n--;
                continue;
            }
            uint32_t to = f->edges[edge - 1].rule;
            at[rule] = f->edges[edge - 1].next;
            if (state[to] == 1)
                return to;
            if (state[to] == 0) {
                state[to] = 1;
                at[to] = f->heads[to];
                path[n++] = to;
            }
        }
    }
    return f->g->n_rules;
}

static int check_left(const struct grammar *g, const struct grammar_tree *t, const bool *nullable,
                      const char *name, struct moeflux_err *e)
{
    struct finder f = {.g = g, .nullable = nullable};
    uint8_t *state = mem_new(g->n_rules, 1, e);
    uint32_t *path = mem_new(g->n_rules, sizeof *path, e), *at = mem_new(g->n_rules, sizeof *at, e);
    f.seen = mem_new(g->n_states, 1, e);
    f.stack = mem_new(g->n_states, sizeof *f.stack, e);
    f.heads = mem_new(g->n_rules, sizeof *f.heads, e);
    int rc = state && path && at && f.seen && f.stack && f.heads ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; i < g->n_rules && rc == 0; i++)
        rc = find_firsts(&f, i, e);
    uint32_t rule = rc ? g->n_rules : find_cycle(&f, state, path, at);
    if (rule < g->n_rules)
        rc = err_set(e, ERR_FORMAT, "%s: the rule %s begins with itself (left recursion)", name,
                     quote_bytes(t->rules[rule].name, t->rules[rule].len).text);
    free(state);
    free(path);
    free(at);
    free(f.seen);
    free(f.stack);
    free(f.heads);
    free(f.edges);
    return rc;
}

int grammar_check(struct grammar *g, const struct grammar_tree *t, const bool *nullable, const char *name,
                  struct moeflux_err *e)
{
    int rc = check_left(g, t, nullable, name, e);
    if (rc)
        return rc;
    find_live(g);
    if (!g->states[g->starts[g->root]].live)
        return err_set(e, ERR_FORMAT, "%s: no text fits the rule \"root\": its rules never come to an end",
                       name);
    return 0;
}
