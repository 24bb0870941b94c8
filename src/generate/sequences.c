#include "generate/sequences.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/prefill.h"
#include "generate/saved_sequences.h"

enum {
    MOST_CHECKPOINTS = 4,
    LEAST_CHECKPOINTS = 2,
    /* Fewer tokens are evaluated faster than a file is read. */
    WORTH_LOADING = 64,
    /* Shorter sequences are not worth a file. */
    WORTH_SAVING = 64,
};

struct entry {
    struct moeflux_session *session; /* NULL: the entry is free */
    bool used;
    bool changed; /* since it was loaded or saved */
    /* The last prompt, set when it is put back. The next prompt of a conversation usually keeps it, but
     * not all of the answer. */
    struct prefix_evaluated prompt;
    uint64_t last_use;
    uint64_t bytes; /* bytes of its state when it was last taken or put back */
};

struct sequences {
    struct moeflux_model *model;
    struct sequences_options options;
    struct entry *entries; /* [options.most] */
    uint64_t clock;
};

int sequences_new(struct sequences **out, struct moeflux_model *m, const struct sequences_options *o,
                  struct moeflux_err *e)
{
    struct sequences *q = mem_new(1, sizeof *q, e);
    *out = NULL;
    if (!q)
        return ERR_MEMORY;
    q->model = m;
    q->options = *o;
    q->entries = mem_new(o->most, sizeof *q->entries, e);
    if (!q->entries) {
        sequences_free(q);
        return ERR_MEMORY;
    }
    *out = q;
    return 0;
}

/* ---- finding one ---- */

static uint32_t usable(const struct sequences *q, const struct entry *x, const struct sequences_prompt *p)
{
    const struct prefill f = {
        .ids = p->ids, .n = p->n, .cuts = p->cuts, .chunk = q->options.chunk, .held = x->prompt};
    return prefill_usable(&f, x->session);
}

/* Returns the idle sequence with the most of the prompt, of equal ones the least recently used; NULL: none
 * has any of it. */
static struct entry *find_best(struct sequences *q, const struct sequences_prompt *p, uint32_t *most)
{
    struct entry *best = NULL;
    *most = 0;
    for (uint32_t i = 0; i < q->options.most; i++) {
        struct entry *x = &q->entries[i];
        uint32_t here = x->session && !x->used ? usable(q, x, p) : 0;
        if (here == 0 || here < *most || (best && here == *most && x->last_use > best->last_use))
            continue;
        best = x;
        *most = here;
    }
    return best;
}

uint32_t sequences_usable(struct sequences *q, const struct sequences_prompt *p)
{
    uint32_t most;
    find_best(q, p, &most);
    return most;
}

uint32_t sequences_common(const struct sequences *q, const int32_t *ids, uint32_t n)
{
    uint32_t most = saved_sequences_common(q->options.saved, ids, n);
    for (uint32_t i = 0; i < q->options.most; i++) {
        const struct entry *x = &q->entries[i];
        if (!x->session || x->used)
            continue;
        uint32_t pos = moeflux_session_position(x->session);
        uint32_t same = prefix_common(moeflux_session_history(x->session), pos, ids, n);
        if (same > most && same < n)
            most = same;
    }
    return most;
}

static struct entry *find_entry(struct sequences *q, const struct moeflux_session *s)
{
    struct entry *x = q->entries;
    while (x->session != s)
        x++;
    return x;
}

struct prefix_evaluated sequences_held(struct sequences *q, const struct moeflux_session *s)
{
    return find_entry(q, s)->prompt;
}

const struct moeflux_session *sequences_latest(const struct sequences *q)
{
    const struct entry *latest = NULL;
    for (uint32_t i = 0; i < q->options.most; i++) {
        const struct entry *x = &q->entries[i];
        if (x->session && !x->used && (!latest || x->last_use > latest->last_use))
            latest = x;
    }
    return latest ? latest->session : NULL;
}

static struct entry *find_oldest(struct sequences *q)
{
    struct entry *oldest = NULL;
    for (uint32_t i = 0; i < q->options.most; i++) {
        struct entry *x = &q->entries[i];
        if (x->session && !x->used && (!oldest || x->last_use < oldest->last_use))
            oldest = x;
    }
    return oldest;
}

static struct entry *find_free(struct sequences *q)
{
    for (uint32_t i = 0; i < q->options.most; i++)
        if (!q->entries[i].session)
            return &q->entries[i];
    return NULL;
}

/* ---- making and evicting ---- */

static void save(struct sequences *q, struct entry *x)
{
    const struct sequences_options *o = &q->options;
    bool is_worth_it = o->saved && x->changed && moeflux_session_position(x->session) >= WORTH_SAVING;
    x->changed = false;
    if (!is_worth_it)
        return;
    if (o->saves)
        o->saves(o->saves_ctx, true);
    saved_sequences_add(o->saved, x->session);
    if (o->saves)
        o->saves(o->saves_ctx, false);
}

static void drop(struct entry *x)
{
    moeflux_session_free(x->session);
    *x = (struct entry){0};
}

bool sequences_shrink(struct sequences *q)
{
    struct entry *x = find_oldest(q);
    if (x) {
        save(q, x);
        drop(x);
    }
    return x != NULL;
}

/* Sets the cap of checkpoints: memory was kept free for a number that all sequences share. */
static int share_checkpoints(struct sequences *q, struct moeflux_session *s, struct moeflux_err *e)
{
    int rc = moeflux_session_set_checkpoint_cap(s, UINT32_MAX, e);
    uint64_t each = moeflux_session_checkpoint_cap(s) / q->options.most;
    uint32_t most = q->options.checkpoints ? q->options.checkpoints : MOST_CHECKPOINTS;
    each = size_min(size_max(each, LEAST_CHECKPOINTS), most);
    return rc ? rc : moeflux_session_set_checkpoint_cap(s, (uint32_t)each, e);
}

static int make_session(struct sequences *q, struct entry *x, struct moeflux_err *e)
{
    int rc = moeflux_session_new(&x->session, q->model, q->options.max_context, e);
    while (rc == ERR_NO_FIT && sequences_shrink(q))
        rc = moeflux_session_new(&x->session, q->model, q->options.max_context, e);
    if (!rc)
        rc = share_checkpoints(q, x->session, e);
    if (rc)
        drop(x);
    return rc;
}

/* Takes an empty sequence; evicts the least recently used one if there is no room. */
static int take_empty(struct sequences *q, struct entry **out, struct moeflux_err *e)
{
    struct entry *x = find_free(q);
    int rc = 0;
    if (!x && (x = find_oldest(q))) {
        save(q, x);
        x->prompt.n = 0;
        rc = moeflux_session_clear(x->session, e);
        if (rc)
            drop(x);
    } else if (x) {
        rc = make_session(q, x, e);
    } else {
        rc = err_set(e, ERR_USAGE, "all %u sequences are in use", q->options.most);
    }
    *out = x;
    return rc;
}

static int use(struct sequences *q, struct entry *x, struct moeflux_session **out)
{
    x->used = x->changed = true;
    x->last_use = ++q->clock;
    x->bytes = moeflux_session_state_bytes(x->session, MOEFLUX_STATE_V3);
    *out = x->session;
    return 0;
}

/* Loads the best file. *out: NULL if it cannot be used, or is gone; it is not found again then. Without
 * memory it fails with ERR_NO_FIT, and the file stays for a later time. */
static int try_load(struct sequences *q, const int32_t *ids, uint32_t n, struct moeflux_session **out,
                    struct moeflux_err *e)
{
    struct entry *x;
    int rc = take_empty(q, &x, e);
    *out = NULL;
    if (rc)
        return rc;
    if (q->options.saved)
        rc = saved_sequences_load(q->options.saved, q->model, ids, n, x->session, q->options.max_context, e);
    if (rc)
        drop(x);
    else if (moeflux_session_position(x->session) > 0)
        return use(q, x, out);
    else
        *x = (struct entry){.session = x->session};
    return rc;
}

static int load(struct sequences *q, const int32_t *ids, uint32_t n, struct moeflux_session **out,
                struct moeflux_err *e)
{
    int rc;
    do
        rc = try_load(q, ids, n, out, e);
    while (rc == ERR_NO_FIT && sequences_shrink(q));
    return rc;
}

/* Returns whether reusing `best` would lose more of another conversation than it saves, while there is
 * another entry. A prompt that has more than the beginning of all conversations is a later one of the
 * same: its template wrote the turns in another way, or the user went back. */
static bool would_lose(struct sequences *q, const struct entry *best, uint32_t n_reused, uint32_t n_shared)
{
    return best && n_reused <= n_shared && 2 * (uint64_t)n_reused < best->prompt.n &&
           (find_free(q) || find_oldest(q) != best);
}

/* Takes an empty entry and gives it the first n tokens of another one. Without memory for that it stays
 * empty. */
static int share(struct sequences *q, struct entry *from, uint32_t n, struct moeflux_session **out,
                 struct moeflux_err *e)
{
    struct entry *x;
    /* It is no candidate for an eviction meanwhile. */
    from->used = true;
    int rc = take_empty(q, &x, e);
    from->used = false;
    if (rc)
        return rc;
    rc = moeflux_session_fork(x->session, from->session, n, e);
    if (rc && rc != ERR_NO_FIT) {
        drop(x);
        return rc;
    }
    from->last_use = ++q->clock;
    x->prompt = (struct prefix_evaluated){rc ? 0 : n, from->prompt.cuts};
    return use(q, x, out);
}

/* Loads files while one has much more of the prompt than the sequences in memory. One that cannot be used is
 * not found again. */
static int load_better(struct sequences *q, const struct sequences_prompt *p, struct moeflux_session **out,
                       struct moeflux_err *e)
{
    int rc = 0;
    *out = NULL;
    while (!rc && !*out && (find_free(q) || find_oldest(q))) {
        uint32_t in_memory = sequences_usable(q, p);
        uint32_t in_file = saved_sequences_usable(q->options.saved, q->model, p->ids, p->n);
        if (in_file < in_memory + WORTH_LOADING)
            break;
        rc = load(q, p->ids, p->n, out, e);
    }
    return rc;
}

int sequences_take(struct sequences *q, const struct sequences_prompt *p, struct moeflux_session **out,
                   struct moeflux_err *e)
{
    uint32_t in_memory;
    int rc = load_better(q, p, out, e);
    if (rc || *out)
        return rc;
    struct entry *best = find_best(q, p, &in_memory);
    if (would_lose(q, best, in_memory, p->n_shared))
        return share(q, best, in_memory, out, e);
    /* The part after the common prefix belongs to another conversation: save it before it is cut. */
    if (best && in_memory + WORTH_SAVING < best->prompt.n)
        save(q, best);
    if (!best && (rc = take_empty(q, &best, e)))
        return rc;
    return use(q, best, out);
}

int sequences_take_empty(struct sequences *q, struct moeflux_session **out, struct moeflux_err *e)
{
    struct entry *x;
    int rc = take_empty(q, &x, e);
    return rc ? rc : use(q, x, out);
}

static uint64_t idle_bytes(const struct sequences *q)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < q->options.most; i++)
        if (q->entries[i].session && !q->entries[i].used)
            bytes += q->entries[i].bytes;
    return bytes;
}

void sequences_drop(struct sequences *q, struct moeflux_session *s)
{
    drop(find_entry(q, s));
}

void sequences_put(struct sequences *q, struct moeflux_session *s, const struct prefix_evaluated *prompt)
{
    struct entry *x = find_entry(q, s);
    x->used = false;
    x->prompt = *prompt;
    x->bytes = moeflux_session_state_bytes(s, MOEFLUX_STATE_V3);
    while (q->options.bytes && idle_bytes(q) > q->options.bytes && sequences_shrink(q))
        ;
}

struct moeflux_sequence_counts sequences_count(const struct sequences *q)
{
    const struct saved_counts files = saved_sequences_count(q->options.saved);
    struct moeflux_sequence_counts c = {
        .n_saved = files.n, .dir_bytes = files.bytes, .n_loads = files.n_loads, .n_saves = files.n_saves};
    for (uint32_t i = 0; i < q->options.most; i++) {
        const struct entry *x = &q->entries[i];
        c.n += x->session != NULL;
        c.n_used += x->used;
        c.bytes += x->bytes;
    }
    return c;
}

void sequences_forget(struct sequences *q)
{
    for (uint32_t i = 0; i < q->options.most; i++)
        drop(&q->entries[i]);
}

void sequences_free(struct sequences *q)
{
    if (!q)
        return;
    for (uint32_t i = 0; q->entries && i < q->options.most; i++) {
        if (q->entries[i].session)
            save(q, &q->entries[i]);
        drop(&q->entries[i]);
    }
    free(q->entries);
    free(q);
}
