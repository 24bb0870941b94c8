#include "cli/batch/results.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/batch_line.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_sent.h"
#include "base/side_file.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/batch/lines.h"
#include "cli/batch/settings.h"
#include "cli/options/options.h"
#include "cli/output.h"

/* The beginning of every result, also of a cut one. */
static const char beginning[] = "{\"id\": ";

enum line_kind { NO_RESULT, WANTED, UNWANTED, OTHER_SETTINGS };

/* Returns the id of the request that the result `root` answers, and its line, as json_id_key takes them.
 * NULL: it is no result. */
static json_t *owner_of(json_t *root, uint64_t *line, bool *failed)
{
    json_t *number = json_object_get(root, "line"), *error = json_object_get(root, "error");
    if (json_object_get(root, "custom_id"))
        return batch_line_result(root, line, failed);
    *line = json_integer_value(number) > 0 ? (uint64_t)json_integer_value(number) : 0;
    *failed = error != NULL;
    return *line && (error || json_object_get(root, "text")) ? json_object_get(root, "id") : NULL;
}

/* Returns whether a result has other settings than this run, or is of another model than the results before
 * it. */
static bool has_other_settings(struct results *r, const json_t *settings, unsigned long long line)
{
    json_t *model = json_object_get(settings, "fingerprint");
    if (!settings || !r->settings || r->mix)
        return false;
    if (settings_difference(settings, r->settings, r->difference, sizeof r->difference))
        return true;
    if (model && !r->model) {
        r->model = json_incref(model);
        r->model_line = line;
    }
    if (!model || json_equal(model, r->model))
        return false;
    snprintf(r->difference, sizeof r->difference, "its model is not that of line %llu", r->model_line);
    return true;
}

/* Counts a result. Two lines of the requests may have one id: the first has an answer, the other an error. */
static int keep(struct results *r, const char *key, bool failed)
{
    json_int_t n = json_integer_value(json_object_get(r->errors, key));
    return failed ? json_object_set_new(r->errors, key, json_integer(n + 1))
                  : json_object_set_new(r->answered, key, json_true());
}

/* Stores a line's key, if the result is wanted. number: the line's in the file, from 1. */
static enum line_kind take_line(struct results *r, const char *text, size_t len, unsigned long long number)
{
    bool fits = json_count_values(text, len) <= JSON_MAX_LARGE, failed = false;
    json_error_t why;
    json_t *root = fits ? json_sent_load(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why) : NULL;
    uint64_t line = 0;
    json_t *id = root ? owner_of(root, &line, &failed) : NULL;
    bool wanted = id && !(r->retry && failed);
    char *key = wanted ? json_id_key(id, line) : NULL;
    if (wanted && (!key || keep(r, key, failed) < 0))
        id = NULL;
    bool is_other = wanted && id && has_other_settings(r, json_object_get(root, "settings"), number);
    free(key);
    json_decref(root);
    r->n_unwanted += id && !wanted;
    return !id ? NO_RESULT : is_other ? OTHER_SETTINGS : wanted ? WANTED : UNWANTED;
}

static int refuse_settings(const struct results *r, unsigned long long line, struct moeflux_err *e)
{
    return err_set(e, ERR_USAGE, "%.300s: line %llu has a result of other settings: %s (--mix accepts it)",
                   r->path, line, r->difference);
}

/* Repairs the bytes after the last line end: a whole result that only lacks its line end, or a cut one. */
static int repair_end(struct results *r, const char *text, size_t len, uint64_t off, uint64_t line,
                      struct moeflux_err *e)
{
    char warning[600];
    size_t n = len < sizeof beginning - 1 ? len : sizeof beginning - 1;
    if (len == 0)
        return 0;
    enum line_kind kind = take_line(r, text, len, line);
    if (kind == OTHER_SETTINGS)
        return refuse_settings(r, line, e);
    if (kind != NO_RESULT)
        return file_write(r->fd, r->path, "\n", 1, e);
    if (memcmp(text, beginning, n) != 0)
        return err_set(e, ERR_FORMAT, "%s: its last line is no result of --batch, nothing is written to it",
                       r->path);
    if (ftruncate(r->fd, (off_t)off) < 0)
        return err_errno(e, ERR_IO, "%s", r->path);
    snprintf(warning, sizeof warning, "%.400s: the last line was cut and is removed", r->path);
    exit_warn(warning);
    return 0;
}

/* Reads the file line by line: it may be larger than memory. */
static int take_all(struct results *r, struct moeflux_err *e)
{
    struct str held = {0};
    uint64_t off = 0, n_lines = 0;
    char block[64 << 10];
    ssize_t n = 0;
    enum line_kind kind;
    int rc = 0;
    while (!rc && (n = pread(r->fd, block, sizeof block, (off_t)(off + held.len))) > 0) {
        const char *at = block, *end = block + n, *stop;
        for (; !rc && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1) {
            str_add(&held, at, (size_t)(stop - at));
            n_lines++;
            off += held.len + 1;
            if (!str_ok(&held))
                rc = err_set(e, ERR_MEMORY, "%s: out of memory", r->path);
            else if ((kind = take_line(r, str_text(&held), held.len, n_lines)) == OTHER_SETTINGS)
                rc = refuse_settings(r, n_lines, e);
            else if (kind == NO_RESULT)
                rc = err_set(e, ERR_FORMAT, "%s: line %llu is no result of --batch, nothing is written to it",
                             r->path, (unsigned long long)n_lines);
            str_clear(&held);
        }
        str_add(&held, at, (size_t)(end - at));
    }
    if (!rc && n < 0)
        rc = err_errno(e, ERR_IO, "%s", r->path);
    if (!rc && !str_ok(&held))
        rc = err_set(e, ERR_MEMORY, "%s: out of memory", r->path);
    if (!rc)
        rc = repair_end(r, str_text(&held), held.len, off, n_lines + 1, e);
    str_free(&held);
    return rc;
}

/* Copies the wanted lines of the file, whose lines are known to be results. */
static int copy_wanted(struct results *r, int to, struct moeflux_err *e)
{
    struct lines all;
    const char *text;
    size_t len;
    int rc = lines_open(&all, r->path, e);
    while (!rc && (rc = lines_next(&all, true, &text, &len, e)) == LINES_LINE) {
        rc = take_line(r, text, len, all.n) == WANTED ? file_write(to, r->path, text, len, e) : 1;
        if (rc <= 0)
            rc = rc ? rc : file_write(to, r->path, "\n", 1, e);
        else
            rc = 0;
    }
    if (rc == LINES_TOO_LONG)
        rc = err_set(e, ERR_FORMAT, "%s: line %llu has more than %zu bytes", r->path,
                     (unsigned long long)all.n, LINES_MAX_BYTES);
    lines_close(&all);
    return rc;
}

/* Replaces the file by one without the failed results. Both are locked until the new one has the name. */
static int remove_unwanted(struct results *r, struct moeflux_err *e)
{
    char text[600];
    struct side_file f;
    unsigned long n = r->n_unwanted;
    int rc = side_file_create(&f, r->path, 0, e);
    if (rc)
        return rc;
    rc = copy_wanted(r, f.fd, e);
    int fd = rc ? -1 : fcntl(f.fd, F_DUPFD_CLOEXEC, 0);
    if (!rc && (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) < 0))
        rc = err_errno(e, ERR_IO, "%s", r->path);
    if (!rc)
        rc = side_file_commit(&f, e);
    side_file_free(&f);
    if (rc) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    close(r->fd);
    r->fd = fd;
    snprintf(text, sizeof text, "%.400s: %lu result%s that failed %s taken out; the requests run again",
             r->path, n, n == 1 ? "" : "s", n == 1 ? "is" : "are");
    exit_warn(text);
    return 0;
}

/* Whether the path still names the open file: another run with --retry-failed may have just replaced it. */
static bool is_current(const struct results *r)
{
    struct stat own, named;
    return fstat(r->fd, &own) == 0 && stat(r->path, &named) == 0 && own.st_dev == named.st_dev &&
           own.st_ino == named.st_ino;
}

static int open_file(struct results *r, struct moeflux_err *e)
{
    struct stat st;
    r->fd = open(r->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (r->fd < 0 || fstat(r->fd, &st) < 0)
        return err_errno(e, ERR_IO, "%s", r->path);
    /* A pipe or a device has no earlier results. */
    if (!S_ISREG(st.st_mode))
        return 0;
    if (flock(r->fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? err_set(e, ERR_USAGE, "%s: another run writes to it", r->path)
                                    : err_errno(e, ERR_IO, "%s: lock", r->path);
    if (!is_current(r))
        return err_set(e, ERR_USAGE, "%s: another run writes to it", r->path);
    int rc = take_all(r, e);
    return !rc && r->n_unwanted ? remove_unwanted(r, e) : rc;
}

int results_open(struct results *r, const struct options *o, const json_t *settings, struct output *out,
                 struct moeflux_err *e)
{
    *r = (struct results){.path = o->output,
                          .fd = -1,
                          .out = out,
                          .retry = o->retry_failed,
                          .mix = o->mix,
                          .settings = o->output ? settings : NULL,
                          .answered = json_object(),
                          .errors = json_object()};
    if (!r->answered || !r->errors)
        return err_set(e, ERR_MEMORY, "out of memory for the results");
    return o->output ? open_file(r, e) : 0;
}

int results_check_model(const struct results *r, struct moeflux_err *e)
{
    const json_t *own = json_object_get(r->settings, "fingerprint");
    if (!r->model || !own || json_equal(r->model, own))
        return 0;
    return err_set(
        e, ERR_USAGE,
        "%.300s: line %llu has a result of another model of this name: fingerprint %.20s there, %.20s "
        "here (--mix accepts it)",
        r->path, r->model_line, json_string_value(r->model), json_string_value(own));
}

bool results_take(struct results *r, const char *key, bool answerable, bool *failed)
{
    json_t *n = json_object_get(r->errors, key);
    *failed = !(answerable && json_object_get(r->answered, key));
    if (!*failed)
        return true;
    return json_integer_value(n) > 0 && json_integer_set(n, json_integer_value(n) - 1) == 0;
}

/* Appends a line, which is an object, with the settings as its last member. */
static void add_line(const struct results *r, const char *line, struct str *out)
{
    size_t len = strlen(line);
    char *settings = r->settings ? json_dumps(r->settings, JSON_REAL_PRECISION(7)) : NULL;
    str_add(out, line, len - (settings != NULL));
    if (settings)
        str_addf(out, ", \"settings\": %s}", settings);
    free(settings);
    str_add_text(out, "\n");
}

/* Returns where the next line begins; -1: not a regular file. */
static off_t end_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : -1;
}

static int append(struct results *r, const struct str *whole, struct moeflux_err *e)
{
    struct moeflux_err why;
    off_t end = end_of(r->fd);
    int rc = file_write(r->fd, r->path, whole->data, whole->len, &why);
    /* A full disk may have taken a part of the line. */
    bool cut = rc && end >= 0 && ftruncate(r->fd, end) < 0;
    return rc ? err_set(e, rc, "%.400s%s", why.text, cut ? "; the last line is cut, run again" : "") : 0;
}

int results_add(struct results *r, const char *line, struct moeflux_err *e)
{
    struct str whole = {0};
    if (r->failed)
        return err_set(e, ERR_IO, "%s: an earlier write has failed", r->path ? r->path : "stdout");
    add_line(r, line, &whole);
    int rc = str_ok(&whole) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a result");
    if (!rc && r->path) {
        rc = append(r, &whole, e);
    } else if (!rc) {
        output_add(r->out, whole.data, whole.len);
        rc = output_flush(r->out, e);
    }
    str_free(&whole);
    r->failed = rc != 0;
    return rc;
}

int results_close(struct results *r, struct moeflux_err *e)
{
    int rc = r->fd >= 0 ? file_sync(r->fd, r->path, e) : 0;
    if (r->fd >= 0 && !rc)
        rc = file_sync_parent(r->path, e);
    if (r->fd >= 0 && close(r->fd) < 0 && errno != EINTR && !rc)
        rc = err_errno(e, ERR_IO, "%s: close", r->path);
    json_decref(r->answered);
    json_decref(r->errors);
    json_decref(r->model);
    *r = (struct results){.fd = -1};
    return rc;
}
