#include "ops/compressed/compressed.h"

#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "exec/host.h"

static const struct op turn_op = {.name = "compressed_turn",
                                  .vulkan = compressed_turn_vulkan,
                                  .cpu = compressed_turn_cpu,
                                  .reference = compressed_turn_ref};
static const struct op pool_op = {.name = "compressed_pool",
                                  .vulkan = compressed_pool_vulkan,
                                  .cpu = compressed_pool_cpu,
                                  .reference = compressed_pool_ref};
static const struct op attend_op = {.name = "compressed_attend",
                                    .vulkan = compressed_attend_vulkan,
                                    .cpu = compressed_attend_cpu,
                                    .reference = compressed_attend_ref};

int compressed_open(struct compressed *op, struct exec *x, const struct compressed_shape *s,
                    struct moeflux_err *e)
{
    *op = (struct compressed){.shape = *s};
    if (s->dim == 0 || s->dim % 4 || s->dim > COMPRESSED_MOST || s->rope_dim % 2 || s->rope_dim > s->dim)
        return err_set(
            e, ERR_UNSUPPORTED,
            "compressed attention: rows of %u channels, %u of them rotary, expected a multiple of 4 up "
            "to %d and an even number",
            s->dim, s->rope_dim, COMPRESSED_MOST);
    if (s->ratio > 1 << KV_BLOCK_SHIFT || (s->ratio & (s->ratio - 1)))
        return err_set(e, ERR_UNSUPPORTED,
                       "compressed attention: rows of %u positions, expected a power of two up to %d",
                       s->ratio, 1 << KV_BLOCK_SHIFT);
    return exec_get_caps(x).is_host ? 0 : compressed_vulkan_open(op, x, e);
}

uint64_t compressed_state(const struct compressed_shape *s)
{
    return s->ratio ? 3 * (uint64_t)compressed_width(s) + s->rope_dim : 0;
}

void compressed_turn_run(const struct compressed *op, struct exec *x, const struct compressed_turn_call *call)
{
    exec_op(x, &turn_op, op, call);
}

void compressed_pool_run(const struct compressed *op, struct exec *x, const struct compressed_pool_call *call)
{
    exec_op(x, &pool_op, op, call);
}

void compressed_attend_run(const struct compressed *op, struct exec *x,
                           const struct compressed_attend_call *call)
{
    exec_op(x, &attend_op, op, call);
}

void *compressed_near_at(const struct compressed_shape *s, uint64_t ring, uint32_t off, uint32_t pos)
{
    const struct kv_rows rows = {
        .blocks = ring, .layer_off = off, .n_kv_heads = 1, .dim = s->dim, .type = s->kv_type};
    return kv_rows_at(&rows, pos, 0, 0);
}

void *compressed_far_at(const struct compressed_shape *s, uint64_t blocks, uint32_t off, uint32_t b)
{
    uint32_t pos = b * s->ratio, row = (pos & ((1u << KV_BLOCK_SHIFT) - 1)) / s->ratio;
    uint64_t block = ((const uint64_t *)host_at(blocks))[pos >> KV_BLOCK_SHIFT];
    return host_at(block + off + (uint64_t)row * kv_row_bytes(s->kv_type, s->dim));
}

void *compressed_turned_at(const struct compressed_shape *s, const struct compressed_turn_call *c, uint32_t t)
{
    uint32_t pos = c->pos + t;
    if (c->y)
        return NULL;
    if (!c->blocks)
        return compressed_near_at(s, c->ring, c->row_off, pos);
    return (pos + 1) % s->ratio == 0 ? compressed_far_at(s, c->blocks, c->row_off, pos / s->ratio) : NULL;
}

void *compressed_seen_at(const struct compressed_shape *s, const struct compressed_attend_call *c, uint32_t t,
                         uint32_t n_near, uint32_t r)
{
    uint32_t pos = c->pos + t;
    if (r < n_near)
        return compressed_near_at(s, c->ring, c->ring_off, pos + 1 - n_near + r);
    r -= n_near;
    if (s->budget && (pos + 1) / s->ratio > s->budget)
        r = host_words(c->chosen)[(uint64_t)t * (s->budget + 1) + r];
    return compressed_far_at(s, c->blocks, c->layer_off, r);
}

uint32_t compressed_n_blocks(const struct compressed_shape *s, const struct compressed_pool_call *c)
{
    return (c->pos + c->n - 1) / s->ratio - c->pos / s->ratio + 1;
}

struct compressed_block compressed_block_at(const struct compressed_shape *s,
                                            const struct compressed_pool_call *c, uint32_t i)
{
    uint32_t idx = c->pos / s->ratio + i, begin = idx * s->ratio, end = c->pos + c->n;
    uint32_t previous = begin - (idx && s->overlaps ? s->ratio : 0);
    bool is_begun = c->pos > begin; /* before the chunk */
    struct compressed_block b = {.idx = idx,
                                 .from = is_begun ? 0 : begin - c->pos,
                                 .to = (uint32_t)size_min(begin + (uint64_t)s->ratio, end) - c->pos,
                                 .resumes = is_begun,
                                 .follows = !is_begun && previous < begin && c->pos > previous,
                                 .is_whole = begin + (uint64_t)s->ratio <= end,
                                 .is_last = i + 1 == compressed_n_blocks(s, c)};
    b.before = is_begun ? b.from : previous > c->pos ? previous - c->pos : 0;
    return b;
}
