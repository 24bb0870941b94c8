#include "generate/prefill.h"

#include "base/err.h"
#include "engine/state/rewind.h"
#include "generate/generator.h"

/* ---- what is reused ---- */

uint32_t prefill_usable(const struct prefill *p, const struct moeflux_session *s)
{
    uint32_t pos = moeflux_session_position(s);
    if (p->n == 0)
        return 0;
    uint32_t n_held = p->chunk && p->held.n < pos ? p->held.n : pos;
    uint32_t same = prefix_common(moeflux_session_history(s), n_held, p->ids, p->n - 1);
    if (p->chunk)
        same = prefix_cut_alike(&p->cuts, &p->held.cuts, same);
    uint32_t at = prefix_place(&p->cuts, p->chunk, same);
    /* A checkpoint may lie where no evaluation of the prompt ends. */
    for (uint32_t reach; (reach = rewind_reach(s, at)) != at;)
        at = prefix_place(&p->cuts, p->chunk, reach);
    return at;
}

static int go_back(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e)
{
    return pos ? moeflux_session_truncate(s, pos, e) : moeflux_session_clear(s, e);
}

int prefill_begin(struct generator *g, const struct prefill *p, uint32_t *n_reused, struct moeflux_err *e)
{
    int rc = 0;
    if (p->chunk)
        rc = go_back(g->sequence, *n_reused = prefill_usable(p, g->sequence), e);
    else
        rc = moeflux_session_reuse(g->sequence, p->ids, p->n, n_reused, e);
    return rc || !p->sampling ? rc : generator_new_sampler(g, p->sampling, p->ids, *n_reused, e);
}

/* ---- the rest ---- */

/* Evaluates the prompt up to `to` in one evaluation, or in several that end at cuts. */
static int feed_to(struct generator *g, const struct prefill *p, uint32_t to, struct moeflux_err *e)
{
    uint32_t pos = moeflux_session_position(g->sequence);
    int rc = 0;
    for (uint32_t i = 0; !rc && i <= p->cuts.n && pos < to; i++) {
        uint32_t end = i < p->cuts.n && p->chunk ? p->cuts.at[i] : to;
        end = end < to ? end : to;
        if (end <= pos)
            continue;
        rc = generator_feed(g, p->ids + pos, end - pos, e);
        pos = end;
    }
    return rc;
}

/* Evaluates the prompt up to its last cut. */
static int feed_to_cut(struct generator *g, const struct prefill *p, struct moeflux_err *e)
{
    uint32_t n = p->chunk ? p->cuts.n : 0;
    return n && p->cuts.at[n - 1] < p->n ? feed_to(g, p, p->cuts.at[n - 1], e) : 0;
}

/* Without memory for a checkpoint later work takes longer, which is no failure. */
static int checkpoint(struct moeflux_session *s, struct moeflux_err *e)
{
    int rc = moeflux_session_checkpoint(s, e);
    return rewind_lacks_memory(rc) ? 0 : rc;
}

static int feed(struct generator *g, const struct prefill *p, uint32_t n_stops, uint32_t to,
                struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < n_stops; i++) {
        uint32_t at = p->stops.at[i];
        if (at < moeflux_session_position(g->sequence) || at > to)
            continue;
        rc = feed_to(g, p, at, e);
        if (!rc)
            rc = checkpoint(g->sequence, e);
    }
    return rc ? rc : feed_to(g, p, to, e);
}

int prefill_feed(struct generator *g, const struct prefill *p, uint32_t to, struct moeflux_err *e)
{
    return feed(g, p, p->stops.n, to, e);
}

/* Keeps the checkpoints that the sequence has at stops already: later prompts may differ there, too. */
static void keep_checkpoints(struct moeflux_session *s, const struct prefix_stops *stops)
{
    for (uint32_t i = 0; i < stops->n && stops->at[i] < moeflux_session_position(s); i++)
        moeflux_session_touch_checkpoint(s, stops->at[i]);
}

int prefill_run(struct generator *g, const struct prefill *p, const struct moeflux_outputs *outputs,
                struct moeflux_err *e)
{
    uint32_t n = moeflux_session_checkpoint_bytes(g->sequence) ? p->stops.n : 0;
    uint32_t last = n ? p->stops.at[n - 1] : 0, pos = moeflux_session_position(g->sequence);
    bool passes = p->n - pos > p->passes_above && last > pos && last + 1 < p->n;
    n -= passes;
    keep_checkpoints(g->sequence, &p->stops);
    int rc = n ? feed(g, p, n, p->stops.at[n - 1], e) : 0;
    if (!rc)
        rc = feed_to_cut(g, p, e);
    if (rc)
        return rc;
    if (passes)
        moeflux_session_checkpoint_at(g->sequence, last);
    pos = moeflux_session_position(g->sequence);
    return generator_eval(g, p->ids + pos, p->n - pos, outputs, e);
}
