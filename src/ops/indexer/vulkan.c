/* The Vulkan implementation of indexer.h. */
#include "args.h"
#include "base/err.h"
#include "base/mem.h"
#include "ops/indexer/indexer.h"

/* SCORE_GROUP: lanes of indexer/scores.comp. SCORE_KEYS: its rows of a tile. SCORE_VECTORS: queries of a tile
 * if there are many tokens. CHOOSE_GROUP: lanes of indexer/choose.comp. */
enum {
    SCORE_GROUP = 128,
    SCORE_KEYS = 32,
    SCORE_VECTORS = 32,
    CHOOSE_GROUP = 512,
    PREPARE_GROUP = 128,
    GROUPS_GROUP = 128
};
/* Scores that are kept at the same time; many tokens go in several steps. */
enum { MOST_SCORES = 16 << 20 };
/* The constants of indexer/scores.comp: its own, those of kv_cache.h, its own. */
enum { WEIGHTED_SPEC = KV_N_SPEC, BLOCK_SPEC, SCORES_N_SPEC };
/* Those of indexer/prepare.comp. */
enum { POOLED_SPEC = KV_N_SPEC, PREPARE_N_SPEC };

/* Returns the bytes of shared memory of indexer/scores.comp: a part of a tile's rows and queries, and its
 * products. */
static uint64_t shared_bytes(uint32_t group, uint32_t n_vectors)
{
    enum { FOURS = 8 };
    uint64_t vectors = size_round_up(n_vectors, group / SCORE_KEYS);
    return 16ull * FOURS * (SCORE_KEYS + vectors) + sizeof(float) * vectors * SCORE_KEYS;
}

static int open_scores(struct indexer *op, struct exec *x, struct moeflux_err *e)
{
    const struct indexer_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    uint32_t spec[SCORES_N_SPEC] = {caps.subgroup_size,
                                    exec_workgroup(&caps, SCORE_GROUP),
                                    s->dim,
                                    s->n_heads,
                                    1,
                                    SCORE_KEYS,
                                    indexer_row_ratio(s),
                                    [KV_SPEC] = s->kv_type,
                                    [WEIGHTED_SPEC] = s->weighted,
                                    [BLOCK_SPEC] = s->choice.heads ? s->choice.ratio : 0};
    const uint32_t bytes = sizeof(struct indexer_scores_args);
    uint64_t shared = shared_bytes(spec[1], (uint32_t)size_max(s->n_heads, SCORE_VECTORS));
    if (shared > caps.max_shared_bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "indexer: %u heads need %llu bytes of shared memory, the device has %u", s->n_heads,
                       (unsigned long long)shared, caps.max_shared_bytes);
    int rc = exec_kernel(x, &op->gpu.one, "indexer_scores", bytes, spec, SCORES_N_SPEC, e);
    op->gpu.some_tokens = spec[4] = s->n_heads < SCORE_VECTORS ? SCORE_VECTORS / s->n_heads : 1;
    return rc < 0 ? rc : exec_kernel_later(x, &op->gpu.some, "indexer_scores", bytes, spec, SCORES_N_SPEC, e);
}

int indexer_vulkan_open(struct indexer *op, struct exec *x, struct moeflux_err *e)
{
    const struct indexer_shape *s = &op->shape;
    const struct exec_caps caps = exec_get_caps(x);
    const uint32_t prepare[PREPARE_N_SPEC] = {caps.subgroup_size,
                                              exec_workgroup(&caps, size_min(s->dim, PREPARE_GROUP)),
                                              s->dim,
                                              s->rotary_dim,
                                              indexer_row_ratio(s),
                                              s->layer_norm,
                                              s->interleaved,
                                              [KV_SPEC] = s->kv_type,
                                              [POOLED_SPEC] = s->pooled};
    const uint32_t choose[] = {caps.subgroup_size, exec_workgroup(&caps, CHOOSE_GROUP)};
    const uint32_t groups[] = {caps.subgroup_size, exec_workgroup(&caps, GROUPS_GROUP), s->finds};
    op->gpu.lanes = groups[1];
    int rc = s->groups ? exec_kernel(x, &op->gpu.groups, "indexer_groups", sizeof(struct indexer_groups_args),
                                     groups, 3, e)
                       : 0;
    if (rc < 0)
        return rc;
    rc = exec_kernel(x, &op->gpu.prepare, "indexer_prepare", sizeof(struct indexer_prepare_args), prepare,
                     PREPARE_N_SPEC, e);
    if (rc == 0)
        rc = exec_kernel(x, &op->gpu.choose, "indexer_choose", sizeof(struct indexer_choose_args), choose, 2,
                         e);
    return rc < 0 ? rc : open_scores(op, x, e);
}

/* Returns the groups of the blocks of n_pos positions. */
static uint32_t groups_of(const struct indexer_shape *s, uint32_t n_pos)
{
    return s->finds ? div_up(n_pos / s->choice.ratio, s->group) : 0;
}

/* Returns the scores of a token that sees up to n_pos positions: those of its blocks and of its groups. */
static uint64_t scores_of(const struct indexer_shape *s, uint32_t n_pos)
{
    return (uint64_t)(n_pos / s->choice.ratio) * kv_choice_n_lists(&s->choice) + groups_of(s, n_pos);
}

/* Returns the tokens whose scores are kept at the same time. Fewer positions never need more scores in all
 * than indexer_vulkan_scratch returns. */
static uint32_t tokens_at_once(const struct indexer_shape *s, uint32_t n, uint32_t n_pos)
{
    return (uint32_t)size_max(1, size_min(n, MOST_SCORES / size_max(scores_of(s, n_pos), 1)));
}

uint64_t indexer_vulkan_scratch(const struct indexer_shape *s, uint32_t n, uint32_t n_pos)
{
    uint64_t each = scores_of(s, n_pos);
    return size_min(n * each, size_max(MOST_SCORES, each));
}

void indexer_prepare_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct indexer *op = self;
    const struct indexer_shape *s = &op->shape;
    const struct indexer_call *c = what;
    const struct indexer_prepare_args a = {.queries = c->queries,
                                           .keys = c->keys,
                                           .q_norm = c->q_norm,
                                           .k_norm = c->k_norm,
                                           .k_bias = c->k_bias,
                                           .pool_bias = c->pool_bias,
                                           .rope = c->rope,
                                           .window_in = c->window_in,
                                           .window_out = c->window_out,
                                           .q = c->q,
                                           .blocks = c->blocks,
                                           .n = c->n,
                                           .pos = c->pos,
                                           .stride = c->stride,
                                           .key_stride = c->key_stride,
                                           .n_heads = s->n_heads,
                                           .layer_off = c->layer_off,
                                           .eps = s->eps};
    exec_dispatch(x, &op->gpu.prepare, &a, s->n_heads + 1, (uint32_t)size_max(c->n, indexer_row_ratio(s) - 1),
                  1);
}

/* Computes the scores of n tokens from the first-th on. */
static void run_scores(const struct indexer *op, struct exec *x, const struct indexer_call *c, uint32_t first,
                       uint32_t n)
{
    const struct indexer_shape *s = &op->shape;
    uint32_t n_blocks = kv_choice_n_ranked(&s->choice, c->pos + first + n - 1);
    const struct indexer_scores_args a = {.q = c->q + (uint64_t)first * s->n_heads * s->dim * sizeof(float),
                                          .weights =
                                              c->weights + (uint64_t)first * c->weight_stride * sizeof(float),
                                          .blocks = c->blocks,
                                          .scores = c->scores,
                                          .n = n,
                                          .pos = c->pos + first - (s->choice.heads > 0),
                                          .layer_off = c->layer_off,
                                          .score_stride = (c->pos + c->n) / s->choice.ratio,
                                          .weight_stride = c->weight_stride};
    exec_dispatch(x, n == 1 ? &op->gpu.one : &op->gpu.some, &a,
                  s->choice.heads ? n_blocks : div_up(n_blocks, SCORE_KEYS),
                  div_up(n, n == 1 ? 1 : op->gpu.some_tokens), 1);
}

/* Returns how many of n tokens from position pos on have so few groups that all are candidates. */
static uint32_t n_without_groups(const struct indexer_shape *s, uint32_t pos, uint32_t n)
{
    uint64_t from = ((uint64_t)s->groups * s->group + 1) * s->choice.ratio - 1;
    return s->groups == 0 ? n : from > pos ? (uint32_t)size_min(n, from - pos) : 0;
}

/* Finds the candidates of n tokens from the first-th on, or leaves out what is none. */
static void run_groups(const struct indexer *op, struct exec *x, const struct indexer_call *c, uint32_t first,
                       uint32_t n)
{
    const struct indexer_shape *s = &op->shape;
    uint32_t stride = (c->pos + c->n) / s->choice.ratio, group_stride = groups_of(s, c->pos + c->n);
    uint32_t skip = n_without_groups(s, c->pos + first, n), from = first + skip, left = n - skip;
    const struct indexer_groups_args a = {.scores = c->scores + (uint64_t)skip * stride * sizeof(float),
                                          .groups = c->scores + (uint64_t)n * stride * sizeof(float),
                                          .candidates = c->candidates +
                                                        (uint64_t)from * (s->groups + 1) * sizeof(uint32_t),
                                          .pos = c->pos + from,
                                          .ratio = s->choice.ratio,
                                          .group = s->group,
                                          .n_listed = s->groups,
                                          .score_stride = stride,
                                          .group_stride = group_stride};
    if (left == 0)
        return;
    exec_dispatch(x, &op->gpu.groups, &a, div_up(s->finds ? group_stride : stride, op->gpu.lanes), left, 1);
    if (!s->finds)
        return;
    /* Groups are blocks of more positions, and an unfinished one counts as finished. */
    const struct indexer_choose_args choose = {.scores = a.groups,
                                               .chosen = a.candidates,
                                               .pos = a.pos + (s->group - 1) * s->choice.ratio,
                                               .ratio = s->choice.ratio * s->group,
                                               .budget = s->groups,
                                               .score_stride = group_stride,
                                               .list_stride = s->groups + 1,
                                               .n_lists = 1};
    exec_dispatch(x, &op->gpu.choose, &choose, left, 1, 1);
}

static void run_choose(const struct indexer *op, struct exec *x, const struct indexer_call *c, uint32_t first,
                       uint32_t n)
{
    const struct indexer_shape *s = &op->shape;
    uint64_t from = (uint64_t)first * kv_choice_stride(&s->choice) * sizeof(uint32_t);
    const struct indexer_choose_args a = {.scores = c->scores,
                                          .chosen = c->chosen + from,
                                          .pos = c->pos + first - (s->choice.heads > 0),
                                          .ratio = s->choice.ratio,
                                          .budget = s->choice.budget,
                                          .score_stride = (c->pos + c->n) / s->choice.ratio,
                                          .list_stride = s->choice.budget + 1,
                                          .n_lists = kv_choice_n_lists(&s->choice)};
    exec_dispatch(x, &op->gpu.choose, &a, n * a.n_lists, 1, 1);
}

void indexer_choose_vulkan(const void *self, const void *what, struct exec *x)
{
    const struct indexer *op = self;
    const struct indexer_call *c = what;
    uint32_t first = indexer_n_whole(&op->shape, c);
    uint32_t step = tokens_at_once(&op->shape, c->n, c->pos + c->n);
    for (; first < c->n; first += step) {
        uint32_t n = (uint32_t)size_min(c->n - first, step);
        run_scores(op, x, c, first, n);
        run_groups(op, x, c, first, n);
        run_choose(op, x, c, first, n);
    }
}

/* Returns whether the call goes with the others: one token that needs a choice, in two dispatches. Candidates
 * take more of them. */
static bool is_short(const struct indexer *op, const struct indexer_call *c)
{
    return c->n == 1 && op->shape.groups == 0 && indexer_n_whole(&op->shape, c) == 0;
}

void indexer_vulkan_concurrent(const struct indexer *op, struct exec *x, const struct indexer_call *calls,
                               uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            exec_concurrent(x);
        indexer_prepare_vulkan(op, &calls[i], x);
    }
    for (int pass = 0; pass < 2; pass++) {
        bool is_first = true;
        for (uint32_t i = 0; i < n; i++) {
            if (!is_short(op, &calls[i]))
                continue;
            if (!is_first)
                exec_concurrent(x);
            (pass ? run_choose : run_scores)(op, x, &calls[i], 0, 1);
            is_first = false;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (!is_short(op, &calls[i]))
            indexer_choose_vulkan(op, &calls[i], x);
}
