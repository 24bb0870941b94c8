#include "generate/saved_sequences.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
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
#include "engine/model.h"
#include "engine/state/places.h"
#include "generate/prefix.h"
#include "moeflux.h"

static const char ending[] = ".moeflux-state";

struct saved_sequence {
    char *path;
    uint64_t name; /* hash of the file's name */
    struct places places;
    uint64_t last_use;
    uint64_t seen; /* saved_sequences.n_looks when the file was there */
    bool is_unfit; /* it could not be loaded; it still counts for the limits */
};

struct saved_sequences {
    struct moeflux_model *model;
    uint64_t fingerprint;
    struct saved_options options;
    pthread_mutex_t lock;         /* protects the rest */
    struct saved_sequence *items; /* [n] */
    size_t n, cap;
    uint64_t part_bytes; /* size of files that are being written */
    uint64_t bytes, clock, n_looks, n_loads, n_saves;
};

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

static uint64_t hash_of(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

static void tell(const struct saved_sequences *v, const struct moeflux_err *e)
{
    if (v->options.tell)
        v->options.tell(v->options.ctx, e->text);
}

/* ---- the index; its functions are called with the lock ---- */

/* Takes ownership of the members of `x`. */
static int add_item(struct saved_sequences *v, const struct saved_sequence *x, struct moeflux_err *e)
{
    int rc = mem_grow((void **)&v->items, &v->cap, v->n + 1, sizeof *v->items, e);
    if (rc)
        return rc;
    v->items[v->n] = *x;
    v->items[v->n].seen = v->n_looks;
    v->items[v->n++].last_use = ++v->clock;
    v->bytes += x->places.bytes;
    return 0;
}

static void free_item(struct saved_sequence *x)
{
    free(x->path);
    places_free(&x->places);
}

static void forget(struct saved_sequences *v, size_t idx)
{
    v->bytes -= v->items[idx].places.bytes;
    free_item(&v->items[idx]);
    v->items[idx] = v->items[--v->n];
}

static void remove_file(struct saved_sequences *v, size_t idx)
{
    unlink(v->items[idx].path);
    forget(v, idx);
}

static struct saved_sequence *find_item(struct saved_sequences *v, uint64_t name)
{
    for (size_t i = 0; i < v->n; i++)
        if (v->items[i].name == name)
            return &v->items[i];
    return NULL;
}

static bool has_too_much(const struct saved_sequences *v)
{
    return (v->options.bytes && v->bytes + v->part_bytes > v->options.bytes) ||
           (v->options.n_files && v->n > v->options.n_files);
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

/* ---- the directory ---- */

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
    for (size_t i = 0; i < v->n; i++)
        v->items[i].last_use = written_at(v->items[i].path);
    if (v->n > 0)
        qsort(v->items, v->n, sizeof *v->items, older_first);
    for (size_t i = 0; i < v->n; i++)
        v->items[i].last_use = i + 1;
    v->clock = v->n;
}

/* Removes what a killed program left of a file, and counts what cannot be removed. */
static int look_at_part(struct saved_sequences *v, const char *name, struct moeflux_err *e)
{
    struct stat st;
    char *path = file_join(v->options.dir, name, e);
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
    struct saved_sequence x = {.name = hash_of(name)}, *known;
    struct moeflux_err why;
    if (is_part(name))
        return look_at_part(v, name, e);
    if (!is_named(name))
        return 0;
    if ((known = find_item(v, x.name))) {
        known->seen = v->n_looks;
        return 0;
    }
    if (!(x.path = file_join(v->options.dir, name, e)))
        return ERR_MEMORY;
    int rc = places_read(&x.places, v->model, x.path, &why);
    if (!rc && add_item(v, &x, e) == 0)
        return 0;
    free_item(&x);
    /* A file that cannot be read does not belong to this model. */
    return rc ? 0 : ERR_MEMORY;
}

/* Indexes what other programs have written, and forgets what they have removed. */
static int look(struct saved_sequences *v, struct moeflux_err *e)
{
    DIR *d = opendir(v->options.dir);
    int rc = 0;
    if (!d)
        return err_errno(e, ERR_IO, "%s", v->options.dir);
    v->n_looks++;
    v->part_bytes = 0;
    for (struct dirent *x; !rc && (x = readdir(d));)
        rc = look_at(v, x->d_name, e);
    closedir(d);
    for (size_t i = v->n; !rc && i-- > 0;)
        if (v->items[i].seen != v->n_looks)
            forget(v, i);
    return rc;
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

static int index_all(struct saved_sequences *v, struct moeflux_err *e)
{
    const char *dir = v->options.dir;
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return err_errno(e, ERR_IO, "%s", dir);
    int rc = check_writable(dir, e);
    if (!rc)
        rc = moeflux_model_fingerprint(v->model, &v->fingerprint, e);
    if (!rc)
        rc = look(v, e);
    if (rc)
        return rc;
    order_by_age(v);
    make_room(v);
    return 0;
}

int saved_sequences_open(struct saved_sequences **out, struct moeflux_model *m, const struct saved_options *o,
                         struct moeflux_err *e)
{
    struct saved_sequences *v = mem_new(1, sizeof *v, e);
    *out = NULL;
    if (!v)
        return ERR_MEMORY;
    v->model = m;
    v->options = *o;
    pthread_mutex_init(&v->lock, NULL);
    int rc = index_all(v, e);
    if (rc)
        saved_sequences_close(v);
    else
        *out = v;
    return rc;
}

void saved_sequences_close(struct saved_sequences *v)
{
    if (!v)
        return;
    while (v->n > 0)
        forget(v, v->n - 1);
    pthread_mutex_destroy(&v->lock);
    free(v->items);
    free(v);
}

/* ---- loading ---- */

/* Returns the best file for a prompt; NULL: there is none. *n_usable: tokens that need no evaluation then.
 * The caller holds the lock. */
static struct saved_sequence *find(struct saved_sequences *v, const struct moeflux_model *m,
                                   const int32_t *ids, uint32_t n, uint32_t *n_usable)
{
    struct saved_sequence *best = NULL;
    *n_usable = 0;
    for (size_t i = 0; i < v->n; i++) {
        const struct places *p = &v->items[i].places;
        if (v->items[i].is_unfit || p->kv != m->kv_type)
            continue;
        uint32_t here = places_reach(p, prefix_common(p->ids, p->n_tokens, ids, n - 1));
        if (here > *n_usable) {
            best = &v->items[i];
            *n_usable = here;
        }
    }
    return best;
}

uint32_t saved_sequences_usable(struct saved_sequences *v, const struct moeflux_model *m, const int32_t *ids,
                                uint32_t n)
{
    uint32_t n_usable;
    if (!v)
        return 0;
    pthread_mutex_lock(&v->lock);
    find(v, m, ids, n, &n_usable);
    pthread_mutex_unlock(&v->lock);
    return n_usable;
}

uint32_t saved_sequences_common(struct saved_sequences *v, const int32_t *ids, uint32_t n)
{
    uint32_t most = 0;
    if (!v)
        return 0;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->n; i++) {
        uint32_t same = prefix_common(v->items[i].places.ids, v->items[i].places.n_tokens, ids, n);
        if (same > most && same < n)
            most = same;
    }
    pthread_mutex_unlock(&v->lock);
    return most;
}

/* Returns the path of the best file and fills what is known of it. NULL: there is none, or no memory. */
static char *choose(struct saved_sequences *v, const struct moeflux_model *m, const int32_t *ids, uint32_t n,
                    uint64_t *name, uint32_t *n_tokens, struct moeflux_err *e)
{
    uint32_t n_usable;
    char *path = NULL;
    e->code = 0;
    pthread_mutex_lock(&v->lock);
    const struct saved_sequence *x = find(v, m, ids, n, &n_usable);
    if (x) {
        path = mem_text(x->path, e);
        *name = x->name;
        *n_tokens = x->places.n_tokens;
    }
    pthread_mutex_unlock(&v->lock);
    return path;
}

/* Counts a file that was loaded, or lets nobody try it again. Returns whether it is to be reported: not if
 * another thread has removed it meanwhile. */
static bool note_load(struct saved_sequences *v, uint64_t name, bool is_loaded)
{
    pthread_mutex_lock(&v->lock);
    struct saved_sequence *x = find_item(v, name);
    v->n_loads += is_loaded;
    if (x && is_loaded)
        x->last_use = ++v->clock;
    else if (x && access(x->path, F_OK) == 0)
        x->is_unfit = true;
    else if (x)
        forget(v, (size_t)(x - v->items));
    pthread_mutex_unlock(&v->lock);
    return x != NULL;
}

int saved_sequences_load(struct saved_sequences *v, const struct moeflux_model *m, const int32_t *ids,
                         uint32_t n, struct moeflux_session *s, uint32_t max_context, struct moeflux_err *e)
{
    struct moeflux_err why;
    uint64_t name;
    uint32_t n_tokens;
    char *path = choose(v, m, ids, n, &name, &n_tokens, e);
    if (!path)
        return (int)e->code;
    int rc = moeflux_session_load(s, path, &why);
    free(path);
    /* A state that is longer than the context never fits. */
    bool lacks_memory = rc == ERR_MEMORY || (rc == ERR_NO_FIT && n_tokens <= max_context);
    if (rc == ERR_INTERRUPTED || rc == ERR_DEVICE || rc == ERR_LOST || lacks_memory)
        return err_set(e, rc, "%s", why.text);
    if (note_load(v, name, rc == 0) && rc)
        tell(v, &why);
    return 0;
}

/* ---- saving ---- */

/* Removes the files of prefixes of a new one, which is on the disk already. */
static void supersede(struct saved_sequences *v, const struct saved_sequence *fresh)
{
    for (size_t i = v->n; i-- > 0;) {
        const struct places *p = &v->items[i].places;
        if (prefix_common(p->ids, p->n_tokens, fresh->places.ids, fresh->places.n_tokens) < p->n_tokens)
            continue;
        if (v->items[i].name == fresh->name)
            forget(v, i);
        else
            remove_file(v, i);
    }
}

/* Indexes a file that was written, and keeps to the limits. Takes ownership of the members of `x`. */
static int keep(struct saved_sequences *v, struct saved_sequence *x, struct moeflux_err *e)
{
    pthread_mutex_lock(&v->lock);
    supersede(v, x);
    int rc = add_item(v, x, e);
    if (rc) {
        unlink(x->path);
        free_item(x);
    } else {
        v->n_saves++;
        rc = look(v, e);
    }
    make_room(v);
    pthread_mutex_unlock(&v->lock);
    return rc;
}

/* Writes the state to its file. *x gets what the index needs, or stays empty if the file is gone again:
 * others keep to the same limits. */
static int write_state(const struct saved_sequences *v, struct moeflux_session *s, struct saved_sequence *x,
                       struct moeflux_err *e)
{
    uint32_t n = moeflux_session_position(s);
    char name[80];
    uint64_t hash = XXH3_64bits(moeflux_session_history(s), n * sizeof(int32_t));
    snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64 "%s", v->fingerprint, hash, ending);
    x->name = hash_of(name);
    x->path = file_join(v->options.dir, name, e);
    int rc = x->path ? moeflux_session_save(s, x->path, MOEFLUX_STATE_V3, e) : ERR_MEMORY;
    if (rc)
        return rc;
    rc = places_read(&x->places, v->model, x->path, e);
    if (rc && access(x->path, F_OK) < 0) {
        free_item(x);
        *x = (struct saved_sequence){0};
        return 0;
    }
    /* The limits count what the index has. */
    if (rc)
        unlink(x->path);
    return rc;
}

/* A file that is larger than all may be would be written in vain, and the others removed for it. */
static int check_size(const struct saved_sequences *v, const struct moeflux_session *s, struct moeflux_err *e)
{
    uint64_t bytes = moeflux_session_state_bytes(s, MOEFLUX_STATE_V3), most = v->options.bytes;
    if (!most || bytes <= most)
        return 0;
    return err_set(e, ERR_NO_FIT,
                   "%s: a conversation is not saved, its state has %" PRIu64
                   " bytes, all files together may have %" PRIu64,
                   v->options.dir, bytes, most);
}

void saved_sequences_add(struct saved_sequences *v, struct moeflux_session *s)
{
    struct saved_sequence x = {0};
    struct moeflux_err why;
    int rc = check_size(v, s, &why);
    if (!rc && (rc = write_state(v, s, &x, &why)))
        free_item(&x);
    if (!rc && x.path)
        rc = keep(v, &x, &why);
    if (rc)
        tell(v, &why);
}

struct saved_counts saved_sequences_count(struct saved_sequences *v)
{
    struct saved_counts c = {0};
    if (!v)
        return c;
    pthread_mutex_lock(&v->lock);
    c = (struct saved_counts){
        .n = (uint32_t)v->n, .bytes = v->bytes, .n_loads = v->n_loads, .n_saves = v->n_saves};
    pthread_mutex_unlock(&v->lock);
    return c;
}
