#include "engine/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/host_memory.h"

/* Tokens of a chunk unless the caller says otherwise. By kind and memory of the device, not by its measured speed: results
 * differ in the last digits between chunk sizes, and shall not depend on what else a machine does. Speeds level off there:
 * lavapipe takes 28 s of processor time for 256 tokens by 32, 22 s by 128 and by 256; an H200 did 4,400 and 6,600 tok/s by
 * 512 and 2,048. */
enum { CHUNK_CPU = 128, CHUNK_GPU = 512, CHUNK_GPU_LARGE = 2048, MAX_READERS = 8 };
/* Large chunks take half a gigabyte of activations; with so much device memory that does not count. */
#define LARGE_GPU ((uint64_t)20 << 30)
/* lavapipe silently ends a shader's loops after 65,535 turns; the delta net takes about 60 for each token. */
enum { CHUNK_CPU_MAX = 512, CHUNK_GPU_MAX = 4096 };
enum { DEFAULT_CONTEXT = 8192 };
/* What a driver takes of a device's own memory besides ours: kernels, command buffers (an H200: 63 MB). */
enum { DRIVER_BYTES = 64 << 20 };

static int choose_chunk(uint32_t *out, uint32_t wish, const struct exec_caps *caps, struct err *e)
{
    uint32_t most = caps->is_cpu ? CHUNK_CPU_MAX : CHUNK_GPU_MAX;
    if (wish > most)
        return err_set(e, ERR_USAGE, "--chunk %u, expected at most %u on %s", wish, most, caps->name);
    bool is_large = !caps->is_cpu && caps->free_bytes >= LARGE_GPU;
    *out = wish ? wish : caps->is_cpu ? CHUNK_CPU : is_large ? CHUNK_GPU_LARGE : CHUNK_GPU;
    return 0;
}

uint32_t plan_n_readers(uint32_t wish)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return wish ? wish : (uint32_t)size_min(MAX_READERS, cores > 0 ? 2 * (uint64_t)cores : 1);
}

static uint32_t choose_context(uint32_t wish, const struct config *c)
{
    return (uint32_t)size_min(wish ? wish : DEFAULT_CONTEXT, config_longest_context(c));
}

/* The KV cache grows in blocks. Half of the fixed states are the copy that lets a chunk be undone. */
static void size_states(struct plan *p, const struct model_dir *m)
{
    struct moeflux_needs n;
    moeflux_needs_of(m, &n);
    uint64_t pos_bytes = n.kv_bytes_per_pos / sizeof(float) * kv_type_bytes(p->kv_type);
    p->state_bytes = n.fixed_state_bytes + size_round_up(p->context, 1u << KV_BLOCK_SHIFT) * pos_bytes;
    p->checkpoint_bytes = n.fixed_state_bytes / 2;
}

static int set_prompt_type(struct exec *x, const char *wish, struct err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    if (!wish || strcmp(wish, "auto") == 0)
        return 0;
    if (strcmp(wish, "f32") == 0) {
        exec_forbid_half(x);
        return 0;
    }
    if (strcmp(wish, "f16") != 0)
        return err_set(e, ERR_USAGE, "--prompt-type %s, expected auto, f32 or f16", wish);
    if (!caps.has_coop)
        return err_set(e, ERR_UNSUPPORTED,
                       "--prompt-type f16: %s has no cooperative matrices of float16, expected auto or f32",
                       caps.name);
    return 0;
}

int plan_open_device(struct exec **out, const struct moeflux_options *o, struct err *e)
{
    int rc = exec_open(out, o->device, o->profile, o->staged, e);
    if (rc < 0)
        return rc;
    if (o->as_gpu)
        exec_pose_as_gpu(*out);
    return set_prompt_type(*out, o->prompt_type, e);
}

/* Where prompts go through float16 anyway, a cache of it is as good, half as large, and its tiles need no rounding (H200,
 * 16,384 tokens: 7,060 tok/s against 5,950). */
static int choose_kv_type(enum kv_type *out, const char *wish, const struct exec_caps *caps, struct err *e)
{
    bool is_auto = !wish || strcmp(wish, "auto") == 0, is_half = wish && strcmp(wish, "f16") == 0;
    *out = is_half || (is_auto && caps->has_coop) ? KV_TYPE_F16 : KV_TYPE_F32;
    if (is_auto || is_half || strcmp(wish, "f32") == 0)
        return 0;
    return err_set(e, ERR_USAGE, "--kv-type %s, expected auto, f32 or f16", wish);
}

int plan_make(struct plan *out, const struct model_dir *m, const struct exec_caps *caps,
              const struct moeflux_options *o, struct err *e)
{
    *out = (struct plan){.n_readers = plan_n_readers(o->n_threads),
                         .context = choose_context(o->context, &m->config),
                         .host_free_bytes = host_memory_free("")};
    int rc = reader_mode_find(o->expert_io ? o->expert_io : "auto", &out->io, e);
    if (rc == 0)
        rc = choose_chunk(&out->max_chunk, o->chunk, caps, e);
    if (rc == 0)
        rc = choose_kv_type(&out->kv_type, o->kv_type, caps, e);
    if (rc < 0)
        return rc;
    size_states(out, m);
    out->driver_bytes = caps->is_unified ? 0 : DRIVER_BYTES;
    out->activation_bytes = arch_scratch_bytes(&m->config, caps, out->max_chunk);
    const struct budget_wish w = {.memory_bytes = o->memory_bytes,
                                  .gpu_memory_bytes = o->gpu_memory_bytes,
                                  .scratch_bytes =
                                      out->state_bytes + out->activation_bytes + out->driver_bytes,
                                  .host_free_bytes = out->host_free_bytes,
                                  .checkpoint_bytes = out->checkpoint_bytes};
    return budget_for_experts(m, caps, &w, &out->budget, e);
}

/* --- for those who only want to know --- */

static void fill(struct moeflux_plan *to, const struct plan *p, const struct model_dir *m,
                 const struct exec_caps *caps)
{
    uint64_t one = supply_floor_bytes(m) / m->config.top_k;
    *to = (struct moeflux_plan){.is_unified = caps->is_unified,
                                .device_free_bytes = caps->is_cpu ? p->host_free_bytes : caps->free_bytes,
                                .host_free_bytes = p->host_free_bytes,
                                .device_bytes = p->budget.device_bytes,
                                .weights_bytes = m->dense_bytes,
                                .state_bytes = p->state_bytes,
                                .activation_bytes = p->activation_bytes,
                                .driver_bytes = p->driver_bytes,
                                .checkpoint_bytes = p->checkpoint_bytes,
                                .n_checkpoints = p->budget.n_checkpoints,
                                .slot_bytes = one,
                                .n_experts = supply_full_bytes(m) / one,
                                .n_slots = p->budget.slot_bytes / one,
                                .n_host_slots = p->budget.host_bytes / one,
                                .context = p->context,
                                .chunk = p->max_chunk};
    to->experts_resident = to->n_slots == to->n_experts;
    snprintf(to->device, sizeof to->device, "%s", caps->name);
}

/* Direct reads depend on the memory they land in: a page of it is asked, as open asks the slots. */
static int describe_reads(struct moeflux_plan *to, const struct plan *p, const struct model_dir *m,
                          struct exec *x, struct err *e)
{
    struct exec_buffer page;
    struct reader *r = NULL;
    const struct exec_caps caps = exec_get_caps(x);
    bool may_map = supply_may_map(&caps, m, p->io, p->budget.slot_bytes);
    int rc = exec_buffer_new(x, &page, to->is_unified ? EXEC_DEVICE : EXEC_HOST, READER_TARGET_ALIGN, e);
    const struct reader_region region = {page.host, READER_TARGET_ALIGN};
    const struct reader_options o = {.mode = p->io,
                                     .n_threads = p->n_readers,
                                     .host_bytes = p->budget.map_bytes + (may_map ? p->budget.slot_bytes : 0),
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

int moeflux_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct err *e)
{
    struct model_dir m;
    struct exec *x = NULL;
    struct plan p;
    *out = (struct moeflux_plan){0};
    int rc = model_dir_open(&m, o->dir, e);
    if (rc < 0)
        return rc;
    rc = plan_open_device(&x, o, e);
    if (rc == 0) {
        struct exec_caps caps = exec_get_caps(x);
        rc = plan_make(&p, &m, &caps, o, e);
        if (rc == 0)
            fill(out, &p, &m, &caps);
    }
    if (rc == 0)
        rc = describe_reads(out, &p, &m, x, e);
    exec_close(x);
    model_dir_close(&m);
    return rc;
}
