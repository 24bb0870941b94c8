#include "generate/prompt_cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "generate/generator.h"
#include "generate/prefill.h"

enum {
    /* Limits the size of the file: a checkpoint of a large model is 200 MB. */
    MOST_CHECKPOINTS = 6,
    /* The next prompt is often the same with another end: of the template, or another question. */
    TAIL_TOKENS = 128,
    /* A shorter piece of a prompt is not worth an evaluation of its own. */
    LEAST_GAP = 32,
};

static void tell(const struct prompt_cache *pc, const char *text)
{
    pc->options.tell(pc->options.ctx, text);
}

/* Returns whether the file begins like a snapshot: then it is one, perhaps a damaged one. */
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
    tell(pc, text);
}

/* Reads the header: whether the file can be used, and whether it may be replaced. */
static int look_at(struct prompt_cache *pc, struct generator *s, struct moeflux_err *e)
{
    struct moeflux_state_info info;
    uint64_t own;
    pc->may_write = is_snapshot(pc->options.path);
    int rc = moeflux_read_state_info(pc->options.path, &info, e);
    if (rc)
        return rc;
    rc = moeflux_model_fingerprint(s->model, &own, e);
    if (rc)
        return rc;
    pc->may_write = info.has_tokens && info.fingerprint == own;
    if (!info.has_tokens)
        return err_set(e, ERR_FORMAT, "%s: a state of version %u holds no token ids", pc->options.path,
                       info.version);
    if (info.fingerprint != own)
        return err_set(e, ERR_FORMAT, "%s: a state of another model, or of other experts for a token",
                       pc->options.path);
    return 0;
}

int prompt_cache_load(struct prompt_cache *pc, const struct prompt_cache_options *o, struct generator *s,
                      struct moeflux_err *e)
{
    bool writes = o->path && !o->read_only;
    *pc = (struct prompt_cache){.options = *o, .may_write = writes};
    if (!o->path)
        return 0;
    struct moeflux_err own = {0};
    e = e ? e : &own;
    int rc = moeflux_session_set_checkpoint_cap(s->sequence, MOST_CHECKPOINTS, e);
    if (rc || (writes && access(pc->options.path, F_OK) < 0 && errno == ENOENT))
        return rc;
    rc = look_at(pc, s, e);
    if (!rc && (rc = moeflux_session_load(s->sequence, pc->options.path, e)) == ERR_NO_FIT)
        pc->may_write = false;
    if (rc == ERR_INTERRUPTED || rc == ERR_DEVICE || rc == ERR_LOST)
        return rc;
    if (rc)
        warn(pc, e->text, writes);
    pc->loaded = rc == 0;
    pc->n_held = pc->loaded ? moeflux_session_position(s->sequence) : 0;
    pc->may_write = pc->may_write && writes;
    return 0;
}

static void save(struct prompt_cache *pc, struct generator *s)
{
    struct moeflux_err e;
    int rc = moeflux_session_save(s->sequence, pc->options.path, pc->options.format, &e);
    if (rc && rc != ERR_INTERRUPTED)
        pc->unwritten = e;
}

static void tell_reuse(const struct prompt_cache *pc, size_t n)
{
    char text[600];
    snprintf(text, sizeof text, "%.400s: %u of %zu tokens of the prompt reused", pc->options.path,
             pc->n_reused, n);
    if (pc->loaded)
        tell(pc, text);
}

/* Chooses where a later prompt may differ from this one: after the system text, where this one differs from
 * the last (a third one will probably differ there too), and a little before the end. */
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

int prompt_cache_eval(struct prompt_cache *pc, struct generator *s, const struct token_list *prompt,
                      const struct moeflux_sampler_options *sampling, const struct moeflux_outputs *outputs,
                      struct moeflux_err *e)
{
    struct prefill p = {.ids = prompt->ids, .n = (uint32_t)prompt->n, .sampling = sampling};
    uint32_t n = p.n;
    bool in_pieces =
        moeflux_session_checkpoint_bytes(s->sequence) > 0 && pc->options.format == MOEFLUX_STATE_V3;
    uint32_t n_same = prefix_common(moeflux_session_history(s->sequence), pc->n_held, p.ids, n);
    bool known = n_same >= n - 1 && pc->n_held <= n;
    int rc = prefill_begin(s, &p, &pc->n_reused, e);
    if (rc)
        return rc;
    tell_reuse(pc, n);
    if (in_pieces && pc->may_write) {
        /* Checkpoints at the ends of chunks cost no evaluation. They serve prompts that differ in the
         * middle. */
        moeflux_session_set_checkpoint_every(s->sequence, n / 3 > 1024 ? n / 3 : 1024);
        p.stops = choose_stops(pc, n_same, n);
        rc = prefill_feed(s, &p, n - 1, e);
    }
    if (!rc && in_pieces && pc->may_write && !known)
        save(pc, s);
    if (!rc)
        rc = prefill_run(s, &p, outputs, e);
    if (!rc && !in_pieces && pc->may_write && !known)
        save(pc, s);
    return rc;
}
