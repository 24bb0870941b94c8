/* moeflux.h - run mixture-of-experts language models that are larger than memory.
 *
 *   struct moeflux_model      an opened model on a device: weights, kernels, the cache of experts
 *   struct moeflux_session    one sequence of tokens: its position, KV cache and recurrent state
 *   struct moeflux_tokenizer  text to token ids and back
 *   struct moeflux_sampler    logits to the next token id
 *
 * Nothing is kept in globals. Threads may share a model and a tokenizer; a session or a sampler belongs to
 * one thread at a time. Token ids are int32_t in [0, vocab_size).
 *
 * A function that can fail returns int: 0 or a documented value >= 0, else a negative MOEFLUX_ERR_*. It fills
 * the caller's struct moeflux_err, which may be NULL. In a list of errors, _IO stands for MOEFLUX_ERR_IO. Any
 * of them returns _USAGE if an argument is NULL and may not be, except the place of the object that it makes.
 * Strings and arrays in structs that the caller passes in are borrowed during the call.
 *
 * Chats, conversations and grammars are in moeflux_chat.h. This file includes no other file of the project
 * and compiles alone, as C11 and as C++. */
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
    MOEFLUX_ERR_MEMORY = -3,      /* out of host memory */
    MOEFLUX_ERR_USAGE = -4,       /* the caller asked for something that makes no sense */
    MOEFLUX_ERR_DEVICE = -5,      /* the GPU or its driver failed */
    MOEFLUX_ERR_UNSUPPORTED = -6, /* well formed, but not something this program or device can do */
    MOEFLUX_ERR_NO_FIT = -7,      /* does not fit the memory or disk there is */
    MOEFLUX_ERR_INTERRUPTED = -8, /* the progress callback returned false */
    MOEFLUX_ERR_LOST = -9, /* the driver gave the GPU up; all that its models hold is lost: close them */
};

struct moeflux_err {
    int code; /* an enum moeflux_err_code; MOEFLUX_OK while nothing failed */
    /* One line without full stop and newline. It names the file, tensor or option, what was expected and what
     * was found. Options are called as their fields, in backquotes. */
    char text[512];
};

struct moeflux_progress {
    /* Reports `done` of `total`, both in `unit` ("B" or "tok"), of the step `what` ("reading weights").
     * total 0: there is nothing to show; the call only asks whether to continue. Called often, on the thread
     * that asked for the work; if answers are decoded together, on any thread that computes one of them.
     * Threads that use a model at the same time may call it at the same time. Returns false to stop the work,
     * which then fails with MOEFLUX_ERR_INTERRUPTED. */
    bool (*report)(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total);
    void *ctx;
};

/* Shows the user a line about something that did not stop the work. */
struct moeflux_warning {
    void (*tell)(void *ctx, const char *text); /* NULL: nothing is shown */
    void *ctx;
};

/* --- a model --- */

/* Threads may use one model at the same time, each with its own sessions. Evaluations pass the model's
 * devices one after the other; with several devices, evaluations of several threads run at the same time,
 * each on a different device.
 *
 * While an evaluation is in flight, do not call moeflux_model_close, _reset_stats, _get_usage or _save_usage.
 * A callback of an evaluation must not call any function of a model or a
 * session. */
struct moeflux_model;
struct moeflux_session;

/* How experts are read. AUTO: mmap or pread if all experts fit in 3/4 of the host memory (mmap if they are
 * used in place); otherwise the first of direct, uring and pread that works. */
enum moeflux_expert_io {
    MOEFLUX_EXPERT_IO_AUTO,
    MOEFLUX_EXPERT_IO_MMAP,
    MOEFLUX_EXPERT_IO_PREAD,
    MOEFLUX_EXPERT_IO_URING,
    MOEFLUX_EXPERT_IO_DIRECT,
};

/* Which experts of the next layer are read before its router has chosen. AUTO: ROUTER; NONE on the CPU where
 * the page cache is expected to hold all experts (expert_io). */
enum moeflux_prefetch {
    MOEFLUX_PREFETCH_AUTO,
    MOEFLUX_PREFETCH_NONE,
    MOEFLUX_PREFETCH_PREVIOUS, /* those that it chose for the previous token */
    /* Those that its router chooses for the hidden state of the current layer. The CPU asks the router again
     * once the current layer's experts are computed. */
    MOEFLUX_PREFETCH_ROUTER,
    MOEFLUX_PREFETCH_BOTH,
};

/* Which expert is evicted from a full cache. AUTO: FREQUENCY. */
enum moeflux_cache_policy {
    MOEFLUX_CACHE_POLICY_AUTO,
    MOEFLUX_CACHE_POLICY_LRU,       /* the least recently used */
    MOEFLUX_CACHE_POLICY_FREQUENCY, /* the least frequently used; recent uses count more */
    /* The least expected one. The run learns which experts follow each other from the choices so far; that
     * takes 4 bytes for each pair of experts of a layer. */
    MOEFLUX_CACHE_POLICY_CONTEXT,
};

/* The type of the factors of matrix products in prompts. Sums are always float32. AUTO: float16 where the
 * device has matrix units for it, else float32. On the cpu, AUTO lets two instruction sets use fixed point
 * for a prompt's products with quantised weights, with other bits than the rest: "avx512" and "amx" 16 bits
 * for the block formats of GGUF, which moves a product by about 1 part in 10,000 of the largest; "amx" 24
 * bits for weights of 4 and 8 bits in groups of 64, as exact as float32. */
enum moeflux_prompt_type { MOEFLUX_PROMPT_TYPE_AUTO, MOEFLUX_PROMPT_TYPE_F32, MOEFLUX_PROMPT_TYPE_F16 };

/* The type of the rows of the KV cache. AUTO: the same type as in prompts. */
enum moeflux_kv_type {
    MOEFLUX_KV_TYPE_AUTO,
    MOEFLUX_KV_TYPE_F32,
    MOEFLUX_KV_TYPE_F16,
    MOEFLUX_KV_TYPE_Q8_0,
};

/* The most devices that share a model. */
enum { MOEFLUX_MAX_DEVICES = 16 };

enum { MOEFLUX_MAX_PARALLEL = 256, MOEFLUX_DEFAULT_CONTEXT = 8192 };
/* Zero or NULL in any member but `dir` means the default. Errors are those of moeflux_model_open. */
struct moeflux_options {
    const char *dir; /* model directory, or GGUF file */
    /* NULL or "auto": a discrete GPU, else an integrated one, else the cpu. Otherwise "cpu", "reference", or
     * a Vulkan device (also a software one) by its index (moeflux_device), its name or a part of the name.
     * Several devices, separated by commas (unless the whole text is the name of one device), or "all" (every
     * usable GPU) share the layers in this order; see tensor_split. A device may be named twice.
     * MOEFLUX_ERR_USAGE: more devices than layers or than MOEFLUX_MAX_DEVICES. */
    const char *device;
    /* The devices' shares of the layers, in the order of `device`; any numbers above 0. n_tensor_split 0: by
     * the devices' total memory. MOEFLUX_ERR_USAGE: n_tensor_split is not the number of devices. */
    float tensor_split[MOEFLUX_MAX_DEVICES];
    uint32_t n_tensor_split;
    /* The cpu's instruction set: "portable", "avx2", "avx512", "amx", "neon" or "dotprod"; NULL: the fastest
     * that the processor has. MOEFLUX_ERR_USAGE: the device is not the cpu. */
    const char *cpu_isa;
    /* Number of layers, counted from the first as llama.cpp counts them (dense ones too), whose routed
     * experts are kept in host memory and computed by the CPU, whatever is in a cache. More than the model
     * has: all. Exception: in chunks with eight or more tokens for each expert on average, a device with its
     * own memory computes copies of the experts. With several devices the rule holds for each of them; a
     * device that is the cpu computes its own experts. MOEFLUX_ERR_USAGE: no device is a GPU. */
    uint32_t n_cpu_layers;
    /* Share of each layer's routed experts that are kept in host memory and computed by the CPU while the
     * device computes the others, more than 0 and less than 1; 0: none. The number of an expert decides.
     * The rest is as with n_cpu_layers. MOEFLUX_ERR_USAGE: n_cpu_layers is given too, or no device is a
     * GPU. */
    float cpu_share;
    /* Host memory for experts and checkpoints in bytes; 0: chosen from what is free. Where device memory is
     * host memory, this limits the cache of experts itself. */
    uint64_t memory_bytes;
    /* Device memory for weights, states and experts in bytes, of each device that is not the cpu; 0: chosen
     * from what is free. */
    uint64_t gpu_memory_bytes;
    /* The same for each device, in the order of `device`; 0: chosen from what is free. MOEFLUX_ERR_USAGE:
     * n_gpu_memory is not the number of devices. */
    uint64_t gpu_memory_each[MOEFLUX_MAX_DEVICES];
    uint32_t n_gpu_memory; /* 0: gpu_memory_bytes applies */
    enum moeflux_expert_io expert_io;
    enum moeflux_prefetch prefetch;
    enum moeflux_cache_policy cache_policy;
    /* File of counts (moeflux_model_save_usage). Its most used experts are read at open and never evicted. */
    const char *pin;
    /* File of counts. The cache starts with its most used experts. A file that does not exist counts as
     * empty. */
    const char *usage;
    /* Routed experts for a token, in place of the number in the model's configuration. The weights of the
     * chosen ones are renormalised as the router does. MOEFLUX_ERR_USAGE: the router cannot choose that
     * many. */
    uint32_t active_experts;
    /* P, 0 < P <= 1; 0: 1. A token keeps only its experts with the greatest weights: the fewest that together
     * have a share P of the weights of all that were chosen (before renormalisation). The others are not
     * read, computed or counted. */
    float expert_share;
    /* X >= 0; 0: off. Where experts are streamed, an evaluation of one token may replace a chosen expert that
     * is not resident by a resident one whose score is less than X lower (logits of the router; DeepSeek:
     * sigmoid plus bias). The best expert of a token stays; of four or more, the best two stay. The results
     * then depend on what is in the cache. */
    float prefer_resident;
    enum moeflux_prompt_type prompt_type;
    enum moeflux_kv_type kv_type;
    uint32_t n_threads; /* threads that read, and that compute on the cpu, at most 4096; 0: all cores */
    uint32_t chunk;     /* most tokens evaluated at once; 0: by kind and total memory of the device */
    /* Most sequences that are decoded together (moeflux_max_batched); 0: 8. More than 8 choose matrix
     * arithmetic on a GPU with matrix units, however many there are at a moment: products of float16
     * factors, sums in float32, as in prompts. MOEFLUX_ERR_USAGE: more than MOEFLUX_MAX_PARALLEL. */
    uint32_t n_parallel;
    /* Tokens of state that memory is kept free for; 0: MOEFLUX_DEFAULT_CONTEXT, or the model's maximum. */
    uint32_t context;
    /* Opens the model's layer of multi-token prediction, too, which proposes tokens (draft mtp).
     * MOEFLUX_ERR_UNSUPPORTED: the checkpoint has none, several devices share the layers, or experts are
     * streamed. */
    bool drafter;
    /* A GGUF file that has this layer alone, for a model that is a GGUF file; NULL: the model's files have
     * it. */
    const char *drafter_file;
    /* Opens it if the model has it, one device holds all experts and there is memory. An answer whose draft
     * is auto uses it where that saves time. */
    bool drafter_auto;
    bool profile;                     /* time every kernel (moeflux_stats.ops) */
    struct moeflux_progress progress; /* reports loading weights and evaluating prompts */
    /* Called from any thread, once for each device: a read of an expert failed and was tried again. */
    struct moeflux_warning warning;
};

/* Opens and checks a model and loads its weights. The caller owns *out (moeflux_model_close); NULL on
 * failure. Errors: any. The text of _NO_FIT gives the numbers. */
int moeflux_model_open(struct moeflux_model **out, const struct moeflux_options *o, struct moeflux_err *e);
/* Does the same with the defaults of all options but these two. */
int moeflux_model_open_dir(struct moeflux_model **out, const char *dir, const char *device,
                           struct moeflux_err *e);
/* Closes a model. Free all its sessions first; NULL is legal. An interrupted evaluation may still run on the
 * device. If it does not finish within a quarter of a second, the model's memory stays allocated, and the
 * process should end. */
void moeflux_model_close(struct moeflux_model *m);

/* Pointers are borrowed until moeflux_model_close. */
struct moeflux_model_info {
    const char *dir;            /* moeflux_options.dir */
    const char *architecture;   /* "Qwen3.5-MoE" */
    const char *device;         /* name; several: joined by " + " */
    const char *backend;        /* "vulkan", "cpu" or "reference"; of the first device */
    const char *tokenizer_path; /* NULL: the directory has no tokenizer */
    /* The family's chat format, for a model without a template: "qwen3.5"; NULL: unknown. */
    const char *chat_template;
    uint32_t n_layers, hidden, vocab_size, n_experts;
    uint32_t top_k, own_top_k; /* experts of a token: here (active_experts), in the model's configuration */
    float expert_share;        /* moeflux_options.expert_share; 1: a token has all top_k */
    float prefer_resident;     /* moeflux_options.prefer_resident */
    uint32_t max_context;      /* most tokens of a session */
    const int32_t *eos;        /* [n_eos] */
    uint32_t n_eos;
    const char *expert_io; /* how experts are read, and why */
    bool experts_resident; /* every expert is in the cache: nothing is read after open */
    uint32_t n_cpu_layers; /* the first layers, whose routed experts are computed by the CPU */
    float cpu_share;       /* moeflux_options.cpu_share: so many of their experts; 0: all */
    bool f16_products;     /* prompts use float16 products and float32 sums on at least one device */
    /* [n_suppressed] ids that are never chosen (suppress_tokens). Answers of moeflux_chat.h have none;
     * a sampler of moeflux_sampler_new needs biases. */
    const int32_t *suppressed;
    size_t n_suppressed;
};
struct moeflux_model_info moeflux_model_get_info(const struct moeflux_model *m);

/* Computes a hash of the model. It covers its dimensions and constants; active_experts, expert_share and
 * prefer_resident where they have an effect; names, types and sizes of the dense tensors; samples of the
 * bytes of dense tensors and experts. The packed and the plain layout of a model have the same hash. The
 * first call reads a few MB; later ones return the same value. Errors: _IO, _FORMAT, _MEMORY. */
int moeflux_model_fingerprint(struct moeflux_model *m, uint64_t *out, struct moeflux_err *e);

/* What one device of a model did. */
struct moeflux_device_stats {
    const char *device;              /* name; borrowed until moeflux_model_close */
    uint32_t first_layer, end_layer; /* its layers: first_layer to end_layer - 1 */
    uint64_t weights_bytes, state_bytes;
    uint64_t n_slots, n_host_slots, n_hits, n_host_hits, n_misses;
    /* time with an evaluation on it, waits included; moeflux_stats.work_ns less this: idle */
    uint64_t busy_ns;
    uint64_t wait_read_ns; /* time in which evaluations on it waited for the disk */
};

enum { MOEFLUX_MAX_OPS = 32 };
struct moeflux_op_time {
    const char *name;
    uint64_t n, ns;
};
struct moeflux_stats { /* since open or the last moeflux_model_reset_stats */
    /* Evaluations of more than one token, and the time with at least one of them in flight. */
    uint64_t n_prefill_tokens, prefill_ns;
    /* Evaluations of one token, or of one token of each of several sequences; time likewise. */
    uint64_t n_decode_tokens, decode_ns;
    uint64_t work_ns; /* time with at least one evaluation of either kind in flight */
    uint64_t n_submits, n_dispatches;
    uint64_t read_bytes, read_ns;    /* reads of experts; time with at least one in flight */
    uint64_t read_depth_ns;          /* summed over reads: divided by read_ns, the average queue depth */
    uint64_t n_reads;                /* experts read */
    uint64_t n_rows, wait_rows_ns;   /* rows of n-gram tables read; part of wait_read_ns */
    uint64_t wait_read_ns;           /* time in which evaluations waited for the disk */
    uint64_t wait_gpu_ns;            /* time in which the host waited for the device */
    uint64_t n_compiled, compile_ns; /* kernels compiled at their first use; evaluations waited for them */
    /* Chosen experts that were in a device slot, in the host's cache, or in neither. One whose prefetch is
     * still in flight counts as a miss. */
    uint64_t n_hits, n_host_hits, n_misses;
    /* Choices (one for each token and layer) and the experts chosen, whose number varies with expert_share.
     * 0 where a GPU holds all experts: the choices are not read back. */
    uint64_t n_choices, n_chosen;
    uint64_t n_preferred; /* part of n_chosen: taken because resident (moeflux_options.prefer_resident) */
    uint64_t n_slots, n_host_slots, slot_bytes; /* size of the cache of experts */
    uint64_t n_pinned;                          /* slots that are never evicted (moeflux_options.pin) */
    /* Chosen experts that the CPU computed (moeflux_options.n_cpu_layers, cpu_share), summed over tokens
     * and layers, and its time. */
    uint64_t n_cpu_experts, cpu_experts_ns;
    uint64_t n_cpu_slots;                    /* part of n_slots: in host memory, for the CPU */
    uint64_t n_predicted, n_predicted_right; /* experts predicted before the router chose; those it chose */
    uint64_t n_predictable;                  /* experts chosen where there was a prediction */
    uint64_t n_prefetched;                   /* reads that were started for a prediction */
    uint64_t n_prefetched_used;              /* part of these: chosen while in the cache or in flight */
    uint64_t n_promoted, n_demoted;          /* experts copied from host to device, from device to host */
    uint64_t weights_bytes, state_bytes;     /* device memory of dense weights, of this model's sessions */
    uint64_t weights_mapped_bytes;           /* part of weights_bytes: used in the mapped files, not copied */
    /* memory of the layer of multi-token prediction: weights, experts, states; 0: it is not open */
    uint64_t drafter_bytes;
    uint64_t device_used_bytes; /* device memory of the process as the driver counts it; 0: unknown */
    uint64_t gpu_ns;            /* sum of ops, if moeflux_options.profile is set */
    struct moeflux_op_time ops[MOEFLUX_MAX_OPS];
    uint32_t n_ops;
    uint32_t n_devices; /* devices that share the model; the members above are their sums */
    struct moeflux_device_stats devices[MOEFLUX_MAX_DEVICES];
};
void moeflux_model_get_stats(const struct moeflux_model *m, struct moeflux_stats *out);
/* Adds those of a copy on other devices: counts are sums, times the longer ones, each device has a row. */
void moeflux_stats_add(struct moeflux_stats *to, const struct moeflux_stats *more);
void moeflux_model_reset_stats(struct moeflux_model *m);
/* Fills counts [n_layers][n_experts] with how often each expert was used: once a token, once a chunk of a
 * prompt. The counts of moeflux_options.usage are included. Models whose experts are all resident count
 * nothing. */
void moeflux_model_get_usage(const struct moeflux_model *m, uint32_t *counts);
/* Writes these counts as text, "layer expert count" a line. Replaces the file atomically. Errors: _IO. */
int moeflux_model_save_usage(const struct moeflux_model *m, const char *path, struct moeflux_err *e);
/* --- a session --- */

/* Creates an empty sequence of at most max_context tokens. Memory grows as it is used. The caller owns *out
 * (moeflux_session_free); the model must outlive it. Errors: _USAGE (max_context is 0 or above the model's
 * maximum), _NO_FIT, _MEMORY, _DEVICE. */
int moeflux_session_new(struct moeflux_session **out, struct moeflux_model *m, uint32_t max_context,
                        struct moeflux_err *e);
/* Frees a session; NULL is legal. If an interrupted evaluation still runs on the device after a quarter of a
 * second, a later moeflux_session_free, moeflux_session_new or moeflux_model_close frees the memory. */
void moeflux_session_free(struct moeflux_session *s);

/* Where an evaluation puts its results. Every member may be NULL. */
struct moeflux_outputs {
    float *logits; /* [vocab_size], after the last token */
    /* Receives the logits after each token, in order: row [vocab_size], valid during the call. A negative
     * result ends the evaluation with that code. */
    int (*each_logits)(void *ctx, uint32_t pos, const float *row, struct moeflux_err *e);
    /* Receives hidden states: rows [n][hidden] of the positions pos to pos + n - 1; [n][streams][hidden]
     * if the residual has several streams. Layer 0 is the embedding, layer i the output of layer i. Chunks
     * come in ascending order of pos, layers ascending within a chunk. */
    int (*hidden)(void *ctx, uint32_t layer, uint32_t pos, uint32_t n, const float *rows,
                  struct moeflux_err *e);
    void *ctx;
};

/* Appends n >= 1 tokens to the sequence. The progress callback is called several times a second: between the
 * submissions of a chunk and while the host waits. For a single token that takes long it is called with a
 * total of 0. Errors:
 *   _USAGE                 an id is out of range, or the context has no room; nothing changes
 *   _INTERRUPTED           the sequence keeps the chunks that were finished and can continue from there
 *                          (moeflux_session_position)
 *   _IO, _FORMAT, _DEVICE, or the result of outputs->each_logits
 *                          the chunk is dropped: the sequence returns to the start of the chunk if its states
 *                          can be restored, else to its newest checkpoint, else to position 0 */
int moeflux_session_eval(struct moeflux_session *s, const int32_t *ids, uint32_t n,
                         const struct moeflux_outputs *outputs, struct moeflux_err *e);

/* Returns how many sequences of a model one batched evaluation takes: n_parallel, or `chunk` if that is
 * less; 1 with prefer_resident. */
uint32_t moeflux_max_batched(const struct moeflux_model *m);
/* Batched decode: appends ids[i] to the sequence list[i] for n different sessions of one model, 1 <= n <=
 * moeflux_max_batched. logits[i] [vocab_size] receives the logits after it. The results are
 * batch-invariant: they do not depend on the other sequences or their number. With
 * moeflux_batched_is_exact they are byte for byte those of moeflux_session_eval with one token. Weights
 * and experts are read once for all. Errors: _USAGE, _INTERRUPTED, _IO, _FORMAT, _DEVICE. An error of one
 * sequence fails all, and none changes; the text has its index in `list`. */
int moeflux_eval_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                         float *const *logits, struct moeflux_err *e);

/* Whether batched decode computes in float32 on every device: moeflux_max_batched is at most 8, or no device
 * has matrix units, or prompt_type is float32. */
bool moeflux_batched_is_exact(const struct moeflux_model *m);

/* Returns the number of tokens in the sequence. */
uint32_t moeflux_session_position(const struct moeflux_session *s);
/* Returns to position 0 with all states zero, no checkpoints and no history. Errors: _DEVICE,
 * _INTERRUPTED. */
int moeflux_session_clear(struct moeflux_session *s, struct moeflux_err *e);

/* The state of a sequence is its position, the rows of the KV cache, the recurrent state and the ids of
 * its tokens. After each call below it equals the state of a fresh run over the tokens that remain: byte
 * for byte if that run has the same chunk boundaries, else within the tolerance of chunk sizes.
 *
 * The rows of attention can be cut at any position. Attention with a window keeps the rows of the window
 * and of at least one chunk before it; what is older is overwritten. A recurrent state exists only after
 * the last token. A checkpoint is a copy of windows and recurrent states in host memory
 * (moeflux_session_checkpoint_bytes) that the sequence can return to. Position 0 always counts as a
 * checkpoint; it takes no memory and is not listed. Models with neither need no copies: their checkpoints
 * are positions only. */

/* Returns the ids of the tokens so far, [moeflux_session_position]; -1: not known, because the state was
 * loaded from a file without ids. Borrowed until the next call that changes the sequence. */
const int32_t *moeflux_session_history(const struct moeflux_session *s);

/* Cuts the sequence to its first `pos` tokens and drops later checkpoints. With recurrent layers, or if a
 * window no longer has the rows before `pos`, it restores the nearest checkpoint at or before `pos` and
 * evaluates the tokens from there to `pos` again, with progress reports. pos = moeflux_session_position
 * changes nothing. Errors: _USAGE (pos is greater, or a token to evaluate again is not known; nothing
 * changes); else those of moeflux_session_eval. */
int moeflux_session_truncate(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);

/* Prepares the sequence for the prompt ids [n], n >= 1. It keeps the longest common prefix that needs no
 * evaluation (with recurrent layers or dropped rows of a window, up to a checkpoint), and at most n - 1
 * tokens, because the logits of the last one are wanted. *n_reused is the number of tokens kept, which is
 * the position now. The caller then evaluates ids + *n_reused. Errors: those of moeflux_session_truncate. */
int moeflux_session_reuse(struct moeflux_session *s, const int32_t *ids, uint32_t n, uint32_t *n_reused,
                          struct moeflux_err *e);

/* Makes `to` a sequence of the first `pos` tokens of `from`, without evaluating them; what `to` had is
 * dropped, its checkpoints too. Rows of the KV cache are in memory once for both, until one of them goes
 * back before `pos`; recurrent states and the rows of windows are copied. `from` must not be evaluated
 * meanwhile; several threads may fork it at once. pos: at most the position of `from`. With recurrent
 * layers, or if a window no longer has the rows before `pos`, it is that position or one of a checkpoint.
 * Errors: _USAGE (another `pos`, another model, a context of fewer tokens; nothing changes, or `to` is
 * empty); _NO_FIT, _MEMORY, _DEVICE: `to` is empty. */
int moeflux_session_fork(struct moeflux_session *to, struct moeflux_session *from, uint32_t pos,
                         struct moeflux_err *e);

/* Saves a checkpoint at the current position. One that exists already counts as used now. If there are more
 * than the cap, the least recently used one is dropped. Errors: _MEMORY, _NO_FIT (no device memory to read
 * it through), _DEVICE; no checkpoint was added or lost then. */
int moeflux_session_checkpoint(struct moeflux_session *s, struct moeflux_err *e);
/* Returns to the checkpoint at `pos` (0: clears) and drops later ones. Errors: _USAGE (there is none; nothing
 * changes), _DEVICE. */
int moeflux_session_restore(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);
/* Counts the checkpoint at `pos` as used now, so that others are dropped before it. Does nothing if there is
 * none. */
void moeflux_session_touch_checkpoint(struct moeflux_session *s, uint32_t pos);
/* Drops the checkpoint at `pos`. Errors: _USAGE (there is none, or pos is 0). */
int moeflux_session_drop_checkpoint(struct moeflux_session *s, uint32_t pos, struct moeflux_err *e);
/* Sets the most checkpoints that are kept (default 4). More than that are dropped now, the least recently
 * used first. The cap never exceeds what memory was kept free for at open (moeflux_plan.n_checkpoints).
 * Errors: _USAGE (n is 0). */
int moeflux_session_set_checkpoint_cap(struct moeflux_session *s, uint32_t n, struct moeflux_err *e);
uint32_t moeflux_session_checkpoint_cap(const struct moeflux_session *s);
/* Makes evaluations of several chunks save checkpoints themselves: after the first chunk that reaches or
 * passes a multiple of `n` tokens, but not after the last chunk. 0, the default: never. No effect if a
 * checkpoint has 0 bytes. */
void moeflux_session_set_checkpoint_every(struct moeflux_session *s, uint32_t n);
/* Makes the next evaluation save a checkpoint at `pos` if it reaches or passes it. The chunk is not cut
 * there, so that the checkpoint costs no evaluation of its own. The request holds for one evaluation, even if
 * that fails. Too little memory for the checkpoint is no failure. 0: nowhere. */
void moeflux_session_checkpoint_at(struct moeflux_session *s, uint32_t pos);
/* Fills `pos` with up to `cap` positions of checkpoints, ascending; returns the number of checkpoints. */
uint32_t moeflux_session_list_checkpoints(const struct moeflux_session *s, uint32_t *pos, uint32_t cap);
/* Returns the host memory of one checkpoint in bytes; 0 without recurrent layers and windows. */
uint64_t moeflux_session_checkpoint_bytes(const struct moeflux_session *s);

/* Formats of a snapshot, the file of a state. Versions 1 and 2 are those of the original moeflux (magic
 * MFLX): float32 rows of the KV cache and recurrent states, without ids and without anything that
 * identifies the weights. Version 3 adds the ids, the model's fingerprint, the type of the KV rows, the
 * checkpoints and a checksum. Version 4 has only the last rows of windows; it is written in place of
 * version 3 for models with windows. Version 1 can only be read. */
enum moeflux_state_format { MOEFLUX_STATE_V2 = 2, MOEFLUX_STATE_V3 = 3 };

/* Returns the bytes of the file that moeflux_session_save would write now. */
uint64_t moeflux_session_state_bytes(const struct moeflux_session *s, enum moeflux_state_format format);
/* Writes the state to a new file and renames it: `path` has the old bytes or the new ones, after a power
 * failure too. A new file is for its owner alone (0600). The session does not change. Uses a buffer of one
 * MiB. Version 2 widens float16 rows. Errors: _IO, _DEVICE, _MEMORY, _INTERRUPTED, _USAGE (no such
 * format), _UNSUPPORTED (version 2, and a window has dropped rows). */
int moeflux_session_save(struct moeflux_session *s, const char *path, enum moeflux_state_format format,
                         struct moeflux_err *e);
/* Replaces the session's state by that of a file of any version. Unless the position is 0, device memory
 * holds both states while it loads. After version 1 or 2 the ids are not known. A float16 cache rounds the
 * rows of versions 1 and 2; versions 3 and 4 must have the cache's type. Errors, none of which changes the
 * session: _IO; _FORMAT (no snapshot, cut, damaged, of another model or another type of rows); _NO_FIT
 * (more tokens than max_context, or no memory); _INTERRUPTED. The text names the file, what was expected
 * and what was found. */
int moeflux_session_load(struct moeflux_session *s, const char *path, struct moeflux_err *e);

struct moeflux_state_info {
    uint32_t version;
    uint32_t n_layers;
    bool has_tokens;   /* true in versions 3 and 4; else the next three members are 0 */
    uint32_t n_tokens; /* the position */
    uint32_t n_checkpoints;
    uint64_t fingerprint; /* the model's */
    uint64_t bytes;       /* length of the file */
};
/* Reads the header of a snapshot, without a model. It checks the header, and the file's length if the version
 * determines it. Errors: _IO, _FORMAT. */
int moeflux_read_state_info(const char *path, struct moeflux_state_info *out, struct moeflux_err *e);

/* --- text --- */

struct moeflux_tokenizer;

/* Opens a tokenizer. path: a tokenizer.json or tiktoken.model, whose companion files in the same directory
 * are read too, or a GGUF file (moeflux_model_info.tokenizer_path). The caller owns *out
 * (moeflux_tokenizer_close). Errors: _IO, _FORMAT, _UNSUPPORTED (another kind of tokenizer), _MEMORY. */
int moeflux_tokenizer_open(struct moeflux_tokenizer **out, const char *path, struct moeflux_err *e);
void moeflux_tokenizer_close(struct moeflux_tokenizer *t); /* NULL is legal */

/* Sets the callback that encoding calls on its thread, every few milliseconds. Copied. */
void moeflux_tokenizer_set_progress(struct moeflux_tokenizer *t, const struct moeflux_progress *p);

/* Encodes a text of `len` bytes. Returns the number of ids; the first `cap` of them are stored in ids, so
 * that cap 0 asks for the number. parse_special: added tokens ("<|im_start|>") in the text become their ids;
 * else they are text. Invalid UTF-8 becomes U+FFFD. No BOS is added (moeflux_tokenizer_bos). */
int64_t moeflux_tokenizer_encode(const struct moeflux_tokenizer *t, const char *text, size_t len,
                                 bool parse_special, int32_t *ids, size_t cap, struct moeflux_err *e);
/* Does the same, with all ids in *ids, which the caller frees with free(); NULL if there are none. add_bos:
 * they begin with moeflux_tokenizer_bos. */
int64_t moeflux_tokenizer_encode_all(const struct moeflux_tokenizer *t, const char *text, size_t len,
                                     bool parse_special, bool add_bos, int32_t **ids, struct moeflux_err *e);
/* Sets *bytes to the bytes of one token, which may be a part of a character, and returns their number; 0 for
 * an id without a token. *bytes is borrowed from the tokenizer. */
size_t moeflux_tokenizer_bytes(const struct moeflux_tokenizer *t, int32_t id, const char **bytes);
/* Returns whether the id is a control token, which is not shown to a user. */
bool moeflux_tokenizer_is_special(const struct moeflux_tokenizer *t, int32_t id);
/* Returns the id of an added token with this text ("<|im_end|>"), or -1. */
int32_t moeflux_tokenizer_special_id(const struct moeflux_tokenizer *t, const char *text);
/* Returns the id that the model expects before every text, or -1. */
int32_t moeflux_tokenizer_bos(const struct moeflux_tokenizer *t);
/* Returns the model's chat template, a Jinja program, or NULL. Borrowed from the tokenizer. */
const char *moeflux_tokenizer_chat_template(const struct moeflux_tokenizer *t);

struct moeflux_sampler;

/* A number that is added to the logit of a token. */
struct moeflux_bias {
    int32_t id;
    float value;
};

struct moeflux_sampler_options {
    float temperature;    /* 0: greedy; the lowest id wins a tie */
    uint32_t top_k;       /* keep the k largest; 0: all */
    float top_p;          /* keep the smallest set whose probabilities sum to at least p; 1: all */
    float min_p;          /* drop what is below min_p times the largest probability; 0: none */
    float repeat_penalty; /* positive logits are divided by it, others multiplied; 1: off */
    uint32_t repeat_last; /* last tokens that the penalty looks at; at most MOEFLUX_MAX_REPEAT_LAST */
    uint64_t seed;
    /* Subtracted from the logit of a token that the answer contains: once, and for each occurrence. -2 to 2;
     * 0: off. */
    float presence_penalty, frequency_penalty;
    float typical_p;   /* keep the most typical tokens whose probabilities sum to more than this; 0, 1: all */
    float top_n_sigma; /* drop logits more than so many deviations below the best; 0 or less: off */
    uint32_t min_keep; /* the least number of tokens that typical_p, top_p, min_p and XTC leave */
    /* XTC acts with this probability: of the tokens whose probability is at least the threshold, it drops all
     * except the least likely one. */
    float xtc_probability, xtc_threshold;
    /* DRY: a token that would continue a repetition of n >= allowed_length earlier tokens loses
     * multiplier * base^(n - allowed_length) of its logit. multiplier 0: off. */
    float dry_multiplier, dry_base;
    uint32_t dry_allowed_length;
    uint32_t dry_penalty_last_n; /* last tokens that are searched; at most MOEFLUX_MAX_REPEAT_LAST */
    /* Texts that end a repetition, 1 to 40 bytes each; at most 15. With a dry_multiplier above 0 they need
     * the tokenizer. */
    const char *const *dry_sequence_breakers;
    uint32_t n_dry_sequence_breakers;
    const struct moeflux_bias *bias; /* [n_bias] added to the logits of distinct ids */
    uint32_t n_bias;
};
/* Returns temperature 1, all else off, seed 0; xtc_threshold 0.1, dry_base 1.75, dry_allowed_length 2,
 * dry_penalty_last_n 64, and the program's dry_sequence_breakers: a newline, ":", "\"" and "*". */
struct moeflux_sampler_options moeflux_sampler_defaults(void);

enum { MOEFLUX_MAX_REPEAT_LAST = 1 << 20 };
/* The options above that users set, a row each: REAL(field, name, flags, value, lo, hi, help), WHOLE(field,
 * name, flags, value, lo, hi, all, help) and LIST(field, name, flags, value, help), with a member of struct
 * moeflux_sampler_options and the members of struct moeflux_sampler_field. */
#define MOEFLUX_SAMPLER_FIELDS(REAL, WHOLE, LIST)                                                            \
    REAL(temperature, "temperature", "temp,temperature", "T", 0, 100, "temperature, 0: greedy (0.7)")        \
    WHOLE(top_k, "top_k", "top-k", "N", 0, 1 << 30, 0, "sample from the N likeliest tokens, 0: all (20)")    \
    REAL(top_p, "top_p", "top-p", "P", 0, 1, "sample from the likeliest that sum to P (0.95)")               \
    REAL(min_p, "min_p", "min-p", "P", 0, 1, "drop tokens below P times the likeliest (0: off)")             \
    REAL(typical_p, "typical_p", "typical-p,typical", "P", 0, 1,                                             \
         "sample from the most typical that sum to P (1: off)")                                              \
    REAL(top_n_sigma, "top_n_sigma", "top-n-sigma,top-nsigma", "X", -1, 100,                                 \
         "drop logits X deviations below the best (-1: off)")                                                \
    WHOLE(min_keep, "min_keep", "min-keep", "N", 0, 1 << 30, 0,                                              \
          "the fewest tokens that top-p, min-p, .. leave (0)")                                               \
    REAL(xtc_probability, "xtc_probability", "xtc-probability", "P", 0, 1,                                   \
         "how often XTC drops the likeliest tokens (0: off)")                                                \
    REAL(xtc_threshold, "xtc_threshold", "xtc-threshold", "P", 0, 1,                                         \
         "XTC: what counts as likely; above 0.5: off (0.1)")                                                 \
    REAL(repeat_penalty, "repeat_penalty", "repeat-penalty,repetition-penalty", "X", 0, 100,                 \
         "make repeated tokens less likely (1: off)")                                                        \
    WHOLE(repeat_last, "repeat_last_n", "repeat-last-n", "N", 0, MOEFLUX_MAX_REPEAT_LAST,                    \
          MOEFLUX_MAX_REPEAT_LAST, "last tokens that the penalty applies to (64)")                           \
    REAL(presence_penalty, "presence_penalty", "presence-penalty", "X", -2, 2,                               \
         "make tokens of the answer less likely (0: off)")                                                   \
    REAL(frequency_penalty, "frequency_penalty", "frequency-penalty", "X", -2, 2,                            \
         "likewise, for each occurrence (0: off)")                                                           \
    REAL(dry_multiplier, "dry_multiplier", "dry-multiplier", "X", 0, 100,                                    \
         "DRY: make continued repetitions less likely (0: off)")                                             \
    REAL(dry_base, "dry_base", "dry-base", "X", 1, 100, "DRY: growth by each repeated token (1.75)")         \
    WHOLE(dry_allowed_length, "dry_allowed_length", "dry-allowed-length", "N", 0, MOEFLUX_MAX_REPEAT_LAST,   \
          MOEFLUX_MAX_REPEAT_LAST, "DRY: least length of a repetition (2)")                                  \
    WHOLE(dry_penalty_last_n, "dry_penalty_last_n", "dry-penalty-last-n", "N", 0, MOEFLUX_MAX_REPEAT_LAST,   \
          MOEFLUX_MAX_REPEAT_LAST, "DRY: last tokens that are searched (64)")                                \
    LIST(dry_sequence_breakers, "dry_sequence_breakers", "dry-sequence-breakers", "TEXT",                    \
         "DRY: what ends a repetition; repeatable")

enum moeflux_sampler_kind {
    MOEFLUX_SAMPLER_REAL,  /* float */
    MOEFLUX_SAMPLER_WHOLE, /* uint32_t */
    MOEFLUX_SAMPLER_LIST,  /* dry_sequence_breakers */
};
/* An option has one name, one range and one help text in requests, flags and configuration files. */
struct moeflux_sampler_field {
    const char *name;  /* the name in requests and their errors: "typical_p" */
    const char *flags; /* "typical-p,typical": of its flag; with "_" for "-" other names in requests */
    const char *value; /* name of the value in a help text: "P" */
    const char *help;  /* one line, with the default of requests */
    double lo, hi;     /* range in requests; moeflux_sampler_check has the limits that hold everywhere */
    size_t at;         /* offset in struct moeflux_sampler_options */
    enum moeflux_sampler_kind kind;
    uint32_t all; /* WHOLE: what -1 stands for in a request */
};
/* Their places in the table. */
enum {
#define MOEFLUX_SAMPLER_PLACE(field, ...) MOEFLUX_SAMPLER_FIELD_##field,
    MOEFLUX_SAMPLER_FIELDS(MOEFLUX_SAMPLER_PLACE, MOEFLUX_SAMPLER_PLACE, MOEFLUX_SAMPLER_PLACE)
#undef MOEFLUX_SAMPLER_PLACE
        MOEFLUX_N_SAMPLER_FIELDS
};
/* Returns the table, [MOEFLUX_N_SAMPLER_FIELDS], in the order of MOEFLUX_SAMPLER_FIELDS. */
const struct moeflux_sampler_field *moeflux_sampler_fields(void);
/* Finds an option by its name or one of its flags; "-" and "_" are alike. NULL: there is none. */
const struct moeflux_sampler_field *moeflux_sampler_find(const char *name);
/* Returns the value of an option that is a number; of a list, how many texts it has. */
double moeflux_sampler_get(const struct moeflux_sampler_options *o, const struct moeflux_sampler_field *f);
/* Sets an option that is a number, by a name of moeflux_sampler_find. Errors: _USAGE (no such number, or the
 * value is outside of its range); nothing changes. */
int moeflux_sampler_set(struct moeflux_sampler_options *o, const char *name, double value,
                        struct moeflux_err *e);
/* Checks all options. Errors: _USAGE (names the one that is out of range). */
int moeflux_sampler_check(const struct moeflux_sampler_options *o, struct moeflux_err *e);

/* Creates a sampler. It is deterministic: the same options and logits give the same ids. n_ids: the number of
 * logits. t: ids without a token are never chosen; NULL: every id has one. The caller owns *out
 * (moeflux_sampler_free). Errors: _USAGE (names the option that is out of range), _MEMORY. */
int moeflux_sampler_new(struct moeflux_sampler **out, const struct moeflux_sampler_options *o, uint32_t n_ids,
                        const struct moeflux_tokenizer *t, struct moeflux_err *e);
void moeflux_sampler_free(struct moeflux_sampler *s); /* NULL is legal */
/* Records a token of the prompt or the answer, for the penalties. */
void moeflux_sampler_accept(struct moeflux_sampler *s, int32_t id);
/* Begins the answer: tokens accepted from now on count for the presence and frequency penalties. */
void moeflux_sampler_begin_answer(struct moeflux_sampler *s);
/* Forgets the accepted tokens and restarts the random sequence from the seed. */
void moeflux_sampler_reset(struct moeflux_sampler *s);
/* Restricts the choice to a set of ids, such as a grammar's: bit i % 64 of word i / 64, [n_ids / 64, rounded
 * up]; NULL: all ids. Copied. With an empty set, moeflux_sampler_pick fails with _USAGE. */
void moeflux_sampler_restrict(struct moeflux_sampler *s, const uint64_t *ids);
/* Returns the next token's id. Never allocates. Errors: _USAGE (no token is allowed), _DEVICE (a logit that
 * could be chosen is NaN). */
int32_t moeflux_sampler_pick(struct moeflux_sampler *s, const float *logits, struct moeflux_err *e);

/* Appends the token `id` and chooses the next one, *next. Gives the results of moeflux_session_eval,
 * moeflux_sampler_accept and moeflux_sampler_pick. A GPU that holds all experts also does the choosing, if it
 * supports the sampler's options. With `more`, the evaluation of the chosen token begins before this returns,
 * and the next call with that token and this sampler finds it in flight. Any other call waits for it and
 * drops it; the session is then as if it had not begun. The sampler must have as many ids as the model.
 * Errors: those of moeflux_session_eval; those of moeflux_sampler_pick, after which the session has `id`. */
int moeflux_session_step(struct moeflux_session *s, int32_t id, struct moeflux_sampler *sampler, bool more,
                         int32_t *next, struct moeflux_err *e);
/* Does the same in batched decode: appends ids[i] to list[i] and chooses next[i] with samplers[i], n as in
 * moeflux_eval_batched. The samplers are different ones. Errors: those of moeflux_eval_batched; those of
 * moeflux_sampler_pick, after which all sequences have their ids and all others their next ones. next[i] is
 * -1 where there is no choice; the text has the first such i. */
int moeflux_step_batched(struct moeflux_session *const *list, const int32_t *ids, uint32_t n,
                         struct moeflux_sampler *const *samplers, int32_t *next, struct moeflux_err *e);

/* --- devices, memory --- */

struct moeflux_device {
    char option[16]; /* its name in moeflux_options.device: an index, or "cpu" */
    char name[256];
    char kind[16];    /* "discrete", "integrated", "virtual", "other", "software" (Vulkan); "cpu" */
    char driver[256]; /* name and version; "" for the cpu */
    uint64_t memory_bytes;
    uint32_t subgroup_size; /* 0: the cpu */
    char matrices[32];      /* usable cooperative matrices: "NV", "KHR", "NV and KHR"; "": none */
    char isa[16];           /* instruction set that the cpu uses; "" for others */
    uint32_t n_threads;     /* threads that the cpu computes with; 0 for others */
    int32_t memory_node;    /* NUMA node of this machine that a GPU is attached to; -1: unknown */
    bool usable;
    bool is_default;   /* taken when no device is named */
    char why_not[128]; /* the missing feature, if it is not usable */
};
/* Fills up to `cap` entries: GPUs first, then the cpu, then software devices. Returns how many devices there
 * are. Without Vulkan there is only the cpu. Errors: _MEMORY, _UNSUPPORTED. */
int moeflux_list_devices(struct moeflux_device *out, uint32_t cap, struct moeflux_err *e);

/* What a model needs, from its files alone (no device). */
struct moeflux_needs {
    char architecture[32];
    uint32_t n_layers, n_attention, hidden, vocab_size, n_experts, moe_inner, max_context;
    /* Attention layers with a sliding window, and its positions; 0: none. */
    uint32_t n_windowed, window;
    uint32_t n_expert_layers;  /* layers with routed experts */
    uint32_t top_k, own_top_k; /* experts of a token: with the options, in the model's configuration */
    float expert_share;        /* 1: a token has all top_k. The members below count all of them */
    bool packed;               /* layout on disk; false: plain safetensors, or GGUF */
    bool is_gguf;
    bool is_sketch;      /* `dir` is only a config.json: sizes are computed, there are no files */
    bool is_assumed;     /* is_sketch without a quantization table: formats of `moeflux convert` */
    bool has_drafter;    /* the files have a layer of multi-token prediction (moeflux_options.drafter) */
    uint32_t n_left_out; /* tensors of other parts, such as vision */
    uint64_t n_params, n_active_params, n_expert_params;
    uint64_t dense_bytes;           /* the resident part, on disk and in memory */
    uint64_t table_bytes;           /* n-gram tables on disk; a token reads some rows */
    uint64_t expert_bytes;          /* all routed experts */
    char tokenizer_path[4096];      /* that of moeflux_model_info; "": the model has none */
    char expert_formats[192];       /* "3 bits g64, down 6 bits g64 in 12 of 40 layers" */
    char dense_formats[128];        /* the rest, by share of its bytes: "4 bits g64 91 %, bf16 9 %" */
    uint64_t one_expert_bytes;      /* the largest expert: layers may store theirs differently */
    uint64_t token_dense_bytes;     /* weights read from memory for each token, without routed experts */
    uint64_t token_expert_bytes;    /* routed experts for each token: top_k of each layer with experts */
    uint64_t kv_bytes_per_pos;      /* rows of one position, without those of windows */
    uint64_t recurrent_state_bytes; /* one sequence: recurrent states with their backup, and windows */
    /* Least memory to run: dense weights, states of a short context, top_k experts of one layer. */
    uint64_t floor_bytes;
};
/* Reads what a model needs. dir: a model directory, or a file named X.json, which is a configuration alone;
 * moeflux_make_plan takes the same. Errors: _IO, _FORMAT, _UNSUPPORTED, _MEMORY. */
int moeflux_get_needs(const char *dir, struct moeflux_needs *out, struct moeflux_err *e);
/* Does the same with the options' active_experts, expert_share and kv_type (AUTO: float32). Other options but
 * `dir` are not used. Errors: also _USAGE. */
int moeflux_get_needs_with(const struct moeflux_options *o, struct moeflux_needs *out, struct moeflux_err *e);

struct moeflux_part {
    char path[4096];
};
enum { MOEFLUX_MAX_PARTS = 8 };
/* Fills up to `cap` entries with the directories that share a model's experts: `dir` itself, then those of
 * `moeflux convert --spread`, as its spread.json names them. Returns how many there are. It does not look
 * into the other directories. Errors: _IO, _FORMAT, _MEMORY. */
int moeflux_list_parts(const char *dir, struct moeflux_part *out, uint32_t cap, struct moeflux_err *e);

/* The part of struct moeflux_plan that belongs to one of several devices. */
struct moeflux_plan_device {
    char device[256];
    uint32_t first_layer, end_layer; /* its layers: first_layer to end_layer - 1 */
    bool is_unified;
    uint64_t device_free_bytes, device_bytes, weights_bytes, state_bytes, activation_bytes, driver_bytes;
    uint64_t n_experts, n_slots, n_host_slots, n_pinned; /* experts that it computes */
    uint64_t n_cpu_experts, n_cpu_slots;                 /* experts that the CPU computes for its layers */
};

/* What moeflux_model_open would decide with the same options now; nothing is loaded. */
struct moeflux_plan {
    char device[256];                            /* several: names joined by " + " */
    bool is_unified;                             /* device memory is host memory */
    uint64_t device_free_bytes, host_free_bytes; /* free now; UINT64_MAX: unknown */
    uint64_t device_bytes;                       /* most memory that the device may use */
    uint64_t weights_bytes;                      /* dense weights */
    uint32_t context;                            /* tokens of state that there is room for */
    uint64_t state_bytes, activation_bytes;      /* states of that context; activations of a chunk */
    uint64_t driver_bytes;                       /* set aside for a discrete device's driver */
    uint32_t chunk;                              /* most tokens evaluated at once */
    uint64_t checkpoint_bytes;                   /* host memory of one checkpoint; 0: none needed */
    uint32_t n_checkpoints;                      /* most checkpoints of a session */
    uint64_t slot_bytes;                         /* memory of one expert */
    uint64_t n_experts;                          /* all layers */
    uint64_t n_slots, n_host_slots;              /* experts that device and host have room for */
    uint64_t n_pinned;                           /* slots that are never evicted (moeflux_options.pin) */
    uint32_t n_cpu_layers;                       /* the first layers, whose routed experts the CPU computes */
    float cpu_share;                             /* moeflux_options.cpu_share: so many of them; 0: all */
    uint64_t n_cpu_experts, n_cpu_slots;         /* these experts; those that host memory has room for */
    /* Most bytes of experts on the device, and on the host where that is other memory (else 0). */
    uint64_t device_room_bytes, host_room_bytes;
    uint64_t cpu_scratch_bytes; /* host memory for computing experts on the CPU, and for n-gram rows */
    /* Memory of the layer of multi-token prediction (moeflux_options.drafter, drafter_auto): weights, states,
     * activations, experts; 0: it is not opened. */
    uint64_t drafter_bytes;
    bool experts_resident; /* every expert has a slot: nothing is read after open */
    char expert_io[1200];  /* how experts are read, and why */
    uint32_t n_devices;    /* devices that share the layers; the members above are their sums */
    struct moeflux_plan_device devices[MOEFLUX_MAX_DEVICES];
};
/* Makes the plan. Errors: those of moeflux_model_open, such as _NO_FIT with the numbers, _UNSUPPORTED and
 * _DEVICE. */
int moeflux_make_plan(const struct moeflux_options *o, struct moeflux_plan *out, struct moeflux_err *e);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
