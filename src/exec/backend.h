/* backend.h - the functions that a backend provides for exec.h, and the state that all backends share.
 * Private to src/exec. */
#ifndef MOEFLUX_EXEC_BACKEND_H
#define MOEFLUX_EXEC_BACKEND_H

#include "base/err.h"
#include "exec/exec.h"
#include "exec/op.h"

/* The functions of exec.h of the same name. exec.c handles the sticky error before it calls them. */
struct backend {
    void (*close)(struct exec *x); /* frees x, which may be half open */
    struct exec_caps (*caps)(const struct exec *x);
    struct exec_details (*details)(const struct exec *x); /* NULL where there are none */
    int (*buffer_new)(struct exec *x, struct exec_buffer *b, enum exec_memory kind, struct moeflux_err *e);
    int (*buffer_import)(struct exec *x, struct exec_buffer *b, enum exec_memory kind, uint8_t *host,
                         struct moeflux_err *e);
    void (*buffer_free)(struct exec *x, struct exec_buffer *b);
    void *(*stage)(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes,
                   struct moeflux_err *e);
    int (*stage_end)(struct exec *x, struct moeflux_err *e);
    int (*read)(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst, uint64_t bytes,
                struct moeflux_err *e);
    void (*watch)(struct exec *x); /* x->watch has changed */
    void (*set_pace)(struct exec *x, uint64_t ns);
    int (*wait_idle)(struct exec *x, uint64_t ns, struct moeflux_err *e);
    int (*await_kernels)(struct exec *x, struct moeflux_err *e); /* NULL where there are none */
    void (*begin)(struct exec *x);
    void (*run)(struct exec *x, const struct op *what, const void *op, const void *call);
    void (*concurrent)(struct exec *x);
    void (*copy)(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                 const struct exec_buffer *src, uint64_t src_off, uint64_t bytes);
    void (*zero)(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes);
    void (*split)(struct exec *x);
    int (*submit)(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
    int (*wait)(struct exec *x, uint64_t ticket, struct moeflux_err *e);
    void (*abandon)(struct exec *x);
    void (*add_stats)(const struct exec *x, struct exec_stats *out);
    void (*reset_stats)(struct exec *x);
    void (*wake)(struct exec *x); /* NULL where no thread of this process computes */
    /* NULL where operations do not run on this process's threads. */
    void (*each)(struct exec *x, uint32_t n, void (*fn)(void *ctx, uint32_t i, uint32_t thread), void *ctx);
    /* NULL where nothing can be recorded ahead. */
    void (*defer)(struct exec *x);
    bool (*is_deferred)(const struct exec *x);
    int (*submit_deferred)(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
    /* NULL where device memory is host memory. */
    void (*move)(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                 const struct exec_buffer *src, uint64_t src_off, uint64_t bytes);
    void (*move_order)(struct exec *x);
    int (*move_submit)(struct exec *x, uint64_t *ticket, struct moeflux_err *e);
    bool (*move_is_done)(const struct exec *x, uint64_t ticket);
    int (*move_wait)(struct exec *x, uint64_t ticket, struct moeflux_err *e);
    void (*after_moves)(struct exec *x, uint64_t ticket);
};

/* The first member of every backend's own struct. */
struct exec {
    const struct backend *backend;
    bool profile;
    bool shares_memory; /* exec_shares_memory */
    /* they change the caps */
    bool keeps_f32, forbids_denorm, prefers_nv;
    /* fragment_layout.h: NV's, KHR's */
    enum exec_fragment_layout { EXEC_LAYOUT_UNKNOWN, EXEC_LAYOUT_NO, EXEC_LAYOUT_YES } fragment_layout[2];
    struct exec_buffer code_books; /* code_books.h */
    struct exec_records {          /* kernel.h */
        struct exec_buffer room;
        uint64_t part_bytes, used; /* a batch's share of it; what the open batch has used */
        uint32_t part;
    } records;
    /* exec_set_batch_invariant */
    bool is_batch_invariant;
    bool is_watched;
    struct exec_watch watch;
    /* the batch's first error since exec_begin; ERR_INTERRUPTED when the watch said stop */
    struct moeflux_err fault;
    struct exec_stats stats;
};

/* Begins the records of a batch. */
void exec_begin_records(struct exec *x);
/* Calls the watch; when it says stop, sets the fault to ERR_INTERRUPTED. */
void exec_ask_watch(struct exec *x);
/* Returns the index of a name in stats.times; the last one when there is no room. */
uint32_t exec_find_label(struct exec *x, const char *name);
void exec_book_time(struct exec *x, uint32_t label, uint64_t ns);

/* Returns 1 when no device is named and there is no GPU. */
int exec_vulkan_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e);
int exec_cpu_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e);
int exec_reference_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e);

#endif
