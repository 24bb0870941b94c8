/* How long a token should take: sums of bytes and of waits. */
#include "base/mem.h"
#include "engine/engine.h"

/* Of one layer: two projections in and out of the mixer, the mixer, router, choice, experts up and down, norms. */
enum { DISPATCHES_PER_LAYER = 10 };

static double seconds(double bytes, double bytes_s)
{
    return bytes_s > 0 ? bytes / bytes_s : 0;
}

/* The share of cached experts that are on the device. The router chooses those as often as others. */
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
    /* Unless all experts are resident, the host waits for the choice of every layer. */
    double waits = plan && plan->experts_resident ? 1 : n->n_layers;
    f.compute_s = seconds((double)n->token_dense_bytes + experts, s->kernel_bytes_s) +
                  n->n_layers * DISPATCHES_PER_LAYER * s->dispatch_s + waits * s->round_trip_s;
    f.disk_s = seconds(experts * (1 - hits), s->disk_bytes_s);
    f.copy_s = seconds(experts * (1 - hits * on_device(plan)), s->copy_bytes_s);
    f.apart_s = f.compute_s + f.copy_s + f.disk_s;
    /* Reads overlap with the device only if they are prefetched. Copies are not overlapped with products: a copy waits for
     * its read, and a product for the copy. */
    f.overlapped_s = f.disk_s > f.compute_s + f.copy_s ? f.disk_s : f.compute_s + f.copy_s;
    return f;
}
