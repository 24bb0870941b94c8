#include "cli/hub.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/options/options.h"

#define INDEX           "model.safetensors.index.json"
#define MAX_INDEX_BYTES ((uint64_t)100 << 20)

bool hub_is_name(const char *text)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strspn(text, letters);
    size_t more = text[n] == '/' ? strspn(text + n + 1, letters) : 0;
    return n > 0 && text[0] != '.' && more > 0 && text[n + 1 + more] == '\0';
}

/* --- the cache --- */

const char *hub_variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Adds the variable of the environment that stands at `text`, after a $: NAME or {NAME}. Returns its bytes;
 * 0: none is set. */
static size_t add_variable(struct str *out, const char *text)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    char name[128];
    size_t brace = text[0] == '{', n = brace ? strcspn(text + 1, "}") : strspn(text, letters);
    if (n == 0 || n >= sizeof name || (brace && text[1 + n] != '}'))
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)n, text + brace);
    const char *value = getenv(name);
    if (!value)
        return 0;
    str_add_text(out, value);
    return n + 2 * brace;
}

/* Returns a path with ~ at its start and variables replaced, as Hugging Face's tools do; the caller frees it.
 * A variable that is not set stays as it is written. */
static char *expand(const char *variable, const char *text, struct moeflux_err *e)
{
    const char *home = getenv("HOME");
    struct str out = {0};
    bool is_home = text[0] == '~' && (text[1] == '/' || text[1] == '\0');
    if (text[0] == '~' && (!is_home || !home)) {
        err_set(e, ERR_USAGE, "%s is %.200s: %s", variable, text,
                is_home ? "HOME is not set" : "expected a path or ~/, the home of no other user");
        return NULL;
    }
    if (is_home)
        str_add_text(&out, home);
    for (text += is_home; *text; text++) {
        size_t n = *text == '$' ? add_variable(&out, text + 1) : 0;
        if (n == 0)
            str_add(&out, text, 1);
        text += n;
    }
    char *path = str_ok(&out) ? mem_text(str_text(&out), e) : NULL;
    if (!str_ok(&out))
        err_set(e, ERR_MEMORY, "out of memory for a path");
    str_free(&out);
    return path;
}

char *hub_place(const struct hub_place *places, size_t n, struct moeflux_err *e)
{
    for (size_t i = 0; i < n; i++) {
        const char *value = hub_variable(places[i].variable);
        char *base = value ? expand(places[i].variable, value, e) : NULL;
        if (!value)
            continue;
        char *path = base && places[i].inside ? file_join(base, places[i].inside, e) : base;
        if (path != base)
            free(base);
        return path;
    }
    return NULL;
}

char *hub_cache(struct moeflux_err *e)
{
    static const struct hub_place places[] = {{"HF_HUB_CACHE", NULL},
                                              {"HUGGINGFACE_HUB_CACHE", NULL},
                                              {"HF_HOME", "hub"},
                                              {"XDG_CACHE_HOME", "huggingface/hub"},
                                              {"HOME", ".cache/huggingface/hub"}};
    char *path = hub_place(places, sizeof places / sizeof *places, e);
    if (!path && !e->code)
        err_set(e, ERR_IO, "no cache of Hugging Face's tools: neither HF_HOME nor HOME is set");
    return path;
}

int hub_folder(const char *name, char folder[HUB_FOLDER], struct moeflux_err *e)
{
    int org = (int)strcspn(name, "/");
    int n = snprintf(folder, HUB_FOLDER, "models--%.*s--%s", org, name, name + org + 1);
    return n > 0 && n < HUB_FOLDER
               ? 0
               : err_set(e, ERR_IO, "%.64s...: the name of a repository is too long", name);
}

/* Returns the directory of a repository. */
static char *find_repository(const char *cache, const char *name, struct moeflux_err *e)
{
    char folder[HUB_FOLDER];
    return hub_folder(name, folder, e) ? NULL : file_join(cache, folder, e);
}

/* --- a snapshot --- */

struct snapshot {
    char *path; /* the directory; the file of a repository with one GGUF file */
    struct timespec changed;
    bool is_main;                /* refs/main names it */
    uint32_t n_files, n_missing; /* that a model needs */
};

/* What a snapshot without an index has, by the names of its files. */
struct weights {
    uint32_t n_safetensors, n_there; /* a link to nothing is not there */
    uint32_t n_shards;               /* MMMMM of ...-NNNNN-of-MMMMM.safetensors; 0: there are none */
    bool has_pytorch;
    char gguf[512];                      /* the first file of the only set; else one of the files; "": none */
    size_t gguf_stem;                    /* bytes of the set's name */
    uint32_t n_gguf_files, n_gguf_there; /* files of the set; a file that is not split is one */
    bool has_other_gguf;                 /* there are several sets */
};

static bool is_there(const struct snapshot *s, const char *file)
{
    char *path = file_join(s->path, file, NULL);
    bool there = path && file_exists(path);
    free(path);
    return there;
}

static void look_for(struct snapshot *s, const char *file)
{
    s->n_files++;
    s->n_missing += !is_there(s, file);
}

/* Counts the files that the index names. An index that cannot be used is a missing file. */
static int look_for_shards(struct snapshot *s, const char *index, struct moeflux_err *e)
{
    json_t *root = NULL, *value, *seen = json_object();
    const char *name;
    int rc = seen ? json_read_file(index, MAX_INDEX_BYTES, JSON_MAX_LARGE, &root, e)
                  : err_set(e, ERR_MEMORY, "out of memory");
    json_t *map = json_object_get(root, "weight_map");
    s->n_files++;
    s->n_missing += json_object_size(map) == 0;
    json_object_foreach(map, name, value)
    {
        const char *file = json_string_value(value);
        if (file && !json_object_get(seen, file)) {
            json_object_set(seen, file, json_true());
            look_for(s, file);
        }
    }
    json_decref(seen);
    json_decref(root);
    return rc == ERR_MEMORY ? rc : 0;
}

/* Returns the number of files of a set if the name is STEM-NNNNN-of-MMMMM with this ending; else 0. */
static uint32_t count_of_set(const char *name, const char *ending, size_t *stem)
{
    size_t n = strlen(name), tail = strlen("-00001-of-00002") + strlen(ending);
    unsigned number, count;
    int read = 0;
    *stem = n > tail ? n - tail : 0;
    if (*stem == 0 || sscanf(name + *stem, "-%5u-of-%5u%n", &number, &count, &read) != 2 ||
        strcmp(name + *stem + read, ending) != 0)
        return 0;
    return count;
}

static void note_safetensors(struct weights *w, const char *name, bool there)
{
    size_t stem;
    uint32_t n = count_of_set(name, ".safetensors", &stem);
    w->n_safetensors++;
    w->n_there += there;
    w->n_shards = n > w->n_shards ? n : w->n_shards;
}

static void note_gguf(struct weights *w, const char *name, bool there)
{
    size_t stem;
    uint32_t n = count_of_set(name, ".gguf", &stem);
    if (n == 0)
        stem = strlen(name);
    if (w->gguf[0] && (stem != w->gguf_stem || strncmp(name, w->gguf, stem) != 0)) {
        w->has_other_gguf = true;
        return;
    }
    w->gguf_stem = stem;
    w->n_gguf_files = n ? n : 1;
    w->n_gguf_there += there;
    if (n)
        snprintf(w->gguf, sizeof w->gguf, "%.*s-00001-of-%05u.gguf", (int)stem, name, n);
    else
        snprintf(w->gguf, sizeof w->gguf, "%s", name);
}

/* Lists the snapshot's directory, or a directory in it: there only GGUF files count. */
static void list(const struct snapshot *s, const char *inner, struct weights *w)
{
    char *path = file_join(s->path, inner, NULL);
    DIR *d = path ? opendir(path) : NULL;
    for (struct dirent *x; d && (x = readdir(d));) {
        char name[512];
        snprintf(name, sizeof name, "%.200s%s%.255s", inner, *inner ? "/" : "", x->d_name);
        bool there = is_there(s, name);
        if (str_ends_with(name, ".gguf") && strncmp(x->d_name, "mmproj", 6) != 0)
            note_gguf(w, name, there);
        else if (*inner || x->d_name[0] == '.')
            continue;
        else if (str_ends_with(name, ".safetensors"))
            note_safetensors(w, name, there);
        else if (str_ends_with(name, ".bin") || str_ends_with(name, ".pt") || str_ends_with(name, ".pth"))
            w->has_pytorch = true;
        else
            list(s, name, w);
    }
    if (d)
        closedir(d);
    free(path);
}

/* Takes the only GGUF file or set, else the directory of several, which which_model.h explains. */
static int take_gguf(struct snapshot *s, struct weights *w, struct moeflux_err *e)
{
    char *slash = strrchr(w->gguf, '/');
    if (w->has_other_gguf && !slash)
        return 0;
    if (w->has_other_gguf) {
        *slash = '\0';
    } else {
        s->n_files += w->n_gguf_files;
        s->n_missing += w->n_gguf_files - (uint32_t)size_min(w->n_gguf_there, w->n_gguf_files);
    }
    char *path = file_join(s->path, w->gguf, e);
    if (!path)
        return ERR_MEMORY;
    free(s->path);
    s->path = path;
    return 0;
}

/* Counts the weights of a snapshot without an index: one file, unless its name says that there are more. */
static int look_for_weights(struct snapshot *s, struct moeflux_err *e)
{
    struct weights w = {0};
    list(s, "", &w);
    if (w.n_safetensors == 0 && w.gguf[0])
        return take_gguf(s, &w, e);
    if (w.n_safetensors == 0 && w.has_pytorch) /* which_model.h explains it */
        return 0;
    uint32_t n = w.n_shards ? w.n_shards : w.n_safetensors ? w.n_safetensors : 1;
    look_for(s, "config.json");
    if (w.n_shards)
        look_for(s, INDEX);
    s->n_files += n;
    s->n_missing += n - (uint32_t)size_min(w.n_there, n);
    return 0;
}

static int look_at(struct snapshot *s, struct moeflux_err *e)
{
    char *index = file_join(s->path, INDEX, e);
    int rc = index ? 0 : ERR_MEMORY;
    if (rc == 0 && file_exists(index)) {
        look_for(s, "config.json");
        rc = look_for_shards(s, index, e);
    } else if (rc == 0) {
        rc = look_for_weights(s, e);
    }
    free(index);
    return rc;
}

/* --- the choice --- */

/* Returns whether `a` precedes `b`: complete ones first, then refs/main's, then newer ones. */
static bool is_better(const struct snapshot *a, const struct snapshot *b)
{
    if (!b->path || (a->n_missing == 0) != (b->n_missing == 0))
        return !b->path || a->n_missing == 0;
    if (a->is_main != b->is_main)
        return a->is_main;
    if (a->changed.tv_sec != b->changed.tv_sec)
        return a->changed.tv_sec > b->changed.tv_sec;
    return a->changed.tv_nsec > b->changed.tv_nsec;
}

/* Takes a directory of snapshots/ as *best if it is better. */
static int consider(struct snapshot *best, const char *snapshots, const char *revision, const char *main,
                    struct moeflux_err *e)
{
    struct stat st;
    struct snapshot s = {.path = file_join(snapshots, revision, e), .is_main = !strcmp(revision, main)};
    if (!s.path)
        return ERR_MEMORY;
    bool is_dir = stat(s.path, &st) == 0 && S_ISDIR(st.st_mode);
    int rc = 0;
    if (is_dir) {
        s.changed = st.st_mtim;
        rc = look_at(&s, e);
    }
    if (rc == 0 && is_dir && is_better(&s, best)) {
        free(best->path);
        *best = s;
        return 0;
    }
    free(s.path);
    return rc;
}

/* Reads the revision in refs/main; "": there is none. */
static void read_main(const char *repository, char *out, size_t room)
{
    char *path = file_join(repository, "refs/main", NULL), *text = NULL;
    size_t n = 0;
    out[0] = '\0';
    if (path && file_exists(path) && file_read_text(path, room - 1, &text, &n, NULL) == 0)
        snprintf(out, room, "%.*s", (int)strcspn(text, "\r\n "), text);
    free(text);
    free(path);
}

static int choose(const char *repository, struct snapshot *best, struct moeflux_err *e)
{
    char main[128];
    char *snapshots = file_join(repository, "snapshots", e);
    DIR *d = snapshots ? opendir(snapshots) : NULL;
    int rc = snapshots ? 0 : ERR_MEMORY;
    read_main(repository, main, sizeof main);
    for (struct dirent *x; rc == 0 && d && (x = readdir(d));)
        if (x->d_name[0] != '.')
            rc = consider(best, snapshots, x->d_name, main, e);
    if (d)
        closedir(d);
    free(snapshots);
    return rc;
}

/* Returns what to do about a repository that is not whole. */
static const char *advice(const char *name, bool advises, char *buf, size_t cap)
{
    *buf = '\0';
    if (advises)
        snprintf(buf, cap, "; \"moeflux get %.200s\" fetches it", name);
    return buf;
}

int hub_find(const char *name, bool advises, char **path, struct moeflux_err *e)
{
    char more[256];
    struct snapshot best = {0};
    char *cache = hub_cache(e), *repository = cache ? find_repository(cache, name, e) : NULL;
    int rc = repository ? choose(repository, &best, e) : (int)e->code;
    if (rc == 0 && !best.path)
        rc = err_set(e, ERR_IO, "%s: no such directory, and %s has no snapshot of the repository%s", name,
                     cache, advice(name, advises, more, sizeof more));
    else if (rc == 0 && best.n_missing)
        rc = err_set(e, ERR_IO, "%s: %u of %u files missing in %s%s", name, best.n_missing, best.n_files,
                     best.path, advice(name, advises, more, sizeof more));
    if (rc == 0) {
        *path = best.path;
        best.path = NULL;
    }
    free(best.path);
    free(repository);
    free(cache);
    return rc;
}

int hub_use(struct options *o, struct moeflux_err *e)
{
    bool is_source = o->verb == VERB_CONVERT;
    const char **model = is_source ? &o->src : &o->model;
    const char *name = is_source && !o->dst ? NULL : *model;
    struct stat st;
    if (!name || !hub_is_name(name) || stat(name, &st) == 0)
        return 0;
    if (errno != ENOENT && errno != ENOTDIR)
        return err_errno(e, ERR_IO, "%s", name);
    if (str_ends_with(name, ".gguf"))
        return 0;
    int rc = hub_find(name, true, &o->hub_path, e);
    if (rc < 0)
        return rc;
    if (!is_source && !o->alias)
        o->alias = strchr(name, '/') + 1;
    *model = o->hub_path;
    return 0;
}
