#include "cli/talk/saved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "base/str.h"
#include "cli/place.h"
#include "moeflux_chat.h"
#include "text/printable.h"

enum { MAX_NAME = 64, NAME_COLUMNS = 20 };
#define MAX_BYTES ((uint64_t)256 << 20)

int saved_check_name(const char *name, struct moeflux_err *e)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    static const char all[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    if (n > 0 && n <= MAX_NAME && strspn(name, all) == n && strspn(name, letters) > 0)
        return 0;
    return err_set(e, ERR_USAGE,
                   "a session's name: expected 1 to %d letters, digits, \".\", \"_\", \"-\", the first a "
                   "letter or a digit, found \"%.80s\"",
                   MAX_NAME, name);
}

static char *path_of(const char *name, const char *suffix, struct moeflux_err *e)
{
    char last[MAX_NAME + 32];
    snprintf(last, sizeof last, "sessions/%.*s%s", MAX_NAME, name, suffix);
    char *path = place_of_state(last);
    if (!path)
        err_set(e, ERR_IO, "there is no place for sessions: neither XDG_STATE_HOME nor HOME is a path");
    return path;
}

char *saved_text_path(const char *name, struct moeflux_err *e)
{
    return path_of(name, ".json", e);
}

char *saved_state_path(const char *name, struct moeflux_err *e)
{
    return path_of(name, ".state", e);
}

bool saved_exists(const char *name)
{
    char *path = saved_text_path(name, NULL);
    bool there = path && file_exists(path);
    free(path);
    return there;
}

/* ---- writing ---- */

/* Hashes a file. *hash 0: there is no such file. */
static int hash_file(const char *path, uint64_t *hash, struct moeflux_err *e)
{
    char *text;
    size_t n;
    *hash = 0;
    if (!file_exists(path))
        return 0;
    int rc = file_read_text(path, MAX_BYTES, &text, &n, e);
    if (rc)
        return rc;
    *hash = XXH3_64bits(text, n);
    free(text);
    return 0;
}

/* Locks the directory of `path` against other programs until the returned descriptor is closed. -1: it cannot
 * be locked (no directory on NFS can). Saving goes on then: at worst another program's save in the same
 * millisecond is lost, and a refusal would lose this one for certain. */
static int lock_directory(const char *path)
{
    char *dir = strndup(path, (size_t)(strrchr(path, '/') - path));
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(dir);
    if (fd >= 0 && flock(fd, LOCK_EX) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Writes the file if the text has changed. So looking at a session in a second program changes nothing for
 * the first. */
static int write_unless_changed(const char *path, const char *text, uint64_t *seen, struct moeflux_err *e)
{
    uint64_t there, own = XXH3_64bits(text, strlen(text));
    int rc = hash_file(path, &there, e);
    if (!rc && there && there != own && there != *seen)
        return SAVED_CHANGED;
    if (!rc && there != own)
        rc = side_file_put(path, 0600, text, strlen(text), e);
    if (!rc)
        *seen = own;
    return rc;
}

static int write_text(const char *path, const char *text, uint64_t *seen, struct moeflux_err *e)
{
    int lock = lock_directory(path), rc = write_unless_changed(path, text, seen, e);
    if (lock >= 0)
        close(lock);
    return rc;
}

int saved_write(const char *name, const struct moeflux_conversation *c, uint64_t *seen, struct moeflux_err *e)
{
    char *path = saved_text_path(name, e), *text = NULL;
    int rc = path ? moeflux_conversation_write(c, &text, e) : ERR_IO;
    if (!rc)
        rc = write_text(path, text, seen, e);
    free(text);
    free(path);
    return rc;
}

char *saved_other_name(const char *name, unsigned n, struct moeflux_err *e)
{
    char tail[16], other[MAX_NAME + 1];
    int len = snprintf(tail, sizeof tail, "-%u", n);
    snprintf(other, sizeof other, "%.*s%s", MAX_NAME - len, name, tail);
    return mem_text(other, e);
}

int saved_read(const char *name, struct saved *out, struct moeflux_err *e)
{
    *out = (struct saved){0};
    int rc = saved_check_name(name, e);
    char *path = rc ? NULL : saved_text_path(name, e);
    char *text = NULL;
    size_t n;
    if (!rc && !path)
        rc = ERR_IO;
    if (!rc && !file_exists(path))
        rc = err_set(e, ERR_USAGE, "there is no session %s (%s)", name, path);
    if (!rc)
        rc = file_read_text(path, MAX_BYTES, &text, &n, e);
    if (!rc)
        rc = moeflux_conversation_read(&out->conversation, text, n, path, e);
    if (!rc)
        out->seen = XXH3_64bits(text, n);
    free(text);
    free(path);
    return rc;
}

int saved_delete(const char *name, struct moeflux_err *e)
{
    int rc = saved_check_name(name, e);
    char *text = rc ? NULL : saved_text_path(name, e), *state = rc ? NULL : saved_state_path(name, e);
    if (!rc && (!text || !state))
        rc = ERR_IO;
    if (!rc && unlink(text) < 0)
        rc = errno == ENOENT ? err_set(e, ERR_USAGE, "there is no session %s", name)
                             : err_errno(e, ERR_IO, "%s", text);
    if (!rc && unlink(state) < 0 && errno != ENOENT)
        rc = err_errno(e, ERR_IO, "%s", state);
    if (!rc) {
        side_file_clear(text);
        side_file_clear(state);
    }
    free(text);
    free(state);
    return rc;
}

/* ---- the list ---- */

struct entry {
    char name[MAX_NAME + 1];
    time_t changed;
};

struct entries {
    struct entry *items;
    size_t n, cap;
};

static int by_time(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->changed != y->changed ? (x->changed < y->changed ? 1 : -1) : strcmp(x->name, y->name);
}

static int find_entries(struct entries *all, struct moeflux_err *e)
{
    char *dir = place_of_state("sessions/");
    DIR *d = dir ? opendir(dir) : NULL;
    struct dirent *found;
    int rc = dir ? 0 : err_set(e, ERR_IO, "there is no place for sessions");
    while (!rc && d && (found = readdir(d))) {
        size_t n = strlen(found->d_name);
        struct stat st;
        if (n <= 5 || n - 5 > MAX_NAME || !str_ends_with(found->d_name, ".json") ||
            fstatat(dirfd(d), found->d_name, &st, 0) < 0)
            continue;
        rc = mem_grow((void **)&all->items, &all->cap, all->n + 1, sizeof *all->items, e);
        if (rc)
            break;
        struct entry *entry = &all->items[all->n++];
        *entry = (struct entry){.changed = st.st_mtime};
        memcpy(entry->name, found->d_name, n - 5);
    }
    if (d)
        closedir(d);
    free(dir);
    if (all->n)
        qsort(all->items, all->n, sizeof *all->items, by_time);
    return rc;
}

static void add_entry(const struct entry *entry, const char *current, struct str *out)
{
    struct saved s;
    struct moeflux_err e;
    char when[32] = "";
    struct tm tm;
    if (localtime_r(&entry->changed, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    str_add_text(out, current && strcmp(current, entry->name) == 0 ? "* " : "  ");
    size_t begin = out->len;
    printable_line(entry->name, out);
    str_addf(out, "%*s %s  ", (int)(out->len - begin < NAME_COLUMNS ? NAME_COLUMNS - (out->len - begin) : 0),
             "", when);
    if (saved_read(entry->name, &s, &e)) {
        str_addf(out, "%s\n", e.text);
        return;
    }
    const struct moeflux_conversation_info info = moeflux_conversation_get_info(s.conversation);
    str_addf(out, "%4zu question%s %7zu tokens  ", info.n_turns, info.n_turns == 1 ? " " : "s",
             info.n_tokens);
    printable_line(info.model, out);
    str_add_text(out, "\n");
    moeflux_conversation_free(s.conversation);
}

int saved_list(const char *current, struct str *out, struct moeflux_err *e)
{
    struct entries all = {0};
    int rc = find_entries(&all, e);
    for (size_t i = 0; !rc && i < all.n; i++)
        add_entry(&all.items[i], current, out);
    if (!rc && all.n == 0)
        str_add_text(out, "no sessions are saved; /save NAME saves this one\n");
    free(all.items);
    return rc || str_ok(out) ? rc : err_set(e, ERR_MEMORY, "out of memory for the list of sessions");
}
