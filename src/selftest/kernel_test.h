/* kernel_test.h - runs one operation on two backends with the same random inputs and compares what they
 * write. Several devices can be compared with one run of the reference. Private to the self-test. */
#ifndef MOEFLUX_SELFTEST_KERNEL_TEST_H
#define MOEFLUX_SELFTEST_KERNEL_TEST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "exec/exec.h"
#include "ops/attention/choice.h"
#include "ops/attention/kv_cache.h"
#include "ops/weights.h"
#include "selftest/selftest.h"

/* KT_NEAR_BYTES: size of a case's buffer of all matrices. */
enum { KT_DEVICE, KT_REFERENCE, KT_SIDES, KT_MAX_BUFFERS = 40, KT_NEAR_BYTES = 4 << 20 };

struct test_buffer { /* the same bytes on both sides */
    struct exec_buffer on[KT_SIDES];
};

/* What becomes of the reference's results. All passes of a test run the same cases. */
enum kt_pass {
    KT_ALONE,  /* nothing: no pass follows */
    KT_KEEP,   /* they are kept for later passes */
    KT_RECALL, /* those of an earlier pass are compared with; the reference computes nothing */
};

struct kt_result {
    void *bytes;
    uint64_t n_bytes;
};

/* State shared by the threads of one self-test. Each visits all cases and computes
 * those that it takes first. */
struct kt_share {
    pthread_mutex_t lock; /* guards the caller's functions */
    atomic_uchar *taken;  /* [n_cases] */
    uint32_t n_cases, n_taken;
};

struct kernel_test {
    struct exec *side[KT_SIDES];
    enum kt_pass pass;
    struct kt_result *kept; /* [room], in the order of the comparisons */
    size_t n_kept, room;
    size_t next; /* index of the next kept result, in KT_RECALL */
    const struct selftest *request;
    struct kt_share *share; /* NULL: this thread computes all cases */
    uint64_t rng;
    uint32_t group, n_in_group; /* group of the current case, number of cases before it in the group */
    uint32_t n_seen;            /* cases met so far, whoever computes them */
    bool only_counts;           /* no case is computed */
    int n_failed;
    char heading[320];      /* names the device in rows in place of its name; "": nothing does */
    bool is_rest;           /* the cases that come are for SELFTEST_REST */
    bool is_long;           /* they are not for SELFTEST_SHORT */
    bool is_again;          /* the cases have run with all kernels of the device */
    struct moeflux_err err; /* the first failure; later calls do nothing */
    struct test_buffer buffers[KT_MAX_BUFFERS];
    uint32_t n_buffers;
    /* The matrices of the case are in one buffer, as those of a model are: kernels that find them by their
     * distance from one address need that. kt_clear ends it. Other cases have a buffer for each part, past
     * whose ends an interpreter sees reads. */
    bool is_near;
    struct test_buffer *near; /* that buffer; NULL: no matrix was made */
    uint64_t near_used;       /* its bytes in use */
};

/* Hold back the other threads of the self-test, if there are any. */
void kt_lock(struct kernel_test *l);
void kt_unlock(struct kernel_test *l);

uint64_t kt_random(struct kernel_test *l);
/* Uniform in [low, high). */
float kt_uniform(struct kernel_test *l, float low, float high);
/* n floats in [low, high). Borrowed until kt_clear. */
struct test_buffer *kt_floats(struct kernel_test *l, uint64_t n, float low, float high);
/* Rows of a KV cache after `off` bytes of other layers, which are zeros: n of dim numbers, then n_values of
 * value_dim. */
struct kt_rows {
    uint64_t off, n;
    uint32_t dim;
    enum kv_type type;
    uint64_t n_values;
    uint32_t value_dim;
};
/* Rows of random numbers in [-1, 1). */
struct test_buffer *kt_cache(struct kernel_test *l, const struct kt_rows *rows);
/* Given bytes; NULL: zeros. */
struct test_buffer *kt_bytes(struct kernel_test *l, const void *bytes, uint64_t n);
/* Returns the name of an activation (ops/gating.h) with a comma in front, or nothing for the plain one. */
const char *kt_gating_name(float gating);
/* A random matrix whose outputs are about as large as its inputs; its place on each side in at[]. With
 * is_near, none of float32 numbers. */
void kt_matrix(struct kernel_test *l, uint32_t rows, uint32_t cols, uint32_t format,
               struct weights at[KT_SIDES]);
/* Makes lists of random blocks (ops/attention/choice.h) for n tokens from `pos` on, u32 [n]
 * [kv_choice_stride]; rows of tokens that see everything are out of range. */
struct test_buffer *kt_lists(struct kernel_test *l, const struct kv_choice *choice, uint32_t pos, uint32_t n);
/* A table of one address per buffer (NULL: 0): the same buffers on both sides. */
struct test_buffer *kt_table(struct kernel_test *l, struct test_buffer *const *buffers, uint32_t n);

/* Returns whether cases are left out that show no other path through a kernel than others do. */
bool kt_is_brief(const struct kernel_test *l);
/* Begins a case, before any of its buffers. Returns false if this thread does not compute it: the other part
 * of the grid has it (SELFTEST_FIRST, SELFTEST_REST), another thread took it, or cases are only counted. The
 * random numbers of a case depend on its group and its place there, not on what ran before. */
bool kt_takes(struct kernel_test *l, bool is_rest);
/* Begins the next group of cases. */
void kt_begin_group(struct kernel_test *l, uint32_t group);
/* The sides that compute a case: all, or the device's alone. */
int kt_n_sides(const struct kernel_test *l);
/* Ends the side's batch after the operation was recorded on it. */
void kt_finish(struct kernel_test *l, int side);
/* Compares n floats of a buffer that both sides wrote. */
double kt_error(struct kernel_test *l, const struct test_buffer *t, uint64_t n);
/* The same for n float16 numbers; each difference is relative to the larger of the reference's number and
 * 1. */
double kt_f16_error(struct kernel_test *l, const struct test_buffer *t, uint64_t n);
/* The same for rows of a KV cache. Of q8_0 it counts codes: the largest difference, or KT_MEAN_CODES times
 * the mean, whichever is larger. Infinite if bytes before the rows differ. */
double kt_cache_error(struct kernel_test *l, const struct test_buffer *t, const struct kt_rows *rows);
enum { KT_MEAN_CODES = 30 };
/* The same for integers: 0 when all are equal, else 1. */
double kt_difference(struct kernel_test *l, const struct test_buffer *t, uint64_t n);
/* Reports a result; does nothing after a failure. */
void kt_row(struct kernel_test *l, const char *kernel, const char *shape, double error, double bound);
/* Reports the last result of a case and frees its buffers. */
void kt_report(struct kernel_test *l, const char *kernel, const char *shape, double error, double bound);
/* Reports a case that cannot run on the device, and frees its buffers. Says nothing where the device is kept
 * from kernels that it has: these cases have run. */
void kt_skip(struct kernel_test *l, const char *kernel, const char *shape);
void kt_clear(struct kernel_test *l);
/* Frees the reference's results. */
void kt_forget(struct kernel_test *l);

/* float32 sums of up to 18,432 products against double: 1e-5 of the largest output, as every product's head
 * says; and products that go through float16. */
#define KT_PRODUCT_BOUND 1e-5
#define KT_F16_BOUND     2e-3
/* Returns the bound of a product for n tokens whose inputs are rounded to float16 from `from` tokens on. */
double kt_product_bound(const struct kernel_test *l, uint32_t n, uint32_t from);
/* Inputs in 16-bit fixed point (gemm_int16 of cpu/product.h). */
#define KT_INT16_BOUND 1e-4
/* Returns that bound if the device multiplies n tokens with a matrix of that format so, else `bound`. */
double kt_int16_bound(const struct kernel_test *l, uint32_t format, uint32_t n, double bound);
/* Returns whether the device has several kernels for an operation, so that a case
 * can choose. Hosts do not. */
bool kt_has_kernels(const struct kernel_test *l);
/* Every kind of format, and unusual groups and scales. The first KT_N_KINDS differ in their codes, the others
 * in groups and scales only. */
enum { KT_N_KINDS = 12, KT_N_FORMATS = 23 };
extern const uint32_t kt_formats[KT_N_FORMATS];
/* Returns a format's name for a report; "MXFP4 block" is not "MXFP4". */
const char *kt_format_name(uint32_t format);

/* Cases that stand in files of their own. */
void selftest_experts_cases(struct kernel_test *l);
void selftest_attention_cases(struct kernel_test *l);
void selftest_delta_cases(struct kernel_test *l);
void selftest_ssd_cases(struct kernel_test *l);
void selftest_mla_cases(struct kernel_test *l);
void selftest_softmax_cases(struct kernel_test *l);
void selftest_sigmoid_cases(struct kernel_test *l);
void selftest_sample_cases(struct kernel_test *l);
void selftest_swiglu_cases(struct kernel_test *l);
void selftest_head_gate_cases(struct kernel_test *l);
void selftest_batched_cases(struct kernel_test *l);
void selftest_add_cases(struct kernel_test *l);
void selftest_streams_cases(struct kernel_test *l);
void selftest_ngram_cases(struct kernel_test *l);
void selftest_indexer_cases(struct kernel_test *l);
void selftest_compressed_cases(struct kernel_test *l);
void selftest_posts_cases(struct kernel_test *l);

#endif
