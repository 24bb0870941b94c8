#include "text/grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/states.h"

enum { UNKNOWN = UINT32_MAX, LARGE_TABLES = 1 << 12, LARGE_MEMBERS = 1 << 19, LARGE_STACKS = 1 << 16 };

struct position {
    size_t first; /* index in `members` of its first place */
    uint32_t n;   /* places */
    bool may_end;
    /* [n_classes] the position after a byte of each class, or UNKNOWN; NULL: none was tried */
    uint32_t *next;
};

/* A hash table of numbers by content, with open addressing. Slot 0: free, else the number + 1. */
struct index {
    uint32_t *slots;
    size_t mask, n;
};

struct matcher {
    const struct grammar *grammar;
    uint8_t class_of[256]; /* the class of each byte; every state treats the bytes of a class alike */
    size_t n_classes;
    struct position *positions;
    size_t n_positions, cap_positions;
    struct matcher_place *members;
    size_t n_members, cap_members;
    struct matcher_stack *stacks; /* stacks[0] is the empty one */
    size_t n_stacks, cap_stacks;
    struct index by_stack, by_places, seen; /* seen: indices of `todo` */
    size_t n_tables;
    uint64_t work;
    /* scratch of one closure: the places to visit, and the places that take a byte or exit */
    struct matcher_place *todo, *found;
    size_t n_todo, cap_todo, n_found, cap_found;
    int rc;
    struct moeflux_err err;
};

/* ---- numbers of stacks ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static uint64_t hash_stack(const struct matcher_stack *s)
{
    return mix(mix(s->parent, (uint64_t)s->value << 2 | s->kind), s->count);
}

static uint64_t hash_places(const struct matcher_place *p, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++)
        h = mix(h, (uint64_t)p[i].state << 32 | p[i].stack);
    return h;
}

static uint64_t hash_number(const struct matcher *m, const struct index *index, uint32_t number)
{
    if (index == &m->by_stack)
        return hash_stack(&m->stacks[number]);
    if (index == &m->by_places)
        return hash_places(m->members + m->positions[number].first, m->positions[number].n);
    return hash_places(&m->todo[number], 1);
}

static void put(struct index *index, uint64_t hash, uint32_t number)
{
    size_t at = hash & index->mask;
    while (index->slots[at])
        at = (at + 1) & index->mask;
    index->slots[at] = number + 1;
}

/* Makes room for one more. */
static int index_grow(struct matcher *m, struct index *index)
{
    if (index->slots && index->n * 2 <= index->mask)
        return 0;
    size_t size = index->slots ? (index->mask + 1) * 2 : 64;
    struct index old = *index;
    uint32_t *slots = mem_new(size, sizeof *slots, &m->err);
    if (!slots)
        return m->rc = ERR_MEMORY;
    index->slots = slots;
    index->mask = size - 1;
    for (size_t i = 0; old.slots && i <= old.mask; i++)
        if (old.slots[i])
            put(index, hash_number(m, index, old.slots[i] - 1), old.slots[i] - 1);
    free(old.slots);
    return 0;
}

static int fail(struct matcher *m, const char *what)
{
    if (!m->rc)
        m->rc = err_set(&m->err, ERR_UNSUPPORTED, "the grammar is too ambiguous: %s", what);
    return m->rc;
}

uint32_t matcher_push(struct matcher *m, struct matcher_stack top)
{
    uint64_t hash = hash_stack(&top);
    if (m->rc || index_grow(m, &m->by_stack))
        return MATCHER_BOTTOM;
    for (size_t at = hash & m->by_stack.mask; m->by_stack.slots[at]; at = (at + 1) & m->by_stack.mask) {
        uint32_t number = m->by_stack.slots[at] - 1;
        const struct matcher_stack *s = &m->stacks[number];
        if (s->parent == top.parent && s->value == top.value && s->count == top.count && s->kind == top.kind)
            return number;
    }
    if (m->n_stacks == MATCHER_MAX_STACKS)
        fail(m, "more than 262144 stacks of rules");
    else if (mem_grow((void **)&m->stacks, &m->cap_stacks, m->n_stacks + 1, sizeof *m->stacks, &m->err))
        m->rc = ERR_MEMORY;
    if (m->rc)
        return MATCHER_BOTTOM;
    m->stacks[m->n_stacks] = top;
    put(&m->by_stack, hash, (uint32_t)m->n_stacks);
    m->by_stack.n++;
    return (uint32_t)m->n_stacks++;
}

/* ---- closures ---- */

static void begin(struct matcher *m)
{
    /* The entries are removed one by one, since the table may be much larger. */
    for (size_t i = m->seen.n; i-- > 0;) {
        size_t at = hash_places(&m->todo[i], 1) & m->seen.mask;
        while (m->seen.slots[at] != i + 1)
            at = (at + 1) & m->seen.mask;
        m->seen.slots[at] = 0;
    }
    m->seen.n = m->n_todo = m->n_found = 0;
}

/* Adds a place to `todo` unless it is there. Nothing is ever removed from the list, since `seen` refers to
 * it. */
static void look_at(struct matcher *m, uint32_t state, uint32_t stack)
{
    const struct matcher_place p = {state, stack};
    uint64_t hash = hash_places(&p, 1);
    if (m->rc || !m->grammar->states[state].live || index_grow(m, &m->seen))
        return;
    for (size_t at = hash & m->seen.mask; m->seen.slots[at]; at = (at + 1) & m->seen.mask) {
        const struct matcher_place *q = &m->todo[m->seen.slots[at] - 1];
        if (q->state == state && q->stack == stack)
            return;
    }
    if (m->n_todo == 8 * (size_t)MATCHER_MAX_PLACES)
        fail(m, "more than 65536 parses of one byte");
    else if (mem_grow((void **)&m->todo, &m->cap_todo, m->n_todo + 1, sizeof *m->todo, &m->err))
        m->rc = ERR_MEMORY;
    if (m->rc)
        return;
    m->todo[m->n_todo] = p;
    put(&m->seen, hash, (uint32_t)m->n_todo++);
    m->seen.n++;
}

static void add_found(struct matcher *m, uint32_t state, uint32_t stack)
{
    if (m->n_found == MATCHER_MAX_PLACES)
        fail(m, "more than 8192 parses of a text at once");
    else if (mem_grow((void **)&m->found, &m->cap_found, m->n_found + 1, sizeof *m->found, &m->err))
        m->rc = ERR_MEMORY;
    if (!m->rc)
        m->found[m->n_found++] = (struct matcher_place){state, stack};
}

/* Enters a rule. A tail call pushes no frame: it returns to the rule's own caller. */
static void enter_rule(struct matcher *m, const struct grammar_state *s, uint32_t stack)
{
    const struct grammar *g = m->grammar;
    if (g->states[s->next].kind != STATE_END)
        stack =
            matcher_push(m, (struct matcher_stack){.parent = stack, .value = s->next, .kind = FRAME_CALL});
    look_at(m, g->starts[s->other], stack);
}

static void enter_loop(struct matcher *m, const struct grammar_state *s, uint32_t stack)
{
    const struct grammar_loop *loop = &m->grammar->loops[s->other];
    if (loop->min == 0)
        look_at(m, s->next, stack);
    if (m->grammar->states[loop->body].live)
        look_at(
            m, loop->body,
            matcher_push(m, (struct matcher_stack){.parent = stack, .value = s->other, .kind = FRAME_LOOP}));
}

static void end_round(struct matcher *m, uint32_t stack)
{
    /* The caller asked for this round only. */
    if (stack == MATCHER_BOTTOM) {
        add_found(m, MATCHER_EXIT, MATCHER_BOTTOM);
        return;
    }
    struct matcher_stack top = m->stacks[stack];
    const struct grammar_loop *loop = &m->grammar->loops[top.value];
    top.count++;
    if (top.kind == FRAME_FREE) {
        uint32_t again = matcher_push(m, top);
        add_found(m, MATCHER_EXIT, again);
        look_at(m, loop->body, again);
        return;
    }
    if (top.count >= loop->min)
        look_at(m, loop->next, top.parent);
    if (top.count < loop->max)
        look_at(m, loop->body, matcher_push(m, top));
}

static void end_rule(struct matcher *m, uint32_t stack)
{
    if (stack == MATCHER_BOTTOM)
        add_found(m, MATCHER_EXIT, MATCHER_BOTTOM);
    else
        look_at(m, m->stacks[stack].value, m->stacks[stack].parent);
}

/* Visits the places of `todo` from index `from` on, along all transitions without a byte. */
static void follow(struct matcher *m, size_t from)
{
    for (size_t i = from; i < m->n_todo && !m->rc; i++) {
        m->work += 64;
        const struct matcher_place p = m->todo[i];
        const struct grammar_state *s = &m->grammar->states[p.state];
        switch ((enum state_kind)s->kind) {
        case STATE_BYTES:
            add_found(m, p.state, p.stack);
            break;
        case STATE_SPLIT:
            look_at(m, s->next, p.stack);
            look_at(m, s->other, p.stack);
            break;
        case STATE_CALL:
            enter_rule(m, s, p.stack);
            break;
        case STATE_LOOP:
            enter_loop(m, s, p.stack);
            break;
        case STATE_ROUND:
            end_round(m, p.stack);
            break;
        case STATE_END:
            end_rule(m, p.stack);
            break;
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const struct matcher_place *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return (x->stack > y->stack) - (x->stack < y->stack);
}

static int add_position(struct matcher *m)
{
    if (m->n_members + m->n_found > MATCHER_MAX_MEMBERS)
        return fail(m, "more than 2097152 places are remembered");
    if (mem_grow((void **)&m->positions, &m->cap_positions, m->n_positions + 1, sizeof *m->positions,
                 &m->err) ||
        mem_grow((void **)&m->members, &m->cap_members, m->n_members + m->n_found, sizeof *m->members,
                 &m->err))
        return m->rc = ERR_MEMORY;
    struct position *p = &m->positions[m->n_positions++];
    *p = (struct position){.first = m->n_members, .n = (uint32_t)m->n_found};
    for (size_t i = 0; i < m->n_found; i++) {
        p->may_end = p->may_end || (m->found[i].state == MATCHER_EXIT && m->found[i].stack == MATCHER_BOTTOM);
        m->members[m->n_members++] = m->found[i];
    }
    return 0;
}

/* Returns the number of the position whose places are in `found`. */
static uint32_t finish(struct matcher *m)
{
    if (m->rc || m->n_found == 0 || index_grow(m, &m->by_places))
        return MATCHER_DEAD;
    qsort(m->found, m->n_found, sizeof *m->found, by_place);
    uint64_t hash = hash_places(m->found, m->n_found);
    for (size_t at = hash & m->by_places.mask; m->by_places.slots[at]; at = (at + 1) & m->by_places.mask) {
        uint32_t number = m->by_places.slots[at] - 1;
        const struct position *p = &m->positions[number];
        if (p->n == m->n_found && memcmp(m->members + p->first, m->found, p->n * sizeof *m->found) == 0)
            return number;
    }
    if (add_position(m))
        return MATCHER_DEAD;
    put(&m->by_places, hash, (uint32_t)m->n_positions - 1);
    m->by_places.n++;
    return (uint32_t)m->n_positions - 1;
}

/* ---- making, stepping ---- */

/* Makes the empty stack and the dead position. */
static void make_first(struct matcher *m)
{
    m->n_stacks = m->n_positions = 1;
    m->stacks[0] = (struct matcher_stack){0};
    m->positions[0] = (struct position){0};
}

static void find_classes(struct matcher *m)
{
    const struct grammar *g = m->grammar;
    bool begins[257] = {true};
    for (size_t i = 0; i < g->n_bytes; i++)
        begins[g->bytes[i].lo] = begins[g->bytes[i].hi + 1] = true;
    for (unsigned b = 0; b < 256; b++) {
        m->n_classes += begins[b];
        m->class_of[b] = (uint8_t)(m->n_classes - 1);
    }
}

struct matcher *matcher_new(const struct grammar *g, struct moeflux_err *e)
{
    struct matcher *m = mem_new(1, sizeof *m, e);
    if (!m)
        return NULL;
    m->grammar = g;
    if (mem_grow((void **)&m->stacks, &m->cap_stacks, 16, sizeof *m->stacks, e) ||
        mem_grow((void **)&m->positions, &m->cap_positions, 16, sizeof *m->positions, e)) {
        matcher_free(m);
        return NULL;
    }
    find_classes(m);
    make_first(m);
    return m;
}

static void free_tables(struct matcher *m)
{
    for (size_t i = 0; i < m->n_positions; i++)
        free(m->positions[i].next);
}

void matcher_free(struct matcher *m)
{
    if (!m)
        return;
    free_tables(m);
    free(m->positions);
    free(m->members);
    free(m->stacks);
    free(m->by_stack.slots);
    free(m->by_places.slots);
    free(m->seen.slots);
    free(m->todo);
    free(m->found);
    free(m);
}

uint32_t matcher_enter(struct matcher *m, uint32_t state, uint32_t stack)
{
    begin(m);
    look_at(m, state, stack);
    follow(m, 0);
    return finish(m);
}

uint32_t matcher_start(struct matcher *m)
{
    return matcher_enter(m, m->grammar->starts[m->grammar->root], MATCHER_BOTTOM);
}

static bool takes(const struct grammar *g, uint32_t state, uint8_t byte)
{
    const struct grammar_state *s = &g->states[state];
    for (uint32_t i = s->first; i < s->first + s->n_bytes; i++)
        if (byte >= g->bytes[i].lo && byte <= g->bytes[i].hi)
            return true;
    return false;
}

static uint32_t compute_step(struct matcher *m, uint32_t position, uint8_t byte)
{
    const struct grammar *g = m->grammar;
    size_t first = m->positions[position].first, n = m->positions[position].n;
    begin(m);
    for (size_t i = first; i < first + n; i++) {
        const struct matcher_place p = m->members[i];
        size_t from = m->n_todo;
        if (p.state == MATCHER_EXIT || !takes(g, p.state, byte))
            continue;
        look_at(m, g->states[p.state].next, p.stack);
        follow(m, from);
    }
    return finish(m);
}

static uint32_t *new_table(struct matcher *m)
{
    if (m->n_tables == MATCHER_MAX_TABLES) {
        fail(m, "more than 32768 positions of texts");
        return NULL;
    }
    uint32_t *table = mem_new(m->n_classes, sizeof *table, &m->err);
    if (!table) {
        m->rc = ERR_MEMORY;
        return NULL;
    }
    memset(table, 0xff, m->n_classes * sizeof *table);
    m->n_tables++;
    return table;
}

uint32_t matcher_step(struct matcher *m, uint32_t position, uint8_t byte)
{
    uint32_t *next = m->positions[position].next;
    unsigned class = m->class_of[byte];
    m->work++;
    if (next && next[class] != UNKNOWN && m->work < MATCHER_MAX_WORK)
        return next[class];
    if (m->work >= MATCHER_MAX_WORK)
        fail(m, "finding the tokens that it allows takes too long");
    if (position == MATCHER_DEAD || m->rc)
        return MATCHER_DEAD;
    if (!next && !(next = m->positions[position].next = new_table(m)))
        return MATCHER_DEAD;
    uint32_t to = compute_step(m, position, byte);
    if (m->rc)
        return MATCHER_DEAD;
    return next[class] = to;
}

const struct matcher_place *matcher_places(const struct matcher *m, uint32_t position, size_t *n)
{
    *n = m->positions[position].n;
    return m->members + m->positions[position].first;
}

const struct matcher_stack *matcher_get_stack(const struct matcher *m, uint32_t stack)
{
    return &m->stacks[stack];
}

bool matcher_may_end(const struct matcher *m, uint32_t position)
{
    return m->positions[position].may_end;
}

void matcher_begin_work(struct matcher *m)
{
    m->work = 0;
}

int matcher_failure(const struct matcher *m, struct moeflux_err *e)
{
    return m->rc ? err_set(e, m->rc, "%s", m->err.text) : 0;
}

bool matcher_is_large(const struct matcher *m)
{
    return m->n_tables > LARGE_TABLES || m->n_members > LARGE_MEMBERS || m->n_stacks > LARGE_STACKS;
}

/* ---- forgetting ---- */

struct move {
    const struct matcher *from;
    struct matcher *to;
    uint32_t *known; /* [stacks of `from`] the number in `to` + 1; 0: not moved yet */
    uint32_t *path;  /* [stacks of `from`] scratch */
};

static uint32_t move_stack(struct move *v, uint32_t stack)
{
    uint32_t n = 0, parent;
    for (; stack != MATCHER_BOTTOM && !v->known[stack]; stack = v->from->stacks[stack].parent)
        v->path[n++] = stack;
    parent = stack == MATCHER_BOTTOM ? MATCHER_BOTTOM : v->known[stack] - 1;
    while (n > 0) {
        struct matcher_stack top = v->from->stacks[v->path[--n]];
        top.parent = parent;
        parent = matcher_push(v->to, top);
        v->known[v->path[n]] = parent + 1;
    }
    return parent;
}

static uint32_t move_position(struct move *v, uint32_t position)
{
    const struct position *p = &v->from->positions[position];
    begin(v->to);
    for (size_t i = p->first; i < p->first + p->n; i++)
        add_found(v->to, v->from->members[i].state, move_stack(v, v->from->members[i].stack));
    return finish(v->to);
}

void matcher_forget(struct matcher *m, uint32_t **positions, size_t n)
{
    struct move v = {.from = m, .to = matcher_new(m->grammar, &m->err)};
    v.known = mem_new(m->n_stacks, sizeof *v.known, &m->err);
    v.path = mem_new(m->n_stacks, sizeof *v.path, &m->err);
    if (!m->rc && (!v.to || !v.known || !v.path))
        m->rc = ERR_MEMORY;
    for (size_t i = 0; i < n && !m->rc; i++)
        *positions[i] = move_position(&v, *positions[i]);
    if (!m->rc) {
        struct matcher old = *m;
        *m = *v.to;
        *v.to = old;
    }
    free(v.known);
    free(v.path);
    matcher_free(v.to);
}
