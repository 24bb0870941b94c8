/* load_plan.h - decides chunk, readers and memory before anything is loaded. moeflux_model_open and
 * moeflux_make_plan use the same function. */
#ifndef MOEFLUX_ENGINE_PLAN_LOAD_PLAN_H
#define MOEFLUX_ENGINE_PLAN_LOAD_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/plan/budget.h"
#include "experts/reader.h"
#include "moeflux.h"
#include "ops/gqa/gqa.h"

struct config;
struct moeflux_err;
struct exec;
struct exec_caps;
struct model_dir;
struct test_hooks;

/* One device's share of the model and of this machine's memory. */
struct load_share {
    struct expert_layers layers;
    uint64_t memory_bytes, gpu_memory_bytes; /* like moeflux_options' */
    uint64_t host_free_bytes;                /* the device's share of host_memory_free */
    uint32_t n_older;                        /* older recurrent states of a sequence (forward_n_older) */
    uint32_t max_chunk;
    enum kv_type kv_type;
};

struct load_plan {
    struct expert_layers layers;
    uint64_t weights_bytes; /* dense weights of the layers */
    uint32_t max_chunk;     /* most tokens of a chunk */
    uint32_t max_batched;   /* most sequences that are decoded together */
    uint32_t n_readers;     /* threads */
    uint32_t context;       /* tokens whose states there is room for */
    enum reader_mode io;
    enum kv_type kv_type;
    uint64_t state_bytes;                    /* `context` tokens */
    uint64_t activation_bytes, driver_bytes; /* one chunk; the driver's own memory */
    uint64_t checkpoint_bytes;               /* one checkpoint */
    uint64_t gpu_memory_bytes;               /* load_share's */
    uint64_t host_free_bytes;                /* host_memory_free */
    uint64_t host_room_bytes;                /* host memory for experts, if device memory is not the host's */
    struct budget budget;
    /* those of `layers` of whose routed experts the CPU computes all (n_cpu_each 0) or so many of each
     * layer: the first ones, or all */
    struct expert_layers cpu_layers;
    uint32_t n_cpu_each;
    uint32_t max_cpu_chunk; /* the largest chunk whose experts the CPU computes */
    /* the fewest tokens of a chunk whose CPU's experts the device computes, from copies; UINT32_MAX: it
     * does not. That pays if each expert has many tokens. Only the chunk decides, so that results do not
     * depend on memory or speed */
    uint32_t prompt_from;
    uint64_t cpu_scratch_bytes; /* budget_request.cpu_scratch_bytes; without slots */
    /* the part of activation_bytes for slots of experts that the device computes in large chunks; 0: it
     * computes none */
    uint64_t prompt_slot_bytes;
    uint32_t n_pinned[2]; /* pinned slots of the device and of the CPU, for options.pin */
    bool maps_weights;    /* the dense weights are used in place in their mapped files */
};

/* Makes the plan for one device. ERR_UNSUPPORTED: no architecture runs the model; ERR_USAGE: the chunk is too
 * large; ERR_NO_FIT with the numbers; and the errors of store_fill_count_pinned. */
int load_plan_make(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                   const struct moeflux_options *o, struct moeflux_err *e);
/* Does the same for a share of the model, whose chunk and type of the KV cache are already chosen. */
int load_plan_make_share(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                         const struct moeflux_options *o, const struct load_share *share,
                         struct moeflux_err *e);
/* Make the choices that depend on the device alone. */
int load_plan_choose_chunk(uint32_t *out, uint32_t requested, const struct exec_caps *caps,
                           struct moeflux_err *e);
enum kv_type load_plan_choose_kv_type(enum moeflux_kv_type requested, const struct exec_caps *caps);
/* Fills in what does not depend on free memory. */
void load_plan_begin(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                     const struct moeflux_options *o, const struct load_share *share);
/* Returns the bytes of the layers' experts that have no slot: they are read from their files again. */
uint64_t load_plan_reread_bytes(const struct load_plan *p, const struct model_dir *m);
/* Returns of how many layers, the first ones, the CPU computes experts on each GPU; at most all. */
uint32_t load_plan_n_cpu_layers(const struct moeflux_options *o, const struct config *c);
bool load_plan_has_cpu_layers(const struct load_plan *p);
/* Return the experts that the device computes, and those that the CPU computes for it. A host backend
 * computes all of its own. */
struct expert_set load_plan_device_experts(const struct load_plan *p);
struct expert_set load_plan_cpu_experts(const struct load_plan *p);
/* Returns the device memory that does not depend on budgets: weights, states, activations, driver. */
uint64_t load_plan_fixed_bytes(const struct load_plan *p);

/* Returns how many sequences are decoded together at most: as requested (0: EXEC_MAX_INVARIANT), and as
 * many as a chunk has tokens. */
uint32_t load_plan_max_batched(uint32_t requested, uint32_t max_chunk);

/* Checks the values of the options' enums, which the functions below rely on. ERR_USAGE names the wrong
 * one. */
int load_plan_check(const struct moeflux_options *o, struct moeflux_err *e);

/* Opens the model directory and sets the number of experts per token from the options. ERR_USAGE, and
 * model_dir_open's errors; then nothing is open. */
int load_plan_open_model(struct model_dir *m, const struct moeflux_options *o, bool is_drafter,
                         struct moeflux_err *e);

/* Does the same for callers that need no tensor data: `dir` may be a configuration alone (model/sketch.h). */
int load_plan_look_at_model(struct model_dir *m, const struct moeflux_options *o, struct moeflux_err *e);

/* Opens the device that the options name, with its default settings. h may be NULL. threads_of:
 * exec_options.shares_with. */
int load_plan_open_exec(struct exec **out, const struct moeflux_options *o, const struct test_hooks *h,
                        const struct exec *threads_of, struct moeflux_err *e);
/* Does the same and applies prompt_type. ERR_USAGE; ERR_UNSUPPORTED: float16 is requested and the device has
 * no matrix units for it. */
int load_plan_open_device(struct exec **out, const struct moeflux_options *o, const struct test_hooks *h,
                          const struct exec *threads_of, struct moeflux_err *e);

/* Opens the CPU that computes routed experts next to a device. */
int load_plan_open_cpu(struct exec **out, const struct moeflux_options *o, const struct exec *threads_of,
                       struct moeflux_err *e);

enum reader_mode load_plan_reader_mode(const struct moeflux_options *o);

/* Returns the number of reading threads: as requested, else by the number of cores. */
uint32_t load_plan_n_readers(uint32_t requested);

#endif
