#include "engine/plan/stage_plan.h"

#include "base/err.h"
#include "base/mem.h"
#include "engine/plan/devices.h"
#include "engine/plan/host_memory.h"
#include "engine/run/forward.h"
#include "model/model_dir.h"

/* The host memory that a device needs. */
struct demand {
    uint64_t least, most;                 /* bytes */
    uint64_t experts_least, experts_most; /* the parts of these that --memory bounds */
};

/* Returns the demand: everything if device memory is host memory; else the experts that the device has no
 * room for, and the CPU's. */
static struct demand demand_of(const struct load_plan *p, const struct model_dir *m,
                               const struct exec_caps *caps, uint64_t gpu_memory)
{
    const struct expert_set on_device = load_plan_device_experts(p), on_cpu = load_plan_cpu_experts(p);
    uint64_t one = expert_store_floor_bytes(m), scratch = p->cpu_scratch_bytes;
    uint64_t need = expert_store_full_bytes(m, &on_device), cpu = expert_store_full_bytes(m, &on_cpu);
    uint64_t fixed = load_plan_fixed_bytes(p), floor = size_min(need, one) + size_min(cpu, one);
    if (caps->is_unified)
        return (struct demand){fixed + scratch + floor, fixed + scratch + need + cpu, floor, need + cpu};
    uint64_t room = gpu_memory ? size_min(gpu_memory, caps->free_bytes) : caps->free_bytes / 10 * 9;
    uint64_t missing = size_minus(need, size_minus(room, fixed));
    floor = scratch + (missing ? size_min(need, one) : 0) + size_min(cpu, one);
    uint64_t most = size_max(scratch + missing + cpu, floor);
    return (struct demand){floor, most, floor, most};
}

/* Returns one device's part of `all`; the parts add up to `all`. It is the device's least demand plus a share
 * of the rest in proportion to what it could use more. What is left after that is divided equally, for
 * checkpoints. */
static uint64_t part_of(uint64_t all, uint64_t least, uint64_t most, uint64_t sum_least, uint64_t sum_most,
                        uint32_t n)
{
    if (all < sum_least)
        return (uint64_t)((double)all * (double)least / (double)sum_least);
    if (all >= sum_most)
        return most + (all - sum_most) / n;
    return least +
           (uint64_t)((double)(all - sum_least) * (double)(most - least) / (double)(sum_most - sum_least));
}

/* Returns the free memory that a plan for `bytes` needs: a plan uses at most three quarters of it. */
static uint64_t free_for(uint64_t bytes)
{
    return bytes / 3 * 4 + 4;
}

/* Divides host memory among the devices by what each needs. It affects how fast experts come, not results. */
static int share_memory(struct load_share *shares, const struct demand *of, uint32_t n, uint64_t free_bytes,
                        uint64_t memory, struct moeflux_err *e)
{
    struct demand sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        sum.least += free_for(of[i].least);
        sum.most += free_for(of[i].most);
        sum.experts_least += of[i].experts_least;
        sum.experts_most += of[i].experts_most;
    }
    if (memory && memory < sum.experts_least)
        return err_set(
            e, ERR_NO_FIT,
            "`memory_bytes` is %.2f MiB, the experts of one token and layer on %u devices need %.2f MiB",
            (double)memory / 1048576.0, n, (double)sum.experts_least / 1048576.0);
    for (uint32_t i = 0; i < n; i++) {
        if (free_bytes != UINT64_MAX)
            shares[i].host_free_bytes =
                part_of(free_bytes, free_for(of[i].least), free_for(of[i].most), sum.least, sum.most, n);
        if (memory)
            shares[i].memory_bytes = part_of(memory, of[i].experts_least, of[i].experts_most,
                                             sum.experts_least, sum.experts_most, n);
    }
    return 0;
}

/* Chooses one chunk and one type of the KV cache for all devices: the smallest that any of them would
 * choose. */
static int choose_common(const struct exec_caps *caps, uint32_t n, const struct moeflux_options *o,
                         struct load_share *out, struct moeflux_err *e)
{
    int rc = load_plan_choose_chunk(&out->max_chunk, o->chunk, &caps[0], e);
    out->kv_type = load_plan_choose_kv_type(o->kv_type, &caps[0]);
    for (uint32_t i = 1; rc == 0 && i < n; i++) {
        uint32_t chunk;
        rc = load_plan_choose_chunk(&chunk, o->chunk, &caps[i], e);
        if (rc == 0)
            out->max_chunk = (uint32_t)size_min(out->max_chunk, chunk);
        if (load_plan_choose_kv_type(o->kv_type, &caps[i]) == KV_TYPE_F32)
            out->kv_type = KV_TYPE_F32;
    }
    return rc;
}

/* Returns how often a device is listed: its memory is divided by that. */
static uint64_t n_uses(const struct exec_caps *caps, uint32_t n, uint32_t which)
{
    uint64_t uses = 0;
    for (uint32_t i = 0; i < n; i++)
        uses += devices_are_one(&caps[i], &caps[which]);
    return uses;
}

static uint64_t gpu_memory_of(const struct moeflux_options *o, const struct exec_caps *caps, uint32_t i)
{
    if (o->n_gpu_memory)
        return o->gpu_memory_each[i];
    return caps->is_host ? 0 : o->gpu_memory_bytes;
}

static int share(struct stage_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                 const struct moeflux_options *o, struct load_share *shares, struct moeflux_err *e)
{
    struct expert_layers layers[MOEFLUX_MAX_DEVICES];
    struct demand demands[MOEFLUX_MAX_DEVICES] = {0};
    int rc = devices_share_layers(o, caps, out->n, &m->config, layers, e);
    if (rc == 0)
        rc = choose_common(caps, out->n, o, &shares[0], e);
    out->host_free_bytes = host_memory_free("");
    for (uint32_t i = 0; rc == 0 && i < out->n; i++) {
        shares[i] = (struct load_share){.layers = layers[i],
                                        .memory_bytes = o->memory_bytes,
                                        .gpu_memory_bytes = gpu_memory_of(o, &caps[i], i),
                                        .host_free_bytes = out->host_free_bytes,
                                        .n_older = forward_n_older(i, out->n),
                                        .max_chunk = shares[0].max_chunk,
                                        .kv_type = shares[0].kv_type};
        load_plan_begin(&out->of[i], m, &caps[i], o, &shares[i]);
        demands[i] = demand_of(&out->of[i], m, &caps[i], shares[i].gpu_memory_bytes);
    }
    if (rc == 0)
        rc = share_memory(shares, demands, out->n, out->host_free_bytes, o->memory_bytes, e);
    return rc;
}

/* Returns the memory of slots that mapped files may serve as. */
static uint64_t mapped_bytes(const struct load_plan *p, const struct exec_caps *caps)
{
    return p->budget.cpu_slot_bytes + (caps->is_unified ? p->budget.slot_bytes : 0);
}

/* Lets each device's reader map what all devices leave free, in addition to what the others have mapped. */
static void share_mappings(struct stage_plan *p, const struct exec_caps *caps)
{
    uint64_t left = 0, mapped = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        left += p->of[i].budget.map_bytes;
        mapped += mapped_bytes(&p->of[i], &caps[i]);
    }
    for (uint32_t i = 0; i < p->n && p->host_free_bytes != UINT64_MAX; i++)
        p->of[i].budget.map_bytes = left + mapped - mapped_bytes(&p->of[i], &caps[i]);
}

static int make_several(struct stage_plan *out, const struct model_dir *m, const struct devices *d,
                        struct exec_caps *caps, const struct moeflux_options *o, struct moeflux_err *e)
{
    struct load_share shares[MOEFLUX_MAX_DEVICES] = {0};
    int rc = share(out, m, caps, o, shares, e);
    for (uint32_t i = 0; rc == 0 && i < d->n; i++) {
        struct moeflux_err why = {0};
        rc = load_plan_make_share(&out->of[i], m, &caps[i], o, &shares[i], &why);
        if (rc < 0)
            return err_set(e, why.code, "device %u of %u (%.100s, layers %u to %u): %.300s", i + 1, d->n,
                           caps[i].name, shares[i].layers.first, shares[i].layers.end - 1, why.text);
        out->n_checkpoints = (uint32_t)size_min(out->n_checkpoints, out->of[i].budget.n_checkpoints);
    }
    if (rc == 0)
        share_mappings(out, caps);
    return rc;
}

/* Refuses experts on the CPU without a GPU for the rest of the model, and a share of one expert. */
static int check_cpu_experts(const struct moeflux_options *o, const struct config *c,
                             const struct exec_caps *caps, uint32_t n, struct moeflux_err *e)
{
    bool has_gpu = false, has_share = o->cpu_share > 0;
    for (uint32_t i = 0; i < n; i++)
        has_gpu = has_gpu || !caps[i].is_host;
    if ((o->n_cpu_layers || has_share) && !has_gpu)
        return err_set(e, ERR_USAGE,
                       "`%s` needs a GPU for the rest of the model; %s computes everything: "
                       "leave it out, or name a GPU with `device`",
                       has_share ? "cpu_share" : "n_cpu_layers", caps->name);
    if (has_share && c->n_experts < 2)
        return err_set(e, ERR_USAGE, "`cpu_share`: a layer has %u experts, expected at least 2",
                       c->n_experts);
    return 0;
}

int stage_plan_make(struct stage_plan *out, const struct model_dir *m, const struct devices *d,
                    const struct moeflux_options *o, struct moeflux_err *e)
{
    struct exec_caps caps[MOEFLUX_MAX_DEVICES] = {0};
    struct expert_layers all;
    *out = (struct stage_plan){.n = d->n, .n_checkpoints = UINT32_MAX};
    for (uint32_t i = 0; i < d->n; i++)
        caps[i] = exec_get_caps(d->execs[i]);
    for (uint32_t i = 0; i < d->n; i++)
        caps[i].free_bytes /= n_uses(caps, d->n, i);
    int rc = check_cpu_experts(o, &m->config, caps, d->n, e);
    if (rc < 0)
        return rc;
    if (d->n > 1)
        return make_several(out, m, d, caps, o, e);
    struct moeflux_options one = *o;
    one.gpu_memory_bytes = o->n_gpu_memory ? o->gpu_memory_each[0] : o->gpu_memory_bytes;
    rc = devices_share_layers(o, caps, 1, &m->config, &all, e);
    if (rc == 0)
        rc = load_plan_make(&out->of[0], m, &caps[0], &one, e);
    out->host_free_bytes = out->of[0].host_free_bytes;
    out->n_checkpoints = out->of[0].budget.n_checkpoints;
    return rc;
}
