/* Traces of the router's choices, and waits for each layer. */
#include "engine/lab/lab.h"
#include "engine/model.h"
#include "experts/store.h"

int lab_open_traced(struct moeflux_model **out, const struct moeflux_options *o, const char *trace,
                    struct moeflux_err *e)
{
    return model_open(out, o, NULL, trace, e);
}

int lab_save_trace(struct moeflux_model *m, struct moeflux_err *e)
{
    return m->trace ? trace_writer_commit(m->trace, e) : 0;
}

uint64_t lab_layer_wait_ns(const struct moeflux_model *m, uint32_t layer)
{
    uint64_t ns = 0;
    for (uint32_t k = 0; layer < m->dir.config.n_layers && k < m->n_stages; k++)
        for (int i = 0; i < EXPERT_SIDES; i++) {
            const struct expert_store *store = m->stages[k].sides[i].store;
            ns += store ? expert_store_layer_wait_ns(store, layer) : 0;
        }
    return ns;
}
