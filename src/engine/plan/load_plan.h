/* load_plan.h - what is decided before anything is loaded: chunk, readers, memory. moeflux_model_open and
 * moeflux_make_plan decide by the same function. */
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

/* What one of several devices gets of the model, and of this machine's memory. */
struct load_share {
    struct expert_layers layers;
    uint64_t memory_bytes, gpu_memory_bytes; /* as of moeflux_options */
    uint64_t host_free_bytes;                /* of host_memory_free */
    uint32_t n_older;                        /* recurrent states of a sequence beside its two (pipeline.h) */
    uint32_t max_chunk;
    enum kv_type kv_type;
};

struct load_plan {
    struct expert_layers layers;
    uint64_t weights_bytes; /* dense ones of the layers */
    uint32_t max_chunk;     /* most tokens of a chunk */
    uint32_t n_readers;     /* threads */
    uint32_t context;       /* tokens of states that there is room for */
    enum reader_mode io;
    enum kv_type kv_type;
    uint64_t state_bytes, activation_bytes, driver_bytes; /* of `context` tokens, of a chunk */
    uint64_t checkpoint_bytes;                            /* of one */
    uint64_t host_free_bytes;                             /* host_memory_free */
    uint64_t host_room_bytes; /* for experts, where device memory is not the host's */
    struct budget budget;
    struct expert_layers cpu_layers; /* the first of `layers`: their routed experts are the CPU's */
    uint32_t max_cpu_chunk;          /* the largest chunk that the CPU computes experts of */
    uint64_t cpu_scratch_bytes;      /* host memory for it, slots aside */
    /* Of activation_bytes: slots for experts that the device computes for large chunks; 0: it does not. */
    uint64_t prompt_slot_bytes;
    uint32_t n_pinned[2]; /* of the device's slots, of the CPU's; for options.pin */
    bool maps_weights;    /* the dense weights are used where their files are mapped */
};

/* ERR_UNSUPPORTED: no architecture runs the model; ERR_USAGE: the chunk is too large; ERR_NO_FIT with the
 * numbers; and the errors of store_fill_count_pinned. */
int load_plan_make(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                   const struct moeflux_options *o, struct moeflux_err *e);
/* The same for a share of the model, whose chunk and type of the KV cache are chosen already. */
int load_plan_make_share(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                         const struct moeflux_options *o, const struct load_share *share,
                         struct moeflux_err *e);
/* What load_plan_make chooses by the device alone. */
int load_plan_choose_chunk(uint32_t *out, uint32_t requested, const struct exec_caps *caps,
                           struct moeflux_err *e);
enum kv_type load_plan_choose_kv_type(enum moeflux_kv_type requested, const struct exec_caps *caps);
/* Fills in what does not depend on the memory there is. */
void load_plan_begin(struct load_plan *out, const struct model_dir *m, const struct exec_caps *caps,
                     const struct moeflux_options *o, const struct load_share *share);
/* Those whose experts the CPU computes for a device with these layers. A device that is the CPU computes all
 * that it has. */
struct expert_layers load_plan_cpu_layers(const struct moeflux_options *o, const struct exec_caps *caps,
                                          struct expert_layers layers);
bool load_plan_has_cpu_layers(const struct load_plan *p);
/* Those whose experts the device computes. */
struct expert_layers load_plan_device_layers(const struct load_plan *p);
/* Device memory that does not depend on budgets: weights, states, activations. */
uint64_t load_plan_fixed_bytes(const struct load_plan *p);

/* Whether the device computes a chunk of n tokens in the CPU's layers too, with copies of their experts. That
 * pays when each expert has many tokens; the chunk alone decides, so that results do not depend on memory or
 * speed. */
bool load_plan_takes_device(const struct config *c, uint32_t n);

/* Whether the options' enums have valid values, which the functions below rely on. ERR_USAGE names the one at
 * fault. */
int load_plan_check(const struct moeflux_options *o, struct moeflux_err *e);

/* Opens the model directory, with as many experts for a token as the options say. ERR_USAGE, and
 * model_dir_open's errors; then nothing is open. */
int load_plan_open_model(struct model_dir *m, const struct moeflux_options *o, struct moeflux_err *e);

/* The same for what needs no contents: `dir` may be a configuration alone (model/sketch.h). */
int load_plan_look_at_model(struct model_dir *m, const struct moeflux_options *o, struct moeflux_err *e);

/* Opens the device that the options name, as it is. h may be NULL. beside: exec_options.beside. */
int load_plan_open_exec(struct exec **out, const struct moeflux_options *o, const struct test_hooks *h,
                        const struct exec *beside, struct moeflux_err *e);
/* The same; prompt_type says whether its caps have float16. ERR_USAGE;
 * ERR_UNSUPPORTED: float16 is asked for and the device has no matrix units for it. */
int load_plan_open_device(struct exec **out, const struct moeflux_options *o, const struct test_hooks *h,
                          const struct exec *beside, struct moeflux_err *e);

/* The CPU that computes routed experts beside a device. */
int load_plan_open_cpu(struct exec **out, const struct moeflux_options *o, const struct exec *beside,
                       struct moeflux_err *e);

enum reader_mode load_plan_reader_mode(const struct moeflux_options *o);

/* Threads that read: as requested, else by the number of cores. */
uint32_t load_plan_n_readers(uint32_t requested);

#endif
