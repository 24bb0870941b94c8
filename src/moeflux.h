/* moeflux.h - the narrow door: open a model, evaluate tokens, get logits.
 *
 * struct moeflux is an opened model on a device: weights, kernels, the experts' cache. struct moeflux_session is
 * one sequence: its position, KV cache and recurrent states. Nothing is kept in globals. One thread at a time per
 * model. Token ids are int32_t in [0, vocab_size). */
#ifndef MOEFLUX_H
#define MOEFLUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"

#define MOEFLUX_VERSION "0.1.0"

struct moeflux;
struct moeflux_session;

struct moeflux_options {
    const char *dir; /* model directory */
    /* NULL: the best Vulkan device; "reference"; an index; or a part of a device's name */
    const char *device;
    /* Host memory for experts and checkpoints; 0: from what is free. Where device memory is host memory it bounds the cache
     * itself. */
    uint64_t memory_bytes;
    uint64_t gpu_memory_bytes; /* device memory for weights, states and experts; 0: from what is free */
    const char *expert_io; /* how experts are read: "auto" (NULL too), "mmap", "pread", "uring", "direct" */
    const char *prefetch;  /* what is read ahead: "auto" (NULL too), "none", "previous", "router", "both" */
    const char *cache_policy; /* who leaves a full cache: "auto" (NULL too), "lru", "frequency" */
    /* file of counts (moeflux_save_usage): its most used experts are read at open and stay */
    const char *pin;
    /* file of counts: the cache starts with its most used experts; none: NULL or no such file */
    const char *usage;
    /* products of prompts: "auto" (NULL too): float16 where the device is fast at it; "f32": exact everywhere; "f16" */
    const char *prompt_type;
    const char *kv_type; /* of the KV cache's numbers: "auto" (NULL too), "f32", "f16" */
    uint32_t n_threads;  /* readers and host work; 0: the cores there are */
    uint32_t chunk;      /* most tokens evaluated at once; 0: the default */
    uint32_t context;    /* tokens of states that memory is kept free for; 0: 8192, or the model's maximum */
    bool profile;        /* time every kernel (moeflux_stats.ops) */
    bool staged;         /* for tests: treat device memory as apart from host memory even where it is not */
    bool as_gpu;         /* for tests: treat a software device as a GPU (its kernels, chunks and budgets) */
    struct progress progress; /* loading weights, prefill */
};

/* Opens, checks and loads. On failure *out is NULL and `e` says why; ERR_NO_FIT gives the numbers. */
int moeflux_open(struct moeflux **out, const struct moeflux_options *o, struct err *e);
/* A device that does not finish what an interrupted evaluation left it keeps the memory of its model and its sessions:
 * then this and moeflux_session_free give nothing back after a quarter of a second, and the process should end. */
void moeflux_close(struct moeflux *m);

struct moeflux_info {
    const char *architecture;   /* "Qwen3.5-MoE" */
    const char *device;         /* borrowed until moeflux_close */
    const char *tokenizer_path; /* NULL: the directory has none; borrowed */
    uint32_t n_layers, hidden, vocab_size, n_experts, top_k;
    uint32_t max_context; /* the most a session may have */
    const int32_t *eos;   /* [n_eos]; borrowed */
    uint32_t n_eos;
    const char *expert_io; /* how experts are read, and why; borrowed until moeflux_close */
    bool experts_resident; /* every expert has a slot: no reads once warm */
    /* prompts are computed with float16 products (float32 sums), which this device is fast at */
    bool half_products;
};
struct moeflux_info moeflux_info(const struct moeflux *m);

/* max_context: the most tokens the sequence may have; memory grows as it is used.
 * ERR_USAGE above the model's own maximum, ERR_NO_FIT. The model must outlive the session. */
int moeflux_session_new(struct moeflux_session **out, struct moeflux *m, uint32_t max_context, struct err *e);
void moeflux_session_free(struct moeflux_session *s);

/* What an evaluation hands out. Every member may be NULL. */
struct moeflux_wish {
    float *logits; /* [vocab_size], after the last token */
    /* The logits after each token, in order: row [vocab_size], valid during the call. Negative: stop with it. */
    int (*each_logits)(void *ctx, uint32_t pos, const float *row, struct err *e);
    /* Hidden states, layer 0 = embedding, layer i = output of layer i: rows [n][hidden] for the positions from
     * pos on. Chunks come in ascending order of pos, layers ascending within. */
    int (*hidden)(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *rows, struct err *e);
    void *ctx;
};

/* Appends n >= 1 tokens to the sequence. ERR_USAGE: an id out of range or no room (nothing changes);
 * ERR_INTERRUPTED: the progress callback said stop; the sequence has the chunks that were finished before, none or more
 * of them (moeflux_position), and can go on from there. The callback is asked between the submissions of a chunk and
 * while the host waits, several times a second, for single tokens too where they take long (with a total of 0);
 * ERR_IO, ERR_FORMAT, ERR_DEVICE, or what wish->each_logits returned: a half-evaluated chunk cannot be kept. The
 * sequence then stands where the chunk began, if its states could be put back, else at its newest checkpoint
 * (position 0 without one): ask moeflux_position. */
int moeflux_eval(struct moeflux_session *s, const int32_t *ids, uint32_t n, const struct moeflux_wish *wish,
                 struct err *e);

/* Tokens in the sequence. */
uint32_t moeflux_position(const struct moeflux_session *s);
/* Back to position 0 with all states zero, no checkpoints and no history. */
int moeflux_clear(struct moeflux_session *s, struct err *e);

/* The state of a sequence, kept.
 *
 * It consists of the position, the rows of the KV cache, the recurrent states and the ids of the tokens. Whatever is
 * called below, it equals afterwards that of a fresh run over the tokens that remain: byte for byte when that run has
 * the same chunk boundaries, else within the tolerance of chunk sizes.
 *
 * Attention can be cut at any position. Recurrent states cannot: they are those after the last token. Checkpoints are
 * copies of them in host memory (moeflux_checkpoint_bytes each) to go back to. Position 0 always counts as one; it
 * takes no memory and is not listed. Models without recurrent layers need none: there a checkpoint is a position. */

/* The ids of the tokens so far, [moeflux_position]; -1: not known, because the state was loaded from a file without
 * them. Borrowed until the next call that changes the sequence. */
const int32_t *moeflux_history(const struct moeflux_session *s);

/* Cuts the sequence to its first `pos` tokens and drops the checkpoints behind. Where the model has recurrent layers,
 * restores the nearest checkpoint at or before `pos` and evaluates the tokens between again, with progress reports.
 * pos = moeflux_position changes nothing. ERR_USAGE: pos is above it, or a token to evaluate again is not known
 * (nothing changes). ERR_INTERRUPTED and the errors of moeflux_eval: the sequence is a shorter one, see there. */
int moeflux_truncate(struct moeflux_session *s, uint32_t pos, struct err *e);

/* Makes use of what the sequence has in common with the prompt ids [n], n >= 1: keeps as many of its tokens as it can
 * without evaluating any (so it goes to a checkpoint where there are recurrent layers), at most n - 1, since the
 * last one's logits are wanted; *n_reused gets their number, which is the position now. The caller evaluates
 * ids + *n_reused: the same tokens that a replay would compute, in one evaluation instead of two. */
int moeflux_reuse(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t *n_reused,
                  struct err *e);

/* Checkpoints the state at the current position. One that is there already counts as used again. The least recently
 * used one leaves when there are more than the cap. ERR_MEMORY, ERR_DEVICE: no checkpoint was added or lost. */
int moeflux_checkpoint(struct moeflux_session *s, struct err *e);
/* Goes back to the checkpoint at `pos` (0: as truncate to 0) and drops those behind it. ERR_USAGE: there is none,
 * nothing changes. */
int moeflux_restore(struct moeflux_session *s, uint32_t pos, struct err *e);
/* Drops the checkpoint at `pos`. ERR_USAGE: there is none, or pos is 0. */
int moeflux_forget(struct moeflux_session *s, uint32_t pos, struct err *e);
/* The most checkpoints there may be (default 4); what is above leaves now, the least recently used first. n >= 1, else
 * ERR_USAGE. No more than memory was kept free for when the model was opened (moeflux_plan.n_checkpoints). */
int moeflux_set_checkpoint_cap(struct moeflux_session *s, uint32_t n, struct err *e);
/* As many as there may be. */
uint32_t moeflux_checkpoint_cap(const struct moeflux_session *s);
/* From now on evaluations of more than one token checkpoint by themselves after the first chunk that ends at or behind
 * a multiple of `n` tokens, but not after the last chunk. 0, the default: never. No effect on models without
 * recurrent layers. */
void moeflux_set_checkpoint_every(struct moeflux_session *s, uint32_t n);
/* Positions of the checkpoints, ascending, up to `cap` of them into `pos`; returns how many there are. */
uint32_t moeflux_list_checkpoints(const struct moeflux_session *s, uint32_t *pos, uint32_t cap);
/* Host memory of one checkpoint; 0 for models without recurrent layers. */
uint64_t moeflux_checkpoint_bytes(const struct moeflux_session *s);

/* Snapshots: files of a state. Versions 1 and 2 are those of the original moeflux (magic MFLX): KV rows as float32 and
 * recurrent states, no ids and nothing that tells the weights apart. Version 3 adds the ids, the model's fingerprint,
 * the type of the KV rows, the checkpoints and a checksum. Version 1 is only read. */
enum moeflux_state_format { MOEFLUX_STATE_V2 = 2, MOEFLUX_STATE_V3 = 3 };

/* Bytes of the file that moeflux_save would write now. */
uint64_t moeflux_state_bytes(const struct moeflux_session *s, enum moeflux_state_format format);
/* Writes the state to the side and renames it: `path` has the old bytes or the new ones, after a power failure too. The
 * session stays as it is.
 * Streams through a buffer of a MiB. Version 2 widens float16 rows. ERR_IO, ERR_DEVICE, ERR_MEMORY,
 * ERR_INTERRUPTED (the progress callback said stop), ERR_USAGE (no such format). */
int moeflux_save(struct moeflux_session *s, const char *path, enum moeflux_state_format format,
                 struct err *e);
/* Replaces the session's state by that of a file of any version. On any failure the session is as it was; where its
 * position is not 0, that takes device memory for both states while it loads. After version 1 or 2 the ids are
 * not known.
 * A cache of float16 rounds the rows of versions 1 and 2; version 3 has to have the cache's type.
 * ERR_IO; ERR_FORMAT: no snapshot, cut, damaged, of another model or another type of rows; ERR_NO_FIT: more tokens
 * than max_context, or no memory; ERR_INTERRUPTED. The text names the file, what was expected and what was found. */
int moeflux_load(struct moeflux_session *s, const char *path, struct err *e);

/* What a snapshot's header says, without a model. Checked: the header itself and the file's length, as far as the
 * version tells it. */
struct moeflux_state_info {
    uint32_t version;
    uint32_t n_layers;
    bool has_tokens;   /* version 3; else the next three are 0 */
    uint32_t n_tokens; /* the position */
    uint32_t n_checkpoints;
    uint64_t fingerprint; /* of the model */
    uint64_t bytes;       /* of the file */
};
int moeflux_read_state_info(const char *path, struct moeflux_state_info *out, struct err *e);

/* A hash of the model: its dimensions and constants, the names, types and sizes of its dense tensors and samples of
 * their bytes and of the experts'. The same for the packed and the plain layout of one model. Computed on first use
 * (reads a few MB), then kept. ERR_IO, ERR_FORMAT, ERR_MEMORY. */
int moeflux_fingerprint(struct moeflux *m, uint64_t *out, struct err *e);

enum { MOEFLUX_MAX_OPS = 32 };
struct moeflux_op_time {
    const char *name;
    uint64_t n, ns;
};
struct moeflux_stats {                     /* since open or the last moeflux_stats_reset */
    uint64_t n_prefill_tokens, prefill_ns; /* evaluations of more than one token */
    uint64_t n_decode_tokens, decode_ns;   /* evaluations of one token */
    uint64_t n_submits, n_dispatches;
    uint64_t read_bytes, read_ns;    /* expert reads; time with at least one under way */
    uint64_t read_depth_ns;          /* summed over reads: divided by read_ns, the average queue depth */
    uint64_t n_reads;                /* experts read */
    uint64_t wait_read_ns;           /* the token waited for the disk */
    uint64_t wait_gpu_ns;            /* the host waited for the device */
    uint64_t n_compiled, compile_ns; /* kernels that were first needed since; evaluations waited for them */
    /* Chosen experts: in a device slot, in the host's cache, or neither. One whose read ahead is still under way
     * counts as a miss. */
    uint64_t n_hits, n_host_hits, n_misses;
    uint64_t n_slots, n_host_slots, slot_bytes; /* the cache */
    uint64_t n_predicted, n_predicted_right;    /* experts named before the router chose; those it chose */
    uint64_t n_predictable;                     /* experts chosen where there was a prediction */
    uint64_t n_prefetched;                      /* reads that were started for a prediction */
    uint64_t n_prefetched_used;          /* of those: chosen while they lay in the cache or were under way */
    uint64_t n_promoted, n_demoted;      /* experts copied from host to device, from device to host */
    uint64_t weights_bytes, state_bytes; /* device memory of dense weights, of this model's sessions */
    /* device memory of the process, as the driver counts it; 0: it does not say */
    uint64_t device_used_bytes;
    uint64_t gpu_ns; /* sum of ops, when profile was asked for */
    struct moeflux_op_time ops[MOEFLUX_MAX_OPS];
    uint32_t n_ops;
};
void moeflux_get_stats(const struct moeflux *m, struct moeflux_stats *out);
void moeflux_stats_reset(struct moeflux *m);
/* How long tokens waited for the experts of one layer, in ns since open or the last reset. */
uint64_t moeflux_layer_wait_ns(const struct moeflux *m, uint32_t layer);

/* Writes how often each expert was wanted from the cache (once a token, once a chunk of a prompt; never where all are
 * resident): the counts of the usage file that was given at open and since. Text, "layer expert count"
 * a line; written to the side and renamed. ERR_IO. */
int moeflux_save_usage(const struct moeflux *m, const char *path, struct err *e);

struct moeflux_device {
    uint32_t idx;
    char name[256];
    char kind[16];    /* "discrete", "integrated", "cpu", "virtual", "other" */
    char driver[256]; /* name and version */
    uint64_t memory_bytes;
    uint32_t subgroup_size;
    bool usable;
    char why_not[128]; /* the feature that is missing */
};
/* Fills up to `cap` entries, best first; returns how many devices there are, or ERR_DEVICE (no Vulkan). */
int moeflux_list_devices(struct moeflux_device *out, uint32_t cap, struct err *e);

/* What a model needs, from its files alone (no device). */
struct moeflux_needs {
    char architecture[32];
    uint32_t n_layers, n_attention, hidden, vocab_size, n_experts, top_k, moe_inner, max_context;
    bool packed; /* layout on disk; false: plain safetensors */
    uint64_t n_params, n_active_params;
    uint64_t dense_bytes;  /* the resident part, on disk and in memory */
    uint64_t expert_bytes; /* all routed experts */
    uint64_t one_expert_bytes;
    uint64_t token_dense_bytes;  /* weights read per token from memory, without routed experts */
    uint64_t token_expert_bytes; /* routed experts' bytes per token: n_layers with experts * top_k * one */
    uint64_t kv_bytes_per_pos;   /* of float32 numbers */
    uint64_t fixed_state_bytes;  /* of recurrent layers, with the copy that lets a chunk be undone */
    /* least memory to run: dense + states of a short context + one layer's top_k experts */
    uint64_t floor_bytes;
};
int moeflux_get_needs(const char *dir, struct moeflux_needs *out, struct err *e);

/* What moeflux_open would do with the same options now: its own decision, with nothing loaded. */
struct moeflux_plan {
    char device[256];
    bool is_unified;                             /* device memory is host memory */
    uint64_t device_free_bytes, host_free_bytes; /* now; UINT64_MAX: not known */
    uint64_t device_bytes;                       /* the most that the device may hold */
    uint64_t weights_bytes;                      /* dense */
    uint32_t context;                            /* tokens of states that there is room for */
    uint64_t state_bytes, activation_bytes;      /* of that context, of a chunk */
    uint64_t driver_bytes;                       /* set aside for what a discrete device's driver takes */
    uint32_t chunk;                              /* most tokens evaluated at once */
    uint64_t checkpoint_bytes;                   /* host memory of one checkpoint; 0: they take none */
    uint32_t n_checkpoints;                      /* the most that a session may have */
    uint64_t slot_bytes;                         /* memory of one expert */
    uint64_t n_experts;                          /* of all layers together */
    uint64_t n_slots, n_host_slots;              /* experts that device and host have room for */
    bool experts_resident;                       /* every expert has a slot: no reads once warm */
    char expert_io[1200];                        /* how experts are read, and why */
};
/* ERR_NO_FIT with the numbers, ERR_UNSUPPORTED, ERR_DEVICE: as moeflux_open would fail. */
int moeflux_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct err *e);

/* What this machine does. A speed of 0 was not measured. */
struct moeflux_speeds {
    double disk_bytes_s; /* experts of this model, in waves of top_k, as a layer asks for them */
    bool disk_is_direct; /* past the page cache; else it may have answered */
    uint64_t disk_bytes; /* that were read to find out */
    char disk_how[256];  /* "direct", or why there is no speed */
    char device[256];
    double kernel_bytes_s;  /* product of a quantised matrix and a vector */
    double dispatch_s;      /* of one small kernel, with the barrier after it */
    double round_trip_s;    /* of a submission and the wait for it */
    double copy_bytes_s;    /* host to device; 0 too where that is the same memory */
    char device_fault[512]; /* why the device has no speeds; "": it has */
};
/* Takes about a second for the disk and less for the device. Fails only where the directory cannot be opened. */
int moeflux_measure(const struct moeflux_options *o, struct moeflux_speeds *out, struct err *e);

/* Where the time of one decoded token goes, in seconds. */
struct moeflux_forecast {
    double compute_s, copy_s, disk_s;
    double apart_s;      /* of the token, when nothing is read ahead */
    double overlapped_s; /* when everything is */
};
/* hits: the share of chosen experts, 0 to 1, that device or host hold. plan: NULL when there is none. */
struct moeflux_forecast moeflux_make_forecast(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                              const struct moeflux_speeds *s, double hits);

/* Runs every kernel on `device` (as in moeflux_options) against the reference over a grid of shapes. Calls `row`
 * once per case: relative error against the bound, or that the device has no kernel for it. Returns the number of failed cases or a negative ERR_*. */
struct moeflux_selftest_row {
    const char *kernel;
    const char *shape;
    double error, bound;
    bool ok;
    bool skipped; /* nothing was computed; `ok` holds */
};
int moeflux_selftest(const char *device, void (*row)(void *ctx, const struct moeflux_selftest_row *r),
                     void *ctx, struct err *e);

#endif
