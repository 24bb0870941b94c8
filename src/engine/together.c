/* Decoding several sequences together: a token of each in one pass, so that weights and experts are read once for all. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

static uint32_t stage_n_alike(const struct stage *at)
{
    const struct exec *host = at->sides[SIDE_HOST].exec;
    uint32_t n = exec_get_caps(at->exec).n_alike;
    return host ? (uint32_t)size_min(n, exec_get_caps(host).n_alike) : n;
}

uint32_t moeflux_most_together(const struct moeflux_model *m)
{
    uint32_t n_alike = m->max_chunk;
    for (uint32_t i = 0; i < m->n_stages; i++)
        n_alike = (uint32_t)size_min(n_alike, stage_n_alike(&m->stages[i]));
    return m->trace || m->prefer.margin > 0 ? 1 : (uint32_t)size_min(n_alike, MOEFLUX_MOST_TOGETHER);
}

static int check(struct moeflux_session *const *list, const int32_t *ids, uint32_t n, struct moeflux_err *e)
{
    const struct moeflux_model *m = list[0]->model;
    int rc = 0;
    if (n > moeflux_most_together(m))
        return err_set(e, ERR_USAGE, "%u sequences together, expected 1 to %u", n, moeflux_most_together(m));
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (list[i] == list[k])
                return err_set(e, ERR_USAGE, "sequences %u and %u of those together are the same", k, i);
        rc = list[i]->model == m ? sequence_check(list[i], &ids[i], 1, e)
                                 : err_set(e, ERR_USAGE, "sequence %u is of another model than the first", i);
    }
    return rc;
}

int moeflux_eval_together(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                          float *const *logits, struct moeflux_err *e)
{
    if (n == 0)
        return err_set(e, ERR_USAGE, "no sequences to evaluate together");
    /* A single token may have its experts predicted. */
    if (n == 1)
        return moeflux_session_eval(list[0], ids, 1, &(struct moeflux_outputs){.logits = logits[0]}, e);
    struct moeflux_model *m = list[0]->model;
    int rc = check(list, ids, n, e);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        rc = sequence_make_ready(list[i], e);
        if (rc == 0)
            rc = sequence_reserve(list[i], list[i]->pos + 1, e);
    }
    uint64_t start = clock_ns();
    if (rc == 0)
        rc = forward_together(list, ids, n, logits, e);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        sequence_accept(list[i], ids[i]);
    m->n_decode_tokens += n;
    m->decode_ns += clock_ns() - start;
    return 0;
}
