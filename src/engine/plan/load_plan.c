#include "engine/plan/load_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch/host_experts.h"
#include "args.h"
#include "base/mem.h"
#include "base/file.h"
#include "base/format.h"
#include "base/str.h"
#include "engine/plan/host_memory.h"
#include "engine/run/ngram_rows.h"
#include "engine/state/stores.h"
#include "engine/test_hooks.h"
#include "experts/context.h"
#include "experts/store_fill.h"
#include "model/expert_tensors.h"
#include "model/fp8.h"
#include "model/sketch.h"
#include "model/table.h"
#include "ops/experts/experts.h"
#include "ops/sample/sample.h"

/* Default tokens per chunk. Results differ in the last digits between chunk sizes. So the default depends on
 * the kind of the device and its total memory, never on its speed or on free memory. Larger chunks gain
 * little: lavapipe takes 28 s of processor time for 256 tokens by 32, 22 s by 128 and by 256. The cpu takes
 * 3.4 s for 512 tokens by 64, 3.1 by 128, 2.9 by 256 and 512 (64 experts; models have more). An H200 did
 * 4,400 tok/s by 512 and 6,600 by 2,048. */
enum { CHUNK_SOFTWARE = 128, CHUNK_CPU = 512, CHUNK_GPU = 512, CHUNK_GPU_LARGE = 2048, MAX_READERS = 16 };
/* Large chunks need half a gigabyte for activations, which is little on a device with at least this
 * memory. */
#define LARGE_GPU ((uint64_t)20 << 30)
/* lavapipe silently ends a shader's loops after 65,535 iterations; the delta net takes about 60 per token. */
enum { CHUNK_SOFTWARE_MAX = 512, CHUNK_GPU_MAX = 4096 };
enum { DEFAULT_CONTEXT = 8192 };
/* The average number of tokens per expert from which copying it to the device is faster than computing it on
 * the CPU; the number of slots for such copies. */
enum { PROMPT_TOKENS = 8, PROMPT_SLOTS = 64 };
#define PROMPT_BYTES ((uint64_t)512 << 20)
/* Device memory that the driver of a discrete device needs for kernels and command buffers (H200: 63 MB). */
enum { DRIVER_BYTES = 64 << 20 };

int load_plan_choose_chunk(uint32_t *out, uint32_t requested, const struct exec_caps *caps,
                           struct moeflux_err *e)
{
    uint32_t most = caps->is_software && !caps->is_native ? CHUNK_SOFTWARE_MAX : CHUNK_GPU_MAX;
    if (requested > most)
        return err_set(e, ERR_USAGE, "`chunk` %u, expected at most %u on %s", requested, most, caps->name);
    bool is_large = !caps->is_software && caps->total_bytes >= LARGE_GPU;
    *out = requested           ? requested
           : caps->is_native   ? CHUNK_CPU
           : caps->is_software ? CHUNK_SOFTWARE
           : is_large          ? CHUNK_GPU_LARGE
                               : CHUNK_GPU;
    return 0;
}

uint32_t load_plan_n_readers(uint32_t requested)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return requested ? requested : (uint32_t)size_min(MAX_READERS, cores > 0 ? 2 * (uint64_t)cores : 1);
}

static uint32_t choose_context(uint32_t requested, const struct config *c)
{
    return (uint32_t)size_min(requested ? requested : DEFAULT_CONTEXT, config_longest_context(c));
}

/* Sizes the states. The KV cache grows in blocks, up to the ring's size for windows. There are 2 + n_older
 * recurrent states (stage_state.recurrent_next, older). */
static void size_states(struct load_plan *p, const struct model_dir *m, uint32_t n_older)
{
    struct arch_store_sizes z = {0};
    uint64_t windows = 0, blocks = div_up(p->context, 1u << KV_BLOCK_SHIFT);
    for (uint32_t i = p->layers.first; i < p->layers.end; i++) {
        const struct arch_stores s = arch_stores_of(&m->config, i, p->kv_type);
        arch_add_sizes(&z, &s);
        for (uint32_t k = 0; k < s.n; k++)
            windows += stores_window_bytes(&s.of[k]);
    }
    uint64_t ring = size_min(blocks, stores_ring_blocks(z.window, p->max_chunk, n_older));
    p->state_bytes = (2 + n_older) * z.recurrent + blocks * z.kv_block + ring * z.ring_block;
    p->checkpoint_bytes = z.recurrent + windows;
}

static int set_prompt_type(struct exec *x, enum moeflux_prompt_type requested, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    if (requested == MOEFLUX_PROMPT_TYPE_F32)
        exec_keep_f32(x);
    if (requested == MOEFLUX_PROMPT_TYPE_F16 && !caps.prompt_is_f16)
        return err_set(e, ERR_UNSUPPORTED,
                       "`prompt_type` f16: %s has no cooperative matrices of float16, expected auto or f32",
                       caps.name);
    return 0;
}

/* Checks an enum of the caller, which may have any value. */
static int check_choice(const char *option, int value, int last, struct moeflux_err *e)
{
    if (value >= 0 && value <= last)
        return 0;
    return err_set(e, ERR_USAGE, "`%s` is %d, expected 0 to %d", option, value, last);
}

enum { MOST_THREADS = 4096 };

static int check_dir(const struct moeflux_options *o, struct moeflux_err *e)
{
    if (!o)
        return err_need(e, "description of the options", o);
    if (!o->dir || !*o->dir)
        return err_set(e, ERR_USAGE, "`dir` is %s, expected a model's directory or file",
                       o->dir ? "empty" : "NULL");
    return 0;
}

int load_plan_check(const struct moeflux_options *o, struct moeflux_err *e)
{
    int rc = check_dir(o, e);
    if (rc == 0)
        rc = check_choice("expert_io", (int)o->expert_io, MOEFLUX_EXPERT_IO_DIRECT, e);
    if (rc == 0)
        rc = check_choice("prefetch", (int)o->prefetch, MOEFLUX_PREFETCH_BOTH, e);
    if (rc == 0)
        rc = check_choice("cache_policy", (int)o->cache_policy, MOEFLUX_CACHE_POLICY_CONTEXT, e);
    if (rc == 0)
        rc = check_choice("prompt_type", (int)o->prompt_type, MOEFLUX_PROMPT_TYPE_F16, e);
    if (rc == 0)
        rc = check_choice("kv_type", (int)o->kv_type, MOEFLUX_KV_TYPE_Q8_0, e);
    if (rc == 0 && o->n_parallel > MOEFLUX_MAX_PARALLEL)
        rc = err_set(e, ERR_USAGE, "`n_parallel` is %u, expected at most %d", o->n_parallel,
                     MOEFLUX_MAX_PARALLEL);
    if (rc == 0 && o->n_threads > MOST_THREADS)
        rc = err_set(e, ERR_USAGE, "`n_threads` is %u, expected at most %d", o->n_threads, MOST_THREADS);
    if (rc == 0 && !(o->cpu_share >= 0 && o->cpu_share < 1))
        rc = err_set(e, ERR_USAGE, "`cpu_share` %g, expected at least 0 and less than 1",
                     (double)o->cpu_share);
    if (rc == 0 && o->cpu_share > 0 && o->n_cpu_layers)
        rc = err_set(e, ERR_USAGE, "`cpu_share` and `n_cpu_layers` exclude each other");
    if (rc == 0 && !(o->prefer_resident >= 0 && isfinite(o->prefer_resident)))
        rc = err_set(e, ERR_USAGE, "`prefer_resident` %g, expected 0 or more", (double)o->prefer_resident);
    return rc;
}

enum reader_mode load_plan_reader_mode(const struct moeflux_options *o)
{
    static const enum reader_mode modes[] = {[MOEFLUX_EXPERT_IO_AUTO] = READER_AUTO,
                                             [MOEFLUX_EXPERT_IO_MMAP] = READER_MMAP,
                                             [MOEFLUX_EXPERT_IO_PREAD] = READER_PREAD,
                                             [MOEFLUX_EXPERT_IO_URING] = READER_URING,
                                             [MOEFLUX_EXPERT_IO_DIRECT] = READER_DIRECT};
    return modes[o->expert_io];
}

/* Refuses options of the cpu for another device. */
static int check_device(struct exec_caps caps, const struct moeflux_options *o, struct moeflux_err *e)
{
    if (!caps.is_native && !o->n_cpu_layers && !(o->cpu_share > 0) && o->cpu_isa)
        return err_set(e, ERR_USAGE, "`cpu_isa` %s goes with `device` cpu; the device is %s", o->cpu_isa,
                       caps.name);
    return 0;
}

/* Sets the number of active experts from the options; rc: result of opening the model. */
static int set_experts(struct model_dir *m, const struct moeflux_options *o, int rc, struct moeflux_err *e)
{
    if (rc < 0)
        return rc;
    rc = config_set_active_experts(&m->config, o->active_experts, o->expert_share, e);
    if (rc < 0)
        model_dir_close(m);
    return rc;
}

int load_plan_open_model(struct model_dir *m, const struct moeflux_options *o, bool is_drafter,
                         struct moeflux_err *e)
{
    int rc =
        is_drafter ? model_dir_open_drafter(m, o->dir, o->drafter_file, e) : model_dir_open(m, o->dir, e);
    return set_experts(m, o, rc, e);
}

int load_plan_look_at_model(struct model_dir *m, const struct moeflux_options *o, struct moeflux_err *e)
{
    int rc = check_dir(o, e);
    if (rc)
        return rc;
    /* model_dir_open has the message for a file that is no configuration. */
    bool is_config = str_ends_with(o->dir, ".json") && file_is_regular(o->dir);
    rc = is_config ? sketch_open(m, o->dir, e) : model_dir_open(m, o->dir, e);
    return set_experts(m, o, rc, e);
}

int load_plan_open_exec(struct exec **out, const struct moeflux_options *o, const struct test_hooks *h,
                        const struct exec *threads_of, struct moeflux_err *e)
{
    const struct exec_options x = {.device = o->device,
                                   .profile = o->profile,
                                   .shares_with = threads_of,
                                   .staged = h && h->staged,
                                   .shelf = h ? h->shelf : NULL,
                                   .n_threads = o->n_threads,
                                   .isa = o->cpu_isa,
                                   .system_root = h ? h->system_root : NULL};
    int rc = exec_open(out, &x, e);
    if (rc == 0)
        rc = check_device(exec_get_caps(*out), o, e);
    if (rc < 0) {
        exec_close(*out);
        *out = NULL;
    }
    return rc;
}

int load_plan_open_device(struct exec **out, const struct moeflux_options *o, const struct test_hooks *h,
                          const struct exec *threads_of, struct moeflux_err *e)
{
    int rc = load_plan_open_exec(out, o, h, threads_of, e);
    if (rc < 0)
        return rc;
    return set_prompt_type(*out, o->prompt_type, e);
}

/* If prompts are computed in float16, a float16 cache loses no more precision. It takes half the memory, and
 * attention need not convert it (H200, 16,384 tokens: 7,060 tok/s against 5,950). */
enum kv_type load_plan_choose_kv_type(enum moeflux_kv_type requested, const struct exec_caps *caps)
{
    bool is_auto = requested == MOEFLUX_KV_TYPE_AUTO;
    if (requested == MOEFLUX_KV_TYPE_Q8_0)
        return KV_TYPE_Q8_0;
    return requested == MOEFLUX_KV_TYPE_F16 || (is_auto && caps->kv_default_is_f16) ? KV_TYPE_F16
                                                                                    : KV_TYPE_F32;
}

int load_plan_open_cpu(struct exec **out, const struct moeflux_options *o, const struct exec *threads_of,
                       struct moeflux_err *e)
{
    const struct exec_options x = {.device = "cpu",
                                   .profile = o->profile,
                                   .shares_with = threads_of,
                                   .n_threads = o->n_threads,
                                   .isa = o->cpu_isa};
    int rc = exec_open(out, &x, e);
    if (rc == 0 && o->prompt_type == MOEFLUX_PROMPT_TYPE_F32)
        exec_keep_f32(*out);
    return rc;
}

/* Returns load_plan.prompt_from for a device with memory of its own. Two sides' experts meet in one chunk
 * only in rounds. */
static uint32_t prompt_from(const struct load_plan *p, const struct config *c, const struct exec_caps *caps)
{
    uint64_t from = ((uint64_t)PROMPT_TOKENS * c->n_experts + c->top_k - 1) / c->top_k;
    if (p->n_cpu_each)
        from = size_max(from, experts_rounds_from(caps, c->n_experts));
    return (uint32_t)size_min(from, UINT32_MAX);
}

/* Sizes the slots for two rounds, one that is computed and one that is copied. If device memory is host
 * memory there are none: nothing needs to be copied, and the CPU reads it equally fast. */
static void size_prompt_slots(struct load_plan *p, const struct model_dir *m, const struct exec_caps *caps)
{
    const struct expert_set cpu = load_plan_cpu_experts(p);
    uint64_t all = expert_store_full_bytes(m, &cpu), least = 2 * expert_store_floor_bytes(m);
    uint64_t one = expert_store_floor_bytes(m) / m->config.top_k;
    uint32_t from = prompt_from(p, &m->config, caps);
    if (caps->is_unified || all == 0 || p->max_chunk < from)
        return;
    p->prompt_from = from;
    p->prompt_slot_bytes = size_max(least, size_min(PROMPT_SLOTS * one, PROMPT_BYTES / one * one));
    p->prompt_slot_bytes = size_min(p->prompt_slot_bytes, all);
    p->max_cpu_chunk = (uint32_t)size_max(from - 1, p->max_batched);
    p->cpu_scratch_bytes = expert_store_landing_bytes(m, &cpu);
}

uint32_t load_plan_n_cpu_layers(const struct moeflux_options *o, const struct config *c)
{
    return o->cpu_share > 0 ? c->n_layers : (uint32_t)size_min(o->n_cpu_layers, c->n_layers);
}

/* Returns the experts of each layer that are nearest to a share of them, without being none or all. */
static uint32_t n_cpu_each(const struct config *c, float share)
{
    uint32_t n = (uint32_t)lround((double)share * c->n_experts);
    return n < 1 ? 1 : n > c->n_experts - 1 ? c->n_experts - 1 : n;
}

bool load_plan_has_cpu_layers(const struct load_plan *p)
{
    return p->cpu_layers.end > p->cpu_layers.first;
}

/* Chooses the experts that the CPU computes. Only the options decide, so that results do not depend
 * on free memory. */
static void choose_side(struct load_plan *p, const struct model_dir *m, const struct exec_caps *caps,
                        const struct moeflux_options *o)
{
    uint32_t end = caps->is_host ? 0 : load_plan_n_cpu_layers(o, &m->config), first = p->layers.first;
    p->prompt_from = UINT32_MAX;
    p->cpu_layers = (struct expert_layers){first, (uint32_t)size_min(size_max(end, first), p->layers.end)};
    if (!load_plan_has_cpu_layers(p))
        return;
    p->n_cpu_each = o->cpu_share > 0 ? n_cpu_each(&m->config, o->cpu_share) : 0;
    p->max_cpu_chunk = p->max_chunk;
    size_prompt_slots(p, m, caps);
    p->cpu_scratch_bytes += host_experts_bytes(&m->config, p->max_cpu_chunk);
}

static int count_pinned(struct load_plan *p, const struct model_dir *m, const char *pin,
                        struct moeflux_err *e)
{
    const struct expert_set device = load_plan_device_experts(p), cpu = load_plan_cpu_experts(p);
    int rc = 0;
    if (p->budget.slot_bytes)
        rc = store_fill_count_pinned(m, &device, pin, p->budget.slot_bytes, &p->n_pinned[0], e);
    if (rc == 0 && p->budget.cpu_slot_bytes)
        rc = store_fill_count_pinned(m, &cpu, pin, p->budget.cpu_slot_bytes, &p->n_pinned[1], e);
    return rc;
}

static uint64_t expert_bytes_of(const struct model_dir *m, struct expert_layers layers)
{
    uint64_t bytes = 0;
    if (layers.first == 0 && layers.end == m->config.n_layers)
        return m->expert_bytes;
    for (uint32_t i = layers.first; i < layers.end; i++)
        bytes += m->experts[i].bytes * m->config.n_experts;
    return bytes;
}

uint64_t load_plan_reread_bytes(const struct load_plan *p, const struct model_dir *m)
{
    uint64_t all = expert_bytes_of(m, p->layers);
    return all - size_min(all, p->budget.slot_bytes + p->budget.cpu_slot_bytes + p->budget.host_bytes);
}

/* Whether the dense weights are used in their mapped files. The system may drop mapped pages for other
 * programs, but a copy belongs to this program. It does not have to drop them while the whole model leaves a
 * quarter of the memory free. So the rule is that of the experts' reader, for all of the device's layers; if
 * the options forbid mapped experts, nothing is mapped. */
static bool maps_weights(const struct load_plan *p, const struct model_dir *m, const struct exec_caps *caps)
{
    return caps->is_native && (p->io == READER_AUTO || p->io == READER_MMAP) &&
           p->weights_bytes + expert_bytes_of(m, p->layers) <= p->host_free_bytes / 4 * 3;
}

/* Takes the memory that a learning cache policy needs on the host from the experts' memory there. If all
 * experts have a slot, the policy learns nothing. */
static void pay_for_policy(struct load_plan *p, const struct model_dir *m, const struct exec_caps *caps,
                           const struct moeflux_options *o)
{
    const struct expert_set device = load_plan_device_experts(p);
    uint64_t *from = caps->is_unified ? &p->budget.slot_bytes : &p->budget.host_bytes;
    uint64_t least = expert_store_floor_bytes(m);
    if (o->cache_policy == MOEFLUX_CACHE_POLICY_CONTEXT && *from > least &&
        p->budget.slot_bytes < expert_store_full_bytes(m, &device))
        *from -= size_min(context_bytes(m->config.n_layers, m->config.n_experts), *from - least);
}

struct expert_set load_plan_device_experts(const struct load_plan *p)
{
    uint32_t first = p->n_cpu_each ? p->layers.first : p->cpu_layers.end;
    return (struct expert_set){{first, p->layers.end}, {p->n_cpu_each, false}};
}

struct expert_set load_plan_cpu_experts(const struct load_plan *p)
{
    return (struct expert_set){p->cpu_layers, {p->n_cpu_each, true}};
}

uint64_t load_plan_fixed_bytes(const struct load_plan *p)
{
    return p->weights_bytes + p->state_bytes + p->activation_bytes + p->driver_bytes;
}

/* Whether a dense tensor belongs to a share of the layers. The embedding belongs to the first layer, what
 * comes after the layers to the last. */
static bool is_with(const struct model_dir *m, const struct tensor *t, struct expert_layers layers)
{
    static const char layer[] = "model.layers.", embedding[] = "model.embed_tokens.";
    const char *number = strncmp(t->name, layer, sizeof layer - 1) == 0 ? t->name + sizeof layer - 1 : NULL;
    bool has_first = layers.first == 0, has_last = layers.end == m->config.n_layers;
    if (expert_tensors_has(t->name) || table_has(t->name))
        return false;
    if (number) {
        unsigned long i = strtoul(number, NULL, 10);
        return i >= layers.first && i < layers.end;
    }
    bool is_embedding = strncmp(t->name, embedding, sizeof embedding - 1) == 0;
    return is_embedding ? has_first || (has_last && m->config.tied) : has_last;
}

static uint64_t dense_bytes_of(const struct model_dir *m, struct expert_layers layers)
{
    uint64_t bytes = 0;
    if (layers.first == 0 && layers.end == m->config.n_layers)
        return m->dense_bytes;
    for (size_t i = 0; i < m->n_tensors; i++)
        bytes += is_with(m, &m->tensors[i], layers) ? fp8_memory(m, &m->tensors[i]) : 0;
    return bytes;
}

/* Returns whether some matrix has a block format. */
static bool has_blocks(const struct model_dir *m)
{
    bool has = false;
    for (size_t i = 0; i < m->n_tensors; i++)
        has |= format_is_block(m->tensors[i].format);
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const struct expert_formats *f = &m->experts[i].formats;
        has |= m->experts[i].bytes > 0 &&
               (format_is_block(f->gate) || format_is_block(f->up) || format_is_block(f->down));
    }
    return has;
}

int load_plan_make(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                   const struct moeflux_options *o, struct moeflux_err *e)
{
    struct load_share whole = {.layers = {0, m->config.n_layers},
                               .memory_bytes = o->memory_bytes,
                               .gpu_memory_bytes = o->gpu_memory_bytes,
                               .host_free_bytes = host_memory_free(""),
                               .kv_type = load_plan_choose_kv_type(o->kv_type, caps)};
    int rc = load_plan_choose_chunk(&whole.max_chunk, o->chunk, caps, e);
    return rc < 0 ? rc : load_plan_make_share(out, m, caps, o, &whole, e);
}

uint32_t load_plan_max_batched(uint32_t requested, uint32_t max_chunk)
{
    return (uint32_t)size_min(requested ? requested : EXEC_MAX_INVARIANT, max_chunk);
}

void load_plan_begin(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                     const struct moeflux_options *o, const struct load_share *share)
{
    *out = (struct load_plan){.layers = share->layers,
                              .weights_bytes = dense_bytes_of(m, share->layers),
                              .max_chunk = share->max_chunk,
                              .max_batched = load_plan_max_batched(o->n_parallel, share->max_chunk),
                              .n_readers = load_plan_n_readers(o->n_threads),
                              .context = choose_context(o->context, &m->config),
                              .io = load_plan_reader_mode(o),
                              .kv_type = share->kv_type,
                              .gpu_memory_bytes = share->gpu_memory_bytes,
                              .host_free_bytes = share->host_free_bytes};
    choose_side(out, m, caps, o);
    const struct arch_span span = {share->layers.first, share->layers.end};
    size_states(out, m, share->n_older);
    out->driver_bytes = caps->is_unified ? 0 : DRIVER_BYTES;
    uint64_t rows = ngram_rows_host_bytes(&m->config, share->layers, out->max_chunk);
    if (!caps->is_unified)
        out->cpu_scratch_bytes += rows;
    out->activation_bytes =
        arch_scratch_bytes(&m->config, span, caps, out->kv_type, out->max_chunk, out->max_batched) +
        ngram_rows_room_bytes(&m->config, share->layers, out->max_chunk) + (caps->is_unified ? rows : 0) +
        arch_host_bytes(&m->config, caps, out->max_chunk, has_blocks(m)) + out->prompt_slot_bytes +
        (caps->is_host
             ? 0
             : (1 + size_min(out->max_batched, SAMPLE_CONCURRENT)) * sample_scratch(m->config.vocab_size));
}

int load_plan_make_share(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                         const struct moeflux_options *o, const struct load_share *share,
                         struct moeflux_err *e)
{
    load_plan_begin(out, m, caps, o, share);
    out->maps_weights = maps_weights(out, m, caps);
    const struct budget_request w = {.gpu = load_plan_device_experts(out),
                                     .cpu = load_plan_cpu_experts(out),
                                     .weights_bytes = out->weights_bytes,
                                     .memory_bytes = share->memory_bytes,
                                     .gpu_memory_bytes = share->gpu_memory_bytes,
                                     .scratch_bytes =
                                         out->state_bytes + out->activation_bytes + out->driver_bytes,
                                     .host_free_bytes = out->host_free_bytes,
                                     .checkpoint_bytes = out->checkpoint_bytes,
                                     .cpu_scratch_bytes = out->cpu_scratch_bytes};
    int rc = budget_for_experts(m, caps, &w, &out->budget, e);
    if (rc == 0)
        pay_for_policy(out, m, caps, o);
    if (!caps->is_unified)
        out->host_room_bytes = share->memory_bytes ? size_min(share->memory_bytes, out->host_free_bytes)
                                                   : out->host_free_bytes / 4 * 3;
    return rc < 0 || !o->pin ? rc : count_pinned(out, m, o->pin, e);
}
