/* lab.h - what only measures and advises: speeds, forecasts, the best split, the self-test, traces of the
 * router's choices. The program has it; the library does not. */
#ifndef MOEFLUX_ENGINE_LAB_LAB_H
#define MOEFLUX_ENGINE_LAB_LAB_H

#include "moeflux.h"

/* --- traces, waits --- */

/* Does the work of moeflux_model_open; the router's choices are written to the file `trace` (lab_save_trace).
 * The results do not change; models whose experts are all resident become slower, and their uses are counted.
 * moeflux_max_batched is 1. Errors: also _IO: the file cannot be created. */
int lab_open_traced(struct moeflux_model **out, const struct moeflux_options *o, const char *trace,
                    struct moeflux_err *e);
/* Finishes the file of lab_open_traced: each choice of each layer since open, and its weights. Later choices
 * are not recorded. The file appears as a whole; without this call there is none. Returns 0 also where no
 * trace was asked for. No evaluation may be in flight. Errors: _IO, if a write failed now or earlier; there
 * is no new file then. */
int lab_save_trace(struct moeflux_model *m, struct moeflux_err *e);
/* Returns how long evaluations waited for the experts of one layer, in ns since open or the last reset.
 * No evaluation may be in flight. */
uint64_t lab_layer_wait_ns(const struct moeflux_model *m, uint32_t layer);

/* --- a long context --- */

/* Makes a sequence of n tokens of the one that there is, without evaluating any: the rows of its tokens are
 * repeated, and its recurrent states stay. The next tokens take as long as after n evaluated ones, and what
 * they compute means nothing. The sequence's tokens are a multiple of 256. No evaluation may be in flight.
 * Errors: _USAGE: another number, or n is less or does not fit the context; those of
 * moeflux_session_eval. */
int lab_repeat_rows(struct moeflux_session *s, uint32_t n, struct moeflux_err *e);

/* --- this machine --- */

struct lab_host {
    char cpu[256];        /* the processor's name, and its memory nodes if there are several */
    char isa[16];         /* instruction set that the cpu uses */
    uint32_t n_allowed;   /* processors that this process may use */
    uint32_t n_threads;   /* threads that a computation uses */
    uint64_t total_bytes; /* memory */
    uint64_t free_bytes;  /* without swapping, within the limits of its control groups; UINT64_MAX: unknown */
};
/* cpu_isa, n_threads: those of moeflux_options. Errors: _USAGE: no such instruction set. */
int lab_describe_host(const struct moeflux_options *o, struct lab_host *out, struct moeflux_err *e);

enum { LAB_MAX_HEAPS = 16 };
struct lab_heap {
    uint64_t bytes, budget_bytes, used_bytes; /* budget, used: as the driver counts; UINT64_MAX: unknown */
    bool is_local, is_mapped;                 /* the device's own; the host can map some of it */
};
/* An opened device: what it has, and what is chosen because of that. */
struct lab_device {
    char option[256]; /* its name in moeflux_options.device */
    char name[256];
    char kind[16];    /* moeflux_device.kind, or "reference" */
    char driver[256]; /* "": a host backend */
    bool is_host;     /* this machine's cores compute without Vulkan; all that follows is Vulkan's */
    bool is_software, is_unified;
    uint32_t subgroup_size, max_workgroup, max_shared_bytes;
    uint32_t n_processors; /* shader cores; 0: unknown */
    uint64_t max_alloc_bytes, total_bytes, free_bytes;
    bool sets_subgroup_size; /* kernels request the size; false: the device has no other */
    bool has_nv, has_khr;    /* matrix units by extension */
    bool uses_matrices;      /* kernels for matrix units run: prompts have float16 factors */
    bool uses_khr;           /* they have VK_KHR_cooperative_matrix's form */
    bool kv_is_f16;          /* the KV cache is float16 unless the caller chooses */
    bool has_denorm;         /* kernels that need float16 denormals run */
    bool has_budget, imports_host, has_copy_queue, has_timestamps, cuts_dispatches;
    uint32_t n_heaps;
    struct lab_heap heaps[LAB_MAX_HEAPS];
};
/* Opens the devices that the options name, one after the other, and describes them. *n: the number in out[],
 * also after a failure: those before the one that does not open. Errors: those of opening a device. */
int lab_describe_devices(const struct moeflux_options *o, struct lab_device out[MOEFLUX_MAX_DEVICES],
                         uint32_t *n, struct moeflux_err *e);

/* --- speeds --- */

/* Measures how fast the cpu's threads read memory together, in bytes a second. n_threads 0: as many as the
 * cpu would use. Takes some tenths of a second. Errors: _MEMORY. */
int lab_measure_memory(uint32_t n_threads, double *bytes_s, struct moeflux_err *e);

struct lab_device_speeds { /* one device; members as in lab_speeds */
    double kernel_bytes_s, dispatch_s, round_trip_s, copy_bytes_s;
};

/* Measures one device of lab_describe_devices without a model, in less than a second. Errors: those of
 * opening it; _NO_FIT. */
int lab_measure_device(const struct moeflux_options *o, const char *device, struct lab_device_speeds *out,
                       struct moeflux_err *e);

/* How fast this machine is; names end in _s: seconds, or bytes a second. 0: not measured. */
struct lab_speeds {
    double disk_bytes_s; /* reads of this model's experts, top_k at a time, as a layer asks for them */
    bool disk_is_direct; /* read without the page cache; else it may have helped */
    uint64_t disk_bytes; /* bytes read for the measurement */
    char disk_how[256];  /* "direct", or why there is no speed */
    /* Name. Several: their names; the speeds are those of a token that passes through all their layers. */
    char device[256];
    double kernel_bytes_s; /* product of a quantised matrix and a vector */
    double dispatch_s;     /* one small kernel with the barrier after it */
    double round_trip_s;   /* one submission and the wait for it */
    double copy_bytes_s;   /* host to device; also 0 where that is the same memory */
    double cpu_bytes_s;    /* the product on the CPU's cores; also 0 where every device is the CPU */
    uint32_t n_devices;    /* entries of devices[] */
    struct lab_device_speeds devices[MOEFLUX_MAX_DEVICES];
    char device_fault[512]; /* why the device has no speeds; "": it has */
    double memory_bytes_s;  /* this machine's memory, read by n_threads */
    uint32_t n_threads;
    /* Another device with faster products: its name in moeflux_options.device ("": none), its full name and
     * the speed of its products. */
    char faster_device[16];
    char faster_name[256];
    double faster_bytes_s;
};
/* Measures the speeds: about a second for the disk and less for the device. Errors: those of opening the
 * model directory; a device or disk that cannot be measured is no failure. */
int lab_measure(const struct moeflux_options *o, struct lab_speeds *out, struct moeflux_err *e);

/* The parts of one decoded token's time, in seconds. */
struct lab_forecast {
    double compute_s, copy_s, disk_s;
    double apart_s;      /* the whole token if nothing is prefetched */
    double overlapped_s; /* the whole token if everything is prefetched */
};
/* Returns the forecast. hits: share of chosen experts that device or host hold, 0 to 1. plan: NULL: none. */
struct lab_forecast lab_make_forecast(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                      const struct lab_speeds *s, double hits);

/* A token's time in seconds, by where its routed experts are computed. Advice: nothing acts on it. */
struct lab_placement {
    double gpu_s, cpu_s, best_s; /* all on the device, all on the CPU, the first best_cpu_layers on the CPU */
    uint32_t best_cpu_layers;    /* a value for moeflux_options.n_cpu_layers */
    /* best_share of each layer's on the CPU, a value for moeflux_options.cpu_share; 0: no share is
     * possible, or gains anything */
    double share_s, best_share;
};
/* Fills *out and returns true, if the speeds of device and CPU are both known; else returns false. */
bool lab_compare_placements(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                            const struct lab_speeds *s, struct lab_placement *out);

/* The best split of the layers over several devices. Advice: nothing acts on it. */
struct lab_split {
    uint32_t n_layers[MOEFLUX_MAX_DEVICES]; /* each device's; usable as moeflux_options.tensor_split */
    double token_s, best_token_s;           /* a token on all devices: as planned, with n_layers */
    double slowest_s, best_slowest_s;       /* its time on the slowest device, which limits a prompt */
};
/* Fills *out. Returns 1 if another split than the plan's would be faster by more than the measurements'
 * error, else 0. Also 0, with zeros in *out, if there is one device, or a device has no speed. Errors:
 * _MEMORY. */
int lab_find_split(const struct moeflux_needs *n, const struct moeflux_plan *plan, const struct lab_speeds *s,
                   struct lab_split *out, struct moeflux_err *e);

struct lab_selftest_row {
    const char *kernel;
    const char *shape;
    double error, bound; /* relative error, and what is allowed */
    bool ok;
    bool skipped;       /* the device has no kernel for it: nothing was computed; `ok` is true */
    const char *device; /* name */
};
struct lab_selftest_options {
    const char *device, *cpu_isa; /* those of moeflux_options */
    bool full;                    /* all formats and sizes; false: each path through each kernel once */
    bool brief;                   /* likewise without the longest cases; on the cpu one instruction set */
    /* Called once for each case, by one thread at a time; its strings are borrowed for the call. */
    void (*row)(void *ctx, const struct lab_selftest_row *r);
    /* Called before each case on a Vulkan device, by one thread at a time: its number, from 1, and the number
     * of cases. NULL: no calls. */
    void (*progress)(void *ctx, uint32_t case_number, uint32_t n_cases);
    void *ctx;
};
/* Runs every operation on a device against the reference over a grid of shapes. The cpu is tested with each
 * instruction set that the processor has, or with `cpu_isa` alone; a Vulkan device by several threads, since
 * its driver compiles a pipeline for most cases. Returns the number of failed cases. Errors: those of opening
 * the device. */
int lab_selftest(const struct lab_selftest_options *o, struct moeflux_err *e);

#endif
