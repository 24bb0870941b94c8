#include "generate/saved_sequences.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "base/str.h"
#include "generate/prefix.h"
#include "moeflux.h"

static const char ending[] = ".moeflux-state";

static bool is_named(const char *name)
{
    return name[0] != '.' && str_ends_with(name, ending);
}

/* Returns whether a file is a state that is being written, or whose writer was killed. */
static bool is_part(const char *name)
{
    const char *at = strstr(name, ending);
    return at && side_file_is_temporary(name) &&
           strncmp(at + strlen(ending), SIDE_FILE_MARK, strlen(SIDE_FILE_MARK)) == 0;
}

static void tell(const struct saved_sequences *v, const struct moeflux_err *e)
{
    v->tell(v->ctx, e->text);
}

/* Takes ownership of the members of `x`. */
static int add_item(struct saved_sequences *v, const struct saved_sequence *x, struct moeflux_err *e)
{
    int rc = mem_grow((void **)&v->items, &v->cap, v->n + 1, sizeof *v->items, e);
    if (rc)
        return rc;
    v->items[v->n] = *x;
    v->items[v->n++].last_use = ++v->clock;
    v->bytes += x->places.bytes;
    return 0;
}

static void forget(struct saved_sequences *v, size_t idx)
{
    v->bytes -= v->items[idx].places.bytes;
    free(v->items[idx].path);
    places_free(&v->items[idx].places);
    v->items[idx] = v->items[--v->n];
}

static void remove_file(struct saved_sequences *v, size_t idx)
{
    unlink(v->items[idx].path);
    forget(v, idx);
}

/* Returns the time of the last write in ns; 0: the file is gone. */
static uint64_t written_at(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0 || st.st_mtim.tv_sec < 0)
        return 0;
    return (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
}

static int older_first(const void *a, const void *b)
{
    const struct saved_sequence *x = a, *y = b;
    return (x->last_use > y->last_use) - (x->last_use < y->last_use);
}

/* Orders files of earlier runs: their last write counts as the last use. */
static void order_by_age(struct saved_sequences *v)
{
    if (v->n > 0)
        qsort(v->items, v->n, sizeof *v->items, older_first);
    for (size_t i = 0; i < v->n; i++)
        v->items[i].last_use = i + 1;
    v->clock = v->n;
}

static bool has_too_much(const struct saved_sequences *v)
{
    return (v->limits.bytes && v->bytes + v->part_bytes > v->limits.bytes) ||
           (v->limits.n_files && v->n > v->limits.n_files);
}

static void make_room(struct saved_sequences *v)
{
    while (has_too_much(v) && v->n > 0) {
        size_t oldest = 0;
        for (size_t i = 1; i < v->n; i++)
            if (v->items[i].last_use < v->items[oldest].last_use)
                oldest = i;
        remove_file(v, oldest);
    }
}

/* Removes what a killed server left of a file, and counts what cannot be removed. */
static int look_at_part(struct saved_sequences *v, const char *name, struct moeflux_err *e)
{
    struct stat st;
    char *path = file_join(v->dir, name, e);
    if (!path)
        return ERR_MEMORY;
    side_file_remove_dead(path);
    v->part_bytes += stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    free(path);
    return 0;
}

/* Indexes one file of the directory. A damaged or foreign file is left alone. */
static int look_at(struct saved_sequences *v, const char *name, struct moeflux_err *e)
{
    struct saved_sequence x = {0};
    struct moeflux_err why;
    if (is_part(name))
        return look_at_part(v, name, e);
    if (!is_named(name))
        return 0;
    if (!(x.path = file_join(v->dir, name, e)))
        return ERR_MEMORY;
    int rc = places_read(&x.places, v->model, x.path, &why);
    if (!rc && add_item(v, &x, e) == 0) {
        v->items[v->n - 1].last_use = written_at(x.path);
        return 0;
    }
    places_free(&x.places);
    free(x.path);
    /* A file that cannot be read does not belong to this model. */
    return rc ? 0 : ERR_MEMORY;
}

/* Fails if no file can be created in the directory: it would be noticed when a conversation is lost. */
static int check_writable(const char *dir, struct moeflux_err *e)
{
    struct side_file probe;
    struct moeflux_err why;
    char *path = file_join(dir, "probe", e);
    if (!path)
        return ERR_MEMORY;
    int rc = side_file_create(&probe, path, S_IRUSR | S_IWUSR, &why);
    side_file_free(&probe);
    free(path);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int saved_sequences_open(struct saved_sequences *v, struct moeflux_model *m, const char *dir,
                         const struct saved_limits *limits, void (*tell_line)(void *ctx, const char *text),
                         void *ctx, struct moeflux_err *e)
{
    *v = (struct saved_sequences){.model = m, .dir = dir, .limits = *limits, .tell = tell_line, .ctx = ctx};
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return err_errno(e, ERR_IO, "%s", dir);
    int rc = check_writable(dir, e);
    if (!rc)
        rc = moeflux_model_fingerprint(m, &v->fingerprint, e);
    DIR *d = rc ? NULL : opendir(dir);
    if (!rc && !d)
        return err_errno(e, ERR_IO, "%s", dir);
    for (struct dirent *x; !rc && (x = readdir(d));)
        rc = look_at(v, x->d_name, e);
    if (d)
        closedir(d);
    order_by_age(v);
    if (!rc)
        make_room(v);
    return rc;
}

uint32_t saved_sequences_find(struct saved_sequences *v, const int32_t *ids, uint32_t n, uint32_t *n_usable)
{
    uint32_t best = 0;
    *n_usable = 0;
    for (size_t i = 0; i < v->n; i++) {
        const struct places *p = &v->items[i].places;
        uint32_t here = places_reach(p, prefix_common(p->ids, p->n_tokens, ids, n - 1));
        if (here > *n_usable) {
            best = (uint32_t)i;
            *n_usable = here;
        }
    }
    return best;
}

uint32_t saved_sequences_common(const struct saved_sequences *v, const int32_t *ids, uint32_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < v->n; i++) {
        uint32_t same = prefix_common(v->items[i].places.ids, v->items[i].places.n_tokens, ids, n);
        if (same > most && same < n)
            most = same;
    }
    return most;
}

int saved_sequences_load(struct saved_sequences *v, uint32_t idx, struct moeflux_session *s,
                         uint32_t max_context, struct moeflux_err *e)
{
    struct moeflux_err why;
    int rc = moeflux_session_load(s, v->items[idx].path, &why);
    /* A state that is longer than the context never fits. */
    bool lacks_memory =
        rc == ERR_MEMORY || (rc == ERR_NO_FIT && v->items[idx].places.n_tokens <= max_context);
    if (rc == ERR_INTERRUPTED || rc == ERR_DEVICE || rc == ERR_LOST || lacks_memory)
        return err_set(e, rc, "%s", why.text);
    if (rc) {
        tell(v, &why);
        forget(v, idx);
        return 0;
    }
    v->items[idx].last_use = ++v->clock;
    v->n_loads++;
    return 0;
}

/* ---- saving ---- */

/* Removes the files of prefixes of a new one, which is on the disk already. */
static void supersede(struct saved_sequences *v, const struct places *fresh, const char *path)
{
    for (size_t i = v->n; i-- > 0;) {
        const struct places *p = &v->items[i].places;
        if (prefix_common(p->ids, p->n_tokens, fresh->ids, fresh->n_tokens) < p->n_tokens)
            continue;
        if (strcmp(v->items[i].path, path) == 0)
            forget(v, i);
        else
            remove_file(v, i);
    }
}

static int save(struct saved_sequences *v, struct moeflux_session *s, struct moeflux_err *e)
{
    uint32_t n = moeflux_session_position(s);
    struct saved_sequence x = {0};
    char name[80];
    uint64_t hash = XXH3_64bits(moeflux_session_history(s), n * sizeof(int32_t));
    snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64 "%s", v->fingerprint, hash, ending);
    x.path = file_join(v->dir, name, e);
    int rc = x.path ? moeflux_session_save(s, x.path, MOEFLUX_STATE_V3, e) : ERR_MEMORY;
    bool is_written = rc == 0;
    if (!rc)
        rc = places_read(&x.places, v->model, x.path, e);
    if (!rc) {
        supersede(v, &x.places, x.path);
        rc = add_item(v, &x, e);
    }
    /* The limits count what the index has: another file would stay for ever. */
    if (rc && is_written)
        unlink(x.path);
    if (rc) {
        places_free(&x.places);
        free(x.path);
    }
    return rc;
}

/* A file that is larger than all may be would be written in vain, and the others removed for it. */
static int check_size(const struct saved_sequences *v, const struct moeflux_session *s, struct moeflux_err *e)
{
    uint64_t bytes = moeflux_session_state_bytes(s, MOEFLUX_STATE_V3), most = v->limits.bytes;
    if (!most || bytes <= most)
        return 0;
    return err_set(e, ERR_NO_FIT,
                   "%s: a conversation is not saved, its state has %" PRIu64
                   " bytes, all files together may have %" PRIu64,
                   v->dir, bytes, most);
}

void saved_sequences_add(struct saved_sequences *v, struct moeflux_session *s)
{
    struct moeflux_err why;
    int rc = check_size(v, s, &why);
    if (!rc)
        rc = save(v, s, &why);
    if (rc) {
        tell(v, &why);
        return;
    }
    v->n_saves++;
    make_room(v);
}

void saved_sequences_close(struct saved_sequences *v)
{
    while (v->n > 0)
        forget(v, v->n - 1);
    free(v->items);
    *v = (struct saved_sequences){0};
}
