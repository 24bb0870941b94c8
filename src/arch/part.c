#include "arch/part.h"

#include "args.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/rope.h"
#include "ops/gating.h"
#include "ops/attention/attention.h"
#include "ops/delta/delta.h"
#include "ops/linear/linear.h"

_Static_assert((int)PART_GROUP <= (int)ATTENTION_CONCURRENT && (int)PART_GROUP <= (int)DELTA_CONCURRENT,
               "sequences of a group");

float part_gating(const struct config *c, float clamp)
{
    if (c->gateless)
        return GATING_RELU;
    if (c->gelu)
        return GATING_GELU;
    if (c->situ_beta > 0)
        return gating_situ(c->situ_beta, c->situ_linear);
    return clamp > 0 ? gating_clamp(clamp, c->clamps_inputs) : c->swiglu_limit;
}

uint32_t part_n_concurrent(const struct part_most *most)
{
    return (uint32_t)size_min(size_min(most->batched, most->chunk), PART_GROUP);
}

uint32_t part_n_sequences(const struct arch_chunk *c)
{
    if (!c->each)
        return 1;
    return c->is_chain ? c->n : arch_batch_sequences(&c->batch);
}

struct part_tokens part_tokens_of(const struct part_room *r, const struct arch_chunk *c, uint32_t rope,
                                  uint32_t idx)
{
    uint64_t row = r->config->ropes[rope].dim * sizeof(float);
    uint64_t table = c->rope + (uint64_t)c->n * rope_floats(r->config, rope) * sizeof(float);
    if (!c->each)
        return (struct part_tokens){.n = c->n, .rope = table, .of = c->of};
    uint32_t from = c->is_chain ? idx : arch_batch_start(&c->batch, idx);
    uint32_t end = c->is_chain ? idx + 1 : arch_batch_end(&c->batch, idx);
    return (struct part_tokens){
        .from = from, .n = end - from, .rope = table + from * row, .of = c->each[idx]};
}

uint32_t part_group_from(const struct arch_chunk *c, uint32_t first, bool *are_single)
{
    uint32_t n_single = arch_n_single(c), end = first < n_single ? n_single : part_n_sequences(c);
    *are_single = first < n_single;
    return first < end ? (uint32_t)size_min(end - first, PART_GROUP) : 0;
}

uint32_t part_tokens_with_state(const struct part_room *r, const struct arch_chunk *c, uint32_t rope,
                                uint32_t first, struct part_tokens *parts, bool *are_single)
{
    uint32_t n = part_group_from(c, first, are_single);
    for (uint32_t i = 0; i < n; i++)
        parts[i] = part_tokens_of(r, c, rope, first + i);
    if (!c->keep || n == 0)
        return n;
    parts[1] = parts[0];
    parts[0].n = c->keep;
    parts[0].of.recurrent_out = c->kept;
    parts[1].from = c->keep;
    parts[1].n = c->n - c->keep;
    parts[1].rope += (uint64_t)c->keep * r->config->ropes[rope].dim * sizeof(float);
    parts[1].of.pos += c->keep;
    parts[1].of.parity ^= 1;
    parts[1].of.recurrent = c->kept;
    return 2;
}

void part_project(const struct part_room *r, const struct linear *w, const struct part_call *call,
                  uint32_t stride)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = call->in,
                                     .norm = call->norm,
                                     .y = r->proj.address,
                                     .x_stride = r->config->hidden,
                                     .y_stride = stride,
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .eps = r->config->rms_eps,
                                     .f16_scratch = r->f16_scratch.address});
}

void part_add(const struct part_room *r, const struct linear *w, const struct part_call *call, bool is_cast)
{
    linear_run(w, r->exec,
               &(struct linear_call){.x = r->mixed.address,
                                     .y = call->out,
                                     .x_stride = w->cols,
                                     .y_stride = r->config->hidden,
                                     .n = call->chunk->n,
                                     .chunk = arch_plan_n(call->chunk),
                                     .add = call->adds,
                                     .f16_scratch = r->f16_scratch.address,
                                     .is_cast = is_cast});
}
