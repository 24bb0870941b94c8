#include "engine/run/stage_turn.h"

void stage_take(struct stage *at)
{
    turns_begin(&at->turn);
}

void stage_give(struct stage *at)
{
    turns_end(&at->turn);
}

static bool ask_callback(void *ctx)
{
    const struct moeflux_model *m = ctx;
    return progress_report(&m->progress, "reading the prompt", "tok", 0, 0);
}

static int wait_for_device(struct moeflux_model *m, struct stage *at, const struct exec_watch *w,
                           struct moeflux_err *e)
{
    enum { SLICE_NS = 50000000 };
    int rc = at == m->stages ? step_wait_idle(m, e) : 0;
    while (rc == 0 && at->is_stopped) {
        int done = model_fault(m, at, exec_wait_idle(at->exec, SLICE_NS, e), e);
        at->is_stopped = done == 0;
        rc = done < 0 ? done : 0;
        if (done == 0 && !w->go_on(w->ctx))
            rc = err_set(e, ERR_INTERRUPTED, "interrupted while the device was busy");
    }
    return rc;
}

int stage_wait_idle(struct moeflux_model *m, struct stage *at, struct moeflux_err *e)
{
    return wait_for_device(m, at, &(struct exec_watch){ask_callback, m}, e);
}

int stage_enter_watched(struct moeflux_model *m, struct stage *at, const struct exec_watch *w,
                        struct moeflux_err *e)
{
    stage_take(at);
    int rc = wait_for_device(m, at, w, e);
    if (rc < 0)
        stage_give(at);
    return rc;
}

int stage_enter(struct moeflux_model *m, struct stage *at, struct moeflux_err *e)
{
    return stage_enter_watched(m, at, &(struct exec_watch){ask_callback, m}, e);
}

int stage_enter_all(struct moeflux_model *m, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < m->n_stages; i++) {
        int rc = stage_enter(m, &m->stages[i], e);
        for (uint32_t k = 0; rc < 0 && k < i; k++)
            stage_give(&m->stages[k]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void stage_give_all(struct moeflux_model *m)
{
    for (uint32_t i = 0; i < m->n_stages; i++)
        stage_give(&m->stages[i]);
}

bool stage_is_idle(struct moeflux_model *m, struct stage *at)
{
    enum { PATIENCE_NS = 250000000 };
    if (at == m->stages)
        step_wait_idle(m, NULL);
    if (at->is_stopped && at->exec && exec_wait_idle(at->exec, PATIENCE_NS, NULL) != 0)
        at->is_stopped = false;
    return !at->is_stopped;
}
