/* Converts the plan to the one of moeflux.h. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/plan/devices.h"
#include "engine/plan/stage_plan.h"
#include "engine/test_hooks.h"
#include "model/model_dir.h"

static struct moeflux_plan_device describe(const struct load_plan *p, const struct model_dir *m,
                                           const struct exec_caps *caps)
{
    const struct expert_set device = load_plan_device_experts(p), cpu = load_plan_cpu_experts(p);
    uint64_t one = expert_store_floor_bytes(m) / size_max(m->config.top_k, 1);
    struct moeflux_plan_device d = {.is_unified = caps->is_unified,
                                    .first_layer = p->layers.first,
                                    .end_layer = p->layers.end,
                                    .device_free_bytes =
                                        caps->is_software ? p->host_free_bytes : caps->free_bytes,
                                    .device_bytes = p->budget.device_bytes,
                                    .weights_bytes = p->weights_bytes,
                                    .state_bytes = p->state_bytes,
                                    .activation_bytes = p->activation_bytes,
                                    .driver_bytes = p->driver_bytes,
                                    .n_experts = expert_store_full_bytes(m, &device) / one,
                                    .n_slots = p->budget.slot_bytes / one,
                                    .n_host_slots = p->budget.host_bytes / one,
                                    .n_cpu_experts = expert_store_full_bytes(m, &cpu) / one,
                                    .n_cpu_slots = p->budget.cpu_slot_bytes / one,
                                    .n_pinned = p->n_pinned[0]};
    snprintf(d.device, sizeof d.device, "%s", caps->name);
    return d;
}

static void add_device(struct moeflux_plan *to, const struct load_plan *p,
                       const struct moeflux_plan_device *d)
{
    size_t at = strlen(to->device);
    uint64_t fixed = load_plan_fixed_bytes(p);
    snprintf(to->device + at, sizeof to->device - at, "%s%s", at ? " + " : "", d->device);
    to->is_unified = d->is_unified && (at == 0 || to->is_unified);
    to->device_free_bytes += d->device_free_bytes;
    to->device_bytes += d->device_bytes;
    to->weights_bytes += d->weights_bytes;
    to->state_bytes += d->state_bytes;
    to->activation_bytes += d->activation_bytes;
    to->driver_bytes += d->driver_bytes;
    to->n_experts += d->n_experts + d->n_cpu_experts;
    to->n_slots += d->n_slots;
    to->n_host_slots += d->n_host_slots;
    to->n_pinned += d->n_pinned + p->n_pinned[1];
    to->n_cpu_experts += d->n_cpu_experts;
    to->n_cpu_slots += d->n_cpu_slots;
    to->cpu_scratch_bytes += p->cpu_scratch_bytes;
    to->device_room_bytes += p->budget.device_bytes - size_min(fixed, p->budget.device_bytes);
    to->host_room_bytes += p->host_room_bytes;
    to->checkpoint_bytes += p->checkpoint_bytes;
}

static void fill(struct moeflux_plan *to, const struct stage_plan *plan, const struct model_dir *m,
                 const struct devices *d, const struct moeflux_options *o)
{
    const struct load_plan *first = &plan->of[0];
    uint64_t one = expert_store_floor_bytes(m) / size_max(m->config.top_k, 1);
    *to = (struct moeflux_plan){.host_free_bytes = plan->host_free_bytes,
                                .n_checkpoints = plan->n_checkpoints,
                                .slot_bytes = one,
                                .n_cpu_layers = load_plan_n_cpu_layers(o, &m->config),
                                .cpu_share = o->cpu_share,
                                .context = first->context,
                                .chunk = first->max_chunk,
                                .n_devices = plan->n};
    for (uint32_t i = 0; i < plan->n; i++) {
        const struct exec_caps caps = exec_get_caps(d->execs[i]);
        const struct moeflux_plan_device one_device = describe(&plan->of[i], m, &caps);
        to->devices[i] = one_device;
        add_device(to, &plan->of[i], &one_device);
    }
    to->experts_resident = to->n_slots + to->n_cpu_slots == to->n_experts;
}

/* Describes how experts are read. Whether direct reads work depends on the memory that they land in, so it is
 * tried with one page of the kind of memory that slots have. x, set, slot_bytes: the slots' device, experts
 * and size. */
static int describe_reads(struct moeflux_plan *to, const struct load_plan *p, const struct model_dir *m,
                          struct exec *x, const struct expert_set *set, uint64_t slot_bytes,
                          struct moeflux_err *e)
{
    struct exec_buffer page;
    struct reader *r = NULL;
    const struct exec_caps caps = exec_get_caps(x);
    bool may_map = expert_store_may_map(&caps, m, set, p->io, slot_bytes);
    int rc = exec_buffer_new(x, &page, caps.is_unified ? EXEC_DEVICE : EXEC_HOST, READER_TARGET_ALIGN, e);
    const struct reader_region region = {page.host, READER_TARGET_ALIGN};
    const struct reader_options o = {.mode = p->io,
                                     .n_threads = p->n_readers,
                                     .host_bytes = p->budget.map_bytes + (may_map ? slot_bytes : 0),
                                     .in_place = may_map,
                                     .regions = &region,
                                     .n_regions = rc == 0 ? 1 : 0};
    if (rc == 0)
        rc = reader_open(&r, m, &o, e);
    if (rc == 0)
        snprintf(to->expert_io, sizeof to->expert_io, "%s", reader_describe(r));
    reader_close(r);
    exec_buffer_free(x, &page);
    return rc;
}

/* Describes the reads of the experts that the device computes, if there are any, else of the CPU's. */
static int describe_side(struct moeflux_plan *to, const struct load_plan *p, const struct model_dir *m,
                         struct exec *x, const struct moeflux_options *o, struct moeflux_err *e)
{
    const struct expert_set device = load_plan_device_experts(p), host = load_plan_cpu_experts(p);
    struct exec *cpu = NULL;
    int rc = load_plan_has_cpu_layers(p) ? load_plan_open_cpu(&cpu, o, NULL, e) : 0;
    if (rc == 0 && p->budget.slot_bytes)
        rc = describe_reads(to, p, m, x, &device, p->budget.slot_bytes, e);
    else if (rc == 0)
        rc = describe_reads(to, p, m, cpu, &host, p->budget.cpu_slot_bytes, e);
    exec_close(cpu);
    return rc;
}

/* Describes the reads of the first device with experts. */
static int describe_first(struct moeflux_plan *to, const struct stage_plan *plan, const struct model_dir *m,
                          const struct devices *d, const struct moeflux_options *o, struct moeflux_err *e)
{
    uint32_t i = 0;
    while (i + 1 < plan->n && plan->of[i].budget.slot_bytes + plan->of[i].budget.cpu_slot_bytes == 0)
        i++;
    return describe_side(to, &plan->of[i], m, d->execs[i], o, e);
}

/* Computes the memory of the layer of multi-token prediction. */
static int measure_drafter(uint64_t *bytes, const struct devices *d, const struct moeflux_options *o,
                           struct moeflux_err *e)
{
    struct moeflux_options own = *o;
    struct model_dir layer;
    struct stage_plan p;
    own.memory_bytes = own.gpu_memory_bytes = 0;
    own.n_gpu_memory = own.n_tensor_split = 0;
    own.active_experts = 0;
    own.expert_share = 0;
    own.pin = own.usage = NULL;
    int rc = model_dir_open_drafter(&layer, o->dir, o->drafter_file, e);
    if (rc < 0)
        return rc;
    rc = stage_plan_make(&p, &layer, d, &own, e);
    const struct expert_set all = {.layers = p.of[0].layers};
    if (rc == 0)
        *bytes = p.of[0].weights_bytes + p.of[0].state_bytes + p.of[0].activation_bytes +
                 expert_store_full_bytes(&layer, &all);
    model_dir_close(&layer);
    return rc;
}

/* Adds the layer, if moeflux_model_open would open it. The model's experts come first; the layer gets what
 * they leave. */
static int add_drafter(struct moeflux_plan *to, const struct model_dir *m, const struct devices *d,
                       const struct moeflux_options *o, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    const struct exec_caps caps = exec_get_caps(d->execs[0]);
    /* Batched decode in matrix arithmetic takes no chains. */
    bool takes_chains = o->n_parallel <= EXEC_MAX_INVARIANT || !caps.prompt_is_f16;
    bool may_draft = m->has_drafter && d->n == 1 && to->experts_resident && to->n_cpu_layers == 0;
    if (m->is_sketch || !(o->drafter || (o->drafter_auto && may_draft && takes_chains)))
        return 0;
    int rc = measure_drafter(&to->drafter_bytes, d, o, &why);
    if (rc < 0 && o->drafter)
        return err_set(e, why.code, "%s", why.text);
    uint64_t taken =
        to->weights_bytes + to->state_bytes + to->activation_bytes + to->n_slots * to->slot_bytes;
    if (!o->drafter && to->drafter_bytes + taken > to->device_bytes)
        to->drafter_bytes = 0;
    return 0;
}

int moeflux_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct moeflux_err *e)
{
    int null = err_need(e, "place of the result", out);
    if (null)
        return null;
    return test_hooks_make_plan(o, NULL, out, e);
}

int test_hooks_make_plan(const struct moeflux_options *o, const struct test_hooks *h,
                         struct moeflux_plan *out, struct moeflux_err *e)
{
    struct model_dir m = {0};
    struct devices d;
    struct stage_plan p;
    *out = (struct moeflux_plan){0};
    int rc = load_plan_check(o, e);
    if (rc == 0)
        rc = devices_parse(&d, o->device, e);
    if (rc == 0)
        rc = load_plan_look_at_model(&m, o, e);
    if (rc != 0)
        return rc;
    rc = devices_check_shares(o, d.n, m.config.n_layers, e);
    if (rc == 0)
        rc = devices_open(&d, o, h, NULL, e);
    if (rc == 0)
        rc = stage_plan_make(&p, &m, &d, o, e);
    if (rc == 0)
        fill(out, &p, &m, &d, o);
    if (rc == 0)
        rc = add_drafter(out, &m, &d, o, e);
    if (rc == 0 && m.is_sketch)
        snprintf(out->expert_io, sizeof out->expert_io, "not known before the files are there");
    else if (rc == 0)
        rc = describe_first(out, &p, &m, &d, o, e);
    devices_close(&d);
    model_dir_close(&m);
    return rc;
}
