/* Random operations on sequences, compared after each step with a plain list of tokens and, by their logits,
 * with runs from scratch. Two sessions of one model take turns and exchange files.
 *
 * Tokens are one of two and sequences short, so that the runs from scratch are few: one gives the logits of
 * every prefix. MOEFLUX_ROUNDS: sequences of operations of each test (default below).
 *
 * suites: nightly long asan-nightly */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fuzz.h"
#include "sequence.h"
#include "small_model.h"
#include "tmp_tree.h"

enum { LENGTH = 10, CHUNK = 4, N_FILES = 3, N_STEPS = 9, MAX_CAP = 4 };
static const int32_t IDS[2] = {5, 40};

/* ---- the runs from scratch ---- */

struct oracle {
    struct sequence q;
    float (*logits)[SMALL_VOCAB]; /* index: key, which is 1, then a bit for each token */
    bool *has;
    uint32_t n_runs, at;
};

static uint32_t key_of(const int32_t *ids, uint32_t n)
{
    uint32_t key = 1;
    for (uint32_t i = 0; i < n; i++)
        key = 2 * key + (ids[i] == IDS[1]);
    return key;
}

static int keep_row(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    struct oracle *o = ctx;
    uint32_t key = o->at >> (31 - (uint32_t)__builtin_clz(o->at) - pos - 1);
    (void)e;
    memcpy(o->logits[key], row, sizeof *o->logits);
    o->has[key] = true;
    return 0;
}

static const float *oracle_ask(struct oracle *o, const int32_t *ids, uint32_t n)
{
    uint32_t key = key_of(ids, n);
    struct moeflux_err e = {0};
    if (!o->has[key]) {
        o->at = key;
        o->n_runs++;
        check_ok(moeflux_session_clear(o->q.s, &e), &e);
        check_ok(moeflux_session_eval(o->q.s, ids, n,
                                      &(struct moeflux_outputs){.each_logits = keep_row, .ctx = o}, &e),
                 &e);
    }
    return o->logits[key];
}

/* ---- what a session must be ---- */

struct mark {
    uint32_t pos;
    uint64_t used;
};

struct shadow {
    uint32_t n, n_marks, cap, every;
    int32_t ids[LENGTH];
    bool known[LENGTH];
    struct mark marks[LENGTH];
    uint64_t clock;
    bool is_recurrent; /* else every position is as good as a mark */
};

static void drop_mark(struct shadow *w, uint32_t i)
{
    memmove(w->marks + i, w->marks + i + 1, (w->n_marks - i - 1) * sizeof *w->marks);
    w->n_marks--;
}

static void trim_marks(struct shadow *w)
{
    while (w->n_marks > w->cap) {
        uint32_t oldest = 0;
        for (uint32_t i = 0; i < w->n_marks - 1; i++)
            if (w->marks[i].used < w->marks[oldest].used)
                oldest = i;
        drop_mark(w, oldest);
    }
}

/* Marks are made at the end of the sequence, so they stay in order. */
static void add_mark(struct shadow *w)
{
    if (w->n == 0)
        return;
    if (w->n_marks && w->marks[w->n_marks - 1].pos == w->n)
        w->n_marks--;
    w->marks[w->n_marks++] = (struct mark){w->n, ++w->clock};
    trim_marks(w);
}

static void cut(struct shadow *w, uint32_t n)
{
    w->n = n;
    while (w->n_marks && w->marks[w->n_marks - 1].pos > n)
        w->n_marks--;
}

/* Where one can go back to for pos: the last mark at or before it, 0 without one. */
static uint32_t mark_before(struct shadow *w, uint32_t pos)
{
    uint32_t at = 0;
    if (!w->is_recurrent)
        return pos;
    for (uint32_t i = 0; i < w->n_marks && w->marks[i].pos <= pos; i++)
        at = w->marks[i].pos;
    return at;
}

static void go_to(struct shadow *w, uint32_t pos)
{
    cut(w, pos);
    if (pos && w->is_recurrent)
        w->marks[w->n_marks - 1].used = ++w->clock;
}

/* Chunk by chunk, up to the one that holds token `fails_at` of the evaluation: that one is undone. Of a
 * single token no copy of the states may have been made, and the way back then leads to the last mark; `now`
 * is where it led. */
static void append(struct shadow *w, const int32_t *ids, uint32_t n, uint32_t fails_at, uint32_t now)
{
    for (uint32_t done = 0; done < n;) {
        uint32_t here = n - done < CHUNK ? n - done : CHUNK;
        if (fails_at < done + here) {
            if (here == 1 && now != w->n)
                go_to(w, mark_before(w, w->n));
            return;
        }
        for (uint32_t i = 0; i < here; i++) {
            w->known[w->n] = true;
            w->ids[w->n++] = ids[done + i];
        }
        done += here;
        if (done < n && w->is_recurrent && w->every && w->n / w->every != (w->n - here) / w->every)
            add_mark(w);
    }
}

/* ---- one of two sessions, and what it is compared with ---- */

struct file {
    bool is_there;
    const char *path;
    struct shadow is; /* what a session is after loading it */
};

struct world {
    struct fuzz random;
    struct oracle oracle;
    struct sequence pair[2];
    struct shadow shadows[2];
    struct file files[N_FILES];
    const char *broken;
    uint32_t most_marks;
    /* argument of the step */
    struct sequence *q;
    struct shadow *w;
    struct moeflux_err e;
};

static uint32_t below(struct world *t, uint32_t n)
{
    return (uint32_t)fuzz_below(&t->random, n);
}

static void check_session(struct world *t)
{
    const struct shadow *w = t->w;
    const int32_t *history = moeflux_session_history(t->q->s);
    uint32_t pos[LENGTH];
    assert_int_equal(moeflux_session_position(t->q->s), w->n);
    for (uint32_t i = 0; i < w->n; i++)
        assert_int_equal(history[i], w->known[i] ? w->ids[i] : -1);
    assert_int_equal(moeflux_session_list_checkpoints(t->q->s, pos, LENGTH), w->n_marks);
    for (uint32_t i = 0; i < w->n_marks; i++)
        assert_int_equal(pos[i], w->marks[i].pos);
}

static void eval_and_compare(struct world *t, const int32_t *ids, uint32_t n)
{
    float logits[SMALL_VOCAB];
    sequence_eval(t->q, ids, n, logits);
    append(t->w, ids, n, UINT32_MAX, 0);
    const float *want = oracle_ask(&t->oracle, t->w->ids, t->w->n);
    float distance = sequence_distance(t->q, logits, want);
    if (distance > sequence_tolerance(t->q))
        fail_msg("logits after %u tokens are %g off", t->w->n, (double)distance);
}

static void random_ids(struct world *t, int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = IDS[below(t, 2)];
}

/* ---- the operations ---- */

static void step_eval(struct world *t)
{
    int32_t ids[LENGTH];
    uint32_t room = LENGTH - t->w->n;
    if (room == 0)
        return;
    uint32_t n = below(t, 2) ? 1 : 1 + below(t, room);
    random_ids(t, ids, n);
    eval_and_compare(t, ids, n);
}

struct failing {
    uint32_t at;
};

static int fail_at(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e)
{
    const struct failing *f = ctx;
    (void)row;
    return pos == f->at ? err_set(e, ERR_IO, "enough") : 0;
}

static void step_failing_eval(struct world *t)
{
    int32_t ids[LENGTH];
    uint32_t room = LENGTH - t->w->n;
    if (room == 0)
        return;
    uint32_t n = 1 + below(t, room), fails = below(t, n);
    struct failing f = {t->w->n + fails};
    random_ids(t, ids, n);
    int rc = moeflux_session_eval(t->q->s, ids, n,
                                  &(struct moeflux_outputs){.each_logits = fail_at, .ctx = &f}, &t->e);
    sequence_refused(rc, &t->e, ERR_IO, "enough");
    append(t->w, ids, n, fails, moeflux_session_position(t->q->s));
}

static void step_refused_eval(struct world *t)
{
    const int32_t ids[2] = {IDS[0], SMALL_VOCAB};
    sequence_refused(moeflux_session_eval(t->q->s, ids, 2, &(struct moeflux_outputs){0}, &t->e), &t->e,
                     ERR_USAGE, "");
}

static void step_clear(struct world *t)
{
    check_ok(moeflux_session_clear(t->q->s, &t->e), &t->e);
    cut(t->w, 0);
}

static void step_truncate(struct world *t)
{
    uint32_t to = below(t, t->w->n + 2), from = mark_before(t->w, to);
    int rc = moeflux_session_truncate(t->q->s, to, &t->e);
    bool is_known = true;
    for (uint32_t i = from; i < to && i < t->w->n; i++)
        is_known &= t->w->known[i];
    if (to == t->w->n) {
        check_ok(rc, &t->e);
    } else if (to > t->w->n || !is_known) {
        sequence_refused(rc, &t->e, ERR_USAGE, "cannot cut");
    } else {
        int32_t again[LENGTH];
        check_ok(rc, &t->e);
        memcpy(again, t->w->ids, sizeof again);
        go_to(t->w, from);
        append(t->w, again + from, to - from, UINT32_MAX, 0);
    }
}

static void step_checkpoint(struct world *t)
{
    check_ok(moeflux_session_checkpoint(t->q->s, &t->e), &t->e);
    add_mark(t->w);
}

static void step_restore(struct world *t)
{
    uint32_t to = below(t, LENGTH + 1), i = below(t, MAX_CAP);
    if (i < t->w->n_marks)
        to = t->w->marks[i].pos;
    bool is_there = to == 0;
    for (i = 0; i < t->w->n_marks; i++)
        is_there |= t->w->marks[i].pos == to;
    int rc = moeflux_session_restore(t->q->s, to, &t->e);
    if (is_there) {
        check_ok(rc, &t->e);
        cut(t->w, to);
        if (to)
            t->w->marks[t->w->n_marks - 1].used = ++t->w->clock;
    } else {
        sequence_refused(rc, &t->e, ERR_USAGE, "no checkpoint");
    }
}

static void step_forget(struct world *t)
{
    uint32_t which = below(t, MAX_CAP), pos = LENGTH + 1;
    bool is_there = which < t->w->n_marks;
    if (is_there)
        pos = t->w->marks[which].pos;
    int rc = moeflux_session_drop_checkpoint(t->q->s, is_there ? pos : below(t, 2) * pos, &t->e);
    if (is_there) {
        check_ok(rc, &t->e);
        drop_mark(t->w, which);
    } else {
        sequence_refused(rc, &t->e, ERR_USAGE, "no checkpoint");
    }
}

static void step_settings(struct world *t)
{
    uint32_t cap = below(t, MAX_CAP + 1);
    int rc = moeflux_session_set_checkpoint_cap(t->q->s, cap, &t->e);
    if (cap == 0) {
        sequence_refused(rc, &t->e, ERR_USAGE, "");
    } else {
        t->w->cap = cap < t->most_marks ? cap : t->most_marks;
        trim_marks(t->w);
    }
    t->w->every = below(t, 4);
    moeflux_session_set_checkpoint_every(t->q->s, t->w->every);
}

static void step_reuse(struct world *t)
{
    int32_t ids[LENGTH];
    uint32_t n = 1 + below(t, LENGTH), same = 0, reused;
    random_ids(t, ids, n);
    uint32_t take = below(t, LENGTH + 1);
    for (uint32_t i = 0; i < n && i < take && i < t->w->n; i++)
        ids[i] = t->w->ids[i];
    while (same < t->w->n && same < n - 1 && t->w->known[same] && t->w->ids[same] == ids[same])
        same++;
    check_ok(moeflux_session_reuse(t->q->s, ids, n, &reused, &t->e), &t->e);
    if (same < t->w->n)
        go_to(t->w, mark_before(t->w, same));
    assert_int_equal(reused, t->w->n);
    check_session(t);
    eval_and_compare(t, ids + reused, n - reused);
}

static void step_save(struct world *t)
{
    struct file *f = &t->files[below(t, N_FILES)];
    enum moeflux_state_format format = below(t, 3) ? MOEFLUX_STATE_V3 : MOEFLUX_STATE_V2;
    check_ok(moeflux_session_save(t->q->s, f->path, format, &t->e), &t->e);
    f->is_there = true;
    f->is = *t->w;
    for (uint32_t i = 0; i < t->w->n && format == MOEFLUX_STATE_V2; i++)
        f->is.known[i] = false;
    if (format == MOEFLUX_STATE_V2)
        f->is.n_marks = 0;
}

static void step_load(struct world *t)
{
    const struct file *f = &t->files[below(t, N_FILES)];
    int rc = moeflux_session_load(t->q->s, f->path, &t->e);
    if (!f->is_there) {
        sequence_refused(rc, &t->e, ERR_IO, f->path);
        return;
    }
    check_ok(rc, &t->e);
    uint32_t cap = t->w->cap, every = t->w->every;
    *t->w = f->is;
    t->w->cap = cap;
    t->w->every = every;
    /* The order of use is not kept in a file. */
    for (uint32_t i = 0; i < t->w->n_marks; i++)
        t->w->marks[i].used = ++t->w->clock;
    trim_marks(t->w);
}

/* Cut or with a changed byte. */
static void step_broken_load(struct world *t)
{
    const struct file *f = &t->files[below(t, N_FILES)];
    if (!f->is_there)
        return;
    size_t n;
    uint8_t *bytes = tmp_tree_read(f->path, &n);
    bool is_cut = below(t, 2) || bytes[4] != 3;
    if (!is_cut)
        bytes[fuzz_below(&t->random, n)] ^= (uint8_t)(1u << below(t, 8));
    FILE *to = fopen(t->broken, "wb");
    assert_non_null(to);
    size_t left = is_cut ? fuzz_below(&t->random, n) : n;
    assert_int_equal(fwrite(bytes, 1, left, to), left);
    fclose(to);
    free(bytes);
    int rc = moeflux_session_load(t->q->s, t->broken, &t->e);
    assert_true(rc == ERR_FORMAT && strstr(t->e.text, t->broken));
}

static void (*const STEPS[])(struct world *t) = {
    step_eval,       step_eval,       step_eval,     step_failing_eval, step_refused_eval,
    step_clear,      step_truncate,   step_truncate, step_reuse,        step_checkpoint,
    step_checkpoint, step_checkpoint, step_restore,  step_restore,      step_reuse,
    step_forget,     step_settings,   step_save,     step_broken_load,  step_load};

static void one_round(struct world *t)
{
    int32_t last = IDS[below(t, 2)];
    for (uint32_t i = 0; i < N_STEPS; i++) {
        uint32_t which = below(t, 2);
        t->q = &t->pair[which];
        t->w = &t->shadows[which];
        t->e = (struct moeflux_err){0};
        STEPS[below(t, sizeof STEPS / sizeof *STEPS)](t);
        check_session(t);
    }
    for (int i = 0; i < 2; i++) {
        t->q = &t->pair[i];
        t->w = &t->shadows[i];
        if (t->w->n < LENGTH)
            eval_and_compare(t, &last, 1);
        else
            step_clear(t);
    }
}

struct kind {
    const char *device;
    uint32_t n_slots;
    bool is_recurrent;
};

static void run_rounds(const struct kind *k, uint32_t n_rounds, uint64_t seed)
{
    static const char *const names[N_FILES] = {"a", "b", "c"};
    char *dir = tmp_tree_new();
    const char *model = k->is_recurrent ? small_model_make(dir, 1) : small_model_make_attention(dir, 1);
    const char *rounds = getenv("MOEFLUX_ROUNDS");
    struct world *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->random.state = seed;
    t->broken = tmp_tree_path(dir, "broken");
    for (uint32_t i = 0; i < N_FILES; i++)
        t->files[i].path = tmp_tree_path(dir, names[i]);
    t->oracle.logits = calloc(2u << LENGTH, sizeof *t->oracle.logits);
    t->oracle.has = calloc(2u << LENGTH, sizeof *t->oracle.has);
    t->pair[0] = t->pair[1] = t->oracle.q = sequence_open(model, k->device, CHUNK, k->n_slots, SMALL_CONTEXT);
    for (uint32_t i = 0; i < 2; i++) {
        check_ok(moeflux_session_new(&t->pair[i].s, t->oracle.q.m, LENGTH + 3 * i, &t->e), &t->e);
        /* Where memory is scarce it bounds what is asked for. */
        check_ok(moeflux_session_set_checkpoint_cap(t->pair[i].s, MAX_CAP, &t->e), &t->e);
        t->shadows[i].cap = t->most_marks = moeflux_session_checkpoint_cap(t->pair[i].s);
        t->shadows[i].is_recurrent = k->is_recurrent;
    }
    n_rounds = rounds ? (uint32_t)strtoul(rounds, NULL, 10) : n_rounds;
    for (uint32_t i = 0; i < n_rounds; i++)
        one_round(t);
    printf("%u rounds of %d operations, %u runs from scratch\n", n_rounds, N_STEPS, t->oracle.n_runs);
    moeflux_session_free(t->pair[0].s);
    moeflux_session_free(t->pair[1].s);
    sequence_close(&t->oracle.q);
    free(t->oracle.logits);
    free(t->oracle.has);
    free(t);
    tmp_tree_remove(dir);
}

static void random_operations_on_the_reference(void **state)
{
    (void)state;
    run_rounds(&(struct kind){"reference", 0, true}, 100, 1);
}

static void random_operations_with_every_expert_resident(void **state)
{
    (void)state;
    run_rounds(&(struct kind){NULL, 0, true}, 800, 2);
}

static void random_operations_with_streamed_experts(void **state)
{
    (void)state;
    run_rounds(&(struct kind){NULL, 5, true}, 150, 3);
}

static void random_operations_without_recurrent_layers(void **state)
{
    (void)state;
    run_rounds(&(struct kind){"reference", 0, false}, 50, 4);
    run_rounds(&(struct kind){NULL, 0, false}, 400, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_on_the_reference),
        cmocka_unit_test(random_operations_with_every_expert_resident),
        cmocka_unit_test(random_operations_with_streamed_experts),
        cmocka_unit_test(random_operations_without_recurrent_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
