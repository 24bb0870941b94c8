#include "cli/place.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/gguf.h"
#include "base/str.h"
#include "cli/options/options.h"
#include "moeflux.h"

int place_check(const char *flag, const char *path, struct moeflux_err *e)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 1;
    if (n >= sizeof dir)
        return err_set(e, ERR_USAGE, "%s: the path is longer than %zu bytes", flag, sizeof dir);
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
    return access(dir, W_OK) == 0 ? 0 : err_errno(e, ERR_IO, "%s %s", flag, path);
}

/* ---- outputs and the model ---- */

/* The model's directories, which no output may go to. */
struct model_dirs {
    struct moeflux_part parts[MOEFLUX_MAX_PARTS];
    uint32_t n;
};

/* Lists the model's directories: only its own if the list cannot be read. The engine reports why later. */
static void find_dirs(struct model_dirs *m, const char *model)
{
    int n = moeflux_list_parts(model, m->parts, MOEFLUX_MAX_PARTS, NULL);
    m->n = n > 0 ? (uint32_t)n : 1;
    if (n < 0)
        snprintf(m->parts[0].path, sizeof m->parts[0].path, "%s", model);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the file is in the directory `fd`, or in one of `depth` levels below it. Closes fd. Links are
 * followed: some model directories have nothing but links. */
static bool holds(int fd, const struct stat *file, int depth)
{
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    bool found = false;
    for (struct dirent *x; d && !found && (x = readdir(d));) {
        struct stat st;
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0 ||
            fstatat(dirfd(d), x->d_name, &st, 0) < 0)
            continue;
        found = same_file(&st, file);
        if (!found && depth > 0 && S_ISDIR(st.st_mode))
            found = holds(openat(dirfd(d), x->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC), file, depth - 1);
    }
    if (d)
        closedir(d);
    return found;
}

static bool is_in_dir(const char *path, const struct stat *file)
{
    struct stat dir;
    enum { DEPTH = 2 };
    return (stat(path, &dir) == 0 && same_file(&dir, file)) ||
           holds(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), file, DEPTH);
}

/* Returns the directory that holds the file: the model's own or one that shares its experts; NULL: none. */
static const char *find_holder(const struct model_dirs *m, const struct stat *file)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (is_in_dir(m->parts[i].path, file))
            return m->parts[i].path;
    return NULL;
}

/* Whether the file begins with this text, or is empty. */
static bool begins_with(const char *path, const char *beginning)
{
    char start[32];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, start, sizeof start);
    if (fd >= 0)
        close(fd);
    size_t len = strlen(beginning);
    return n == 0 || (n >= (ssize_t)len && memcmp(start, beginning, len) == 0);
}

/* beginning: text that files of this flag begin with; NULL: the flag may write no file in the directory. */
static int check_output(const char *flag, const char *path, const char *beginning, const struct model_dirs *m,
                        struct moeflux_err *e)
{
    struct stat st;
    if (!path || strcmp(path, "-") == 0)
        return 0;
    if (gguf_is_file(path)) /* it may be part of the model's split set */
        return err_set(e, ERR_USAGE, "%s: %s is a GGUF file and would be replaced", flag, path);
    const char *holder = NULL;
    bool exists = stat(path, &st) == 0;
    if (exists && !(beginning && begins_with(path, beginning)))
        holder = find_holder(m, &st);
    char *parent = exists || beginning ? NULL : file_parent(path, NULL);
    if (parent && stat(parent, &st) == 0)
        holder = find_holder(m, &st);
    free(parent);
    return holder ? err_set(e, ERR_USAGE, "%s: %s lies in the model directory %s%s", flag, path, holder,
                            exists ? " and would be replaced" : "; choose another place")
                  : 0;
}

int place_check_outputs(const struct options *o, struct moeflux_err *e)
{
    const struct {
        const char *flag, *path, *beginning;
    } outputs[] = {
        {"--logits", o->logits, NULL},           {"--hidden", o->hidden, NULL},
        {"--usage", o->usage, "moeflux usage "}, {"--prompt-cache", o->prompt_cache, "XLFM"},
        {"--output", o->output, "{\"id\": "},    {"--trace", o->trace, "moeflux trace "},
    };
    struct model_dirs dirs;
    find_dirs(&dirs, o->model);
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof outputs / sizeof *outputs; i++)
        rc = check_output(outputs[i].flag, outputs[i].path, outputs[i].beginning, &dirs, e);
    return rc;
}

/* ---- the user's state ---- */

/* Makes the directories above the last part of `path` that are missing. */
static void make_parents(const char *path)
{
    char part[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        if ((size_t)(slash - path) >= sizeof part)
            return;
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        mkdir(part, 0700);
    }
}

char *place_of_state(const char *name)
{
    struct str path = {0};
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    /* The XDG specification says that a relative path is ignored. */
    if (state && state[0] == '/')
        str_addf(&path, "%s/moeflux/%s", state, name);
    else if (home && home[0] == '/')
        str_addf(&path, "%s/.local/state/moeflux/%s", home, name);
    if (!path.len || !str_ok(&path)) {
        str_free(&path);
        return NULL;
    }
    make_parents(path.data);
    return path.data;
}
