/* The forward pass of a chunk of tokens: embedding, layers, head. */
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/real.h"
#include "engine/chosen.h"
#include "engine/stage_run.h"

void forward_fill_rope(const struct moeflux_model *m, float *rope, uint32_t n, uint32_t pos)
{
    uint32_t n_angles = m->dir.config.rotary_dim / 2;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < n_angles; i++) {
            /* The angle is rounded to float32, as the reference computes it. */
            float angle = (float)(pos + t) * m->inverse_frequencies[i];
            *rope++ = (float)(real_cos((double)angle) * m->rope_multiplier);
            *rope++ = (float)(real_sin((double)angle) * m->rope_multiplier);
        }
}

static void fill_inputs(struct moeflux_model *m, const int32_t *ids, uint32_t n, uint32_t pos)
{
    const struct stage *first = &m->stages[0];
    memcpy(first->ids.host, ids, n * sizeof *ids);
    forward_fill_rope(m, (float *)(void *)first->rope.host, n, pos);
    for (uint32_t i = 1; i < m->n_stages; i++)
        memcpy(m->stages[i].rope.host, first->rope.host,
               (size_t)n * m->dir.config.rotary_dim * sizeof(float));
}

static int hand_out_hidden(const struct work *w, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    uint64_t layer_floats = (uint64_t)m->max_chunk * m->dir.config.hidden;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && w->outputs->hidden && i <= m->dir.config.n_layers; i++) {
        const struct stage *at = model_stage(m, i ? i - 1 : 0);
        rc = w->outputs->hidden(
            w->outputs->ctx, i, w->list[0]->pos, w->n,
            (const float *)(const void *)at->hidden.host + (i - at->layers.first) * layer_floats, e);
    }
    return rc;
}

static int make_hidden_buffers(struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        uint64_t n = at->layers.end - at->layers.first + 1;
        if (!at->hidden.host)
            rc = model_fault(m, at,
                             exec_buffer_new(at->exec, &at->hidden, EXEC_HOST,
                                             n * m->max_chunk * m->dir.config.hidden * sizeof(float), e),
                             e);
    }
    return rc;
}

/* ---- single tokens, every expert resident ---- */

int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e)
{
    struct moeflux_outputs none = {0};
    struct stage *at = s->model->stages;
    const struct pass p = {.s = s, .m = s->model, .at = at, .outputs = &none, .chunk = *c};
    int rc = stage_record_layers(&p, e);
    arch_head(at->arch, 0, 1);
    return rc;
}

static void remember_parked(const struct work *w)
{
    struct parked *to = &w->m->parked;
    to->n = w->n;
    for (uint32_t i = 0; i < to->n; i++) {
        to->each[i] = stage_sequence(w, i, w->m->stages);
        to->sessions[i] = w->list[i];
    }
}

/* Whether the work is what was recorded ahead on all stages. */
static bool is_parked(const struct work *w)
{
    const struct parked *a = &w->m->parked;
    bool is = a->n == w->n;
    for (uint32_t i = 0; is && i < w->m->n_stages; i++)
        is = exec_is_parked(w->m->stages[i].exec);
    for (uint32_t i = 0; is && i < a->n; i++) {
        const struct arch_sequence have = a->each[i], want = stage_sequence(w, i, w->m->stages);
        is = a->sessions[i] == w->list[i] && have.pos == want.pos && have.parity == want.parity &&
             have.kv_blocks == want.kv_blocks && have.recurrent == want.recurrent &&
             have.recurrent_out == want.recurrent_out;
    }
    return is;
}

/* Whether each sequence has room for a token behind the next one. */
static bool may_go_on(const struct work *w)
{
    bool may = true;
    for (uint32_t i = 0; i < w->n; i++)
        may = may && w->list[i]->pos + 1 < w->list[i]->max_context;
    return may;
}

/* One stage. is_ahead: it was recorded before. next: what to record while the device computes, or NULL. */
static int decode_stage(const struct pass *p, bool is_ahead, const struct pass *next, struct moeflux_err *e)
{
    struct exec *x = p->at->exec;
    uint64_t ticket = 0;
    int rc = is_ahead ? 0 : stage_record_tokens(p, e);
    if (rc == 0)
        rc = is_ahead ? exec_submit_parked(x, &ticket, e) : exec_submit(x, &ticket, e);
    if (rc < 0)
        return rc;
    if (next) {
        rc = stage_record_tokens(next, e);
        exec_park(x);
    }
    int waited = exec_wait(x, ticket, rc < 0 ? NULL : e);
    return rc < 0 ? rc : waited;
}

static void copy_logits(const struct work *w, float *const *logits)
{
    uint32_t vocab = w->m->dir.config.vocab_size;
    const float *rows = stage_logits(&w->m->stages[w->m->n_stages - 1]);
    for (uint32_t i = 0; i < w->n; i++)
        memcpy(logits[i], rows + (uint64_t)i * vocab, vocab * sizeof(float));
}

/* Decode with every expert where the devices find it, a token of each of a list of sequences. The commands of a token do not depend on its id,
 * so those of the next tokens are recorded while the device computes these. */
static int decode_resident(const struct work *w, float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER], each_next[MOEFLUX_MOST_TOGETHER];
    struct work behind = *w;
    behind.ahead = behind.flips = 1;
    bool is_ahead = is_parked(w), goes_on = may_go_on(w) && !m->computes_at_once;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        struct stage *at = &m->stages[i];
        const struct pass p = stage_pass(w, at, each), next = stage_pass(&behind, at, each_next);
        rc = decode_stage(&p, is_ahead, goes_on ? &next : NULL, e);
        rc = stage_end(&p, rc, e);
        if (rc == 0)
            stage_hand_over(&p);
        if (rc == 0 && !w->is_together)
            rc = chosen_see(&p, e);
    }
    if (rc == 0 && goes_on)
        remember_parked(&behind);
    if (rc == 0)
        copy_logits(w, logits);
    return rc;
}

/* ---- chunks ---- */

/* Whether the progress callback lets the evaluation go on. A single token is not shown as progress. */
static bool go_on(void *ctx)
{
    struct moeflux_model *m = ctx;
    uint32_t n_layers = m->dir.config.n_layers, total = m->progress_at.total;
    uint64_t part = (uint64_t)m->progress_at.here * m->progress_at.layer / n_layers;
    bool yes = progress_report(&m->progress, m->progress_at.what, "tok",
                               total > 1 ? m->progress_at.before + part : 0, total > 1 ? total : 0);
    m->is_stopped |= !yes;
    return yes;
}

void forward_follow(const struct work *w)
{
    struct moeflux_model *m = w->m;
    struct followed *f = &m->followed;
    uint32_t n = w->is_together ? w->n : 1, here = w->is_together ? 1 : w->n;
    bool goes_on = f->n == n;
    for (uint32_t i = 0; i < n; i++) {
        goes_on = goes_on && f->sessions[i] == w->list[i] && f->pos[i] == w->list[i]->pos;
        f->sessions[i] = w->list[i];
        f->pos[i] = w->list[i]->pos + here;
    }
    f->n = n;
    for (uint32_t i = 0; !goes_on && i < m->n_stages; i++)
        predictor_forget(&m->stages[i].predictor);
}

static int run_chunk(const struct work *w, bool last, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    int rc = 0;
    forward_follow(w);
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        const struct pass p = stage_pass(w, &m->stages[i], NULL);
        rc = stage_run(&p, last, e);
        if (rc == 0)
            stage_hand_over(&p);
    }
    return rc;
}

static int run_together(const struct work *w, float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = w->m;
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER];
    int rc = 0;
    forward_follow(w);
    for (uint32_t i = 0; rc == 0 && i < m->n_stages; i++) {
        const struct pass p = stage_pass(w, &m->stages[i], each);
        rc = stage_record_tokens(&p, e);
        if (rc == 0)
            rc = exec_finish(p.at->exec, e);
        rc = stage_end(&p, rc, e);
        if (rc == 0)
            stage_hand_over(&p);
    }
    if (rc == 0)
        copy_logits(w, logits);
    return rc;
}

/* What is used in mapped files: the dense weights, the experts of both sides. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t k = 0; rc == 0 && k < m->n_stages; k++) {
        const struct stage *at = &m->stages[k];
        rc = loader_check(&at->loader, e);
        for (int i = 0; rc == 0 && i < EXPERT_SIDES; i++)
            rc = at->sides[i].store ? expert_store_check(at->sides[i].store, e) : 0;
    }
    return rc;
}

static void watch(struct moeflux_model *m, const struct exec_watch *w)
{
    for (uint32_t i = 0; i < m->n_stages; i++)
        stage_watch(&m->stages[i], w);
}

/* Whether tokens get what each would get alone, as those of several sequences do. */
static void set_alike(struct moeflux_model *m, bool on)
{
    for (uint32_t i = 0; i < m->n_stages; i++) {
        exec_set_alike(m->stages[i].exec, on);
        if (m->stages[i].sides[SIDE_HOST].exec)
            exec_set_alike(m->stages[i].sides[SIDE_HOST].exec, on);
    }
}

static void fill_inputs_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n)
{
    const struct moeflux_model *m = list[0]->model;
    memcpy(m->stages[0].ids.host, ids, n * sizeof *ids);
    for (uint32_t k = 0; k < m->n_stages; k++)
        for (uint32_t i = 0; i < n; i++)
            forward_fill_rope(m,
                              (float *)(void *)m->stages[k].rope.host + (size_t)i * m->dir.config.rotary_dim,
                              1, list[i]->pos);
}

int forward_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                     float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = list[0]->model;
    const struct moeflux_outputs none = {0};
    const struct work w = {.m = m,
                           .list = list,
                           .n = n,
                           .is_together = true,
                           .is_watched = m->step_ns > QUICK_NS,
                           .outputs = &none};
    int rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    fill_inputs_together(list, ids, n);
    m->progress_at.layer = 0;
    m->progress_at.total = 1;
    if (w.is_watched)
        watch(m, &(struct exec_watch){go_on, m});
    set_alike(m, true);
    rc = m->resident && !w.is_watched ? decode_resident(&w, logits, e) : run_together(&w, logits, e);
    set_alike(m, false);
    watch(m, NULL);
    m->step_ns = clock_ns() - start;
    m->is_stopped &= rc == ERR_INTERRUPTED;
    return rc;
}

/* Whether a token passes all layers of all stages without the host. */
static bool is_at_once(const struct work *w)
{
    bool is = true;
    for (uint32_t i = 0; is && i < w->m->n_stages; i++) {
        const struct pass p = stage_pass(w, &w->m->stages[i], NULL);
        is = pass_is_at_once(&p);
    }
    return is;
}

int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    const struct work w = {.m = m,
                           .list = &s,
                           .n = n,
                           .keep = keep,
                           .is_watched = n > 1 || m->step_ns > QUICK_NS,
                           .outputs = outputs};
    bool plain = !w.is_watched && outputs->logits && !outputs->each_logits && !outputs->hidden &&
                 (m->resident || is_at_once(&w));
    int rc = outputs->hidden ? make_hidden_buffers(m, e) : 0;
    if (rc == 0)
        rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    s->is_stopped = w.is_watched;
    fill_inputs(m, ids, n, s->pos);
    if (w.is_watched)
        watch(m, &(struct exec_watch){go_on, m});
    rc = plain ? decode_resident(&w, &outputs->logits, e) : run_chunk(&w, last, e);
    watch(m, NULL);
    m->step_ns = clock_ns() - start;
    m->is_stopped &= rc == ERR_INTERRUPTED;
    s->is_stopped &= rc < 0;
    if (rc == 0 && w.is_watched)
        sequence_swap_states(s);
    if (rc == 0)
        rc = hand_out_hidden(&w, e);
    if (rc < 0)
        return rc;
    s->pos += n;
    s->parity ^= keep ? 0 : 1;
    return 0;
}
