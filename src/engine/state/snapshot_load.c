/* Loads a sequence's saved state. Header and lengths are checked first; then the rest is read piece by piece
 * into memory that is not in use yet. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "args.h"
#include "base/f16.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/sequence.h"
#include "engine/state/snapshot.h"
#include "engine/state/stores.h"

/* The first error sticks: later calls do nothing. */
struct source {
    int fd;
    const char *path;
    struct moeflux_session *s;    /* the session to fill */
    const struct stage *stage;    /* stage of the current layer */
    const struct stage_state *on; /* the session's state on that stage */
    XXH3_state_t *hash;
    uint8_t *piece, *rows; /* [SNAPSHOT_PIECE] each: what was read last; rows with gaps between them */
    uint64_t at, total;
    struct snapshot_drafter drafter; /* the part that is taken */
    bool takes_drafter;              /* it is this model's, else it is skipped */
    int rc;
    struct moeflux_err *e;
};

static int source_open(struct source *r, const char *path, struct moeflux_err *e)
{
    *r = (struct source){.path = path, .e = e};
    r->fd = file_open_read(path, &r->total, e);
    return r->fd < 0 ? r->fd : 0;
}

/* Allocates what is needed to read more than the header. */
static int source_prepare(struct source *r, struct moeflux_err *e)
{
    r->hash = XXH3_createState();
    r->piece = mem_new(SNAPSHOT_PIECE, 1, e);
    r->rows = mem_new(SNAPSHOT_PIECE, 1, e);
    if (!r->hash)
        return err_set(e, ERR_MEMORY, "out of memory for a checksum");
    XXH3_64bits_reset(r->hash);
    return r->piece && r->rows ? 0 : ERR_MEMORY;
}

static void source_close(struct source *r)
{
    if (r->fd >= 0)
        close(r->fd);
    XXH3_freeState(r->hash);
    free(r->piece);
    free(r->rows);
}

static void get(struct source *r, void *to, uint64_t n)
{
    if (r->rc < 0)
        return;
    r->rc = file_read_at(r->fd, r->path, to, n, r->at, r->e);
    if (r->rc < 0)
        return;
    XXH3_64bits_update(r->hash, to, n);
    r->at += n;
    if (!progress_report(&r->s->model->progress, "reading the state", "B", r->at, r->total))
        r->rc = err_set(r->e, ERR_INTERRUPTED, "%s: interrupted while it was read", r->path);
}

/* Reads numbers stored as rows of `head` of them, or as single ones (0). Numbers that are not finite would
 * spread to every later result. */
static void get_numbers(struct source *r, void *to, uint64_t bytes, enum kv_type type, uint32_t head)
{
    uint32_t dim = head ? head : 1;
    get(r, to, bytes);
    const uint8_t *found =
        r->rc < 0 ? NULL : kv_row_find_infinite(type, to, bytes / kv_row_bytes(type, dim), dim);
    if (found)
        r->rc = err_set(r->e, ERR_FORMAT, "%s: the number at offset %llu is not finite", r->path,
                        (unsigned long long)(r->at - bytes + (uint64_t)(found - (const uint8_t *)to)));
}

/* Reads a store's numbers as they are stored. */
static void get_device(struct source *r, const struct exec_buffer *to, uint64_t off, uint64_t bytes,
                       const struct arch_store *t)
{
    uint64_t piece = SNAPSHOT_PIECE;
    if (t->head)
        piece -= piece % kv_row_bytes(t->type, t->head);
    for (uint64_t done = 0, n; r->rc == 0 && done < bytes; done += n) {
        n = size_min(bytes - done, piece);
        get_numbers(r, r->piece, n, t->type, t->head);
        if (r->rc == 0)
            r->rc = exec_write(r->stage->exec, to, off + done, r->piece, n, r->e);
    }
}

/* Reads rows with gaps between them, or of another type in the file. The gaps hold rows of the other kind,
 * which must not change. */
static void get_apart(struct source *r, const struct arch_store *t, enum kv_type type,
                      const struct stores_run *run)
{
    struct exec *x = r->stage->exec;
    uint64_t wide = arch_row_bytes(t, type), bytes = arch_store_bytes(t);
    uint32_t most = (uint32_t)(SNAPSHOT_PIECE / size_max(t->pitch, wide));
    assert(most > 0);
    for (uint32_t done = 0, here; r->rc == 0 && done < run->n; done += here) {
        here = (uint32_t)size_min(run->n - done, most);
        uint64_t at = run->off + (uint64_t)done * t->pitch;
        uint64_t span = (uint64_t)(here - 1) * t->pitch + bytes;
        get_numbers(r, r->piece, here * wide, type, t->head);
        if (r->rc == 0)
            r->rc = exec_read(x, run->block, at, r->rows, span, r->e);
        for (uint32_t i = 0; r->rc == 0 && i < here; i++)
            snapshot_copy_row(t, r->rows + (uint64_t)i * t->pitch, t->type, r->piece + i * wide, type);
        if (r->rc == 0)
            r->rc = exec_write(x, run->block, at, r->rows, span, r->e);
    }
}

/* Reads rows in order, so that in a ring later ones replace earlier ones. */
static void get_rows(struct source *r, const struct arch_store *t, const struct snapshot *h)
{
    enum kv_type type = snapshot_row_type(t, h);
    uint32_t first = snapshot_first_row(t, h), end = stores_n_rows(t, h->n_tokens);
    if (t->kind == ARCH_WINDOW && r->rc == 0)
        r->rc = stores_clear_before(r->stage, r->on, t, first, r->e);
    for (uint32_t row = first; r->rc == 0 && row < end;) {
        const struct stores_run run = stores_run_at(r->on, t, row, end);
        if (t->pitch == arch_row_bytes(t, type) && type == t->type)
            get_device(r, run.block, run.off, (uint64_t)run.n * t->pitch, t);
        else
            get_apart(r, t, type, &run);
        row += run.n;
    }
}

/* Reads a layer's stores into `s`, the sequence or its drafter's; fixed ones into the copy of parity 0. */
static void get_layer(struct source *r, const struct moeflux_session *s, uint32_t layer,
                      const struct snapshot *h)
{
    struct moeflux_model *m = s->model;
    const struct arch_stores *y = model_stores(m, layer);
    r->stage = model_stage(m, layer);
    r->on = &s->on[r->stage - m->stages];
    if (stores_has_rows(y)) {
        int32_t n = 0;
        get(r, &n, sizeof n);
        if (r->rc == 0 && n != (int32_t)h->n_tokens)
            r->rc =
                err_set(r->e, ERR_FORMAT, "%s: a layer has %d tokens, expected %u", r->path, n, h->n_tokens);
    }
    for (uint32_t i = 0; i < y->n; i++)
        if (y->of[i].kind == ARCH_FIXED)
            get_device(r, &r->on->recurrent, y->of[i].off, arch_store_bytes(&y->of[i]), &y->of[i]);
        else
            get_rows(r, &y->of[i], h);
}

static void get_ids(struct source *r, uint32_t n)
{
    struct moeflux_session *s = r->s;
    uint32_t vocab = s->model->dir.config.vocab_size;
    get(r, s->history, n * sizeof *s->history);
    for (uint32_t i = 0; r->rc == 0 && i < n; i++)
        if (s->history[i] < -1 || s->history[i] >= (int64_t)vocab)
            r->rc = err_set(r->e, ERR_FORMAT, "%s: token %u is %d, expected -1 to %u", r->path, i,
                            s->history[i], vocab - 1);
}

/* Reads a checkpoint's stores. */
static void get_checkpoint_state(struct source *r, uint8_t *state, const struct snapshot *h)
{
    struct moeflux_model *m = r->s->model;
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++)
        for (uint32_t k = 0; r->rc == 0 && k < model_stores(m, i)->n; k++) {
            const struct stage *at = model_stage(m, i);
            const struct arch_store *t = &model_stores(m, i)->of[k];
            uint8_t *part = state + at->checkpoint_off;
            if (t->kind == ARCH_FIXED)
                get_numbers(r, part + t->off, arch_store_bytes(t), t->type, t->head);
            else if (t->kind == ARCH_WINDOW && h->version >= 4)
                get_numbers(r, part + stores_checkpoint_off(at, i, k), stores_window_bytes(t), t->type,
                            t->head);
        }
}

/* Reads a checkpoint. after: position of the one before. Those of version 3 lack the windows, if there are
 * some, and are left out then. */
static void get_checkpoint(struct source *r, uint32_t *after, const struct snapshot *h)
{
    struct moeflux_model *m = r->s->model;
    uint32_t pos = 0;
    get(r, &pos, sizeof pos);
    if (r->rc == 0 && (pos <= *after || pos > h->n_tokens))
        r->rc = err_set(r->e, ERR_FORMAT, "%s: a checkpoint at token %u, expected %u to %u", r->path, pos,
                        *after + 1, h->n_tokens);
    *after = pos;
    uint8_t *state = NULL;
    if (r->rc == 0 && m->checkpoint_bytes && !(state = mem_new(m->checkpoint_bytes, 1, r->e)))
        r->rc = ERR_MEMORY;
    if (r->rc == 0)
        get_checkpoint_state(r, state, h);
    bool is_whole = h->version >= snapshot_version(m);
    if (r->rc == 0 && is_whole)
        r->rc = checkpoints_add(&r->s->checkpoints, &(struct checkpoint){.pos = pos, .state = state}, r->e);
    if (r->rc < 0 || !is_whole)
        free(state);
}

/* Reads the drafter's rows and hidden states, or passes over another model's. */
static void get_drafter(struct source *r)
{
    struct moeflux_session *s = r->s;
    const struct snapshot_drafter *d = &r->drafter;
    struct snapshot_drafter head;
    uint64_t end = r->total - sizeof(uint64_t);
    r->takes_drafter &= s->drafter.rows != NULL;
    while (!r->takes_drafter && r->rc == 0 && r->at < end)
        get(r, r->piece, size_min(end - r->at, SNAPSHOT_PIECE));
    if (!r->takes_drafter)
        return;
    get(r, &head, sizeof head);
    if (r->rc == 0)
        r->rc = drafter_reserve(s, d->n_rows, r->e);
    if (r->rc == 0)
        r->rc = stage_enter_all(s->model->drafter, r->e);
    if (r->rc < 0)
        return;
    const struct snapshot h = snapshot_of_drafter(s->model, d);
    get_layer(r, s->drafter.rows, 0, &h);
    stage_give_all(s->model->drafter);
    get_numbers(r, s->drafter.waiting, (uint64_t)d->n_waiting * drafter_width(s->model) * sizeof(float),
                KV_TYPE_F32, 0);
}

static int get_all(struct source *r, const struct snapshot *h)
{
    struct moeflux_session *s = r->s;
    uint8_t header[SNAPSHOT_MAX_HEADER];
    uint32_t after = 0;
    get(r, header, snapshot_header_bytes(h->version));
    if (h->version >= 3)
        get_ids(r, h->n_tokens);
    for (uint32_t i = 0; r->rc == 0 && i < s->model->dir.config.n_layers; i++)
        get_layer(r, s, i, h);
    for (uint32_t i = 0; r->rc == 0 && i < h->n_checkpoints; i++)
        get_checkpoint(r, &after, h);
    if (r->rc == 0 && h->has_drafter)
        get_drafter(r);
    for (uint32_t i = 0; h->version < 3 && i < h->n_tokens; i++)
        s->history[i] = -1;
    uint64_t want = XXH3_64bits_digest(r->hash), found = want;
    if (h->version >= 3)
        get(r, &found, sizeof found);
    if (r->rc == 0 && found != want)
        r->rc = err_set(r->e, ERR_FORMAT, "%s: the checksum is wrong, the file is damaged", r->path);
    return r->rc;
}

/* ---- checks before loading ---- */

/* Finds the number of tokens, which versions 1 and 2 have only before the rows. */
static int find_length(const struct source *r, const struct moeflux_model *m, struct snapshot *h,
                       struct moeflux_err *e)
{
    uint64_t off = snapshot_header_bytes(h->version);
    int32_t n = 0;
    uint32_t i = 0;
    for (; i < m->dir.config.n_layers && !stores_has_rows(model_stores(m, i)); i++)
        for (uint32_t k = 0; k < model_stores(m, i)->n; k++)
            off += arch_store_bytes(&model_stores(m, i)->of[k]);
    if (i == m->dir.config.n_layers)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: without attention layers version %u does not tell the position", r->path,
                       h->version);
    if (off + sizeof n > r->total)
        return err_set(e, ERR_FORMAT, "%s: cut after %llu bytes", r->path, (unsigned long long)r->total);
    int rc = file_read_at(r->fd, r->path, &n, sizeof n, off, e);
    if (rc < 0)
        return rc;
    if (n < 0)
        return err_set(e, ERR_FORMAT, "%s: %d tokens", r->path, n);
    h->n_tokens = (uint32_t)n;
    return 0;
}

/* Looks at the drafter's part, whose end is the last checksum, and checks it if it is this model's drafter's.
 * off: where it begins. */
static int check_drafter(struct source *r, const struct moeflux_session *s, const struct snapshot *h,
                         uint64_t off, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct snapshot_drafter *d = &r->drafter;
    uint64_t bytes = r->total - sizeof(uint64_t) - off, fingerprint = 0;
    int rc = bytes < sizeof *d ? err_set(e, ERR_FORMAT, "%s: no room for the drafter's rows", r->path)
                               : file_read_at(r->fd, r->path, d, sizeof *d, off, e);
    if (rc == 0 && m->drafter)
        rc = moeflux_model_fingerprint(m->drafter, &fingerprint, e);
    if (rc < 0)
        return rc;
    r->takes_drafter = m->drafter && fingerprint == d->fingerprint;
    if (r->takes_drafter &&
        (d->n_waiting > VERIFY_ROWS || (uint64_t)d->base + d->n_rows + d->n_waiting != h->n_tokens ||
         bytes != snapshot_drafter_bytes(m, d)))
        return err_set(e, ERR_FORMAT, "%s: %u rows of the drafter from token %u and %u more, expected %u",
                       r->path, d->n_rows, d->base, d->n_waiting, h->n_tokens);
    return 0;
}

/* Checks the file's size. Reading checks that all layers have the same number of tokens. */
static int check_length(struct source *r, const struct moeflux_session *s, const struct snapshot *h,
                        struct moeflux_err *e)
{
    uint64_t want = snapshot_bytes(s->model, h);
    if (h->n_tokens > s->model->stages[0].view.max_context || !snapshot_has_length(s->model, h, r->total))
        return err_set(e, ERR_FORMAT, "%s: %llu bytes, expected %llu for %u tokens", r->path,
                       (unsigned long long)r->total, (unsigned long long)want, h->n_tokens);
    if (h->n_tokens > s->max_context)
        return err_set(e, ERR_NO_FIT, "%s: a state of %u tokens does not fit the context of %u tokens",
                       r->path, h->n_tokens, s->max_context);
    return h->has_drafter ? check_drafter(r, s, h, want - sizeof(uint64_t), e) : 0;
}

static int check_model(const struct source *r, struct moeflux_model *m, const struct snapshot *h,
                       struct moeflux_err *e)
{
    static const char *const types[] = {
        [KV_TYPE_F32] = "float32", [KV_TYPE_F16] = "float16", [KV_TYPE_Q8_0] = "q8_0"};
    uint64_t fingerprint;
    /* A cache of another type may keep other rows. */
    if (h->version >= 3 && h->kv != m->kv_type)
        return err_set(e, ERR_FORMAT, "%s: its KV cache is %s, this one's %s", r->path, types[h->kv],
                       types[m->kv_type]);
    int rc = snapshot_check_words(h, m, r->path, e);
    if (rc == 0 && h->version >= 3)
        rc = moeflux_model_fingerprint(m, &fingerprint, e);
    if (rc == 0 && h->version >= 3 && fingerprint != h->fingerprint)
        return err_set(e, ERR_FORMAT,
                       "%s: a state of another model, or of other experts for a token (`active_experts`, "
                       "`expert_share`, `prefer_resident`): its fingerprint is %016llx, this model's %016llx",
                       r->path, (unsigned long long)h->fingerprint, (unsigned long long)fingerprint);
    return rc;
}

static int check_file(struct source *r, const struct moeflux_session *s, struct snapshot *h,
                      struct moeflux_err *e)
{
    int rc = snapshot_read_header(h, r->fd, r->path, r->total, e);
    if (rc == 0)
        rc = check_model(r, s->model, h, e);
    if (rc == 0 && h->version < 3)
        rc = find_length(r, s->model, h, e);
    return rc < 0 ? rc : check_length(r, s, h, e);
}

/* ---- loading ---- */

static int fill(struct source *r, struct moeflux_session *to, const struct snapshot *h, struct moeflux_err *e)
{
    int rc = 0;
    r->s = to;
    for (uint32_t i = 0; rc == 0 && i < to->model->n_stages; i++) {
        struct stage *at = &to->model->stages[i];
        rc = stage_enter(to->model, at, e);
        if (rc < 0)
            break;
        exec_begin(at->exec); /* waits for work that may still write to the states */
        rc = exec_finish(at->exec, e);
        stage_give(at);
    }
    if (rc == 0)
        rc = sequence_reserve(to, h->n_tokens, e);
    if (rc == 0)
        rc = stage_enter_all(to->model, e);
    if (rc < 0)
        return rc;
    rc = get_all(r, h);
    stage_give_all(to->model);
    return rc;
}

/* Loads into an empty session, and clears it if that fails. */
static int load_here(struct source *r, struct moeflux_session *s, const struct snapshot *h,
                     struct moeflux_err *e)
{
    int rc = fill(r, s, h, e);
    if (rc == 0) {
        sequence_set_position(s, h->n_tokens, 0);
        s->window_from = stores_first_in_windows(s->model, h->n_tokens);
        if (r->takes_drafter)
            drafter_put_back(s, r->drafter.n_rows, r->drafter.base, r->drafter.n_waiting);
    } else {
        moeflux_session_clear(s, NULL);
    }
    return rc;
}

/* Gives a new session what the caller of another one has set: all that is not the tokens' state. */
static void take_settings(struct moeflux_session *s, const struct moeflux_session *of)
{
    s->checkpoints.cap = of->checkpoints.cap;
    s->checkpoint_every = of->checkpoint_every;
    s->checkpoint_at = of->checkpoint_at;
    s->watcher = of->watcher;
    drafter_set_use(s, of->drafter.use);
}

/* Loads a second session and swaps the two at the end. */
static int load_second(struct source *r, struct moeflux_session *s, const struct snapshot *h,
                       struct moeflux_err *e)
{
    struct moeflux_session *fresh;
    int rc = moeflux_session_new(&fresh, s->model, s->max_context, e);
    if (rc < 0)
        return rc;
    take_settings(fresh, s);
    rc = load_here(r, fresh, h, e);
    if (rc == 0) {
        struct moeflux_session old = *s;
        *s = *fresh;
        *fresh = old;
    }
    moeflux_session_free(fresh);
    return rc;
}

int moeflux_session_load(struct moeflux_session *s, const char *path, struct moeflux_err *e)
{
    int null = err_need(e, "session", s, "path", path);
    if (null)
        return null;
    struct source r;
    struct snapshot h;
    int rc = sequence_make_ready(s, e);
    if (rc < 0)
        return rc;
    rc = source_open(&r, path, e);
    if (rc == 0)
        rc = check_file(&r, s, &h, e);
    if (rc == 0)
        rc = source_prepare(&r, e);
    if (rc == 0)
        rc = s->pos == 0 ? load_here(&r, s, &h, e) : load_second(&r, s, &h, e);
    source_close(&r);
    return rc;
}
