#include "cli/talk/saved.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "base/str.h"
#include "cli/output.h"
#include "cli/place.h"
#include "text/printable.h"

enum { MAX_NAME = 64, FORMAT = 1, NAME_COLUMNS = 20 };
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

/* Returns the text with each NUL replaced by U+FFFD: our JSON reader takes none. */
static json_t *text_json(const struct str *s)
{
    struct str clean = {0};
    const char *at = str_text(s), *end = at + s->len;
    while (at < end) {
        size_t n = strnlen(at, (size_t)(end - at));
        str_add(&clean, at, n);
        at += n;
        if (at < end && *at == '\0') {
            str_add_text(&clean, "\xef\xbf\xbd");
            at++;
        }
    }
    json_t *text = str_ok(&clean) ? output_json_text(str_text(&clean), clean.len) : NULL;
    str_free(&clean);
    return text;
}

static json_t *turn_json(const struct turn *t)
{
    json_t *object = json_object();
    json_object_set_new(object, "question", text_json(&t->question));
    if (t->answered && t->thinking.len)
        json_object_set_new(object, "thinking", text_json(&t->thinking));
    if (t->answered) {
        json_object_set_new(object, "answer", text_json(&t->answer));
        json_object_set_new(object, "stop_reason", json_string(answer_stop_name(t->stop)));
    }
    json_object_set_new(object, "tokens_before", json_integer(t->at));
    json_object_set_new(object, "tokens_asked", json_integer(t->asked));
    return object;
}

static json_t *conversation_json(const struct conversation *c, const char *model, uint64_t fingerprint)
{
    char hash[24];
    json_t *object = json_object(), *turns = json_array(), *tokens = json_array();
    snprintf(hash, sizeof hash, "%016" PRIx64, fingerprint);
    for (size_t i = 0; i < c->n_turns; i++)
        json_array_append_new(turns, turn_json(&c->turns[i]));
    for (size_t i = 0; i < c->tokens.n; i++)
        json_array_append_new(tokens, json_integer(c->tokens.ids[i]));
    json_object_set_new(object, "moeflux_session", json_integer(FORMAT));
    json_object_set_new(object, "model", output_json_text(model, strlen(model)));
    json_object_set_new(object, "fingerprint", json_string(hash));
    if (c->system.len)
        json_object_set_new(object, "system", text_json(&c->system));
    json_object_set_new(object, "turns", turns);
    json_object_set_new(object, "tokens", tokens);
    return object;
}

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

int saved_write(const char *name, const struct conversation *c, const char *model, uint64_t fingerprint,
                uint64_t *seen, struct moeflux_err *e)
{
    /* The current directory may be another one when the session is continued. */
    char *real = realpath(model, NULL), *path = saved_text_path(name, e);
    json_t *object = conversation_json(c, real ? real : model, fingerprint);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    int rc = path ? 0 : ERR_IO;
    if (!rc && !text)
        rc = err_set(e, ERR_MEMORY, "%s: out of memory", path);
    if (!rc)
        rc = write_text(path, text, seen, e);
    free(text);
    json_decref(object);
    free(path);
    free(real);
    return rc;
}

char *saved_other_name(const char *name, unsigned n, struct moeflux_err *e)
{
    char tail[16], other[MAX_NAME + 1];
    int len = snprintf(tail, sizeof tail, "-%u", n);
    snprintf(other, sizeof other, "%.*s%s", MAX_NAME - len, name, tail);
    return mem_text(other, e);
}

/* ---- reading ---- */

static void get_text(struct json_view *v, const char *key, struct str *out)
{
    const char *text = json_view_text_or(v, key, "");
    if (v->rc)
        return;
    str_add_text(out, text);
    if (!str_ok(out))
        v->rc = err_set(v->e, ERR_MEMORY, "%s: out of memory", v->where);
}

static int get_stop(struct json_view *v, enum answer_stop *stop)
{
    const char *name = json_view_text_or(v, "stop_reason", "eos");
    for (int i = ANSWER_EOS; !v->rc && i < ANSWER_N_STOPS; i++)
        if (strcmp(name, answer_stop_name((enum answer_stop)i)) == 0) {
            *stop = (enum answer_stop)i;
            return 0;
        }
    return v->rc ? v->rc : err_set(v->e, ERR_FORMAT, "%s: stop_reason: found \"%s\"", v->where, name);
}

/* Reads a turn. Positions ascend from turn to turn; only the last question may lack an answer. */
static int get_turn(struct conversation *c, const json_t *item, bool is_last, const char *path,
                    struct moeflux_err *e)
{
    struct json_view v = {.objects = {item}, .where = path, .e = e};
    uint32_t least = c->n_turns ? conversation_last(c)->asked : 0, all = (uint32_t)c->tokens.n;
    struct turn *t = conversation_add(c, e);
    if (!t)
        return ERR_MEMORY;
    if (!json_is_object(item))
        return err_set(e, ERR_FORMAT, "%s: turn %zu: expected an object", path, c->n_turns);
    t->answered = json_view_get(&v, "answer") != NULL;
    t->at = json_view_u32(&v, "tokens_before", least, all);
    /* tokens_asked is 0 if a later rendering changed the question's tokens. */
    t->asked = v.rc ? 0 : json_view_u32(&v, "tokens_asked", t->at + !t->answered, all);
    get_text(&v, "question", &t->question);
    get_text(&v, "thinking", &t->thinking);
    get_text(&v, "answer", &t->answer);
    if (!v.rc)
        v.rc = get_stop(&v, &t->stop);
    if (!v.rc && !t->answered && (!is_last || t->asked != all))
        return err_set(e, ERR_FORMAT, "%s: question %zu has no answer", path, c->n_turns);
    return v.rc;
}

static int get_tokens(struct json_view *v, struct token_list *out)
{
    const json_t *list = json_view_array(v, "tokens");
    for (size_t i = 0; !v->rc && i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > INT32_MAX)
            return err_set(v->e, ERR_FORMAT, "%s: token %zu: expected a token id", v->where, i);
        v->rc = token_list_add(out, (int32_t)value, v->e);
    }
    return v->rc;
}

static int get_all(struct json_view *v, struct saved *out)
{
    struct conversation *c = &out->conversation;
    json_view_u32(v, "moeflux_session", FORMAT, FORMAT);
    const char *hash = json_view_text_or(v, "fingerprint", "");
    char *end = NULL;
    if (v->rc)
        return v->rc;
    out->fingerprint = strtoull(hash, &end, 16);
    if (strlen(hash) != 16 || *end)
        return err_set(v->e, ERR_FORMAT, "%s: fingerprint: expected 16 digits, found \"%.40s\"", v->where,
                       hash);
    get_text(v, "model", &out->model);
    get_text(v, "system", &c->system);
    int rc = v->rc ? v->rc : get_tokens(v, &c->tokens);
    const json_t *turns = rc ? NULL : json_view_array(v, "turns");
    size_t n = json_array_size(turns);
    for (size_t i = 0; !rc && !v->rc && i < n; i++)
        rc = get_turn(c, json_array_get(turns, i), i + 1 == n, v->where, v->e);
    if (!rc && !v->rc && n == 0 && c->tokens.n)
        rc = err_set(v->e, ERR_FORMAT, "%s: tokens, but no questions", v->where);
    return rc ? rc : v->rc;
}

int saved_read(const char *name, struct saved *out, struct moeflux_err *e)
{
    *out = (struct saved){0};
    int rc = saved_check_name(name, e);
    char *path = rc ? NULL : saved_text_path(name, e);
    json_t *root = NULL;
    char *text = NULL;
    size_t n;
    if (!rc && !path)
        rc = ERR_IO;
    if (!rc && !file_exists(path))
        rc = err_set(e, ERR_USAGE, "there is no session %s (%s)", name, path);
    if (!rc)
        rc = file_read_text(path, MAX_BYTES, &text, &n, e);
    if (!rc)
        rc = json_read(text, n, path, JSON_MAX_LARGE, &root, e);
    if (!rc) {
        out->seen = XXH3_64bits(text, n);
        struct json_view v = {.objects = {root}, .where = path, .e = e};
        rc = get_all(&v, out);
    }
    json_decref(root);
    free(text);
    free(path);
    if (rc)
        saved_free(out);
    return rc;
}

void saved_free(struct saved *s)
{
    conversation_free(&s->conversation);
    str_free(&s->model);
    *s = (struct saved){0};
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
    str_addf(out, "%4zu question%s %7zu tokens  ", s.conversation.n_turns,
             s.conversation.n_turns == 1 ? " " : "s", s.conversation.tokens.n);
    printable_line(str_text(&s.model), out);
    str_add_text(out, "\n");
    saved_free(&s);
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
