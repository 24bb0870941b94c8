/* Estimates how long a token takes, from sums of bytes and of waits. */
#include <math.h>

#include "engine/lab/forecast.h"

#include "base/mem.h"
#include "engine/lab/lab.h"

/* A layer's dispatches: projections into and out of the mixer, the mixer, router, choice, experts up and
 * down, norms. */
enum { DISPATCHES_PER_LAYER = 10 };

static double seconds(double bytes, double bytes_s)
{
    return bytes_s > 0 ? bytes / bytes_s : 0;
}

/* Returns the speed of the CPU's products, at most that of memory: a server's caches may hold the matrix that
 * was measured. */
static double cpu_bytes_s(const struct lab_speeds *s)
{
    bool is_bound = s->memory_bytes_s > 0 && s->memory_bytes_s < s->cpu_bytes_s;
    return is_bound ? s->memory_bytes_s : s->cpu_bytes_s;
}

/* Returns how long CPU and device compute at the same time, if they take so many seconds for their parts
 * of the experts. Each chosen expert is the CPU's with the probability `share`, so the parts of a layer
 * differ. */
static double at_once_s(double cpu, double device, double share, uint32_t top_k)
{
    double p = pow(1 - share, top_k), sum = 0;
    for (uint32_t n = 0; top_k > 0 && share > 0 && share < 1 && n <= top_k; n++) {
        sum += p * fmin(cpu * n / (share * top_k), device * (top_k - n) / ((1 - share) * top_k));
        p *= (top_k - n) / (n + 1.0) * share / (1 - share);
    }
    return sum;
}

double forecast_part_s(const struct forecast_part *p, const struct lab_device_speeds *device,
                       const struct lab_speeds *machine)
{
    double cpu = seconds(p->cpu_bytes, cpu_bytes_s(machine)),
           own =
               seconds(p->own_bytes, device->kernel_bytes_s) + seconds(p->copied_bytes, device->copy_bytes_s);
    return seconds(p->device_bytes, device->kernel_bytes_s) + cpu -
           at_once_s(cpu, own, p->cpu_share, p->top_k) + seconds(p->copied_bytes, device->copy_bytes_s) +
           seconds(p->disk_bytes, machine->disk_bytes_s) +
           p->n_layers * DISPATCHES_PER_LAYER * device->dispatch_s + p->n_waits * device->round_trip_s;
}

/* Returns the share of cached experts that are on the device, assuming that all are chosen equally often. */
static double on_device(const struct moeflux_plan *p)
{
    /* The host may hold copies of the device's experts. */
    uint64_t held = p ? size_min(p->n_slots + p->n_host_slots, p->n_experts - p->n_cpu_experts) : 0;
    return held ? (double)p->n_slots / (double)held : 1;
}

/* Returns the share of the experts that the CPU computes. */
static double on_cpu(const struct moeflux_plan *p)
{
    return p && p->n_experts ? (double)p->n_cpu_experts / (double)p->n_experts : 0;
}

/* Whether every expert that the device computes is in its own memory or the host's. */
static bool finds_all(const struct moeflux_plan *p)
{
    return p->experts_resident || (!p->is_unified && p->n_host_slots >= p->n_experts - p->n_cpu_experts);
}

/* Returns how often the host waits for a device: for the choice of every layer, unless the devices have all
 * experts; then once for each device. A wait for the CPU's experts takes a device as long. */
static double n_waits(const struct moeflux_needs *n, const struct moeflux_plan *p)
{
    if (!p)
        return n->n_layers;
    return p->n_cpu_layers + (!finds_all(p)      ? n->n_layers
                              : p->n_devices > 1 ? p->n_devices + p->n_cpu_layers
                                                 : 1.0 + p->n_cpu_layers);
}

struct lab_forecast lab_make_forecast(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                      const struct lab_speeds *s, double hits)
{
    struct lab_forecast f = {0};
    double experts = (double)n->token_expert_bytes, cpu = experts * on_cpu(plan), device = experts - cpu;
    f.compute_s = seconds((double)n->token_dense_bytes + device, s->kernel_bytes_s) +
                  seconds(cpu, cpu_bytes_s(s)) + n->n_layers * DISPATCHES_PER_LAYER * s->dispatch_s +
                  n_waits(n, plan) * s->round_trip_s;
    f.disk_s = seconds(experts * (1 - hits), s->disk_bytes_s);
    f.copy_s = seconds(device * (1 - hits * on_device(plan)), s->copy_bytes_s);
    /* Both compute at once if each has a part of every layer's experts. */
    double at_once = at_once_s(seconds(cpu, cpu_bytes_s(s)), seconds(device, s->kernel_bytes_s) + f.copy_s,
                               plan ? (double)plan->cpu_share : 0, n->top_k);
    f.apart_s = f.compute_s + f.copy_s + f.disk_s - at_once;
    /* Reads overlap with the device only if they are prefetched. Experts on the host are read over the bus,
     * by products or by copies before them: neither overlaps with other work. */
    f.overlapped_s = fmax(f.disk_s, f.compute_s + f.copy_s - at_once);
    return f;
}

/* --- where to compute experts --- */

/* Returns the slots that devices with their own memory have for the experts after the first n_cpu layers,
 * n_each of a layer. need: the number of these experts. Each of several devices holds only its own layers'
 * experts. Layers without experts come first, as in every family. */
static uint64_t device_slots(const struct moeflux_needs *n, const struct moeflux_plan *plan, uint32_t n_cpu,
                             uint32_t n_each, uint64_t need)
{
    uint64_t slots = 0;
    for (uint32_t i = 0; plan->n_devices > 1 && i < plan->n_devices; i++) {
        const struct moeflux_plan_device *d = &plan->devices[i];
        uint64_t fixed = d->weights_bytes + d->state_bytes + d->activation_bytes + d->driver_bytes;
        uint64_t first = size_max(size_max(d->first_layer, n_cpu), n->n_layers - n->n_expert_layers);
        uint64_t own = first < d->end_layer ? (d->end_layer - first) * n_each : 0;
        slots += size_min(own, d->device_bytes > fixed ? (d->device_bytes - fixed) / plan->slot_bytes : 0);
    }
    return plan->n_devices > 1 ? slots : size_min(plan->device_room_bytes / plan->slot_bytes, need);
}

/* Returns the plan with experts on the CPU: share of those of each layer, or with a share of 0 all of the
 * first n_cpu layers. */
static struct moeflux_plan moved(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                 uint32_t n_cpu, double share)
{
    struct moeflux_plan p = *plan;
    uint64_t n_moe = plan->n_experts / n->n_experts, n_dense = n->n_layers - n_moe;
    uint32_t each = (uint32_t)lround(share * n->n_experts);
    uint64_t room = plan->device_room_bytes / plan->slot_bytes;
    uint64_t host = plan->host_room_bytes / plan->slot_bytes;
    p.n_cpu_layers = share > 0 ? n->n_layers : n_cpu;
    p.cpu_share = (float)share;
    p.n_cpu_experts = share > 0 ? n_moe * each : n_cpu > n_dense ? (n_cpu - n_dense) * n->n_experts : 0;
    uint64_t need = plan->n_experts - p.n_cpu_experts;
    if (plan->is_unified) { /* one memory, shared out in proportion */
        uint64_t all = size_min(room, plan->n_experts);
        p.n_cpu_slots = all * p.n_cpu_experts / plan->n_experts;
        p.n_slots = all - p.n_cpu_slots;
        p.n_host_slots = 0;
    } else {
        p.n_slots = device_slots(n, plan, share > 0 ? 0 : n_cpu, n->n_experts - each, need);
        /* The host keeps all if it has room for all. */
        uint64_t below = host >= need + p.n_cpu_experts && p.n_slots < need ? need : need - p.n_slots;
        uint64_t wanted = below + p.n_cpu_experts, there = size_min(host, wanted);
        p.n_cpu_slots = there * p.n_cpu_experts / size_max(wanted, 1);
        p.n_host_slots = there - p.n_cpu_slots;
    }
    p.experts_resident = p.n_slots == need && p.n_cpu_slots == p.n_cpu_experts;
    return p;
}

/* Returns seconds per token, assuming that the router chooses all experts equally often. */
static double token_s(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                      const struct lab_speeds *s, uint32_t n_cpu, double share)
{
    const struct moeflux_plan p = moved(n, plan, n_cpu, share);
    double held = (double)(p.n_slots + p.n_host_slots + p.n_cpu_slots) / (double)p.n_experts;
    return lab_make_forecast(n, &p, s, held < 1 ? held : 1).apart_s;
}

/* Finds the best share. There is none where device and CPU read the same memory: at once they are no
 * faster. */
static void find_share(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct lab_speeds *s, struct lab_placement *out)
{
    enum { STEPS = 20 };
    for (uint32_t i = 1; i < STEPS && !plan->is_unified && n->n_experts > 1; i++) {
        double share = (double)i / STEPS, t = token_s(n, plan, s, 0, share);
        bool is_part = lround(share * n->n_experts) > 0 && lround(share * n->n_experts) < n->n_experts;
        if (is_part && (out->share_s <= 0 || t < out->share_s)) {
            out->share_s = t;
            out->best_share = share;
        }
    }
}

bool lab_compare_placements(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                            const struct lab_speeds *s, struct lab_placement *out)
{
    if (s->kernel_bytes_s <= 0 || s->cpu_bytes_s <= 0)
        return false;
    *out = (struct lab_placement){.gpu_s = token_s(n, plan, s, 0, 0),
                                  .cpu_s = token_s(n, plan, s, n->n_layers, 0)};
    out->best_s = out->gpu_s;
    for (uint32_t i = 1; i <= n->n_layers; i++) {
        double t = token_s(n, plan, s, i, 0);
        if (t < out->best_s) {
            out->best_s = t;
            out->best_cpu_layers = i;
        }
    }
    find_share(n, plan, s, out);
    return true;
}
