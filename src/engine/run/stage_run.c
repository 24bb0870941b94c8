#include "engine/run/stage_run.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/run/chosen.h"
#include "engine/run/layers.h"

/* Rows of the head at once, if the logits of a whole chunk are wanted. */
enum { LOGIT_ROWS = 4 };
_Static_assert((int)LOGIT_ROWS <= (int)ARCH_HEAD_ROWS && (int)MOEFLUX_MAX_BATCHED <= (int)ARCH_HEAD_ROWS,
               "rows of logits");

/* Records the head for tokens from .. from + n - 1 and the copy of their logits to the host. */
static void record_head(const struct pass *p, uint32_t from, uint32_t n)
{
    const struct stage *at = p->at;
    arch_head(at->arch, from, n);
    if (!at->view.logits.host && !p->chooses)
        exec_copy(at->exec, &at->logits, p->half * at->view.logits.bytes, &at->view.logits, 0,
                  (uint64_t)n * p->m->dir.config.vocab_size * sizeof(float));
}

const float *stage_logits(const struct stage *at, uint32_t half)
{
    return (const float *)(const void *)(at->view.logits.host
                                             ? at->view.logits.host
                                             : at->logits.host + half * at->view.logits.bytes);
}

void stage_begin_logits(struct stage *at, uint32_t half)
{
    pthread_mutex_lock(&at->reading[half]);
    at->last_half = half;
}

void stage_end_logits(struct stage *at, uint32_t half)
{
    pthread_mutex_unlock(&at->reading[half]);
}

/* Finishes the batch with the logits of tokens from .. from + n - 1, which are then on the host. */
static int run_head(const struct pass *p, uint32_t from, uint32_t n, const float **rows,
                    struct moeflux_err *e)
{
    record_head(p, from, n);
    *rows = stage_logits(p->at, p->half);
    return exec_finish(p->at->exec, e);
}

static int all_logits(const struct pass *p, struct moeflux_err *e)
{
    uint32_t vocab = p->m->dir.config.vocab_size;
    for (uint32_t from = 0; from < p->chunk.n; from += LOGIT_ROWS) {
        uint32_t n = (uint32_t)size_min(LOGIT_ROWS, p->chunk.n - from);
        const float *rows;
        if (from > 0)
            exec_begin(p->at->exec);
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

/* Work that may be stopped does not change the recurrent state in place. The KV cache needs no copy: the next
 * chunk writes the same positions again. */
struct arch_sequence stage_sequence(const struct work *w, uint32_t i, const struct stage *at)
{
    const struct moeflux_session *s = w->list[i];
    const struct stage_state *on = &s->on[at - w->m->stages];
    bool moves = w->is_batched || w->is_watched;
    bool is_swapped = moves && !w->is_pipelined && w->flips % 2 != 0;
    return (struct arch_sequence){.pos = s->pos + w->ahead,
                                  .parity = s->parity ^ (w->flips & 1),
                                  .kv_blocks = on->table.address,
                                  .recurrent = (is_swapped ? on->recurrent_next : on->recurrent).address,
                                  .recurrent_out =
                                      (moves && !is_swapped ? on->recurrent_next : on->recurrent).address};
}

bool stage_chooses(const struct work *w, const struct stage *at)
{
    return w->choice && at == &w->m->stages[w->m->n_stages - 1];
}

struct pass stage_pass(const struct work *w, struct stage *at, struct arch_sequence each[MOEFLUX_MAX_BATCHED])
{
    struct pass p = {.s = w->is_batched ? NULL : w->list[0],
                     .m = w->m,
                     .at = at,
                     .outputs = w->outputs,
                     .start_ns = clock_ns(),
                     .progress = &w->list[0]->progress_at,
                     .is_watched = w->is_watched,
                     .in = {at->x.host ? &at->x : NULL, 0},
                     .out = {at->x.host ? &at->x : NULL, 0},
                     .chunk = {.n = w->n,
                               .ids = at->ids.address,
                               .rope = at->rope.room.address,
                               .keep = w->keep,
                               .kept = at->kept.address}};
    if (!w->is_batched) {
        p.chunk.of = stage_sequence(w, 0, at);
        return p;
    }
    for (uint32_t i = 0; i < w->n; i++)
        each[i] = stage_sequence(w, i, at);
    p.chunk.each = each;
    return p;
}

static bool is_last(const struct pass *p)
{
    return p->at == &p->m->stages[p->m->n_stages - 1];
}

/* Returns the host's view of the hidden states that enter and leave a stage. */
static uint8_t *hidden_states(const struct stage *at)
{
    return at->view.x.host ? at->view.x.host : at->x.host;
}

static uint64_t hidden_bytes(const struct moeflux_model *m, uint32_t n)
{
    return (uint64_t)n * m->dir.config.hidden * sizeof(float);
}

void stage_hand_over(const struct work *w, const struct stage *at)
{
    if (at + 1 < w->m->stages + w->m->n_stages)
        memcpy(hidden_states(at + 1), hidden_states(at), hidden_bytes(w->m, w->n));
}

int stage_record_layers(const struct pass *p, struct moeflux_err *e)
{
    const struct stage *at = p->at;
    exec_begin(at->exec);
    if (at == p->m->stages)
        arch_embed(at->arch, &p->chunk);
    else if (p->in.buffer)
        exec_copy(at->exec, &at->view.x, 0, p->in.buffer, p->in.off, hidden_bytes(p->m, p->chunk.n));
    if (at == p->m->stages)
        pass_copy_hidden(p, 0);
    return layers_run(p, e);
}

static void record_hidden_states(const struct pass *p)
{
    if (p->out.buffer)
        exec_copy(p->at->exec, p->out.buffer, p->out.off, &p->at->view.x, 0, hidden_bytes(p->m, p->chunk.n));
}

void stage_watch(const struct stage *at, const struct exec_watch *w)
{
    exec_watch(at->exec, w);
    if (at->sides[SIDE_HOST].exec)
        exec_watch(at->sides[SIDE_HOST].exec, w);
}

int stage_end(const struct pass *p, int rc, struct moeflux_err *e)
{
    if (rc < 0)
        exec_abandon(p->at->exec);
    p->at->is_stopped |= rc == ERR_INTERRUPTED;
    pass_release(p->at);
    p->at->busy_ns += clock_ns() - p->start_ns;
    return model_fault(p->m, p->at, rc, e);
}

int stage_record_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = stage_record_layers(p, e);
    if (is_last(p))
        record_head(p, 0, p->chunk.n);
    else
        record_hidden_states(p);
    return rc;
}

/* Finishes a chunk that another may follow. */
static int finish(const struct pass *p, struct moeflux_err *e)
{
    struct stage *at = p->at;
    uint64_t ticket;
    int rc = exec_submit(at->exec, &ticket, e);
    if (rc < 0)
        return rc;
    if (!at->computes_at_once && pass_n_decoding(p) == 0)
        rope_cache_go_ahead(&at->rope, p->m);
    return exec_wait(at->exec, ticket, e);
}

static int run_chunk(const struct pass *p, bool last, struct moeflux_err *e)
{
    int rc = stage_record_layers(p, e);
    if (rc == 0 && !is_last(p))
        record_hidden_states(p);
    if (rc == 0 && is_last(p) && p->outputs->each_logits)
        rc = all_logits(p, e);
    else if (rc == 0 && is_last(p) && last && p->outputs->logits)
        rc = last_logits(p, e);
    else if (rc == 0)
        rc = finish(p, e);
    return stage_end(p, rc, e);
}

int stage_run(const struct pass *p, bool last, struct moeflux_err *e)
{
    memset(p->at->is_seen, 0, p->m->dir.config.n_layers * sizeof *p->at->is_seen);
    stage_begin_logits(p->at, p->half);
    int rc = run_chunk(p, last, e);
    stage_end_logits(p->at, p->half);
    return rc < 0 ? rc : chosen_see(p, e);
}
