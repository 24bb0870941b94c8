/* exec.h - where operations run: a backend and its queue.
 *
 * Backends: vulkan (a GPU, or a software Vulkan device), cpu (this machine's cores, native SIMD code) and
 * reference (this CPU, plain loops, double sums). Every operation takes the same call on each of them: an
 * address is a device address on Vulkan and a host pointer on the host. Vulkan records operations into a
 * batch; a host backend runs each at once. Recording is sticky: the first error is kept, later calls do
 * nothing, exec_submit returns it. Operations of one batch run in order: each sees what earlier ones
 * wrote. */
#ifndef MOEFLUX_EXEC_EXEC_H
#define MOEFLUX_EXEC_EXEC_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;
struct node_shares;
struct exec;
struct exec_shelf;

enum exec_memory {
    EXEC_DEVICE, /* fastest for operations; mapped only where device memory is host memory */
    EXEC_INPUT,  /* small: the host writes, operations read */
    EXEC_HOST,   /* host memory: staging of uploads, target of read-backs */
};

enum { EXEC_BUFFER_PRIVATE_BYTES = 48 };
struct exec_buffer {
    uint64_t address;
    uint8_t *host; /* mapped bytes, or NULL */
    uint64_t bytes;
    bool is_borrowed; /* the caller owns the host memory (exec_buffer_import) */
    /* the backend's part, private to it */
    unsigned char backend[EXEC_BUFFER_PRIVATE_BYTES];
};

/* The largest of exec_caps.max_invariant. */
enum { EXEC_MAX_INVARIANT = 8 };
enum { EXEC_MAX_HEAPS = 16 };

/* The properties of a device. Code above the operations asks for properties, never which backend it is. */
struct exec_caps {
    const char *name;       /* the device's name; borrowed */
    uint32_t index;         /* a Vulkan device's index among those of this machine */
    bool is_host;           /* operations run on this CPU; no kernels exist */
    bool runs_at_once;      /* recording an operation runs it: nothing can be recorded ahead */
    bool is_native;         /* a host backend made for speed; false on a host: the reference */
    bool is_software;       /* it computes on this machine's cores: host backends, software Vulkan devices */
    bool is_unified;        /* EXEC_DEVICE memory is mapped */
    bool prompt_is_f16;     /* products of prompts may use float16 factors, with float32 sums */
    bool kv_default_is_f16; /* the KV cache is float16 unless the caller chooses */
    bool has_coopmat; /* kernels named X_coop can run: float16 matrix units. Only ops and selftest ask */
    bool uses_khr;    /* they run in VK_KHR_cooperative_matrix's form */
    /* a subgroup has each number of a factor twice (AMD's RDNA3): half as many fit its registers */
    bool doubles_factors;
    bool has_denorm; /* kernels named X_denorm can run: float16 denormals are kept */
    /* products of many tokens use gemm_fixed, gemm_int16 (cpu/product.h): other bits than one token's */
    bool has_fixed, has_int16;
    /* the most tokens whose results exec_set_batch_invariant makes batch-invariant */
    uint32_t max_invariant;
    uint32_t subgroup_size, max_workgroup, max_shared_bytes;
    uint32_t n_processors;   /* shader cores that workgroups are spread over; 0: unknown */
    uint32_t lane_registers; /* a lane's 4-byte registers in kernels without matrices; 0: unknown */
    uint64_t max_alloc_bytes;
    uint64_t total_bytes; /* all device memory; choices that change results depend on this alone */
    uint64_t free_bytes;  /* device memory that is free now */
    uint64_t used_bytes;  /* device memory that this process holds, as the driver counts; 0: unknown */
    /* which node's threads compute which rows of a matrix; NULL: one memory node. Borrowed */
    const struct node_shares *shares;
};

/* Returns whether lanes have so few registers that kernels take fewer numbers at once. */
static inline bool exec_has_few_registers(const struct exec_caps *c)
{
    return c->lane_registers > 0 && c->lane_registers < 256;
}

/* Zero or NULL in any member means the default. */
struct exec_options {
    /* NULL or "auto": a discrete GPU, else an integrated one, else the cpu; "cpu"; "reference"; else the
     * index, the name or a part of the name of a Vulkan device */
    const char *device;
    bool profile; /* time every operation */
    bool staged;  /* EXEC_DEVICE memory is not mapped, whatever the device (not on the host) */
    /* A named Vulkan device is taken from here if it is there, and is put back by exec_close (exec/shelf.h).
     * Outlives the exec */
    struct exec_shelf *shelf;
    /* An open exec of the same device, which outlives this one: operations may read its memory if
     * exec_shares_memory says so. On the cpu its threads compute for this one too, alternately; n_threads is
     * ignored then. One of another kind has no effect */
    const struct exec *shares_with;
    /* The rest applies to the cpu. */
    uint32_t n_threads;      /* 0: as many as computations gain from (base/cores.h) */
    const char *isa;         /* instruction set (cpu/isa.h); NULL: the fastest that this processor has */
    const char *system_root; /* prefix of /sys when memory nodes are looked up, for tests; NULL: none */
};

int exec_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e);
void exec_close(struct exec *x); /* NULL is legal */
/* Returns whether operations may read the memory of exec_options.shares_with. */
bool exec_shares_memory(const struct exec *x);
struct exec_caps exec_get_caps(const struct exec *x);
/* Returns the invocations of a workgroup of a GPU: `wanted`, rounded up to whole subgroups, or the most whole
 * ones that the device takes. */
uint32_t exec_workgroup(const struct exec_caps *caps, uint64_t wanted);
/* What a report says about a device and no operation asks for. A host backend has zeros. */
struct exec_details {
    const char *driver;   /* name and version; borrowed; NULL: a host backend */
    const char *kind;     /* that of struct exec_device; borrowed; NULL: a host backend */
    bool has_nv, has_khr; /* matrix units by extension, whether kernels use them or not */
    bool has_budget;      /* the driver reports budgets of memory */
    bool imports_host;    /* host memory can be used in place */
    bool has_copy_queue;  /* copies run next to computing */
    bool has_timestamps, sets_subgroup_size;
    bool cuts_dispatches; /* a long dispatch runs in pieces */
    uint32_t n_heaps;
    struct exec_heap {
        uint64_t bytes, budget, used; /* UINT64_MAX: unknown */
        bool is_local, is_mapped;
    } heaps[EXEC_MAX_HEAPS];
};
struct exec_details exec_get_details(const struct exec *x);
/* Clears has_coopmat, has_fixed, has_int16, prompt_is_f16 and kv_default_is_f16 in the caps: operations
 * opened later are float32 throughout. */
void exec_keep_f32(struct exec *x);
/* Sets uses_khr only where the device has no other form, for operations opened later. By default it is set
 * wherever the device has that form: NVIDIA's driver runs it faster than NV's own (prompts on an H200 by a
 * third, due to its fragment layout). */
void exec_prefer_nv(struct exec *x);
/* Clears has_denorm in the caps: operations opened later are those of devices without it. */
void exec_forbid_denorm(struct exec *x);

/* Allocates uninitialised memory. ERR_NO_FIT, ERR_UNSUPPORTED (larger than one allocation may be). */
int exec_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                    struct moeflux_err *e);
/* exec_buffer_new in two steps. The first, for EXEC_HOST memory, may run on another thread than the exec's;
 * the second adds the buffer to the exec's statistics. */
int exec_buffer_allocate(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                         struct moeflux_err *e);
void exec_buffer_count(struct exec *x, const struct exec_buffer *b);
/* Makes a buffer of host pages that the caller owns and keeps until the buffer is freed. Several devices may
 * import the same pages. EXEC_DEVICE: only where device memory is host memory; EXEC_HOST: on any device that
 * can import. host: page-aligned; bytes: rounded up to whole pages. ERR_UNSUPPORTED. */
int exec_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint8_t *host,
                       uint64_t bytes, struct moeflux_err *e);
void exec_buffer_free(struct exec *x, struct exec_buffer *b);

enum { EXEC_STAGE_BYTES = 8 << 20 };
/* Returns where to write `bytes` (at most EXEC_STAGE_BYTES) that go into b at `off`: the buffer itself when
 * it is mapped, else staging memory. The next exec_stage or exec_stage_end starts their copy. NULL with `e`
 * filled on failure. Must not be called while a batch is being recorded. */
void *exec_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                 struct moeflux_err *e);
/* Starts the copy of what was staged last and waits until all staged bytes have arrived. */
int exec_stage_end(struct exec *x, struct moeflux_err *e);
/* Copies any number of host bytes into a buffer and waits: exec_stage for data that is already in memory. */
int exec_write(struct exec *x, const struct exec_buffer *b, uint64_t off, const void *src, uint64_t bytes,
               struct moeflux_err *e);
/* Copies any number of a buffer's bytes to the host, through the staging memory. Waits for everything
 * submitted. Like exec_begin it drops a deferred batch, unless the buffer is mapped. */
int exec_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
              struct moeflux_err *e);

/* A watch lets the caller stop long work. While one is set, submissions are kept short: work is submitted
 * before it adds up to a fifth of a second on this device (pace.h), and at most two such submissions are
 * queued. `go_on` is called between them and while the host waits. When it returns false, what was recorded
 * is dropped and exec_submit, like every wait, returns ERR_INTERRUPTED. The results are the same, bit by bit,
 * as without a watch. */
struct exec_watch {
    bool (*go_on)(void *ctx); /* false: stop; called several times a second */
    void *ctx;
};
/* Sets the watch, or removes it (NULL). Must not be called while a batch is being recorded. */
void exec_watch(struct exec *x, const struct exec_watch *w);
/* Asks the watch. Returns true if there is none. */
bool exec_goes_on(const struct exec *x);
/* Limits submissions to `ns` instead of a fifth of a second. Tests use it. */
void exec_set_pace(struct exec *x, uint64_t ns);
/* Waits at most `ns` until the device has finished everything. Returns 1, or 0: it has not. */
int exec_wait_idle(struct exec *x, uint64_t ns, struct moeflux_err *e);

/* Waits until other threads have compiled the kernels of the operations opened so far. If it is not called,
 * the first batch waits. ERR_DEVICE. */
int exec_await_kernels(struct exec *x, struct moeflux_err *e);

/* Reserves memory, in bytes, for the arguments of one batch's operations on several sequences; until
 * exec_close. The first call counts. Has no effect on host backends. */
int exec_reserve_records(struct exec *x, uint64_t bytes, struct moeflux_err *e);

/* Makes the results of operations on any number of tokens those of each token alone, or ends that. Has no
 * effect on a device: there the calls name the kernels (linear_call.chunk), and up to max_invariant tokens
 * at once are exact. */
void exec_set_batch_invariant(struct exec *x, bool on);

void exec_begin(struct exec *x);
/* Lets the next operation run concurrently with the one before it: neither touches what the other writes. */
void exec_concurrent(struct exec *x);
/* Consecutive copies and zeroings must touch different bytes: they run concurrently. */
void exec_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes);
void exec_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes);
/* Runs fn(ctx, i, thread) for all i < n and returns when all are done. It runs on the threads of the
 * operations if they are this CPU's, else on the caller's. Must not be called from within fn. */
void exec_for(struct exec *x, uint32_t n, void (*fn)(void *ctx, uint32_t i, uint32_t thread), void *ctx);
/* Marks a good place for a submission: what was recorded is submitted if there is enough of it. The batch
 * goes on. */
void exec_split(struct exec *x);
/* Queues the batch; *ticket is for exec_wait. */
int exec_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
/* Returns when the batch is finished and its results in EXEC_HOST (and mapped) memory can be read. */
int exec_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e);
/* Ends the batch without queueing it: exec_submit_deferred queues it later, unless exec_begin was called in
 * between, which drops it. A host backend runs operations at once and never defers. */
void exec_defer(struct exec *x);
bool exec_is_deferred(const struct exec *x);
int exec_submit_deferred(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
/* Runs exec_submit and exec_wait. */
int exec_finish(struct exec *x, struct moeflux_err *e);
/* Drops the batch that is being recorded, if any. */
void exec_abandon(struct exec *x);

/* Wakes sleeping threads: operations will follow within some hundred microseconds. Does nothing on a
 * device. */
void exec_wake(struct exec *x);

/* Copies concurrently with the batches, on the device's copy engines if it has some: for data that a later
 * batch needs. Moves run in the order of their submissions; exec_move_order makes later ones wait for earlier
 * ones. Only for devices whose memory is not mapped (is_unified is false). */
void exec_move(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes);
void exec_move_order(struct exec *x);
/* Queues the moves recorded since the last call. *ticket is for the next three functions; 0: there were
 * none. */
int exec_move_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
bool exec_move_is_done(const struct exec *x, uint64_t ticket);
int exec_move_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e);
/* Makes the batch being recorded run after the moves up to `ticket`. */
void exec_after_moves(struct exec *x, uint64_t ticket);

struct exec_time {
    const char *name;
    uint64_t n, ns;
};
enum { EXEC_MAX_LABELS = 128 };
struct exec_stats {
    uint64_t held_bytes; /* size of all buffers now, without borrowed memory; not reset */
    uint64_t n_submits, n_dispatches, wait_ns;
    uint64_t n_compiled, compile_ns;         /* kernels that a dispatch had to compile */
    struct exec_time times[EXEC_MAX_LABELS]; /* one for each kernel or host operation; only with profile */
    uint32_t n_times;
};
void exec_get_stats(const struct exec *x, struct exec_stats *out);
void exec_reset_stats(struct exec *x);

#endif
