/* Batched decode: one token of each of several sequences in one pass, so that weights and experts are read
 * once for all. */
#include <stdlib.h>

#include "base/mem.h"
#include "engine/run/batched.h"
#include "engine/run/forward.h"
#include "engine/sequence.h"

uint32_t moeflux_max_batched(const struct moeflux_model *m)
{
    return m->trace || m->prefer.margin > 0 ? 1 : m->max_batched;
}

bool moeflux_batched_is_exact(const struct moeflux_model *m)
{
    bool is = true;
    for (uint32_t i = 0; i < m->n_stages; i++)
        is = is && m->stages[i].batched_plan_n == 0;
    return is;
}

static int check(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, struct moeflux_err *e)
{
    const struct moeflux_model *m = list[0]->model;
    int rc = 0;
    if (n > moeflux_max_batched(m))
        return err_set(e, ERR_USAGE, "a batch of %u sequences, expected 1 to %u", n, moeflux_max_batched(m));
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (list[i] == list[k])
                return err_set(e, ERR_USAGE, "sequences %u and %u of the batch are the same", k, i);
        rc = list[i]->model == m ? sequence_check(list[i], &ids[i], 1, e)
                                 : err_set(e, ERR_USAGE, "sequence %u is of another model than the first", i);
    }
    return rc;
}

static int eval(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                struct moeflux_err *e)
{
    /* Experts are predicted for a single token. */
    if (n == 1 && moeflux_batched_is_exact(list[0]->model))
        return moeflux_session_eval(list[0], ids, 1, &(struct moeflux_outputs){.logits = logits[0]}, e);
    struct moeflux_model *m = list[0]->model;
    const struct moeflux_outputs none = {0};
    const struct forward_call c = {.list = list,
                                   .ids = ids,
                                   .n = n,
                                   .n_chunks = 1,
                                   .is_batched = true,
                                   .outputs = &none,
                                   .logits = logits};
    uint32_t n_done;
    int rc = check(list, ids, n, e);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        rc = sequence_make_ready(list[i], e);
        if (rc == 0)
            rc = sequence_reserve(list[i], list[i]->pos + 1, e);
    }
    if (rc < 0)
        return rc;
    model_stats_begin(m, WORK_DECODE);
    list[0]->progress_at = (struct progress_at){.total = 1, .what = "generating"};
    rc = forward_run(&c, &n_done, e);
    model_stats_end(m, WORK_DECODE, rc < 0 ? 0 : n);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        sequence_accept(list[i], ids[i]);
    return 0;
}

int moeflux_eval_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                         float *const *logits, struct moeflux_err *e)
{
    return n ? eval(list, ids, n, logits, e) : err_set(e, ERR_USAGE, "no sequences to evaluate together");
}

int batched_eval(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, float *const *logits,
                 void (*left)(void *ctx), void *ctx, struct moeflux_err *e)
{
    list[0]->left = left;
    list[0]->left_ctx = ctx;
    int rc = moeflux_eval_batched(list, ids, n, logits, e);
    if (list[0]->left)
        left(ctx);
    list[0]->left = NULL;
    return rc;
}

uint32_t batched_n_stages(const struct moeflux_model *m)
{
    return m->n_stages;
}

uint32_t batched_chunk(const struct moeflux_model *m)
{
    return m->max_chunk;
}
