#include "cli/prompt_cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "cli/exit.h"
#include "cli/options.h"
#include "cli/place.h"
#include "cli/prefix.h"
#include "cli/session.h"

enum {
    /* Of the file, so that it stays small: a checkpoint of a large model is 200 MB. */
    MOST_CHECKPOINTS = 6,
    /* The next prompt often is this one with another end, a template's or a question's. */
    TAIL_TOKENS = 128,
    /* A shorter piece is not worth an evaluation of its own. */
    LEAST_GAP = 32,
};

int prompt_cache_check(const struct options *o, struct err *e)
{
    return o->prompt_cache ? place_check("--prompt-cache", o->prompt_cache, e) : 0;
}

/* Whether the file begins as a snapshot does: then it can only be one, perhaps broken. */
static bool is_snapshot(const char *path)
{
    /* "MFLX" as a little-endian number. */
    static const char magic[] = {'X', 'L', 'F', 'M'};
    char start[sizeof magic];
    uint64_t size;
    int fd = file_open_read(path, &size, NULL);
    if (fd < 0)
        return false;
    size_t n = size < sizeof magic ? (size_t)size : sizeof magic;
    bool same = file_read_at(fd, path, start, n, 0, NULL) == 0 && memcmp(start, magic, n) == 0;
    close(fd);
    return same;
}

static void warn(const struct prompt_cache *pc, const char *what, bool writes)
{
    char text[700];
    snprintf(text, sizeof text, "%s; the prompt is computed without it%s", what,
             !writes         ? ""
             : pc->may_write ? ", the file will be replaced"
                             : ", the file stays as it is");
    exit_warn(text);
}

/* What the header tells: whether the file may be used, and whether it may be replaced. */
static int look_at(struct prompt_cache *pc, struct session *s, struct err *e)
{
    struct moeflux_state_info info;
    uint64_t own;
    pc->may_write = is_snapshot(pc->path);
    int rc = moeflux_read_state_info(pc->path, &info, e);
    if (rc)
        return rc;
    rc = moeflux_fingerprint(s->model, &own, e);
    if (rc)
        return rc;
    pc->may_write = info.has_tokens && info.fingerprint == own;
    if (!info.has_tokens)
        return err_set(e, ERR_FORMAT, "%s: a state of version %u holds no token ids", pc->path, info.version);
    if (info.fingerprint != own)
        return err_set(e, ERR_FORMAT, "%s: a state of another model", pc->path);
    return 0;
}

int prompt_cache_load(struct prompt_cache *pc, const struct options *o, struct session *s, struct err *e)
{
    bool writes = o->prompt_cache != NULL;
    *pc = (struct prompt_cache){.path = writes ? o->prompt_cache : o->prompt_cache_ro, .may_write = writes};
    pc->format = o->state_format && strcmp(o->state_format, "v2") == 0 ? MOEFLUX_STATE_V2 : MOEFLUX_STATE_V3;
    if (!pc->path)
        return 0;
    int rc = moeflux_set_checkpoint_cap(s->sequence, MOST_CHECKPOINTS, e);
    if (rc || (writes && access(pc->path, F_OK) < 0 && errno == ENOENT))
        return rc;
    rc = look_at(pc, s, e);
    if (!rc && (rc = moeflux_load(s->sequence, pc->path, e)) == ERR_NO_FIT)
        pc->may_write = false;
    if (rc == ERR_INTERRUPTED || rc == ERR_DEVICE)
        return rc;
    if (rc)
        warn(pc, e->text, writes);
    pc->loaded = rc == 0;
    pc->n_held = pc->loaded ? moeflux_position(s->sequence) : 0;
    pc->may_write = pc->may_write && writes;
    return 0;
}

static void save(struct prompt_cache *pc, struct session *s)
{
    struct err e;
    int rc = moeflux_save(s->sequence, pc->path, pc->format, &e);
    if (rc && rc != ERR_INTERRUPTED)
        pc->unwritten = e;
}

static void tell_reuse(const struct prompt_cache *pc, size_t n)
{
    char text[600];
    snprintf(text, sizeof text, "%.400s: %u of %zu tokens of the prompt reused", pc->path, pc->n_reused, n);
    if (pc->loaded)
        exit_warn(text);
}

/* Where a later prompt may part from this one: behind the system text, where this one parts from the last (so that a third
 * one will do so there too), and a little before the end. */
static struct prefix_stops choose_stops(const struct prompt_cache *pc, uint32_t n_same, uint32_t n)
{
    uint32_t tail = n < 4 * TAIL_TOKENS ? 0 : n - TAIL_TOKENS, least = pc->n_reused + LEAST_GAP;
    struct prefix_stops st = {0};
    if (n_same >= least && n_same + 1 < n)
        prefix_stop_at(&st, n_same, LEAST_GAP);
    if (pc->n_system >= least && pc->n_system < n)
        prefix_stop_at(&st, pc->n_system, LEAST_GAP);
    if (tail >= least)
        prefix_stop_at(&st, tail, LEAST_GAP);
    return st;
}

int prompt_cache_eval(struct prompt_cache *pc, struct session *s, const struct token_list *prompt,
                      const struct moeflux_wish *wish, struct err *e)
{
    const int32_t *ids = prompt->ids;
    uint32_t n = (uint32_t)prompt->n;
    if (!pc->path)
        return session_eval(s, ids, n, wish, e);
    bool in_pieces = moeflux_checkpoint_bytes(s->sequence) > 0 && pc->format == MOEFLUX_STATE_V3;
    uint32_t n_same = prefix_common(moeflux_history(s->sequence), pc->n_held, ids, n);
    bool known = n_same >= n - 1 && pc->n_held <= n;
    int rc = moeflux_reuse(s->sequence, ids, n, &pc->n_reused, e);
    if (rc)
        return rc;
    tell_reuse(pc, n);
    for (uint32_t i = 0; i < pc->n_reused; i++)
        sampler_accept(s->sampler, ids[i]);
    if (in_pieces && pc->may_write) {
        /* Copies at chunks' ends cost no evaluation: for prompts that part in the middle. */
        moeflux_set_checkpoint_every(s->sequence, n / 3 > 1024 ? n / 3 : 1024);
        struct prefix_stops st = choose_stops(pc, n_same, n);
        rc = prefix_feed(s, ids, n - 1, &st, e);
    }
    if (!rc && in_pieces && pc->may_write && !known)
        save(pc, s);
    uint32_t pos = moeflux_position(s->sequence);
    if (!rc)
        rc = session_eval(s, ids + pos, n - pos, wish, e);
    if (!rc && !in_pieces && pc->may_write && !known)
        save(pc, s);
    return rc;
}
