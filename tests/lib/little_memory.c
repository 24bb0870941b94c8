#include "little_memory.h"

#include "check.h"
#include "device.h"

void little_memory(struct moeflux_options *o, bool staged)
{
    struct moeflux_err e = {0};
    struct moeflux_needs n;
    struct moeflux_plan p;
    o->memory_bytes = o->gpu_memory_bytes = 0;
    check_ok(moeflux_get_needs_with(o, &n, &e), &e);
    check_ok(device_plan_staged(o, staged, &p, &e), &e);
    o->memory_bytes = 3 * n.top_k * p.slot_bytes;
    if (p.is_unified)
        return;
    o->memory_bytes += p.cpu_scratch_bytes;
    o->gpu_memory_bytes = p.weights_bytes + p.state_bytes + p.activation_bytes + p.driver_bytes +
                          3 * n.top_k * p.slot_bytes / 2;
}
