#include "text/grammar/constraint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/grammar.h"
#include "text/grammar/states.h"
#include "text/grammar/matcher.h"
#include "text/grammar/state_tokens.h"
#include "text/tokenizer/token_trie.h"

enum { MAX_STATE_TOKENS_BYTES = 1 << 28, MAX_TAIL_IDS = 1 << 22 };

/* Cache entry: the tokens in which a state's rule ends and its caller continues. */
struct tail {
    uint32_t state, after; /* the state, and the caller's position after the rule */
    uint32_t least, most;  /* rounds of the loop that may have ended; a rule: any number */
    int32_t *ids;
    size_t n;
};

/* What a constraint and its clones share. */
struct masks {
    pthread_mutex_t lock; /* protects all members, and `position` of the users */
    bool has_lock;
    struct grammar *grammar;
    const struct token_trie *trie;
    struct matcher *matcher;
    struct state_tokens **state_tokens; /* [states] */
    struct byte_set *follow;            /* [loops] the bytes that may follow the loop; empty: not known yet */
    size_t state_tokens_bytes;          /* memory of all of them */
    struct tail *tails;                 /* open addressing; ids NULL: free */
    size_t mask_tails, n_tails, n_tail_ids;
    uint32_t *level;               /* [depth + 1] scratch: the position at each level of a walk */
    uint32_t bottom, after_bottom; /* the last result of after_of: a stack, and the position after it */
    struct constraint *users;
    unsigned n_users;
};

struct constraint {
    struct masks *masks;
    struct constraint *next, *before; /* users of the same masks */
    uint32_t position;
    uint64_t *bits;
    uint32_t bits_of; /* the position for which `bits` was computed; MATCHER_DEAD: none */
    int32_t *ends;
    size_t n_ends;
    bool ended;
};

/* ---- memory ---- */

static void forget_tails(struct masks *m)
{
    for (size_t i = 0; m->tails && i <= m->mask_tails; i++)
        free(m->tails[i].ids);
    free(m->tails);
    m->tails = NULL;
    m->n_tails = m->n_tail_ids = m->mask_tails = 0;
}

static void forget_state_tokens(struct masks *m)
{
    for (size_t i = 0; m->state_tokens && i < m->grammar->n_states; i++) {
        state_tokens_free(m->state_tokens[i]);
        m->state_tokens[i] = NULL;
    }
    m->state_tokens_bytes = 0;
}

static void masks_free(struct masks *m)
{
    if (!m)
        return;
    forget_tails(m);
    forget_state_tokens(m);
    free(m->state_tokens);
    free(m->follow);
    free(m->level);
    matcher_free(m->matcher);
    grammar_free(m->grammar);
    if (m->has_lock)
        pthread_mutex_destroy(&m->lock);
    free(m);
}

/* Takes ownership of the grammar, on failure too. */
static struct masks *masks_new(struct grammar *g, const struct token_trie *t, struct moeflux_err *e)
{
    struct masks *m = mem_new(1, sizeof *m, e);
    if (!m) {
        grammar_free(g);
        return NULL;
    }
    m->grammar = g;
    m->trie = t;
    m->has_lock = pthread_mutex_init(&m->lock, NULL) == 0;
    if (!m->has_lock) {
        masks_free(m);
        err_set(e, ERR_MEMORY, "out of memory for a lock");
        return NULL;
    }
    if ((m->matcher = matcher_new(g, e)) &&
        (m->state_tokens = mem_new(g->n_states, sizeof(struct state_tokens *), e)) &&
        (m->follow = mem_new(g->n_loops, sizeof *m->follow, e)) &&
        (m->level = mem_new((uint64_t)t->depth + 1, sizeof *m->level, e)))
        return m;
    masks_free(m);
    return NULL;
}

/* Drops caches that are too large. Called between two tokens, when only the users hold positions. */
static int keep_small(struct masks *m, struct moeflux_err *e)
{
    matcher_begin_work(m->matcher);
    if (m->state_tokens_bytes > MAX_STATE_TOKENS_BYTES)
        forget_state_tokens(m);
    if (m->n_tail_ids > MAX_TAIL_IDS)
        forget_tails(m);
    if (!matcher_is_large(m->matcher))
        return 0;
    uint32_t **positions = mem_new(m->n_users, sizeof *positions, e);
    size_t n = 0;
    if (!positions)
        return ERR_MEMORY;
    for (struct constraint *c = m->users; c; c = c->next) {
        positions[n++] = &c->position;
        c->bits_of = MATCHER_DEAD;
    }
    forget_tails(m);
    m->bottom = MATCHER_BOTTOM;
    matcher_forget(m->matcher, positions, n);
    free(positions);
    return matcher_failure(m->matcher, e);
}

/* ---- tails ---- */

static size_t slot_of(const struct masks *m, const struct tail *key)
{
    uint64_t h = key->state * 0x9e3779b97f4a7c15u ^ key->after * 0xbf58476d1ce4e5b9u;
    h = (h ^ key->least) * 0x94d049bb133111ebu;
    h = (h ^ key->most) * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(h >> 20) & m->mask_tails;
    for (; m->tails[at].ids; at = (at + 1) & m->mask_tails) {
        const struct tail *t = &m->tails[at];
        if (t->state == key->state && t->after == key->after && t->least == key->least &&
            t->most == key->most)
            break;
    }
    return at;
}

/* Makes room for one more. */
static int grow_tails(struct masks *m, struct moeflux_err *e)
{
    if (m->tails && m->n_tails * 2 < m->mask_tails)
        return 0;
    struct tail *old = m->tails;
    size_t n_old = old ? m->mask_tails + 1 : 0, n = old ? 2 * n_old : 64;
    struct tail *fresh = mem_new(n, sizeof *fresh, e);
    if (!fresh)
        return ERR_MEMORY;
    m->tails = fresh;
    m->mask_tails = n - 1;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].ids)
            fresh[slot_of(m, &old[i])] = old[i];
    free(old);
    return 0;
}

struct id_list {
    int32_t *ids;
    size_t n, cap;
};

/* Appends the tokens of the subtree at `root` that fit. position: where the byte of `root` has led. */
static int walk(struct masks *m, uint32_t root, uint32_t position, struct id_list *out, struct moeflux_err *e)
{
    const struct token_trie *t = m->trie;
    m->level[t->level[root]] = position;
    for (uint32_t node = root; node < t->end[root];) {
        uint32_t level = t->level[node];
        if (node != root)
            position = matcher_step(m->matcher, m->level[level - 1], t->byte[node]);
        m->level[level] = position;
        if (position == MATCHER_DEAD) {
            node = t->end[node];
            continue;
        }
        uint32_t n = t->first[node + 1] - t->first[node];
        int rc = mem_grow((void **)&out->ids, &out->cap, out->n + n, sizeof *out->ids, e);
        if (rc)
            return rc;
        for (uint32_t i = 0; i < n; i++)
            out->ids[out->n++] = t->ids[t->first[node] + i];
        node++;
    }
    return 0;
}

static int find_tail(struct masks *m, const struct state_tokens *r, struct tail *key, struct moeflux_err *e)
{
    struct id_list out = {0};
    int rc = mem_grow((void **)&out.ids, &out.cap, 1, sizeof *out.ids, e);
    for (unsigned b = 0; b < 256 && rc == 0; b++) {
        size_t n;
        const struct state_tokens_exit *exits = state_tokens_exits(r, (uint8_t)b, key->least, key->most, &n);
        uint32_t to = n ? matcher_step(m->matcher, key->after, (uint8_t)b) : MATCHER_DEAD;
        for (size_t i = 0; i < n && to != MATCHER_DEAD && rc == 0; i++)
            rc = walk(m, exits[i].node, to, &out, e);
    }
    key->ids = out.ids;
    key->n = out.n;
    return rc ? rc : matcher_failure(m->matcher, e);
}

/* Adds the tokens in which the state's rule (or its rounds) ends and the rest fits from key.after. */
static int add_tail(struct masks *m, const struct state_tokens *r, struct tail key, uint64_t *bits,
                    struct moeflux_err *e)
{
    int rc = grow_tails(m, e);
    if (rc)
        return rc;
    struct tail *t = &m->tails[slot_of(m, &key)];
    if (!t->ids) {
        rc = find_tail(m, r, &key, e);
        if (rc) {
            free(key.ids);
            return rc;
        }
        *t = key;
        m->n_tails++;
        m->n_tail_ids += key.n;
    }
    for (size_t i = 0; i < t->n; i++)
        bits[(uint32_t)t->ids[i] / 64] |= (uint64_t)1 << ((uint32_t)t->ids[i] % 64);
    return 0;
}

/* ---- masks ---- */

/* Returns the position after the rule or loop on top of the stack has ended. */
static uint32_t after_of(struct masks *m, uint32_t stack)
{
    if (stack == m->bottom)
        return m->after_bottom;
    const struct matcher_stack top = *matcher_get_stack(m->matcher, stack);
    uint32_t state = top.kind == FRAME_CALL ? top.value : m->grammar->loops[top.value].next;
    m->after_bottom = matcher_enter(m->matcher, state, top.parent);
    m->bottom = stack;
    return m->after_bottom;
}

static bool is_subset(const struct byte_set *a, const struct byte_set *b)
{
    uint64_t more = 0;
    for (int i = 0; i < 4; i++)
        more |= a->bits[i] & ~b->bits[i];
    return more == 0;
}

/* Returns the tokens of a state. Loops with equal bodies share their states, so the tokens are computed again
 * when another of them may be followed by other bytes. Returns NULL with `e` filled. */
static struct state_tokens *state_tokens_of(struct masks *m, uint32_t state, uint32_t loop,
                                            struct moeflux_err *e)
{
    static const struct byte_set all = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}}, none;
    struct state_tokens **r = &m->state_tokens[state];
    struct byte_set *own = loop == STATE_TOKENS_NO_LOOP ? NULL : &m->follow[loop], follow = own ? *own : all;
    if (own && is_subset(own, &none)) {
        state_tokens_follow(m->matcher, m->grammar, loop, own);
        follow = *own;
    }
    if (*r && is_subset(&follow, &(*r)->follow))
        return *r;
    for (int i = 0; i < 4 && *r; i++)
        follow.bits[i] |= (*r)->follow.bits[i];
    struct state_tokens *fresh = state_tokens_new(m->matcher, m->trie, state, loop, &follow, e);
    if (!fresh)
        return NULL;
    m->state_tokens_bytes += fresh->bytes - (*r ? (*r)->bytes : 0);
    state_tokens_free(*r);
    return *r = fresh;
}

static int add_place(struct masks *m, struct matcher_place place, uint64_t *bits, struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    e = e ? e : &own;
    const struct matcher_stack top = *matcher_get_stack(m->matcher, place.stack);
    bool is_loop = place.stack != MATCHER_BOTTOM && top.kind == FRAME_LOOP;
    struct state_tokens *r = state_tokens_of(m, place.state, is_loop ? top.value : STATE_TOKENS_NO_LOOP, e);
    uint32_t least = 0, most = UINT32_MAX;
    if (!r)
        return (int)e->code;
    if (is_loop) {
        const struct grammar_loop *loop = &m->grammar->loops[top.value];
        most = loop->max - top.count;
        least = loop->min > top.count ? loop->min - top.count : 0;
    }
    size_t bytes = r->bytes;
    int rc = state_tokens_add_fit(r, m->trie, most, bits, e);
    m->state_tokens_bytes += r->bytes - bytes;
    /* A token that ends with the last allowed round needs no further round. */
    if (rc == 0 && is_loop && least <= most)
        state_tokens_add_ends(r, most, bits);
    if (rc || place.stack == MATCHER_BOTTOM)
        return rc;
    uint32_t cap = r->most_rounds + 1, after = after_of(m, place.stack);
    if (after == MATCHER_DEAD)
        return matcher_failure(m->matcher, e);
    return add_tail(m, r,
                    (struct tail){.state = place.state,
                                  .after = after,
                                  .least = (uint32_t)size_min(least, cap),
                                  .most = (uint32_t)size_min(most, cap)},
                    bits, e);
}

static int make_bits(struct constraint *c, struct moeflux_err *e)
{
    struct masks *m = c->masks;
    uint32_t words = div_up(m->trie->n_ids, 64);
    size_t n;
    matcher_places(m->matcher, c->position, &n);
    memset(c->bits, 0, words * sizeof *c->bits);
    for (size_t i = 0; i < n; i++) {
        /* The array may move when positions are added. */
        struct matcher_place place = matcher_places(m->matcher, c->position, &n)[i];
        int rc = place.state == MATCHER_EXIT ? 0 : add_place(m, place, c->bits, e);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < c->n_ends && matcher_may_end(c->masks->matcher, c->position); i++)
        c->bits[(uint32_t)c->ends[i] / 64] |= (uint64_t)1 << ((uint32_t)c->ends[i] % 64);
    return 0;
}

static bool is_empty(const uint64_t *bits, uint32_t words)
{
    uint32_t i = 0;
    while (i < words && bits[i] == 0)
        i++;
    return i == words;
}

static int find_mask(struct constraint *c, struct moeflux_err *e)
{
    if (c->bits_of != c->position) {
        int rc = keep_small(c->masks, e);
        c->bits_of = MATCHER_DEAD;
        if (rc == 0)
            rc = make_bits(c, e);
        if (rc)
            return rc;
        if (is_empty(c->bits, div_up(c->masks->trie->n_ids, 64)))
            return err_set(e, ERR_UNSUPPORTED, "no token of the vocabulary fits the grammar here");
        c->bits_of = c->position;
    }
    return 0;
}

int constraint_mask(struct constraint *c, const uint64_t **bits, struct moeflux_err *e)
{
    pthread_mutex_lock(&c->masks->lock);
    int rc = find_mask(c, e);
    pthread_mutex_unlock(&c->masks->lock);
    if (rc == 0)
        *bits = c->bits;
    return rc;
}

/* ---- the text ---- */

static bool is_end(const struct constraint *c, int32_t id)
{
    size_t i = 0;
    while (i < c->n_ends && c->ends[i] != id)
        i++;
    return i < c->n_ends;
}

static int step(struct constraint *c, const char *bytes, size_t len, struct moeflux_err *e)
{
    struct matcher *m = c->masks->matcher;
    const struct grammar_marks *marks = c->masks->grammar->marks;
    uint32_t position = c->position;
    for (size_t i = 0, n; i < len && position != MATCHER_DEAD; i += n) {
        unsigned mark = grammar_find_mark(marks, bytes + i, len - i);
        uint32_t after = mark == GRAMMAR_MAX_MARKS
                             ? MATCHER_DEAD
                             : matcher_step(m, position, (uint8_t)(GRAMMAR_FIRST_MARK + mark));
        n = after == MATCHER_DEAD ? 1 : marks->len[mark];
        position = after == MATCHER_DEAD ? matcher_step(m, position, (uint8_t)bytes[i]) : after;
    }
    int rc = matcher_failure(m, e);
    if (rc)
        return rc;
    if (position == MATCHER_DEAD || (c->ended && len))
        return err_set(e, ERR_USAGE, "a text that the grammar does not allow here");
    c->position = position;
    return 0;
}

int constraint_accept_bytes(struct constraint *c, const char *bytes, size_t len, struct moeflux_err *e)
{
    pthread_mutex_lock(&c->masks->lock);
    int rc = step(c, bytes, len, e);
    pthread_mutex_unlock(&c->masks->lock);
    return rc;
}

int constraint_accept(struct constraint *c, int32_t id, struct moeflux_err *e)
{
    const struct token_trie *t = c->masks->trie;
    bool ends = is_end(c, id) && constraint_may_end(c) && !c->ended;
    bool known = id >= 0 && (uint32_t)id < t->n_ids && t->texts[id].bytes && !is_end(c, id);
    if (!ends && !known)
        return err_set(e, ERR_USAGE, "the grammar does not allow token %d here", id);
    c->ended = ends;
    return ends ? 0 : constraint_accept_bytes(c, t->texts[id].bytes, t->texts[id].len, e);
}

bool constraint_may_end(const struct constraint *c)
{
    pthread_mutex_lock(&c->masks->lock);
    bool may = matcher_may_end(c->masks->matcher, c->position);
    pthread_mutex_unlock(&c->masks->lock);
    return may;
}

bool constraint_must_end(const struct constraint *c)
{
    size_t n;
    pthread_mutex_lock(&c->masks->lock);
    const struct matcher_place *p = matcher_places(c->masks->matcher, c->position, &n);
    bool must = n > 0 && p[0].state == MATCHER_EXIT;
    pthread_mutex_unlock(&c->masks->lock);
    return must;
}

/* ---- making ---- */

static struct constraint *new_user(struct masks *m, const int32_t *ends, size_t n_ends, struct moeflux_err *e)
{
    struct constraint *c = mem_new(1, sizeof *c, e);
    if (!c)
        return NULL;
    c->bits = mem_new(div_up(m->trie->n_ids, 64), sizeof *c->bits, e);
    c->ends = mem_new(n_ends, sizeof *c->ends, e);
    if (!c->bits || !c->ends) {
        free(c->bits);
        free(c->ends);
        free(c);
        return NULL;
    }
    for (size_t i = 0; i < n_ends; i++)
        if (ends[i] >= 0 && (uint32_t)ends[i] < m->trie->n_ids)
            c->ends[c->n_ends++] = ends[i];
    c->masks = m;
    c->next = m->users;
    if (c->next)
        c->next->before = c;
    m->users = c;
    m->n_users++;
    return c;
}

int constraint_reset(struct constraint *c, struct moeflux_err *e)
{
    struct masks *m = c->masks;
    pthread_mutex_lock(&m->lock);
    c->ended = false;
    c->position = matcher_start(m->matcher);
    int rc = matcher_failure(m->matcher, e);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int constraint_new(struct constraint **out, struct grammar *g, const struct token_trie *t,
                   const int32_t *ends, size_t n_ends, struct moeflux_err *e)
{
    struct masks *m = masks_new(g, t, e);
    if (!m)
        return ERR_MEMORY;
    struct constraint *c = new_user(m, ends, n_ends, e);
    if (!c) {
        masks_free(m);
        return ERR_MEMORY;
    }
    int rc = constraint_reset(c, e);
    if (rc)
        constraint_free(c);
    else
        *out = c;
    return rc;
}

struct constraint *constraint_clone(const struct constraint *c, struct moeflux_err *e)
{
    pthread_mutex_lock(&c->masks->lock);
    struct constraint *copy = new_user(c->masks, c->ends, c->n_ends, e);
    if (copy) {
        copy->position = c->position;
        copy->ended = c->ended;
    }
    pthread_mutex_unlock(&c->masks->lock);
    return copy;
}

void constraint_free(struct constraint *c)
{
    if (!c)
        return;
    struct masks *m = c->masks;
    pthread_mutex_lock(&m->lock);
    if (c->next)
        c->next->before = c->before;
    if (c->before)
        c->before->next = c->next;
    else
        m->users = c->next;
    bool is_last = --m->n_users == 0;
    pthread_mutex_unlock(&m->lock);
    if (is_last)
        masks_free(m);
    free(c->bits);
    free(c->ends);
    free(c);
}
