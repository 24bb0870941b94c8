/* Saves a sequence's state, piece by piece. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "args.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "engine/sequence.h"
#include "engine/state/snapshot.h"
#include "engine/state/stores.h"

/* The first error sticks: later calls do nothing. */
struct writer {
    struct side_file side;
    struct moeflux_session *s;
    const struct stage *at;       /* stage of the current layer */
    const struct stage_state *on; /* the session's state on that stage */
    XXH3_state_t *hash;
    uint8_t *piece, *rows; /* [SNAPSHOT_PIECE] each: what is written next; rows with gaps between them */
    uint64_t done, total;
    int rc;
    struct moeflux_err *e;
};

static int writer_open(struct writer *w, struct moeflux_session *s, const char *path, struct moeflux_err *e)
{
    *w = (struct writer){.s = s, .e = e, .side.fd = -1};
    w->hash = XXH3_createState();
    w->piece = mem_new(SNAPSHOT_PIECE, 1, e);
    w->rows = mem_new(SNAPSHOT_PIECE, 1, e);
    if (!w->hash)
        return err_set(e, ERR_MEMORY, "out of memory for a checksum");
    XXH3_64bits_reset(w->hash);
    /* It contains what was said. */
    return w->piece && w->rows ? side_file_create(&w->side, path, S_IRUSR | S_IWUSR, e) : ERR_MEMORY;
}

static void writer_close(struct writer *w)
{
    side_file_free(&w->side);
    XXH3_freeState(w->hash);
    free(w->piece);
    free(w->rows);
}

static void put(struct writer *w, const void *bytes, uint64_t n)
{
    if (w->rc < 0)
        return;
    XXH3_64bits_update(w->hash, bytes, n);
    w->rc = file_write(w->side.fd, w->side.path, bytes, n, w->e);
    w->done += n;
    if (w->rc == 0 && !progress_report(&w->s->model->progress, "writing the state", "B", w->done, w->total))
        w->rc = err_set(w->e, ERR_INTERRUPTED, "%s: interrupted while it was written", w->side.path);
}

static void put_device(struct writer *w, const struct exec_buffer *from, uint64_t off, uint64_t bytes)
{
    for (uint64_t done = 0, n; w->rc == 0 && done < bytes; done += n) {
        n = size_min(bytes - done, SNAPSHOT_PIECE);
        w->rc = exec_read(w->at->exec, from, off + done, w->piece, n, w->e);
        put(w, w->piece, n);
    }
}

/* Writes rows with gaps between them, or of another type in the file. */
static void put_apart(struct writer *w, const struct arch_store *t, enum kv_type type,
                      const struct stores_run *run)
{
    uint64_t wide = arch_row_bytes(t, type), here_bytes = arch_store_bytes(t);
    uint32_t most = (uint32_t)(SNAPSHOT_PIECE / size_max(t->pitch, wide));
    assert(most > 0);
    for (uint32_t done = 0, here; w->rc == 0 && done < run->n; done += here) {
        here = (uint32_t)size_min(run->n - done, most);
        w->rc = exec_read(w->at->exec, run->block, run->off + (uint64_t)done * t->pitch, w->rows,
                          (uint64_t)(here - 1) * t->pitch + here_bytes, w->e);
        for (uint32_t i = 0; i < here; i++)
            snapshot_copy_row(t, w->piece + i * wide, type, w->rows + (uint64_t)i * t->pitch, t->type);
        put(w, w->piece, here * wide);
    }
}

static void put_rows(struct writer *w, const struct arch_store *t, const struct snapshot *h)
{
    enum kv_type type = snapshot_row_type(t, h);
    uint32_t end = stores_n_rows(t, h->n_tokens);
    for (uint32_t row = snapshot_first_row(t, h); w->rc == 0 && row < end;) {
        const struct stores_run run = stores_run_at(w->on, t, row, end);
        if (t->pitch == arch_row_bytes(t, type) && type == t->type)
            put_device(w, run.block, run.off, (uint64_t)run.n * t->pitch);
        else
            put_apart(w, t, type, &run);
        row += run.n;
    }
}

/* Writes a layer of `s`: the sequence, or its drafter's. */
static void put_layer(struct writer *w, const struct moeflux_session *s, uint32_t layer,
                      const struct snapshot *h)
{
    const struct arch_stores *y = model_stores(s->model, layer);
    int32_t n = (int32_t)s->pos;
    w->at = model_stage(s->model, layer);
    w->on = &s->on[w->at - s->model->stages];
    if (stores_has_rows(y))
        put(w, &n, sizeof n);
    for (uint32_t i = 0; i < y->n; i++) {
        const struct arch_store *t = &y->of[i];
        uint64_t bytes = arch_store_bytes(t), at = t->copies > 1 ? s->parity * bytes : 0;
        if (t->kind == ARCH_FIXED)
            put_device(w, &w->on->recurrent, t->off + at, bytes);
        else
            put_rows(w, t, h);
    }
}

static void put_checkpoint(struct writer *w, const struct checkpoint *c)
{
    struct moeflux_model *m = w->s->model;
    put(w, &c->pos, sizeof c->pos);
    for (uint32_t i = 0; i < m->dir.config.n_layers; i++)
        for (uint32_t k = 0; k < model_stores(m, i)->n; k++) {
            const struct stage *at = model_stage(m, i);
            const struct arch_store *t = &model_stores(m, i)->of[k];
            uint64_t bytes = arch_store_bytes(t);
            const uint8_t *part = c->state + at->checkpoint_off;
            if (t->kind == ARCH_FIXED)
                put(w, part + t->off + (t->copies > 1 ? c->parity * bytes : 0), bytes);
            else if (t->kind == ARCH_WINDOW)
                put(w, part + stores_checkpoint_off(at, i, k), stores_window_bytes(t));
        }
}

static void put_drafter(struct writer *w, const struct snapshot_drafter *d)
{
    const struct moeflux_session *s = w->s;
    const struct snapshot h = snapshot_of_drafter(s->model, d);
    put(w, d, sizeof *d);
    if (w->rc == 0)
        w->rc = stage_enter_all(s->model->drafter, w->e);
    if (w->rc < 0)
        return;
    put_layer(w, s->drafter.rows, 0, &h);
    stage_give_all(s->model->drafter);
    put(w, s->drafter.waiting, (uint64_t)d->n_waiting * drafter_width(s->model) * sizeof(float));
}

static void put_all(struct writer *w, const struct snapshot *h, const struct snapshot_drafter *d)
{
    struct moeflux_session *s = w->s;
    uint8_t header[SNAPSHOT_MAX_HEADER];
    put(w, header, snapshot_encode(h, header));
    if (h->version >= 3)
        put(w, s->history, s->pos * sizeof *s->history);
    for (uint32_t i = 0; i < s->model->dir.config.n_layers; i++)
        put_layer(w, s, i, h);
    if (h->version < 3)
        return;
    for (size_t i = 0; i < s->checkpoints.n; i++)
        put_checkpoint(w, &s->checkpoints.items[i]);
    if (h->has_drafter)
        put_drafter(w, d);
    uint64_t check = XXH3_64bits_digest(w->hash);
    put(w, &check, sizeof check);
}

static struct snapshot_drafter drafter_part(const struct moeflux_session *s)
{
    const struct drafter_rows *d = &s->drafter;
    return (struct snapshot_drafter){.n_rows = d->rows->pos, .base = d->base, .n_waiting = d->n};
}

static struct snapshot snapshot_of(const struct moeflux_session *s, enum moeflux_state_format format)
{
    bool is_old = format != MOEFLUX_STATE_V3;
    struct snapshot h = snapshot_of_model(s->model, is_old ? (uint32_t)format : snapshot_version(s->model));
    h.kv = is_old ? KV_TYPE_F32 : s->model->kv_type;
    h.n_tokens = s->pos;
    h.n_checkpoints = is_old ? 0 : (uint32_t)s->checkpoints.n;
    h.has_drafter = !is_old && drafter_has_rows(s);
    h.bytes = snapshot_bytes(s->model, &h);
    if (h.has_drafter) {
        const struct snapshot_drafter d = drafter_part(s);
        h.bytes += snapshot_drafter_bytes(s->model, &d);
    }
    return h;
}

uint64_t moeflux_session_state_bytes(const struct moeflux_session *s, enum moeflux_state_format format)
{
    return snapshot_of(s, format).bytes;
}

int moeflux_session_save(struct moeflux_session *s, const char *path, enum moeflux_state_format format,
                         struct moeflux_err *e)
{
    int null = err_need(e, "session", s, "path", path);
    if (null)
        return null;
    struct writer w;
    if (format != MOEFLUX_STATE_V2 && format != MOEFLUX_STATE_V3)
        return err_set(e, ERR_USAGE, "%s: state format %d, expected 2 or 3", path, (int)format);
    int rc = sequence_make_ready(s, e);
    if (rc < 0)
        return rc;
    if (format == MOEFLUX_STATE_V2 && stores_window_from(s) > 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: version 2 has all rows of windows, and those before token %u are gone", path,
                       stores_window_from(s));
    if (format == MOEFLUX_STATE_V2 && !snapshot_has_old_form(s->model))
        return err_set(e, ERR_UNSUPPORTED, "%s: version 2 has other rows than this model's layers keep",
                       path);
    struct snapshot h = snapshot_of(s, format);
    struct snapshot_drafter d = h.has_drafter ? drafter_part(s) : (struct snapshot_drafter){0};
    if (format == MOEFLUX_STATE_V3)
        rc = moeflux_model_fingerprint(s->model, &h.fingerprint, e);
    if (rc == 0 && h.has_drafter)
        rc = moeflux_model_fingerprint(s->model->drafter, &d.fingerprint, e);
    if (rc < 0)
        return rc;
    rc = writer_open(&w, s, path, e);
    if (rc == 0)
        rc = stage_enter_all(s->model, e);
    if (rc == 0) {
        w.total = h.bytes;
        put_all(&w, &h, &d);
        rc = w.rc;
        stage_give_all(s->model);
    }
    if (rc == 0)
        rc = side_file_commit(&w.side, e);
    writer_close(&w);
    return rc;
}
