#include "engine/plan/budget.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "experts/store.h"
#include "model/model_dir.h"
#include "exec/exec.h"

/* Returns UINT64_MAX for a sum that overflows. */
static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return size_add(a, b, &sum) ? sum : UINT64_MAX;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Leaves a tenth for others: the page cache of reads, the desktop, the program's own small allocations. */
static uint64_t less_a_tenth(uint64_t free_bytes)
{
    return free_bytes / 10 * 9;
}

/* Returns the smaller of what was requested and what is free. Without a request it leaves a margin. */
static uint64_t limit_of(uint64_t requested, uint64_t free_bytes)
{
    return requested ? size_min(requested, free_bytes) : less_a_tenth(free_bytes);
}

/* A size without its unit is bytes: 0.00 MiB would hide that. */
static int refuse(const char *flag, uint64_t bytes, uint64_t least, struct moeflux_err *e)
{
    char found[32];
    if (mib(bytes) < 0.01)
        snprintf(found, sizeof found, "%u byte%s", (unsigned)bytes, bytes == 1 ? "" : "s");
    else
        snprintf(found, sizeof found, "%.2f MiB", mib(bytes));
    return err_set(e, ERR_NO_FIT, "%s %s, the experts of one token and layer need %.2f MiB", flag, found,
                   mib(least));
}

/* The memory that the experts of one side need. */
struct side {
    uint64_t need, least; /* both 0: it has none */
};

static struct side side_of(const struct model_dir *m, const struct expert_set *set)
{
    uint64_t need = expert_store_full_bytes(m, set);
    return (struct side){need, size_min(need, expert_store_floor_bytes(m))};
}

static int check_device(const struct budget_request *w, uint64_t device, uint64_t least,
                        struct moeflux_err *e)
{
    uint64_t fixed = plus(w->weights_bytes, w->scratch_bytes);
    if (device >= fixed && device - fixed >= least)
        return 0;
    return err_set(
        e, ERR_NO_FIT,
        "the model needs at least %.1f MiB (weights %.1f, states %.1f, experts of one token %.1f), "
        "%s %.1f MiB; smaller `context` and `chunk` need less",
        mib(plus(fixed, least)), mib(w->weights_bytes), mib(w->scratch_bytes), mib(least),
        w->gpu_memory_bytes && device == w->gpu_memory_bytes ? "`gpu_memory_bytes` is" : "free are",
        mib(device));
}

/* Divides `room` between checkpoints and experts. Returns the number of checkpoints. need: bytes of all
 * experts of that memory; least: bytes that experts get in any case. */
static uint32_t share_checkpoints(const struct budget_request *w, uint64_t room, uint64_t need,
                                  uint64_t least, uint64_t *experts)
{
    uint64_t each = w->checkpoint_bytes, spare = room >= need ? room - need : (room - least) / 8;
    *experts = size_min(room, need);
    if (each == 0)
        return BUDGET_MOST_CHECKPOINTS;
    uint64_t requested = size_max(BUDGET_CHECKPOINT_BYTES / each, BUDGET_LEAST_CHECKPOINTS);
    uint64_t n = size_min(size_min(requested, BUDGET_MOST_CHECKPOINTS), spare / each);
    *experts = size_min(*experts, room - n * each);
    return n ? (uint32_t)n : 1;
}

/* Divides `room`, which holds at least the minimum of both, in proportion to what they need. */
static void divide(uint64_t room, struct side a, struct side b, uint64_t *to_a, uint64_t *to_b)
{
    if (plus(a.need, b.need) <= room) {
        *to_a = a.need;
        *to_b = b.need;
        return;
    }
    double part = (double)a.need / ((double)a.need + (double)b.need);
    *to_a = size_min(size_max((uint64_t)((double)room * part), a.least), room - b.least);
    *to_a = size_min(*to_a, a.need);
    *to_b = size_min(room - *to_a, b.need);
}

/* Shares host memory among the experts of two sides and checkpoints. */
static int share_host(const struct budget_request *w, uint64_t most, struct side a, struct side b,
                      uint64_t *to_a, uint64_t *to_b, struct budget *out, struct moeflux_err *e)
{
    uint64_t least = plus(a.least, b.least), experts;
    if (most < least)
        return refuse("free host memory is", most, least, e);
    out->n_checkpoints = share_checkpoints(w, most, plus(a.need, b.need), least, &experts);
    divide(experts, a, b, to_a, to_b);
    return 0;
}

/* Divides host memory if the device has its own. Experts without a device slot are cached there while there
 * is room. All reads land there, so it holds at least one token's experts of one layer. */
static int share_apart(const struct budget_request *w, struct side gpu, struct side cpu, struct budget *out,
                       struct moeflux_err *e)
{
    uint64_t missing = size_minus(gpu.need, out->slot_bytes), floor = missing ? gpu.least : 0;
    uint64_t most =
        w->memory_bytes ? limit_of(w->memory_bytes, w->host_free_bytes) : w->host_free_bytes / 4 * 3;
    /* If there is room for all experts, the host holds all: those on the device are copies, and none has to
     * be copied back. */
    bool holds_all = missing && plus(plus(gpu.need, cpu.need), w->cpu_scratch_bytes) <= most;
    const struct side tier = {holds_all ? gpu.need : size_max(missing, floor), floor};
    uint64_t least = plus(floor, cpu.least);
    if (w->cpu_scratch_bytes && most < plus(w->cpu_scratch_bytes, least))
        return err_set(
            e, ERR_NO_FIT,
            "%s %.2f MiB, the host's activations need %.2f MiB and the experts of one token and layer "
            "%.2f MiB",
            w->memory_bytes ? "`memory_bytes` leaves" : "free host memory is", mib(most),
            mib(w->cpu_scratch_bytes), mib(least));
    return share_host(w, size_minus(most, w->cpu_scratch_bytes), tier, cpu, &out->host_bytes,
                      &out->cpu_slot_bytes, out, e);
}

/* Divides the memory if device memory is host memory. room: bytes that the device has for experts. */
static int share_unified(const struct budget_request *w, uint64_t room, struct side gpu, struct side cpu,
                         struct budget *out, struct moeflux_err *e)
{
    uint64_t most = room;
    if (cpu.need) {
        uint64_t fixed = plus(plus(w->weights_bytes, w->scratch_bytes), w->cpu_scratch_bytes);
        most = size_minus(less_a_tenth(w->host_free_bytes), fixed);
        gpu.need = size_min(gpu.need, room);
    }
    most = w->memory_bytes ? size_min(most, w->memory_bytes) : most;
    return share_host(w, most, gpu, cpu, &out->slot_bytes, &out->cpu_slot_bytes, out, e);
}

int budget_for_experts(const struct model_dir *m, const struct exec_caps *caps,
                       const struct budget_request *w, struct budget *out, struct moeflux_err *e)
{
    const struct side cpu = side_of(m, &w->cpu), gpu = side_of(m, &w->gpu);
    uint64_t fixed = plus(w->weights_bytes, w->scratch_bytes), least = size_max(gpu.least, cpu.least);
    *out = (struct budget){0};
    if (caps->is_unified)
        least = size_max(least, plus(gpu.least, cpu.least));
    if (w->memory_bytes && w->memory_bytes < least)
        return refuse("`memory_bytes` is", w->memory_bytes, least, e);
    /* A software device reports a heap of a fixed size but allocates host memory. */
    out->device_bytes =
        limit_of(w->gpu_memory_bytes, caps->is_software ? w->host_free_bytes : caps->free_bytes);
    if (caps->is_unified)
        out->device_bytes = size_min(out->device_bytes, limit_of(w->gpu_memory_bytes, w->host_free_bytes));
    int rc = check_device(w, out->device_bytes, gpu.least, e);
    if (rc < 0)
        return rc;
    uint64_t room = out->device_bytes - fixed;
    if (!caps->is_unified)
        out->slot_bytes = size_min(room, gpu.need);
    rc = caps->is_unified ? share_unified(w, room, gpu, cpu, out, e) : share_apart(w, gpu, cpu, out, e);
    uint64_t taken = plus(w->checkpoint_bytes * out->n_checkpoints,
                          caps->is_unified ? fixed + out->slot_bytes : out->host_bytes);
    taken = plus(taken, plus(out->cpu_slot_bytes, w->cpu_scratch_bytes));
    out->map_bytes = size_minus(w->host_free_bytes, taken);
    return rc;
}
