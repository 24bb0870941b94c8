/* The forward pass of a chunk of tokens: embedding, layers, head. */
#include <string.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/real.h"
#include "engine/chosen.h"
#include "engine/engine.h"
#include "engine/layers.h"

/* Rows of the head at once, where those of a whole chunk are asked for. */
enum { LOGIT_ROWS = 4 };
_Static_assert((int)LOGIT_ROWS <= (int)ARCH_HEAD_ROWS && (int)MOEFLUX_MOST_TOGETHER <= (int)ARCH_HEAD_ROWS,
               "rows of logits");

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
    memcpy(m->ids.host, ids, n * sizeof *ids);
    forward_fill_rope(m, (float *)(void *)m->rope.host, n, pos);
}

/* Records the head for tokens from .. from + n - 1 and the copy of their logits to the host. */
static void record_head(const struct pass *p, uint32_t from, uint32_t n)
{
    struct moeflux_model *m = p->m;
    arch_head(m->arch, from, n);
    if (!m->view.logits.host)
        exec_copy(m->exec, &m->logits, 0, &m->view.logits, 0,
                  (uint64_t)n * m->dir.config.vocab_size * sizeof(float));
}

static const float *logits_of(const struct moeflux_model *m)
{
    return (const float *)(const void *)(m->view.logits.host ? m->view.logits.host : m->logits.host);
}

/* Finishes the batch with the logits of tokens from .. from + n - 1, which are then on the host. */
static int run_head(const struct pass *p, uint32_t from, uint32_t n, const float **rows,
                    struct moeflux_err *e)
{
    record_head(p, from, n);
    *rows = logits_of(p->m);
    return exec_finish(p->m->exec, e);
}

static int all_logits(const struct pass *p, struct moeflux_err *e)
{
    uint32_t vocab = p->m->dir.config.vocab_size;
    for (uint32_t from = 0; from < p->chunk.n; from += LOGIT_ROWS) {
        uint32_t n = (uint32_t)size_min(LOGIT_ROWS, p->chunk.n - from);
        const float *rows;
        if (from > 0)
            exec_begin(p->m->exec);
        int rc = run_head(p, from, n, &rows, e);
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            rc = p->outputs->each_logits(p->outputs->ctx, p->chunk.of.pos + from + i,
                                         rows + (uint64_t)i * vocab, e);
        if (rc < 0)
            return rc;
        if (p->outputs->logits && from + n == p->chunk.n)
            memcpy(p->outputs->logits, rows + (uint64_t)(n - 1) * vocab, vocab * sizeof(float));
    }
    return 0;
}

static int last_logits(const struct pass *p, struct moeflux_err *e)
{
    const float *row;
    int rc = run_head(p, p->chunk.n - 1, 1, &row, e);
    if (rc == 0)
        memcpy(p->outputs->logits, row, p->m->dir.config.vocab_size * sizeof(float));
    return rc;
}

static int hand_out_hidden(const struct pass *p, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint64_t layer_floats = (uint64_t)m->max_chunk * m->dir.config.hidden;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && p->outputs->hidden && i <= m->dir.config.n_layers; i++)
        rc = p->outputs->hidden(p->outputs->ctx, i, p->chunk.of.pos, p->chunk.n,
                                (const float *)(const void *)m->hidden.host + i * layer_floats, e);
    return rc;
}

static int make_hidden_buffer(struct moeflux_model *m, struct moeflux_err *e)
{
    if (m->hidden.host)
        return 0;
    const struct config *c = &m->dir.config;
    return exec_buffer_new(m->exec, &m->hidden, EXEC_HOST,
                           ((uint64_t)c->n_layers + 1) * m->max_chunk * c->hidden * sizeof(float), e);
}

static struct pass pass_at(struct moeflux_session *s, uint32_t n, uint32_t pos, uint32_t parity,
                           const struct moeflux_outputs *outputs)
{
    struct moeflux_model *m = s->model;
    return (struct pass){.s = s,
                         .m = m,
                         .outputs = outputs,
                         .chunk = {.n = n,
                                   .ids = m->ids.address,
                                   .rope = m->rope.address,
                                   .of = {.pos = pos,
                                          .parity = parity,
                                          .kv_blocks = s->table.address,
                                          .recurrent = s->recurrent.address,
                                          .recurrent_out = s->recurrent.address}}};
}

/* A token of each of n sequences, `ahead` tokens behind those that they have. each: room for what the pass refers to. */
static struct pass pass_together(struct moeflux_session *const *list, uint32_t n, uint32_t ahead,
                                 const struct moeflux_outputs *none, struct arch_sequence *each)
{
    struct moeflux_model *m = list[0]->model;
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_session *s = list[i];
        bool is_swapped = ahead % 2 != 0;
        each[i] =
            (struct arch_sequence){.pos = s->pos + ahead,
                                   .parity = s->parity ^ is_swapped,
                                   .kv_blocks = s->table.address,
                                   .recurrent = (is_swapped ? s->recurrent_next : s->recurrent).address,
                                   .recurrent_out = (is_swapped ? s->recurrent : s->recurrent_next).address};
    }
    return (struct pass){.m = m,
                         .outputs = none,
                         .chunk = {.n = n, .ids = m->ids.address, .rope = m->rope.address, .each = each}};
}

static int record_layers_of_token(const struct pass *p, struct moeflux_err *e)
{
    exec_begin(p->m->exec);
    arch_embed(p->m->arch, &p->chunk);
    return layers_run(p, e);
}

/* Tokens from their ids to their logits on the host, in one batch. */
static int record_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = record_layers_of_token(p, e);
    record_head(p, 0, p->chunk.n);
    return rc;
}

int forward_record_token(struct moeflux_session *s, const struct arch_chunk *c, struct moeflux_err *e)
{
    struct moeflux_outputs none = {0};
    const struct pass p = {.s = s, .m = s->model, .outputs = &none, .chunk = *c};
    int rc = record_layers_of_token(&p, e);
    arch_head(s->model->arch, 0, 1);
    return rc;
}

static struct arch_sequence sequence_of(const struct pass *p, uint32_t i)
{
    return p->chunk.each ? p->chunk.each[i] : p->chunk.of;
}

static void park(const struct pass *p, struct moeflux_session *const *list)
{
    struct parked *to = &p->m->parked;
    exec_park(p->m->exec);
    to->n = p->chunk.n;
    for (uint32_t i = 0; i < to->n; i++) {
        to->each[i] = sequence_of(p, i);
        to->sessions[i] = list[i];
    }
}

/* Whether the pass is what was recorded ahead. */
static bool is_parked(const struct pass *p, struct moeflux_session *const *list)
{
    const struct parked *a = &p->m->parked;
    bool is = exec_is_parked(p->m->exec) && a->n == p->chunk.n;
    for (uint32_t i = 0; is && i < a->n; i++) {
        const struct arch_sequence have = a->each[i], want = sequence_of(p, i);
        is = a->sessions[i] == list[i] && have.pos == want.pos && have.parity == want.parity &&
             have.kv_blocks == want.kv_blocks && have.recurrent == want.recurrent &&
             have.recurrent_out == want.recurrent_out;
    }
    return is;
}

/* Whether each sequence has room for a token behind the next one. */
static bool may_go_on(struct moeflux_session *const *list, uint32_t n)
{
    bool may = true;
    for (uint32_t i = 0; i < n; i++)
        may = may && list[i]->pos + 1 < list[i]->max_context;
    return may;
}

/* Decode with every expert where the device finds it, a token of each of a list of sequences. The commands of a token do not depend on its id,
 * so those of the next tokens (`next`) are recorded while the device computes these. */
static int decode_resident(struct moeflux_session *const *list, const struct pass *p, const struct pass *next,
                           float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint64_t ticket = 0;
    bool ahead = is_parked(p, list);
    int rc = ahead ? 0 : record_tokens(p, e);
    if (rc == 0)
        rc = ahead ? exec_submit_parked(m->exec, &ticket, e) : exec_submit(m->exec, &ticket, e);
    if (rc < 0) {
        exec_abandon(m->exec);
        return rc;
    }
    if (may_go_on(list, p->chunk.n) && !m->computes_at_once) {
        rc = record_tokens(next, e);
        park(next, list);
    }
    int waited = exec_wait(m->exec, ticket, rc < 0 ? NULL : e);
    uint32_t vocab = m->dir.config.vocab_size;
    for (uint32_t i = 0; rc == 0 && waited == 0 && i < p->chunk.n; i++)
        memcpy(logits[i], logits_of(m) + (uint64_t)i * vocab, vocab * sizeof(float));
    return rc < 0 ? rc : waited;
}

static int decode_one_resident(struct moeflux_session *s, const struct moeflux_outputs *outputs,
                               struct moeflux_err *e)
{
    const struct pass p = pass_at(s, 1, s->pos, s->parity, outputs),
                      next = pass_at(s, 1, s->pos + 1, s->parity ^ 1, outputs);
    int rc = decode_resident(&s, &p, &next, &outputs->logits, e);
    return rc < 0 ? rc : chosen_see(&p, e);
}

static int decode_some_resident(struct moeflux_session *const *list, const struct pass *p,
                                float *const *logits, struct moeflux_err *e)
{
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER];
    const struct pass next = pass_together(list, p->chunk.n, 1, p->outputs, each);
    return decode_resident(list, p, &next, logits, e);
}

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

/* What the predictor has seen last is of use if these sequences go on from there. */
static void follow(const struct pass *p, struct moeflux_session *const *list, uint32_t n)
{
    struct followed *f = &p->m->followed;
    bool go_on = f->n == n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = sequence_of(p, i).pos;
        go_on = go_on && f->sessions[i] == list[i] && f->pos[i] == pos;
        f->sessions[i] = list[i];
        f->pos[i] = pos + (pass_n_decoding(p) > 0 ? 1 : p->chunk.n);
    }
    f->n = n;
    if (!go_on)
        predictor_forget(&p->m->predictor);
}

static int run_chunk(const struct pass *p, bool last, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    follow(p, &p->s, 1);
    memset(m->is_seen, 0, m->dir.config.n_layers * sizeof *m->is_seen);
    exec_begin(m->exec);
    arch_embed(m->arch, &p->chunk);
    pass_copy_hidden(p, 0);
    int rc = layers_run(p, e);
    if (rc == 0 && p->outputs->each_logits)
        rc = all_logits(p, e);
    else if (rc == 0 && last && p->outputs->logits)
        rc = last_logits(p, e);
    else if (rc == 0)
        rc = exec_finish(m->exec, e);
    if (rc < 0)
        exec_abandon(m->exec);
    pass_release(m);
    return rc < 0 ? rc : chosen_see(p, e);
}

/* What is used in mapped files: the dense weights, the experts of both sides. */
int forward_check_files(const struct moeflux_model *m, struct moeflux_err *e)
{
    int rc = loader_check(&m->loader, e);
    for (int i = 0; rc == 0 && i < EXPERT_SIDES; i++)
        rc = m->sides[i].store ? expert_store_check(m->sides[i].store, e) : 0;
    return rc;
}

static void watch(struct moeflux_model *m, const struct exec_watch *w)
{
    exec_watch(m->exec, w);
    if (m->n_cpu_layers)
        exec_watch(m->sides[SIDE_HOST].exec, w);
}

/* Whether tokens get what each would get alone, as those of several sequences do. */
static void set_alike(struct moeflux_model *m, bool on)
{
    exec_set_alike(m->exec, on);
    if (m->n_cpu_layers)
        exec_set_alike(m->sides[SIDE_HOST].exec, on);
}

static int run_together(struct moeflux_session *const *list, const struct pass *p, float *const *logits,
                        struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint32_t vocab = m->dir.config.vocab_size;
    const float *rows;
    follow(p, list, p->chunk.n);
    exec_begin(m->exec);
    arch_embed(m->arch, &p->chunk);
    int rc = layers_run(p, e);
    if (rc == 0)
        rc = run_head(p, 0, p->chunk.n, &rows, e);
    for (uint32_t i = 0; rc == 0 && i < p->chunk.n; i++)
        memcpy(logits[i], rows + (uint64_t)i * vocab, vocab * sizeof(float));
    if (rc < 0)
        exec_abandon(m->exec);
    pass_release(m);
    return rc;
}

static void fill_inputs_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n)
{
    const struct moeflux_model *m = list[0]->model;
    memcpy(m->ids.host, ids, n * sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        forward_fill_rope(m, (float *)(void *)m->rope.host + (size_t)i * m->dir.config.rotary_dim, 1,
                          list[i]->pos);
}

int forward_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                     float *const *logits, struct moeflux_err *e)
{
    struct moeflux_model *m = list[0]->model;
    const struct moeflux_outputs none = {0};
    struct arch_sequence each[MOEFLUX_MOST_TOGETHER];
    struct pass p = pass_together(list, n, 0, &none, each);
    p.is_watched = m->step_ns > QUICK_NS;
    int rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    fill_inputs_together(list, ids, n);
    m->progress_at.layer = 0;
    m->progress_at.total = 1;
    if (p.is_watched)
        watch(m, &(struct exec_watch){go_on, m});
    set_alike(m, true);
    rc = m->resident && !p.is_watched ? decode_some_resident(list, &p, logits, e)
                                      : run_together(list, &p, logits, e);
    set_alike(m, false);
    watch(m, NULL);
    m->step_ns = clock_ns() - start;
    m->is_stopped &= rc == ERR_INTERRUPTED;
    return rc;
}

int forward_chunk(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t keep, bool last,
                  const struct moeflux_outputs *outputs, struct moeflux_err *e)
{
    struct moeflux_model *m = s->model;
    struct pass p = pass_at(s, n, s->pos, s->parity, outputs);
    p.is_watched = n > 1 || m->step_ns > QUICK_NS;
    /* What may be stopped leaves the recurrent state of s->pos as it is. The KV cache needs no copy: the next chunk writes the
     * same positions again. */
    if (p.is_watched)
        p.chunk.of.recurrent_out = s->recurrent_next.address;
    p.chunk.keep = keep;
    p.chunk.kept = m->kept.address;
    bool plain = (m->resident || pass_is_at_once(&p)) && !p.is_watched && outputs->logits &&
                 !outputs->each_logits && !outputs->hidden;
    int rc = outputs->hidden ? make_hidden_buffer(m, e) : 0;
    if (rc == 0)
        rc = forward_check_files(m, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    s->is_stopped = p.is_watched;
    fill_inputs(m, ids, n, s->pos);
    if (p.is_watched)
        watch(m, &(struct exec_watch){go_on, m});
    rc = plain ? decode_one_resident(s, outputs, e) : run_chunk(&p, last, e);
    watch(m, NULL);
    m->step_ns = clock_ns() - start;
    m->is_stopped &= rc == ERR_INTERRUPTED;
    s->is_stopped &= rc < 0;
    if (rc == 0 && p.is_watched)
        sequence_swap_states(s);
    if (rc == 0)
        rc = hand_out_hidden(&p, e);
    if (rc < 0)
        return rc;
    s->pos += n;
    s->parity ^= keep ? 0 : 1;
    return 0;
}
