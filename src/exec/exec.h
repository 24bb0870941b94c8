/* exec.h - where operations run: a backend and its queue.
 *
 * Backends: vulkan (a GPU, or a software Vulkan device), cpu (this machine's cores, native SIMD code) and
 * reference (this CPU, plain loops, double sums). Every operation takes the same call on each of them: an
 * address is a device address on Vulkan and a host pointer on the host. Vulkan records operations into a
 * batch; a host backend runs each at once. Recording is sticky: the first error is kept, later calls do
 * nothing, exec_submit returns it. Operations of one batch run in order, each seeing what the ones before
 * wrote. */
#ifndef MOEFLUX_EXEC_EXEC_H
#define MOEFLUX_EXEC_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "vulkan/memory.h"

struct moeflux_err;
struct node_shares;
struct exec;
struct exec_shelf;

enum exec_memory {
    EXEC_DEVICE, /* fastest for operations; mapped only where device memory is host memory */
    EXEC_INPUT,  /* small: the host writes, operations read */
    EXEC_HOST,   /* host memory: staging of uploads, target of read-backs */
};

struct exec_buffer {
    uint64_t address;
    uint8_t *host; /* mapped bytes, or NULL */
    uint64_t bytes;
    bool is_borrowed;      /* host memory is somebody else's (exec_buffer_import) */
    struct gpu_buffer gpu; /* private */
};

/* The largest of exec_caps.max_invariant. */
enum { EXEC_MAX_INVARIANT = 8 };

/* What a device is like. Nothing above the operations asks which backend it is. */
struct exec_caps {
    const char *name; /* of the device; borrowed */
    uint32_t index;   /* of a Vulkan device, among those of this machine */
    bool is_host;   /* operations run at once on this CPU: nothing is recorded ahead, kernels do not exist */
    bool is_native; /* of a host backend: made for speed. Else it is the reference */
    bool is_software; /* its lanes are this machine's cores: the host backends, software Vulkan devices */
    bool is_unified;  /* EXEC_DEVICE memory is mapped */
    bool has_coopmat; /* kernels named X_coop can run: float16 matrix units */
    bool uses_khr;    /* those that run are in VK_KHR_cooperative_matrix's form */
    bool has_denorm;  /* kernels named X_denorm can run: float16 denormals are kept */
    bool has_fixed;   /* products of many tokens have bits of their own: gemm_fixed of cpu/product.h */
    /* tokens that get, bit by bit, what each would get alone (exec_set_batch_invariant): at most these */
    uint32_t max_invariant;
    uint32_t subgroup_size, max_workgroup, max_shared_bytes;
    uint32_t n_processors; /* that workgroups are spread over; 0: unknown */
    uint64_t max_alloc_bytes;
    uint64_t total_bytes; /* device memory in all: what decides choices that change results */
    uint64_t free_bytes;  /* device memory now */
    uint64_t used_bytes;  /* of it by this process, as the driver counts; 0: it does not say */
    /* On a machine with several memory nodes: whose threads compute which rows of a matrix. NULL: no matter.
     * Borrowed */
    const struct node_shares *shares;
};

/* Zero or NULL in any member means the default. */
struct exec_options {
    /* NULL or "auto": a discrete GPU, else an integrated one, else the cpu; "cpu"; "reference"; else a Vulkan
     * device: its index, its name or a part of that */
    const char *device;
    bool profile; /* time every operation */
    bool staged;  /* EXEC_DEVICE memory is not mapped, whatever the device (not on the host) */
    /* A Vulkan device that is named comes from here if it is there, and goes here at exec_close
     * (exec/shelf.h). Outlives the exec */
    struct exec_shelf *shelf;
    /* Of the cpu: */
    /* Its threads compute for this one too, by turns, whatever n_threads says; NULL, or no exec of the cpu:
     * it has its own */
    const struct exec *beside;
    uint32_t n_threads;      /* 0: as many as computations gain from (base/cores.h) */
    const char *isa;         /* instruction set (cpu/isa.h); NULL: the fastest that this processor has */
    const char *system_root; /* for tests: stands before /sys where memory nodes are looked for */
};

int exec_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e);
void exec_close(struct exec *x); /* NULL is legal */
struct exec_caps exec_get_caps(const struct exec *x);
/* From now on the caps have neither has_coopmat nor has_fixed: operations opened later are float32
 * throughout. */
void exec_keep_f32(struct exec *x);
/* From now on uses_khr holds only where the device has nothing else; by default it holds wherever the device
 * has that form, which NVIDIA's own driver runs faster than NV's (prompts on an H200 by a third: matrices lie
 * in quads): operations opened later. */
void exec_prefer_nv(struct exec *x);
/* From now on the caps have no has_denorm: operations opened later are those of devices without it. */
void exec_forbid_denorm(struct exec *x);

/* Uninitialised memory. ERR_NO_FIT, ERR_UNSUPPORTED (larger than one allocation may be). */
int exec_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                    struct moeflux_err *e);
/* exec_buffer_new in two steps: the first, of EXEC_HOST memory, may be on another thread than the exec's, the
 * second adds the buffer to the exec's statistics. */
int exec_buffer_allocate(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint64_t bytes,
                         struct moeflux_err *e);
void exec_buffer_count(struct exec *x, const struct exec_buffer *b);
/* A buffer over pages of host memory that somebody else keeps until it is freed; several devices may have one
 * over the same pages. EXEC_DEVICE: where device memory is host memory; EXEC_HOST: on any device that can.
 * host: at a page; bytes: rounded up to whole pages. ERR_UNSUPPORTED. */
int exec_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint8_t *host,
                       uint64_t bytes, struct moeflux_err *e);
void exec_buffer_free(struct exec *x, struct exec_buffer *b);

enum { EXEC_STAGE_BYTES = 8 << 20 };
/* Where to write `bytes` (at most EXEC_STAGE_BYTES) that are to land in b at `off`: the buffer itself when it
 * is mapped, else staging memory. The next exec_stage or exec_stage_end hands them over. NULL with `e`
 * filled. Not while a batch is being recorded. */
void *exec_stage(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                 struct moeflux_err *e);
/* Hands over what was staged last and waits until all staged bytes have arrived. */
int exec_stage_end(struct exec *x, struct moeflux_err *e);
/* Copies host bytes into a buffer, any size; exec_stage for data that is already in memory. Waits. */
int exec_write(struct exec *x, const struct exec_buffer *b, uint64_t off, const void *src, uint64_t bytes,
               struct moeflux_err *e);
/* Copies a buffer's bytes to the host, any size, through the staging memory. Waits for everything submitted;
 * like exec_begin it gives up a parked batch, where the buffer is not mapped. */
int exec_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
              struct moeflux_err *e);

/* From here on submissions stay short: work is handed over before it adds up to what a fifth of a second
 * takes on this device (pace.h), at most two such submissions wait at a time, and `w` is asked between them
 * and while the host waits. When it says stop, what was recorded is given up and exec_submit, like every
 * wait, returns ERR_INTERRUPTED. The results are the same, bit by bit, as without. NULL: no more. Not while a
 * batch is being recorded. */
struct exec_watch {
    bool (*go_on)(void *ctx); /* false: stop. Called often */
    void *ctx;
};
void exec_watch(struct exec *x, const struct exec_watch *w);
/* For tests: submissions of at most `ns`, in place of the fifth of a second. */
void exec_set_pace(struct exec *x, uint64_t ns);
/* Waits at most `ns` until the device has finished everything. Returns 1, or 0: it has not. */
int exec_wait_idle(struct exec *x, uint64_t ns, struct moeflux_err *e);

/* Waits for the kernels of the operations opened so far, which other threads compile. Without it the first
 * batch waits. ERR_DEVICE. */
int exec_await_kernels(struct exec *x, struct moeflux_err *e);

/* From now on (on) the tokens of an operation, at most max_invariant, each get what they would get alone. Not
 * on a device: there they always do. */
void exec_set_batch_invariant(struct exec *x, bool on);

void exec_begin(struct exec *x);
/* The next operation does not wait for the one before it: neither touches what the other writes. */
void exec_concurrent(struct exec *x);
/* Copies and zeroings in a row touch different bytes: they run side by side. */
void exec_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes);
void exec_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes);
/* Runs fn(ctx, i, thread) for all i < n and returns when all are done: on the threads that operations run on,
 * where those are this CPU's, else on the caller's. Not from within fn. */
void exec_for(struct exec *x, uint32_t n, void (*fn)(void *ctx, uint32_t i, uint32_t thread), void *ctx);
/* A good place to hand over what was recorded, where that is worth a submission; the batch goes on. */
void exec_split(struct exec *x);
/* Queues the batch; *ticket is for exec_wait. */
int exec_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
/* Returns when the batch is finished and its results in EXEC_HOST (and mapped) memory can be read. */
int exec_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e);
/* Ends the batch for exec_submit_deferred, which queues it if no exec_begin came in between (that gives it
 * up). A host backend runs at once and never parks. */
void exec_defer(struct exec *x);
bool exec_is_deferred(const struct exec *x);
int exec_submit_deferred(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
/* exec_submit and exec_wait. */
int exec_finish(struct exec *x, struct moeflux_err *e);
/* Gives up the batch that is being recorded, if any. */
void exec_abandon(struct exec *x);

/* Operations come in some hundred microseconds: threads that sleep get ready for them. On a device: nothing.
 * */
void exec_wake(struct exec *x);

/* Copies beside the batches, on the device's copy engines where it has some: for data on its way to a later
 * batch. They run in the order of their submissions; exec_move_order puts those recorded after it behind
 * those before. Only where device memory is not mapped (is_unified is false). */
void exec_move(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off, const struct exec_buffer *src,
               uint64_t src_off, uint64_t bytes);
void exec_move_order(struct exec *x);
/* Queues what was moved since the last time; *ticket, 0 when there was nothing, is for the next three. */
int exec_move_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
bool exec_move_is_done(const struct exec *x, uint64_t ticket);
int exec_move_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e);
/* The batch being recorded runs after the moves up to `ticket`. */
void exec_after_moves(struct exec *x, uint64_t ticket);

struct exec_time {
    const char *name;
    uint64_t n, ns;
};
enum { EXEC_MAX_LABELS = 128 };
struct exec_stats {
    uint64_t held_bytes; /* of all buffers now, borrowed memory aside; not reset */
    uint64_t n_submits, n_dispatches, wait_ns;
    uint64_t n_compiled, compile_ns;         /* kernels that were first needed after they were opened */
    struct exec_time times[EXEC_MAX_LABELS]; /* by the name of kernel or host operation, when profiling */
    uint32_t n_times;
};
void exec_get_stats(const struct exec *x, struct exec_stats *out);
void exec_reset_stats(struct exec *x);

#endif
