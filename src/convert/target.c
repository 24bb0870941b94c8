#include "convert/target.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"

#define MAX_STATE_BYTES ((uint64_t)1 << 20)

static const char STATE[] = "convert.state";
static const char HEAD[] = "moeflux convert 1, source ";

/* --- paths --- */

static char *with_tail(const char *path, const char *tail, struct moeflux_err *e)
{
    size_t n = strlen(path) + strlen(tail) + 1;
    char *out = mem_new(n, 1, e);
    if (out)
        snprintf(out, n, "%s%s", path, tail);
    return out;
}

static int set_paths(struct convert_target *t, const char *dst, struct moeflux_err *e)
{
    t->final = mem_text(dst, e);
    if (!t->final)
        return ERR_MEMORY;
    size_t n = strlen(t->final);
    while (n > 1 && t->final[n - 1] == '/')
        t->final[--n] = '\0';
    if (n == 0)
        return err_set(e, ERR_USAGE, "the destination is empty");
    t->partial = with_tail(t->final, ".partial", e);
    return t->partial ? 0 : ERR_MEMORY;
}

/* --- what an earlier run left --- */

/* Sets a file's sum; a rewritten file gets the newest. */
static int set_sum(struct convert_target *t, const struct convert_sum *s, struct moeflux_err *e)
{
    for (size_t i = 0; i < t->n_sums; i++)
        if (!strcmp(t->sums[i].name, s->name)) {
            t->sums[i] = *s;
            return 0;
        }
    void *sums = t->sums;
    int rc = mem_grow(&sums, &t->cap_sums, t->n_sums + 1, sizeof *t->sums, e);
    t->sums = sums;
    if (rc == 0)
        t->sums[t->n_sums++] = *s;
    return rc;
}

/* Parses "name bytes xxh3". Returns false for the torn end of an interrupted write, whose sum may lack
 * digits. */
static bool parse_sum(const char *line, struct convert_sum *s)
{
    int n = 0;
    return sscanf(line, "%63s %" SCNu64 " %n", s->name, &s->bytes, &n) == 2 && n > 0 &&
           strlen(line + n) == 16 && strspn(line + n, "0123456789abcdef") == 16 &&
           sscanf(line + n, "%" SCNx64, &s->xxh3) == 1;
}

/* Reads the state file. The file of a torn line is written again. */
static int parse_state(struct convert_target *t, char *text, const char *path, struct moeflux_err *e)
{
    char *line = text, *end = strchr(text, '\n');
    uint64_t identity;
    int rc = 0;
    if (!end || strncmp(line, HEAD, sizeof HEAD - 1) != 0 ||
        sscanf(line + sizeof HEAD - 1, "%16" SCNx64, &identity) != 1)
        return err_set(e, ERR_USAGE, "%s: not the state of a conversion", path);
    if (identity != t->identity)
        return err_set(e, ERR_USAGE,
                       "%s holds an unfinished conversion of another source, or with another `spread` or "
                       "other formats; remove it first",
                       t->partial);
    for (line = end + 1; rc == 0 && (end = strchr(line, '\n')); line = end + 1) {
        struct convert_sum s = {0};
        *end = '\0';
        if (parse_sum(line, &s))
            rc = set_sum(t, &s, e);
    }
    return rc;
}

static int lock_state(struct convert_target *t, const char *path, struct moeflux_err *e)
{
    t->state_fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
    if (t->state_fd < 0 && errno == ENOENT)
        return err_set(e, ERR_USAGE, "%s exists and is not an unfinished conversion; remove it first",
                       t->partial);
    if (t->state_fd < 0)
        return err_errno(e, ERR_IO, "%s", path);
    if (flock(t->state_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(e, ERR_USAGE, "%s: another conversion is writing there", t->partial);
    return 0;
}

static int load_state(struct convert_target *t, struct moeflux_err *e)
{
    char *text = NULL, *path = file_join(t->partial, STATE, e);
    size_t len;
    int rc = path ? lock_state(t, path, e) : ERR_MEMORY;
    if (rc == 0)
        rc = file_read_text(path, MAX_STATE_BYTES, &text, &len, e);
    bool torn = rc == 0 && len > 0 && text[len - 1] != '\n';
    if (rc == 0)
        rc = parse_state(t, text, path, e);
    /* The next line must not become the rest of a torn one. */
    if (rc == 0 && torn)
        rc = file_write(t->state_fd, path, "\n", 1, e);
    free(text);
    free(path);
    return rc;
}

/* Removes half-written files of a killed run, which would take up free space. */
static void remove_leftovers(const struct convert_target *t, const char *below)
{
    char *dir = file_join(t->partial, below, NULL);
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *x; d && (x = readdir(d));) {
        if (side_file_is_temporary(x->d_name))
            unlinkat(dirfd(d), x->d_name, 0);
    }
    if (d)
        closedir(d);
    free(dir);
}

/* Returns whether the directory has nothing except what a run leaves that was killed before it wrote a state:
 * an empty packed_experts, temporary files. */
static bool is_bare(const char *dir)
{
    DIR *d = opendir(dir);
    bool bare = d != NULL;
    for (struct dirent *x; bare && (x = readdir(d));)
        bare =
            x->d_name[0] == '.' || !strcmp(x->d_name, "packed_experts") || side_file_is_temporary(x->d_name);
    if (d)
        closedir(d);
    return bare;
}

static bool has_state(const char *dir)
{
    char *path = file_join(dir, STATE, NULL);
    bool has = path && file_exists(path);
    free(path);
    return has;
}

/* Continues a part that is renamed already under its final name. */
static int use_final(struct convert_target *t, struct moeflux_err *e)
{
    free(t->partial);
    t->partial = mem_text(t->final, e);
    return t->partial ? 0 : ERR_MEMORY;
}

int convert_target_open(struct convert_target *t, const char *dst, bool is_part, uint64_t identity,
                        struct moeflux_err *e)
{
    *t = (struct convert_target){.state_fd = -1, .identity = identity};
    struct stat st;
    int rc = set_paths(t, dst, e);
    if (rc == 0 && is_part && has_state(t->final))
        rc = use_final(t, e);
    else if (rc == 0 && lstat(t->final, &st) == 0)
        rc = err_set(e, ERR_USAGE, "%s exists already; choose another destination or remove it", t->final);
    if (rc == 0 && lstat(t->partial, &st) == 0 && !is_bare(t->partial)) {
        rc = load_state(t, e);
        if (rc == 0) {
            remove_leftovers(t, ".");
            remove_leftovers(t, "packed_experts");
        }
    }
    if (rc < 0)
        convert_target_close(t);
    return rc;
}

void convert_target_close(struct convert_target *t)
{
    if (t->state_fd >= 0)
        close(t->state_fd);
    free(t->sums);
    free(t->final);
    free(t->partial);
    *t = (struct convert_target){.state_fd = -1};
}

/* --- writing --- */

static int make_dir(const char *path, struct moeflux_err *e)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return 0;
    return err_errno(e, ERR_IO, "%s", path);
}

static int new_state(struct convert_target *t, struct moeflux_err *e)
{
    char text[sizeof HEAD + 32];
    int n = snprintf(text, sizeof text, "%s%016" PRIx64 "\n", HEAD, t->identity);
    char *path = file_join(t->partial, STATE, e);
    int rc = path ? side_file_put(path, 0, text, (uint64_t)n, e) : ERR_MEMORY;
    if (rc == 0)
        rc = lock_state(t, path, e);
    free(path);
    return rc;
}

int convert_target_begin(struct convert_target *t, struct moeflux_err *e)
{
    char *experts = file_join(t->partial, "packed_experts", e);
    int rc = experts ? make_dir(t->partial, e) : ERR_MEMORY;
    if (rc == 0)
        rc = make_dir(experts, e);
    free(experts);
    return rc < 0 || t->state_fd >= 0 ? rc : new_state(t, e);
}

const struct convert_sum *convert_target_find(const struct convert_target *t, const char *name,
                                              uint64_t bytes)
{
    struct stat st;
    char *path = file_join(t->partial, name, NULL);
    bool there = path && stat(path, &st) == 0 && (uint64_t)st.st_size == bytes;
    free(path);
    for (size_t i = 0; there && i < t->n_sums; i++)
        if (!strcmp(t->sums[i].name, name) && t->sums[i].bytes == bytes)
            return &t->sums[i];
    return NULL;
}

int convert_target_create(const struct convert_target *t, const char *name, struct side_file *f,
                          struct moeflux_err *e)
{
    *f = (struct side_file){.fd = -1};
    char *path = file_join(t->partial, name, e);
    int rc = path ? side_file_create(f, path, 0, e) : ERR_MEMORY;
    free(path);
    return rc;
}

static int record(struct convert_target *t, const char *name, uint64_t bytes, uint64_t xxh3,
                  struct moeflux_err *e)
{
    struct convert_sum s = {.bytes = bytes, .xxh3 = xxh3};
    char line[CONVERT_NAME + 64];
    snprintf(s.name, sizeof s.name, "%s", name);
    int n = snprintf(line, sizeof line, "%s %" PRIu64 " %016" PRIx64 "\n", name, bytes, xxh3);
    int rc = set_sum(t, &s, e);
    if (rc == 0)
        rc = file_write(t->state_fd, STATE, line, (uint64_t)n, e);
    if (rc == 0 && fdatasync(t->state_fd) < 0)
        rc = err_errno(e, ERR_IO, "%s/%s: sync", t->partial, STATE);
    return rc;
}

int convert_target_finish(struct convert_target *t, const char *name, struct side_file *f, uint64_t bytes,
                          uint64_t xxh3, struct moeflux_err *e)
{
    int rc = side_file_commit(f, e);
    if (rc == 0)
        rc = record(t, name, bytes, xxh3, e);
    side_file_free(f);
    return rc;
}

/* Makes the folder of a file, which the target has. */
static int make_folder_of(const char *path, struct moeflux_err *e)
{
    char *folder = mem_text(path, e);
    if (!folder)
        return ERR_MEMORY;
    *strrchr(folder, '/') = '\0';
    int rc = make_dir(folder, e);
    free(folder);
    return rc;
}

int convert_target_put(struct convert_target *t, const char *name, const void *bytes, size_t n,
                       struct moeflux_err *e)
{
    char *path = file_join(t->partial, name, e);
    int rc = path ? 0 : ERR_MEMORY;
    if (rc == 0 && strchr(name, '/'))
        rc = make_folder_of(path, e);
    if (rc == 0)
        rc = side_file_put(path, 0, bytes, n, e);
    free(path);
    return rc < 0 ? rc : record(t, name, n, XXH3_64bits(bytes, n), e);
}

/* Renames, but not over a directory that appeared meanwhile, if the file system supports that. */
static int rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    return rename(from, to);
}

int convert_target_rename(struct convert_target *t, struct moeflux_err *e)
{
    if (strcmp(t->partial, t->final) != 0 && rename_new(t->partial, t->final) < 0)
        return err_errno(e, ERR_IO, "%s: rename to %s", t->partial, t->final);
    return 0;
}

int convert_target_sync_name(const struct convert_target *t, struct moeflux_err *e)
{
    return file_sync_parent(t->final, e);
}

int convert_target_end(struct convert_target *t, struct moeflux_err *e)
{
    char *state = file_join(t->final, STATE, e);
    int rc = state ? 0 : ERR_MEMORY;
    if (rc == 0 && unlink(state) < 0)
        rc = err_errno(e, ERR_IO, "%s", state);
    if (rc == 0)
        rc = file_sync_dir(t->final, e);
    if (rc == 0)
        rc = convert_target_sync_name(t, e);
    free(state);
    return rc;
}
