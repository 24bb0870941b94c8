#include "ops/indexer/indexer.h"

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "exec/host.h"

static const struct op prepare_op = {.name = "indexer_prepare",
                                     .vulkan = indexer_prepare_vulkan,
                                     .cpu = indexer_prepare_cpu,
                                     .reference = indexer_prepare_ref};
static const struct op choose_op = {.name = "indexer_choose",
                                    .vulkan = indexer_choose_vulkan,
                                    .cpu = indexer_choose_cpu,
                                    .reference = indexer_choose_ref};

int indexer_open(struct indexer *op, struct exec *x, const struct indexer_shape *s, struct moeflux_err *e)
{
    *op = (struct indexer){.shape = *s};
    if (s->n_heads == 0 || s->dim == 0 || s->dim % 4 || s->rotary_dim % 2 || s->rotary_dim > s->dim)
        return err_set(e, ERR_UNSUPPORTED, "indexer: %u heads of %u channels, %u of them rotary", s->n_heads,
                       s->dim, s->rotary_dim);
    if (s->choice.ratio == 0 || s->choice.ratio > 1 << KV_BLOCK_SHIFT || s->choice.budget == 0)
        return err_set(e, ERR_UNSUPPORTED, "indexer: %u blocks of %u positions, expected at most %d",
                       s->choice.budget, s->choice.ratio, 1 << KV_BLOCK_SHIFT);
    if (s->pooled && (!s->layer_norm || s->rotary_dim))
        return err_set(e, ERR_UNSUPPORTED,
                       "indexer: pools of keys with %u rotary channels, expected 0 and a "
                       "layer norm",
                       s->rotary_dim);
    if (s->choice.heads &&
        (s->choice.heads != s->n_heads || (s->choice.ratio & (s->choice.ratio - 1)) || s->weighted))
        return err_set(
            e, ERR_UNSUPPORTED,
            "indexer: %u heads, lists of %u, blocks of %u positions%s, expected a list for each head "
            "and a power of two",
            s->n_heads, s->choice.heads, s->choice.ratio, s->weighted ? ", weights" : "");
    if (s->groups && (s->choice.heads || s->group == 0 ||
                      (uint64_t)s->groups * s->group < (uint64_t)s->choice.budget + s->group))
        return err_set(e, ERR_UNSUPPORTED, "indexer: %u candidates of %u blocks, %u are chosen", s->groups,
                       s->group, s->choice.budget);
    if (s->kv_type == KV_TYPE_Q8_0)
        return err_set(e, ERR_UNSUPPORTED, "indexer: rows of q8_0, expected f32 or f16");
    return exec_get_caps(x).is_host ? 0 : indexer_vulkan_open(op, x, e);
}

uint32_t indexer_block_bytes(const struct indexer_shape *s)
{
    return div_up(1 << KV_BLOCK_SHIFT, indexer_row_ratio(s)) * kv_row_bytes(s->kv_type, s->dim);
}

uint64_t indexer_window(const struct indexer_shape *s)
{
    return (uint64_t)(indexer_row_ratio(s) - 1) * indexer_width(s);
}

uint64_t indexer_scratch(const struct indexer_shape *s, const struct exec_caps *caps, uint32_t n,
                         uint32_t n_pos)
{
    return caps->is_host || n_pos <= kv_choice_from(&s->choice) ? 0 : indexer_vulkan_scratch(s, n, n_pos);
}

void *indexer_row(const struct indexer_shape *s, const struct indexer_call *c, uint32_t b)
{
    uint32_t ratio = indexer_row_ratio(s), pos = b * ratio,
             row = (pos & ((1u << KV_BLOCK_SHIFT) - 1)) / ratio;
    uint64_t block = ((const uint64_t *)host_at(c->blocks))[pos >> KV_BLOCK_SHIFT];
    return host_at(block + c->layer_off + (uint64_t)row * kv_row_bytes(s->kv_type, s->dim));
}

uint32_t indexer_n_whole(const struct indexer_shape *s, const struct indexer_call *c)
{
    uint32_t from = kv_choice_from(&s->choice);
    return from <= c->pos ? 0 : (uint32_t)size_min(from - c->pos, c->n);
}

void indexer_prepare_run(const struct indexer *op, struct exec *x, const struct indexer_call *call)
{
    exec_op(x, &prepare_op, op, call);
}

void indexer_choose_run(const struct indexer *op, struct exec *x, const struct indexer_call *call)
{
    if (indexer_n_whole(&op->shape, call) < call->n)
        exec_op(x, &choose_op, op, call);
}

void indexer_run(const struct indexer *op, struct exec *x, const struct indexer_call *calls, uint32_t n_calls)
{
    if (n_calls > 1 && !exec_get_caps(x).is_host) {
        indexer_vulkan_concurrent(op, x, calls, n_calls);
        return;
    }
    for (uint32_t i = 0; i < n_calls; i++) {
        indexer_prepare_run(op, x, &calls[i]);
        indexer_choose_run(op, x, &calls[i]);
    }
}
