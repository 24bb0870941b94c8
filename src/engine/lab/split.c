/* Finds the best split of the layers among several devices from their measured speeds. It is only advice,
 * since measurements must not change results. All layers count the same, except the first ones without
 * experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/lab/forecast.h"
#include "engine/lab/lab.h"

/* A token passes the devices one after the other, so the sum of their times counts. A prompt's chunks are on
 * all devices at once, where the slowest holds up the others: its time is added with this weight. So devices
 * whose speeds differ by less share the layers; otherwise the faster one gets as many as it has room for. */
static const double WEIGHT_OF_SLOWEST = 0.25;
/* A smaller gain may be a loss: speeds are measured to some percent. */
static const double LEAST_GAIN = 0.05;
/* Each search demands a slowest device that is faster by this factor; there are at most MOST_STEPS
 * searches. */
static const double STEP = 0.97;
enum { MOST_STEPS = 100 };

struct advice {
    const struct moeflux_needs *needs;
    const struct moeflux_plan *plan;
    const struct lab_speeds *speeds;
    uint32_t n, n_layers;
    double unified_bytes, unified_layers; /* sums over the devices whose memory is the host's */
    double missing_from_host; /* share of the experts without device slots that have no host slot either */
    double *cost; /* [n][n_layers + 1][n_layers + 1]: seconds of a device with the layers from .. end - 1 */
};

static double *cost_of(const struct advice *a, uint32_t device, uint32_t from, uint32_t end)
{
    return &a->cost[((uint64_t)device * (a->n_layers + 1) + from) * (a->n_layers + 1) + end];
}

static uint32_t first_with_experts(const struct advice *a, uint32_t from)
{
    return (uint32_t)size_max(from, a->needs->n_layers - a->needs->n_expert_layers);
}

/* Returns how many layers' experts the device computes; the CPU has the first ones, or a share of each. */
static double n_with_experts(const struct advice *a, uint32_t from, uint32_t end)
{
    double share = (double)a->plan->cpu_share;
    uint64_t first = size_max(first_with_experts(a, from), share > 0 ? 0 : a->plan->n_cpu_layers);
    return end > first ? (double)(end - first) * (1 - share) : 0;
}

static uint32_t n_on_cpu(const struct advice *a, uint32_t from, uint32_t end)
{
    uint32_t first = first_with_experts(a, from), last = (uint32_t)size_min(end, a->plan->n_cpu_layers);
    return last > first ? last - first : 0;
}

static uint64_t fixed_of(const struct moeflux_plan_device *d)
{
    return d->weights_bytes + d->state_bytes + d->activation_bytes + d->driver_bytes;
}

/* Returns the bytes for experts on a device with n layers. */
static double room_of(const struct advice *a, uint32_t device, uint32_t n)
{
    const struct moeflux_plan_device *d = &a->plan->devices[device];
    double now = d->end_layer - d->first_layer, dense = (double)a->needs->token_dense_bytes / a->n_layers;
    double fixed = (double)(d->weights_bytes + d->activation_bytes + d->driver_bytes) + (n - now) * dense +
                   (double)d->state_bytes * n / now;
    if (d->is_unified) /* one memory for all: each layer has a part of it */
        return a->unified_bytes * fmin(1, n / a->unified_layers);
    return (double)d->device_bytes - fixed;
}

/* Returns the seconds of a token on a device with these layers; infinite if they do not fit. */
static double time_of(const struct advice *a, uint32_t device, uint32_t from, uint32_t end)
{
    const struct moeflux_needs *n = a->needs;
    const struct lab_device_speeds *s = &a->speeds->devices[device];
    bool is_unified = a->plan->devices[device].is_unified;
    double layers = n_with_experts(a, from, end), slot = (double)a->plan->slot_bytes;
    double all = layers * n->n_experts * slot, room = room_of(a, device, end - from);
    if (room < (layers > 0 ? n->top_k * slot : 0))
        return INFINITY;
    double of_layer = (double)n->token_expert_bytes / (double)size_max(n->n_expert_layers, 1);
    double missing = all > room ? 1 - room / all : 0, experts = layers * of_layer;
    double from_disk = experts * missing * (is_unified ? 1 : a->missing_from_host);
    double share = (double)a->plan->cpu_share, on_cpu = n_on_cpu(a, from, end);
    struct forecast_part p = {
        .device_bytes = (double)n->token_dense_bytes * (end - from) / a->n_layers + experts,
        .cpu_bytes = on_cpu * of_layer * (share > 0 ? share : 1),
        .copied_bytes = is_unified ? 0 : experts * missing,
        .disk_bytes = from_disk,
        .n_layers = end - from,
        .cpu_share = share,
        .own_bytes = experts,
        .top_k = n->top_k,
        /* counted like a whole token's: host and device each wait for the CPU's experts */
        .n_waits = on_cpu + (from_disk > 0 ? end - from : 1 + on_cpu)};
    return forecast_part_s(&p, s, a->speeds);
}

static void fill_costs(struct advice *a)
{
    uint64_t n_missing = 0, n_host = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct moeflux_plan_device *d = &a->plan->devices[i];
        if (d->is_unified) {
            a->unified_layers += d->end_layer - d->first_layer;
            a->unified_bytes += (double)d->device_bytes - (double)fixed_of(d);
        } else {
            n_missing += d->n_experts - d->n_slots;
            n_host += d->n_host_slots;
        }
    }
    a->missing_from_host = n_missing > n_host ? 1 - (double)n_host / (double)n_missing : 0;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t from = 0; from < a->n_layers; from++)
            for (uint32_t end = from + 1; end <= a->n_layers; end++)
                *cost_of(a, i, from, end) = time_of(a, i, from, end);
}

/* ---- the search ---- */

/* A split: device i has the layers from begin[i] to begin[i + 1] - 1. */
struct split {
    uint32_t begin[MOEFLUX_MAX_DEVICES + 1];
    double sum, slowest;
};

static double worth(const struct split *s)
{
    return s->sum + WEIGHT_OF_SLOWEST * s->slowest;
}

static void add_times(const struct advice *a, struct split *s)
{
    s->sum = s->slowest = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        double t = *cost_of(a, i, s->begin[i], s->begin[i + 1]);
        s->sum += t;
        s->slowest = fmax(s->slowest, t);
    }
}

/* Finds the split with the smallest sum in which no device takes longer than `most`, device by device, for
 * each layer that a device may end before. least: [n + 1][n_layers + 1]; where: the same size, scratch.
 * Returns false if there is none. */
static bool search(const struct advice *a, double most, double *least, uint32_t *where, struct split *out)
{
    uint64_t row = a->n_layers + 1;
    for (uint64_t i = 0; i < (a->n + 1) * row; i++)
        least[i] = i == 0 ? 0 : INFINITY;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t end = i + 1; end <= a->n_layers; end++)
            for (uint32_t from = i; from < end; from++) {
                double t = *cost_of(a, i, from, end), sum = least[i * row + from] + t;
                if (t > most || !(sum < least[(i + 1) * row + end]))
                    continue;
                least[(i + 1) * row + end] = sum;
                where[(i + 1) * row + end] = from;
            }
    if (!isfinite(least[a->n * row + a->n_layers]))
        return false;
    out->begin[a->n] = a->n_layers;
    for (uint32_t i = a->n; i > 0; i--)
        out->begin[i - 1] = where[i * row + out->begin[i]];
    add_times(a, out);
    return true;
}

/* Searches repeatedly, each time for a split with a faster slowest device. */
static int find_best(const struct advice *a, struct split *best, struct moeflux_err *e)
{
    uint64_t n = (a->n + 1) * (uint64_t)(a->n_layers + 1);
    double *least = mem_new(n, sizeof *least, e);
    uint32_t *where = least ? mem_new(n, sizeof *where, e) : NULL;
    struct split s = {.slowest = INFINITY};
    for (int i = 0; where && i < MOST_STEPS && search(a, STEP * s.slowest, least, where, &s); i++)
        if (worth(&s) < worth(best))
            *best = s;
    int rc = where ? 0 : ERR_MEMORY;
    free(least);
    free(where);
    return rc;
}

static void fill(struct lab_split *out, const struct advice *a, const struct split *now,
                 const struct split *best)
{
    *out = (struct lab_split){.token_s = now->sum,
                              .slowest_s = now->slowest,
                              .best_token_s = best->sum,
                              .best_slowest_s = best->slowest};
    for (uint32_t i = 0; i < a->n; i++)
        out->n_layers[i] = best->begin[i + 1] - best->begin[i];
}

int lab_find_split(const struct moeflux_needs *n, const struct moeflux_plan *plan, const struct lab_speeds *s,
                   struct lab_split *out, struct moeflux_err *e)
{
    struct advice a = {.needs = n, .plan = plan, .speeds = s, .n = plan->n_devices, .n_layers = n->n_layers};
    struct split now = {0};
    uint64_t n_costs = (uint64_t)a.n * (a.n_layers + 1) * (a.n_layers + 1);
    *out = (struct lab_split){0};
    for (uint32_t i = 0; i < a.n; i++)
        if (i >= s->n_devices || s->devices[i].kernel_bytes_s <= 0)
            return 0;
    if (a.n < 2)
        return 0;
    a.cost = mem_new(n_costs, sizeof *a.cost, e);
    if (!a.cost)
        return ERR_MEMORY;
    fill_costs(&a);
    for (uint32_t i = 0; i < a.n; i++)
        now.begin[i + 1] = plan->devices[i].end_layer;
    add_times(&a, &now);
    struct split best = now;
    int rc = isfinite(now.sum) ? find_best(&a, &best, e) : 0;
    fill(out, &a, &now, &best);
    free(a.cost);
    return rc < 0 ? rc : worth(&best) < (1 - LEAST_GAIN) * worth(&now);
}
