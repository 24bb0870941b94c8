/* sample.h - chooses the next token from its logits, as sample/sampler.h would, for the rules that
 * sample_takes names. Two dispatches on Vulkan. */
#ifndef MOEFLUX_OPS_SAMPLE_SAMPLE_H
#define MOEFLUX_OPS_SAMPLE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/kernel.h"
#include "exec/op.h"
#include "sample/sampler.h"

enum { SAMPLE_MAX_RECENT = 4096 };

struct sample {
    uint32_t n; /* number of token ids */
    struct {    /* vulkan */
        struct kernel largest, greedy, draw;
        struct kernel largest_each, greedy_each, draw_each; /* several sequences */
    } gpu;
};

struct sample_call {
    const struct sampler_rule *rule;
    uint64_t logits;  /* f32 [n] */
    uint64_t blocked; /* u32 [n / 32, rounded up]: sampler_blocked */
    uint64_t recent;  /* i32 [n_recent]: sampler_recent */
    uint64_t last;    /* i32: the token before the logits' position */
    uint64_t scratch; /* [sample_scratch], 16-byte aligned */
    uint64_t id;      /* i32: the choice; 0 if there is none, which is still a valid row of the embedding */
    /* u32 [2]: the choice and SAMPLE_OK, or the first faulty id and a SAMPLE_ fault (args.h) */
    uint64_t result;
    uint32_t n_recent;
};

int sample_open(struct sample *op, struct exec *x, uint32_t n, struct moeflux_err *e);
uint64_t sample_scratch(uint32_t n); /* bytes */
/* Returns whether it can choose by this rule. */
bool sample_takes(const struct sample *op, const struct sampler_rule *r);
void sample_run(const struct sample *op, struct exec *x, const struct sample_call *call);
/* Runs n <= SAMPLE_CONCURRENT calls, each with scratch memory of its own, together. */
enum { SAMPLE_CONCURRENT = 32 };
void sample_run_concurrent(const struct sample *op, struct exec *x, const struct sample_call *calls,
                           uint32_t n);

/* The implementations. */
int sample_vulkan_open(struct sample *op, struct exec *x, struct moeflux_err *e);
void sample_vulkan(const void *self, const void *what, struct exec *x);
void sample_vulkan_concurrent(const struct sample *op, struct exec *x, const struct sample_call *calls,
                              uint32_t n);
op_host_fn sample_ref;

#endif
