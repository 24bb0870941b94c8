/* How long a token should take: sums of bytes and of waits. */
#include "base/mem.h"
#include "engine/engine.h"

/* Of one layer: two projections in and out of the mixer, the mixer, router, choice, experts up and down, norms. */
enum { DISPATCHES_PER_LAYER = 10 };

static double seconds(double bytes, double bytes_s)
{
    return bytes_s > 0 ? bytes / bytes_s : 0;
}

/* Of the experts that are held somewhere, the share that the device holds: no place is preferred by the router. */
static double on_device(const struct moeflux_plan *p)
{
    uint64_t held = p ? p->n_slots + p->n_host_slots : 0;
    return held ? (double)p->n_slots / (double)held : 1;
}

struct moeflux_forecast moeflux_make_forecast(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                              const struct moeflux_speeds *s, double hits)
{
    struct moeflux_forecast f = {0};
    double experts = (double)n->token_expert_bytes;
    /* Where an expert may be missing the host reads every layer's choice before it goes on. */
    double waits = plan && plan->experts_resident ? 1 : n->n_layers;
    f.compute_s = seconds((double)n->token_dense_bytes + experts, s->kernel_bytes_s) +
                  n->n_layers * DISPATCHES_PER_LAYER * s->dispatch_s + waits * s->round_trip_s;
    f.disk_s = seconds(experts * (1 - hits), s->disk_bytes_s);
    f.copy_s = seconds(experts * (1 - hits * on_device(plan)), s->copy_bytes_s);
    f.apart_s = f.compute_s + f.copy_s + f.disk_s;
    /* The disk can work beside the device only for what is known ahead of the router. Copies are counted with the
     * products: they wait for the disk's bytes, and the products for them. */
    f.overlapped_s = f.disk_s > f.compute_s + f.copy_s ? f.disk_s : f.compute_s + f.copy_s;
    return f;
}
