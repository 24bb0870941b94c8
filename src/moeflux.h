/* moeflux.h - run mixture-of-experts language models that are larger than memory.
 *
 *   struct moeflux_model      an opened model on a device: weights, kernels, the cache of experts
 *   struct moeflux_session    one sequence of tokens: its position, KV cache and recurrent state
 *   struct moeflux_tokenizer  text to token ids and back
 *   struct moeflux_sampler    logits to the next token id
 *
 * Nothing is kept in globals. Threads may share a model and a tokenizer; a session or a sampler is one
 * thread's at a time. Token ids are int32_t in [0, vocab_size).
 *
 * A function that can fail returns int: 0 or a documented value >= 0, else a negative MOEFLUX_ERR_*. It fills
 * the caller's struct moeflux_err, which may be NULL. Strings and arrays in structs are borrowed from the
 * caller during the call.
 *
 * This file includes nothing of the project's and compiles alone, as C11 and as C++. */
#ifndef MOEFLUX_H
#define MOEFLUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOEFLUX_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif
/* The library hides every symbol that is not declared here. */
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* --- errors and progress --- */

enum moeflux_err_code {
    MOEFLUX_OK = 0,
    MOEFLUX_ERR_IO = -1,          /* the operating system refused: open, read, write, rename */
    MOEFLUX_ERR_FORMAT = -2,      /* a file's content is not what it must be */
    MOEFLUX_ERR_MEMORY = -3,      /* host memory could not be had */
    MOEFLUX_ERR_USAGE = -4,       /* the caller asked for something that makes no sense */
    MOEFLUX_ERR_DEVICE = -5,      /* the GPU or its driver failed */
    MOEFLUX_ERR_UNSUPPORTED = -6, /* well formed, but not something this program or device can do */
    MOEFLUX_ERR_NO_FIT = -7,      /* does not fit the memory or disk there is */
    MOEFLUX_ERR_INTERRUPTED = -8, /* the progress callback said stop */
};

struct moeflux_err {
    int code; /* an enum moeflux_err_code; MOEFLUX_OK while nothing failed */
    /* One line without full stop and newline. It names the file, tensor or option, what was expected and what
     * was found. */
    char text[512];
};

struct moeflux_progress {
    /* `what` names the step ("reading weights"); done and total are in `unit` ("B" or "tok"). total 0: there
     * is nothing to show, only the question whether to go on. Called often, on the thread that asked for the
     * work. Return false to stop the work: it fails with MOEFLUX_ERR_INTERRUPTED. */
    bool (*report)(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);
    void *ctx;
};

/* --- a model --- */

/* Threads may use one model at the same time, each with sessions of its own; a session is one thread's at a
 * time. Evaluations go through the model's devices one behind the other: with several devices, those of
 * several threads are on different ones at once. moeflux_model_close, _reset_stats, _get_usage, _save_usage,
 * _save_trace and _layer_wait_ns are for when none is under way. No function of a model or session may be
 * called from within a callback of an evaluation. */
struct moeflux_model;
struct moeflux_session;

/* How experts are read. AUTO: where all experts fit in 3/4 of the host memory mmap if they are used in place,
 * else pread; where they do not fit the first that works of direct, uring and pread. */
enum moeflux_expert_io {
    MOEFLUX_EXPERT_IO_AUTO,
    MOEFLUX_EXPERT_IO_MMAP,
    MOEFLUX_EXPERT_IO_PREAD,
    MOEFLUX_EXPERT_IO_URING,
    MOEFLUX_EXPERT_IO_DIRECT,
};

/* Which experts of the next layer are read before its router has chosen: those of the token before, those
 * that its router chooses for the hidden state of this layer (on the CPU once more for what this layer's
 * experts made of it), or both. AUTO: ROUTER; NONE on the CPU where the page cache is expected to hold all
 * experts (expert_io). */
enum moeflux_prefetch {
    MOEFLUX_PREFETCH_AUTO,
    MOEFLUX_PREFETCH_NONE,
    MOEFLUX_PREFETCH_PREVIOUS,
    MOEFLUX_PREFETCH_ROUTER,
    MOEFLUX_PREFETCH_BOTH,
};

/* Which expert leaves a full cache: the least recently used; the least frequently used, recent uses counting
 * more; or the one that is least expected, which the run learns from what was chosen before (4 bytes for each
 * pair of experts of a layer). AUTO: FREQUENCY. */
enum moeflux_cache_policy {
    MOEFLUX_CACHE_POLICY_AUTO,
    MOEFLUX_CACHE_POLICY_LRU,
    MOEFLUX_CACHE_POLICY_FREQUENCY,
    MOEFLUX_CACHE_POLICY_CONTEXT,
};

/* The factors of matrix products in prompts. AUTO: float16 where the device has matrix units for it, else
 * float32. Sums are float32 always. On the cpu AUTO lets the set "amx" take fixed point of 24 bits for a
 * prompt's products with quantised weights: as exact as float32, but the bits are others than those of all
 * other sets. */
enum moeflux_prompt_type { MOEFLUX_PROMPT_TYPE_AUTO, MOEFLUX_PROMPT_TYPE_F32, MOEFLUX_PROMPT_TYPE_F16 };

/* The numbers of the KV cache. AUTO: the type of prompts. */
enum moeflux_kv_type { MOEFLUX_KV_TYPE_AUTO, MOEFLUX_KV_TYPE_F32, MOEFLUX_KV_TYPE_F16 };

/* The most devices that share a model. */
enum { MOEFLUX_MAX_DEVICES = 16 };

/* Zero or NULL in any member but `dir` means the default. */
struct moeflux_options {
    const char *dir; /* model directory */
    /* NULL or "auto": a discrete GPU, else an integrated one, else the cpu. "cpu"; "reference"; else a Vulkan
     * device, software ones too: its index (moeflux_device), its name or a part of that. Several, separated
     * by commas (unless all of it is one device's name), or "all", every usable GPU: the layers are shared
     * out to them in this order, see tensor_split. A device may be named twice. MOEFLUX_ERR_USAGE: more
     * devices than layers or MOEFLUX_MAX_DEVICES */
    const char *device;
    /* The devices' shares of the layers, in their order, n_tensor_split of them: any numbers above 0.
     * n_tensor_split 0: by the devices' total memory. MOEFLUX_ERR_USAGE: not as many as devices */
    float tensor_split[MOEFLUX_MAX_DEVICES];
    uint32_t n_tensor_split;
    /* Of the cpu: the instruction set that it uses, one of "portable", "avx2", "avx512", "amx", "neon",
     * "dotprod"; NULL: the fastest that the processor has. On another device it is an error */
    const char *cpu_isa;
    /* So many layers, counted from the first as llama.cpp counts them (dense ones too), have their routed
     * experts computed by the CPU and kept in host memory, whatever is in a cache; the device computes the
     * rest. More than the model has: all. Chunks that give an expert eight tokens on average are an
     * exception: a device with memory of its own computes copies of the experts. Of several devices each
     * keeps to that; one that is the cpu computes its own. MOEFLUX_ERR_USAGE: no device is a GPU. */
    uint32_t n_cpu_layers;
    /* Host memory for experts and checkpoints; 0: from what is free. Where device memory is host memory, it
     * bounds the cache of experts itself. */
    uint64_t memory_bytes;
    /* Device memory for weights, states and experts; 0: from what is free. */
    uint64_t gpu_memory_bytes; /* of each device that is no cpu */
    /* The same for each device in their order; 0: from what is free. MOEFLUX_ERR_USAGE: not as many as
     * devices */
    uint64_t gpu_memory_each[MOEFLUX_MAX_DEVICES];
    uint32_t n_gpu_memory; /* 0: gpu_memory_bytes holds */
    enum moeflux_expert_io expert_io;
    enum moeflux_prefetch prefetch;
    enum moeflux_cache_policy cache_policy;
    /* File of counts (moeflux_model_save_usage). Its most used experts are read at open and never leave the
     * cache. */
    const char *pin;
    /* File of counts. The cache starts with its most used experts. A file that does not exist counts as
     * empty. */
    const char *usage;
    /* File that the router's choices are written to (moeflux_model_save_trace). The results do not change;
     * models whose experts are all resident lose speed. MOEFLUX_ERR_IO: it cannot be made. */
    const char *trace;
    /* Routed experts for a token, instead of as many as the model's configuration says. The weights of those
     * chosen are renormalised as the router does. MOEFLUX_ERR_USAGE: the router cannot choose so many */
    uint32_t active_experts;
    /* 0 < P <= 1: of a token's experts those with the greatest weights, as few as carry a share of P of the
     * weights of all that were chosen (before renormalisation). 0: 1. The others are neither read nor
     * computed nor counted */
    float expert_share;
    /* X >= 0: where experts are streamed, an evaluation of one token takes experts that are in memory in
     * place of absent ones whose scores are less than X higher (logits of the router; DeepSeek: sigmoid plus
     * bias). The best expert of a token stays, of four or more the best two. The results then depend on what
     * is in the cache. 0: off */
    float prefer_resident;
    enum moeflux_prompt_type prompt_type;
    enum moeflux_kv_type kv_type;
    uint32_t n_threads; /* of readers, and of the cpu's computations; 0: by the number of cores */
    uint32_t chunk;     /* most tokens evaluated at once; 0: by kind and total memory of the device */
    uint32_t context;   /* tokens of states that memory is kept free for; 0: 8192, or the model's maximum */
    bool profile;       /* time every kernel (moeflux_stats.ops) */
    struct moeflux_progress progress; /* of loading weights and of prompts */
};

/* Opens, checks and loads. On failure *out is NULL. MOEFLUX_ERR_NO_FIT: the text gives the numbers. */
int moeflux_model_open(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e);
/* Close all sessions first; NULL is legal. An evaluation that was interrupted may still run on the device. If
 * it does not finish within a quarter of a second, this leaves the model's memory allocated, and the process
 * should end. */
void moeflux_model_close(struct moeflux_model *m);

struct moeflux_model_info {
    const char *architecture; /* "Qwen3.5-MoE" */
    /* several: joined by " + ". Borrowed until moeflux_model_close, as every pointer here */
    const char *device;
    const char *backend;        /* "vulkan", "cpu" or "reference": of the first device */
    const char *tokenizer_path; /* NULL: the directory has none */
    const char *
        /* what the family talks in, for a model without a template: "qwen3.5"; NULL: unknown */
        chat_template;
    uint32_t n_layers, hidden, vocab_size, n_experts;
    uint32_t top_k, own_top_k; /* experts of a token: here (active_experts), by the model's configuration */
    float expert_share;        /* of moeflux_options; 1: a token has all top_k */
    float prefer_resident;     /* of moeflux_options */
    uint32_t max_context;      /* the most tokens that a session may have */
    const int32_t *eos;        /* [n_eos] */
    uint32_t n_eos;
    const char *expert_io; /* how experts are read, and why */
    bool experts_resident; /* every expert is in the cache: nothing is read after open */
    uint32_t n_cpu_layers; /* the first layers: their routed experts are computed by the CPU */
    bool f16_products;     /* prompts are computed with float16 products and float32 sums, on some device */
};
struct moeflux_model_info moeflux_model_get_info(const struct moeflux_model *m);

/* A hash of the model: its dimensions and constants, active_experts, expert_share and prefer_resident where
 * they change something, the names, types and sizes of its dense tensors, and samples of the bytes of dense
 * tensors and experts. The packed and the plain layout of one model have the same. Computed at the first call
 * (reads a few MB). MOEFLUX_ERR_IO, _FORMAT, _MEMORY. */
int moeflux_model_fingerprint(struct moeflux_model *m, uint64_t *out, struct moeflux_err *e);

/* Of one device of a model. */
struct moeflux_device_stats {
    const char *device;              /* its name; borrowed until moeflux_model_close */
    uint32_t first_layer, end_layer; /* it has the layers from the first to the one before the last */
    uint64_t weights_bytes, state_bytes;
    uint64_t n_slots, n_host_slots, n_hits, n_host_hits, n_misses;
    /* evaluations were on it, waits included; idle while others work: moeflux_stats.work_ns less these */
    uint64_t busy_ns;
    uint64_t wait_read_ns; /* ... and waited for the disk */
};

enum { MOEFLUX_MAX_OPS = 32 };
struct moeflux_op_time {
    const char *name;
    uint64_t n, ns;
};
struct moeflux_stats { /* since open or the last moeflux_model_reset_stats */
    uint64_t n_prefill_tokens,
        prefill_ns; /* evaluations of more than one token; time with at least one under way */
    uint64_t n_decode_tokens,
        decode_ns;    /* evaluations of one token, or of one of each of several sequences; likewise */
    uint64_t work_ns; /* time with at least one of either under way */
    uint64_t n_submits, n_dispatches;
    uint64_t read_bytes, read_ns;    /* reads of experts; time with at least one in flight */
    uint64_t read_depth_ns;          /* summed over reads: divided by read_ns, the average queue depth */
    uint64_t n_reads;                /* experts read */
    uint64_t wait_read_ns;           /* evaluations waited for the disk */
    uint64_t wait_gpu_ns;            /* the host waited for the device */
    uint64_t n_compiled, compile_ns; /* kernels compiled at their first use; evaluations waited for them */
    /* Chosen experts: in a device slot, in the host's cache, or neither. One whose prefetch is still in
     * flight counts as a miss. */
    uint64_t n_hits, n_host_hits, n_misses;
    /* Choices of experts, one a token and layer, and the experts chosen: with a share they vary. A GPU that
     * holds all experts keeps its choices to itself: 0 */
    uint64_t n_choices, n_chosen;
    uint64_t n_preferred; /* of those: taken because they were in memory (moeflux_options.prefer_resident) */
    uint64_t n_slots, n_host_slots, slot_bytes; /* of the cache */
    uint64_t n_pinned;                          /* slots whose experts never leave (moeflux_options.pin) */
    /* Chosen experts, summed over tokens and layers, that the CPU computed (moeflux_options.n_cpu_layers);
     * its time. */
    uint64_t n_cpu_experts, cpu_experts_ns;
    uint64_t n_cpu_slots;                    /* of the slots: in host memory, for the CPU */
    uint64_t n_predicted, n_predicted_right; /* experts named before the router chose; those that it chose */
    uint64_t n_predictable;                  /* experts chosen where there was a prediction */
    uint64_t n_prefetched;                   /* reads that were started for a prediction */
    uint64_t n_prefetched_used;              /* of those: chosen while they were in the cache or in flight */
    uint64_t n_promoted, n_demoted;          /* experts copied from host to device, from device to host */
    uint64_t weights_bytes, state_bytes;     /* device memory of dense weights, of this model's sessions */
    uint64_t weights_mapped_bytes; /* of weights_bytes: used where the files are mapped, not copied */
    uint64_t device_used_bytes; /* device memory of the process, as the driver counts; 0: it does not say */
    uint64_t gpu_ns;            /* sum of ops, if profile was asked for */
    struct moeflux_op_time ops[MOEFLUX_MAX_OPS];
    uint32_t n_ops;
    uint32_t n_devices; /* that share the model. What stands above is theirs together */
    struct moeflux_device_stats devices[MOEFLUX_MAX_DEVICES];
};
void moeflux_model_get_stats(const struct moeflux_model *m, struct moeflux_stats *out);
void moeflux_model_reset_stats(struct moeflux_model *m);
/* How long evaluations waited for the experts of one layer, in ns since open or the last reset. */
uint64_t moeflux_model_layer_wait_ns(const struct moeflux_model *m, uint32_t layer);

/* How often each expert was used: once a token, once a chunk of a prompt. The counts of moeflux_options.usage
 * are included. Models whose experts are all resident count nothing, unless a trace is written. counts:
 * [n_layers][n_experts]. */
void moeflux_model_get_usage(const struct moeflux_model *m, uint32_t *counts);
/* Writes them: text, "layer expert count" a line. The file is replaced as a whole. MOEFLUX_ERR_IO. */
int moeflux_model_save_usage(const struct moeflux_model *m, const char *path, struct moeflux_err *e);
/* Ends the file of moeflux_options.trace, which appears as a whole: each choice of each layer since open, and
 * its weights. Nothing is recorded after it. 0 where no trace was asked for. Without this call there is no
 * file. MOEFLUX_ERR_IO: a write failed, now or earlier; there is no new file. */
int moeflux_model_save_trace(struct moeflux_model *m, struct moeflux_err *e);

/* --- a session --- */

/* max_context: the most tokens that the sequence may have. Memory grows as it is used. MOEFLUX_ERR_USAGE:
 * above the model's own maximum; MOEFLUX_ERR_NO_FIT. The model must outlive the session. */
int moeflux_session_new(struct moeflux_session **out, struct moeflux_model *m, uint32_t max_context,
                        struct moeflux_err *e);
/* NULL is legal. Where an evaluation that was interrupted still runs on the device after a quarter of a
 * second, the memory is freed by a later call of moeflux_session_free, moeflux_session_new or
 * moeflux_model_close. */
void moeflux_session_free(struct moeflux_session *s);

/* What an evaluation hands out. Every member may be NULL. */
struct moeflux_outputs {
    float *logits; /* [vocab_size], after the last token */
    /* The logits after each token, in order: row [vocab_size], valid during the call. A negative result ends
     * the evaluation with that code. */
    int (*each_logits)(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e);
    /* Hidden states: layer 0 is the embedding, layer i the output of layer i. rows [n][hidden] are those of
     * positions pos .. pos + n - 1. Chunks come in ascending order of pos, layers ascending within a chunk.
     * */
    int (*hidden)(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *rows,
                  struct moeflux_err *e);
    void *ctx;
};

/* Appends n >= 1 tokens to the sequence.
 *   MOEFLUX_ERR_USAGE an id is out of range, or the context has no room; nothing changes
 *   MOEFLUX_ERR_INTERRUPTED the progress callback said stop; the sequence keeps the chunks that were finished
 *   (moeflux_session_position) and can go on from there MOEFLUX_ERR_IO, _FORMAT, _DEVICE, or what
 *   outputs->each_logits returned: the chunk is dropped. The sequence goes back to the start of the chunk if
 *   its states can be restored, else to its newest checkpoint, or to position 0 without one; see
 *   moeflux_session_position The progress callback is called several times a second, between the submissions
 *   of a chunk and while the host waits. It is called for a single token too if tokens take long, then with a
 *   total of 0. */
int moeflux_session_eval(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                         const struct moeflux_outputs *outputs, struct moeflux_err *e);

/* How many sequences of a model moeflux_eval_batched takes at once: 8; 1 with
 * moeflux_options.trace and with prefer_resident. Less than 8 with a smaller chunk. */
uint32_t moeflux_max_batched(const struct moeflux_model *m);
/* Appends ids[i] to sequence list[i], of n different sessions of one model, 1 <= n <= moeflux_max_batched.
 * logits[i] [vocab_size]: those after it. Each gets what moeflux_session_eval of this token gives, byte for
 * byte, but weights are read once for all, experts too. MOEFLUX_ERR_USAGE, also of one sequence alone:
 * nothing changes; _INTERRUPTED, _IO, _FORMAT, _DEVICE: no sequence changes. */
int moeflux_eval_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                         float *const *logits, struct moeflux_err *e);

/* Tokens in the sequence. */
uint32_t moeflux_session_position(const struct moeflux_session *s);
/* Back to position 0 with all states zero, no checkpoints and no history. */
int moeflux_session_clear(struct moeflux_session *s, struct moeflux_err *e);

/* The state of a sequence is its position, the rows of the KV cache, the recurrent state and the ids of its
 * tokens. After each call below it equals that of a fresh run over the tokens that remain: byte for byte if
 * that run has the same chunk boundaries, else within the tolerance of chunk sizes.
 *
 * Attention can be cut at any position. A recurrent state cannot: it is that after the last token. A
 * checkpoint is a copy of it in host memory (moeflux_session_checkpoint_bytes) to go back to. Position 0
 * always counts as a checkpoint; it takes no memory and is not listed. Models without recurrent layers need
 * no copies: there a checkpoint is a position. */

/* The ids of the tokens so far, [moeflux_session_position]; -1: not known, because the state was loaded from
 * a file without ids. Borrowed until the next call that changes the sequence. */
const int32_t *moeflux_session_history(const struct moeflux_session *s);

/* Cuts the sequence to its first `pos` tokens and drops later checkpoints. If the model has recurrent layers,
 * restores the nearest checkpoint at or before `pos` and evaluates the tokens from there to `pos` again, with
 * progress reports. pos = moeflux_session_position changes nothing. MOEFLUX_ERR_USAGE: pos is greater, or a
 * token to evaluate again is not known (nothing changes). MOEFLUX_ERR_INTERRUPTED and the other errors: as
 * for moeflux_session_eval. */
int moeflux_session_truncate(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);

/* Prepares the sequence for the prompt ids [n], n >= 1: keeps the longest common prefix that it can keep
 * without evaluating anything (with recurrent layers, up to a checkpoint), and at most n - 1 tokens, since
 * the logits of the last one are wanted. *n_reused gets the number of tokens kept, which is the position now.
 * The caller evaluates ids + *n_reused. */
int moeflux_session_reuse(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t *n_reused,
                          struct moeflux_err *e);

/* Checkpoints the state at the current position. If there is one already, it counts as used now. The least
 * recently used checkpoint is dropped if there are more than the cap. MOEFLUX_ERR_MEMORY, _DEVICE: no
 * checkpoint was added or lost. */
int moeflux_session_checkpoint(struct moeflux_session *s, struct moeflux_err *e);
/* Goes back to the checkpoint at `pos` (0: clears) and drops later ones. MOEFLUX_ERR_USAGE: there is none,
 * nothing changes. */
int moeflux_session_restore(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);
/* MOEFLUX_ERR_USAGE: there is no checkpoint at `pos`, or pos is 0. */
int moeflux_session_drop_checkpoint(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);
/* The most checkpoints that are kept (default 4). Those above the cap are dropped now, the least recently
 * used first. The cap is never greater than what memory was kept free for at open
 * (moeflux_plan.n_checkpoints). MOEFLUX_ERR_USAGE: n is 0. */
int moeflux_session_set_checkpoint_cap(struct moeflux_session *s, uint32_t n, struct moeflux_err *e);
uint32_t moeflux_session_checkpoint_cap(const struct moeflux_session *s);
/* From now on an evaluation of several chunks makes checkpoints by itself: after the first chunk that reaches
 * or passes a multiple of `n` tokens, but not after its last chunk. 0, the default: never. No effect without
 * recurrent layers. */
void moeflux_session_set_checkpoint_every(struct moeflux_session *s, uint32_t n);
/* The next evaluation, whatever comes of it, checkpoints at `pos` if it reaches or passes that: without being
 * cut there, so that it costs no evaluation of its own. Too little memory for the checkpoint is no failure.
 * 0: nowhere. */
void moeflux_session_checkpoint_at(struct moeflux_session *s, uint32_t pos);
/* Positions of the checkpoints, ascending, up to `cap` of them into `pos`; returns how many there are. */
uint32_t moeflux_session_list_checkpoints(const struct moeflux_session *s, uint32_t *pos, uint32_t cap);
/* Host memory of one checkpoint; 0 without recurrent layers. */
uint64_t moeflux_session_checkpoint_bytes(const struct moeflux_session *s);

/* Snapshots are files of a state. Versions 1 and 2 are those of the original moeflux (magic MFLX): float32
 * rows of the KV cache and recurrent states, no ids, and nothing that tells the weights apart. Version 3 adds
 * the ids, the model's fingerprint, the type of the KV rows, the checkpoints and a checksum. Version 1 is
 * only read. */
enum moeflux_state_format { MOEFLUX_STATE_V2 = 2, MOEFLUX_STATE_V3 = 3 };

/* Bytes of the file that moeflux_session_save would write now. */
uint64_t moeflux_session_state_bytes(const struct moeflux_session *s, enum moeflux_state_format format);
/* Writes the state to a new file and renames it: `path` has the old bytes or the new ones, after a power
 * failure too. The session does not change. Needs a buffer of one MiB. Version 2 widens float16 rows.
 * MOEFLUX_ERR_IO, _DEVICE, _MEMORY, _INTERRUPTED; _USAGE: no such format. */
int moeflux_session_save(struct moeflux_session *s, const char *path, enum moeflux_state_format format,
                         struct moeflux_err *e);
/* Replaces the session's state by that of a file of any version. On failure the session does not change;
 * unless its position is 0, this takes device memory for both states while it loads. After version 1 or 2 the
 * ids are not known. A float16 cache rounds the rows of versions 1 and 2; version 3 must have the cache's
 * type. MOEFLUX_ERR_IO; _FORMAT: no snapshot, cut, damaged, of another model or another type of rows;
 * _NO_FIT: more tokens than max_context, or no memory; _INTERRUPTED. The text names the file, what was
 * expected and what was found. */
int moeflux_session_load(struct moeflux_session *s, const char *path, struct moeflux_err *e);

/* The header of a snapshot, read without a model. Checked: the header, and the file's length as far as the
 * version tells. */
struct moeflux_state_info {
    uint32_t version;
    uint32_t n_layers;
    bool has_tokens;   /* version 3; else the next three are 0 */
    uint32_t n_tokens; /* the position */
    uint32_t n_checkpoints;
    uint64_t fingerprint; /* of the model */
    uint64_t bytes;       /* of the file */
};
int moeflux_read_state_info(const char *path, struct moeflux_state_info *out, struct moeflux_err *e);

/* --- text --- */

struct moeflux_tokenizer;

/* path: a tokenizer.json or tiktoken.model (moeflux_model_info.tokenizer_path); the files beside it are read
 * too. MOEFLUX_ERR_IO, _FORMAT, _UNSUPPORTED: not a byte-level BPE tokenizer; _MEMORY. */
int moeflux_tokenizer_open(struct moeflux_tokenizer **out, const char *path, struct moeflux_err *e);
void moeflux_tokenizer_close(struct moeflux_tokenizer *t); /* NULL is legal */

/* The ids of a text of `len` bytes. Returns how many there are; the first `cap` of them are in ids, so that
 * cap 0 asks for the number. parse_special: added tokens ("<|im_start|>") in the text become their ids; else
 * they are text. Invalid UTF-8 becomes U+FFFD. No BOS is added (moeflux_tokenizer_bos). */
int64_t moeflux_tokenizer_encode(const struct moeflux_tokenizer *t, const char *text, size_t len,
                                 bool parse_special, int32_t *ids, size_t cap, struct moeflux_err *e);
/* The bytes of one token, which may be a part of a character. Returns their number, 0 for an id without a
 * token. *bytes is borrowed from the tokenizer. */
size_t moeflux_tokenizer_bytes(const struct moeflux_tokenizer *t, int32_t id, const char **bytes);
/* Whether the id is a control token, which is not shown to a user. */
bool moeflux_tokenizer_is_special(const struct moeflux_tokenizer *t, int32_t id);
/* The id of an added token by its text ("<|im_end|>"), or -1. */
int32_t moeflux_tokenizer_special_id(const struct moeflux_tokenizer *t, const char *text);
/* The id that the model expects before every text, or -1. */
int32_t moeflux_tokenizer_bos(const struct moeflux_tokenizer *t);
/* The model's chat template, a Jinja program, or NULL. Borrowed. */
const char *moeflux_tokenizer_chat_template(const struct moeflux_tokenizer *t);

struct moeflux_sampler;

struct moeflux_sampler_options {
    float temperature;    /* 0: greedy, the lowest id of the maximum */
    uint32_t top_k;       /* keep the k largest; 0: all */
    float top_p;          /* keep the smallest set whose probabilities sum to at least p; 1: all */
    float min_p;          /* drop what is below min_p times the largest probability; 0: none */
    float repeat_penalty; /* positive logits are divided by it, others multiplied; 1: off */
    uint32_t repeat_last; /* how many of the last tokens the penalty looks at; at most 2^20 */
    uint64_t seed;
    /* Taken from the logit of a token that the answer has: once, and for each time. -2 to 2; 0: off. */
    float presence_penalty, frequency_penalty;
};
/* temperature 1, all else off, seed 0. */
struct moeflux_sampler_options moeflux_sampler_defaults(void);

/* Deterministic: the same options and logits give the same ids. n_ids: the number of logits. t: ids without a
 * token are never chosen; NULL: all ids have one. MOEFLUX_ERR_USAGE names the option that is out of range;
 * _MEMORY. */
int moeflux_sampler_new(struct moeflux_sampler **out, const struct moeflux_sampler_options *o, uint32_t n_ids,
                        const struct moeflux_tokenizer *t, struct moeflux_err *e);
void moeflux_sampler_free(struct moeflux_sampler *s); /* NULL is legal */
/* Tells the sampler of a token of the prompt or the answer, for the penalties. */
void moeflux_sampler_accept(struct moeflux_sampler *s, int32_t id);
/* What is accepted from now on is the answer; until then presence and frequency penalty have nothing to look
 * at. */
void moeflux_sampler_begin_answer(struct moeflux_sampler *s);
/* Forgets the accepted tokens and starts the seed's sequence again. */
void moeflux_sampler_reset(struct moeflux_sampler *s);
/* The next token's id, or MOEFLUX_ERR_DEVICE: a logit that could be chosen is NaN. Never allocates. */
int32_t moeflux_sampler_pick(struct moeflux_sampler *s, const float *logits, struct moeflux_err *e);

/* Appends the token `id` and chooses the one behind it: moeflux_session_eval, moeflux_sampler_accept and
 * moeflux_sampler_pick with the same results, but where a GPU holds all experts it chooses too, if it can by
 * the sampler's options. Then, with `more`, it begins to evaluate the choice before this returns: the next
 * call with the same token and sampler finds it under way. Any other call waits for it and drops it; the
 * session is as if it had not begun. The sampler has as many ids as the model. */
int moeflux_session_step(struct moeflux_session *s, int32_t id, struct moeflux_sampler *sampler, bool more,
                         int32_t *next, struct moeflux_err *e);

/* --- devices, memory, speed --- */

struct moeflux_device {
    char option[16]; /* what moeflux_options.device names it by: an index, "cpu" */
    char name[256];
    char kind[16];    /* "discrete", "integrated", "virtual", "other", "software": Vulkan devices; "cpu" */
    char driver[256]; /* name and version; of the cpu: "" */
    uint64_t memory_bytes;
    uint32_t subgroup_size; /* 0: the cpu */
    char matrices
        [32];     /* cooperative matrices, "NV", "KHR", "NV and KHR"; "": none that kernels here are for */
    char isa[16]; /* of the cpu, like the next: the instruction set that it uses; else "" */
    uint32_t n_threads;  /* that it computes with */
    int32_t memory_node; /* of this machine (NUMA), that a GPU is attached to; -1: the system does not say */
    bool usable;
    bool is_default;   /* taken when no device is named */
    char why_not[128]; /* the feature that is missing */
};
/* Fills up to `cap` entries, GPUs first, then the cpu, then software devices; returns how many devices there
 * are. Without Vulkan there is the cpu alone. */
int moeflux_list_devices(struct moeflux_device *out, uint32_t cap, struct moeflux_err *e);

/* How fast the cpu's threads read memory together. n_threads: 0: as many as it would take. Some tenths of a
 * second. */
int moeflux_measure_memory(uint32_t n_threads, double *bytes_s, struct moeflux_err *e);

/* What a model needs, from its files alone (no device). */
struct moeflux_needs {
    char architecture[32];
    uint32_t n_layers, n_attention, hidden, vocab_size, n_experts, moe_inner, max_context;
    uint32_t n_windowed, window; /* of the layers with attention, those that see so many positions; 0: none */
    uint32_t n_expert_layers;    /* layers with routed experts */
    uint32_t top_k, own_top_k;   /* experts of a token: with the options, by the model's configuration */
    float expert_share;          /* 1: a token has all top_k. What follows counts all */
    bool packed;                 /* layout on disk; false: plain safetensors */
    bool is_sketch;              /* `dir` is a config.json alone: sizes are computed, no file is there */
    bool is_assumed; /* ... without a quantization table: formats are those that `moeflux convert` makes */
    uint64_t n_params, n_active_params, n_expert_params;
    uint64_t dense_bytes;        /* the resident part, on disk and in memory */
    uint64_t expert_bytes;       /* all routed experts */
    char expert_formats[192];    /* how they are stored: "3 bits g64, down 6 bits g64 in 12 of 40 layers" */
    char dense_formats[128];     /* how the rest is, by share of its bytes: "4 bits g64 91 %, bf16 9 %" */
    uint64_t one_expert_bytes;   /* the largest: layers may store theirs differently */
    uint64_t token_dense_bytes;  /* weights read per token from memory, without routed experts */
    uint64_t token_expert_bytes; /* routed experts' bytes per token: top_k of each layer with experts */
    uint64_t kv_bytes_per_pos;   /* of float32 numbers */
    uint64_t recurrent_state_bytes; /* of one sequence, with the backup that lets a chunk be undone */
    /* least memory to run: dense + states of a short context + one layer's top_k experts */
    uint64_t floor_bytes;
};
/* dir: a model directory, or a file named X.json: a configuration alone. So for moeflux_make_plan and
 * moeflux_measure. */
int moeflux_get_needs(const char *dir, struct moeflux_needs *out, struct moeflux_err *e);
/* The same with active_experts and expert_share of the options, of which only these and `dir` count. */
int moeflux_get_needs_with(const struct moeflux_options *o, struct moeflux_needs *out, struct moeflux_err *e);

/* The directories that share a model's experts: `dir` itself, then those of `moeflux convert --spread`, as
 * its spread.json names them. Fills up to `cap` entries, returns how many there are; does not look at the
 * others. */
struct moeflux_part {
    char path[4096];
};
enum { MOEFLUX_MAX_PARTS = 8 };
int moeflux_list_parts(const char *dir, struct moeflux_part *out, uint32_t cap, struct moeflux_err *e);

/* Of one of several devices: what struct moeflux_plan says of all together. */
struct moeflux_plan_device {
    char device[256];
    uint32_t first_layer, end_layer; /* it has the layers from the first to the one before the last */
    bool is_unified;
    uint64_t device_free_bytes, device_bytes, weights_bytes, state_bytes, activation_bytes, driver_bytes;
    uint64_t n_experts, n_slots, n_host_slots, n_pinned; /* of those that it computes */
    uint64_t n_cpu_experts, n_cpu_slots;                 /* of those that the CPU computes for it */
};

/* What moeflux_model_open would do with the same options now: its own decision, with nothing loaded. */
struct moeflux_plan {
    char device[256];                            /* several: their names, joined by " + " */
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
    uint64_t n_pinned;                   /* device slots whose experts never leave (moeflux_options.pin) */
    uint32_t n_cpu_layers;               /* the first layers: the CPU computes their routed experts */
    uint64_t n_cpu_experts, n_cpu_slots; /* theirs, of n_experts; those that host memory has room for */
    /* The most that experts can have on the device, and on the host where that is other memory (else 0). */
    uint64_t device_room_bytes, host_room_bytes;
    uint64_t cpu_scratch_bytes; /* host memory that computing them takes */
    bool experts_resident;      /* every expert has a slot: nothing is read after open */
    char expert_io[1200];       /* how experts are read, and why */
    uint32_t n_devices;         /* that share the layers. What stands above is theirs together */
    struct moeflux_plan_device devices[MOEFLUX_MAX_DEVICES];
};
/* Fails as moeflux_model_open would: MOEFLUX_ERR_NO_FIT with the numbers, _UNSUPPORTED, _DEVICE. */
int moeflux_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct moeflux_err *e);

struct moeflux_device_speeds { /* of one device; see moeflux_speeds */
    double kernel_bytes_s, dispatch_s, round_trip_s, copy_bytes_s;
};

/* What this machine does. A speed of 0 was not measured. */
struct moeflux_speeds {
    double disk_bytes_s; /* experts of this model, top_k at a time, as a layer asks for them */
    bool disk_is_direct; /* without the page cache; else it may have answered */
    uint64_t disk_bytes; /* that were read to find out */
    char disk_how[256];  /* "direct", or why there is no speed */
    char device
        [256]; /* several: their names; the speeds are those of a token that passes through their layers */
    double kernel_bytes_s; /* product of a quantised matrix and a vector */
    double dispatch_s;     /* of one small kernel, with the barrier after it */
    double round_trip_s;   /* of a submission and the wait for it */
    double copy_bytes_s;   /* host to device; 0 too where that is the same memory */
    /* the same product on the CPU's cores; 0 too where no device is another than the CPU */
    double cpu_bytes_s;
    uint32_t n_devices; /* whose speeds, one by one, are: */
    struct moeflux_device_speeds devices[MOEFLUX_MAX_DEVICES];
    char device_fault[512]; /* why the device has no speeds; "": it has */
    double memory_bytes_s;  /* of this machine's memory, read by n_threads */
    uint32_t n_threads;
    /* Another device whose products are faster: how it is named in moeflux_options.device, and their speed.
     * "": none */
    char faster_device[16];
    char faster_name[256];
    double faster_bytes_s;
};
/* Takes about a second for the disk and less for the device. Fails only if the directory cannot be opened. */
int moeflux_measure(const struct moeflux_options *o, struct moeflux_speeds *out, struct moeflux_err *e);

/* The parts of one decoded token's time, in seconds. */
struct moeflux_forecast {
    double compute_s, copy_s, disk_s;
    double apart_s;      /* of the token, if nothing is prefetched */
    double overlapped_s; /* if everything is */
};
/* hits: the share of chosen experts, 0 to 1, that device or host hold. plan: NULL if there is none. */
struct moeflux_forecast moeflux_make_forecast(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                              const struct moeflux_speeds *s, double hits);

/* How long a token should take by where its routed experts are computed, in seconds. It is advice: nothing
 * follows it. */
struct moeflux_placement {
    double gpu_s, cpu_s, best_s; /* all on the device, all on the CPU, the first best_cpu_layers on the CPU */
    uint32_t best_cpu_layers;    /* of moeflux_options.n_cpu_layers */
};
/* False, and nothing is filled: the speeds of device and CPU are not both known. */
bool moeflux_compare_placements(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                                const struct moeflux_speeds *s, struct moeflux_placement *out);

/* How layers are shared out to several devices, and how they would best be. Advice: nothing follows it. */
struct moeflux_split {
    uint32_t n_layers[MOEFLUX_MAX_DEVICES]; /* of each device: a moeflux_options.tensor_split */
    double token_s, best_token_s;           /* a token on all devices together: as planned, with n_layers */
    double slowest_s, best_slowest_s; /* of it, on the device that takes longest: it holds up a prompt */
};
/* 1: another split than the plan's would be faster, by more than measurements err; 0: none would. 0 and zeros
 * in *out: there is one device, or some device has no speed. MOEFLUX_ERR_MEMORY. */
int moeflux_find_split(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct moeflux_speeds *s, struct moeflux_split *out, struct moeflux_err *e);

/* Runs every operation on `device` (as in moeflux_options) against the reference over a grid of shapes, on
 * the cpu with each instruction set that the processor has, or with `cpu_isa` alone. Calls `row` once per
 * case: relative error against the bound, or that the device has no kernel for it. Returns the number of
 * failed cases. */
struct moeflux_selftest_row {
    const char *kernel;
    const char *shape;
    double error, bound;
    bool ok;
    bool skipped;       /* nothing was computed; `ok` holds */
    const char *device; /* its name */
};
int moeflux_selftest(const char *device, const char *cpu_isa,
                     void (*row)(void *ctx, const struct moeflux_selftest_row *r), void *ctx,
                     struct moeflux_err *e);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
