/* The reference implementation of indexer.h. */
#include <math.h>
#include <stdlib.h>

#include "ops/indexer/indexer.h"
#include "ops/ref.h"

/* Returns number i of row r of [window; chunk]: a token's key, then its cosines and sines. */
static float held_at(const struct indexer_shape *s, const struct indexer_call *c, uint32_t r, uint32_t i)
{
    uint32_t held = indexer_row_ratio(s) - 1;
    if (r < held)
        return host_floats(c->window_in)[(uint64_t)r * indexer_width(s) + i];
    r -= held;
    return i < s->dim || s->pooled ? host_floats(c->keys)[(uint64_t)r * c->key_stride + i]
                                   : host_floats(c->rope)[(uint64_t)r * s->rotary_dim + i - s->dim];
}

/* Turns a head as row r of [window; chunk]. */
static void ref_turn(const struct indexer_shape *s, const struct indexer_call *c, uint32_t r,
                     const double *head, float *dst)
{
    uint32_t pairs = s->rotary_dim / 2;
    for (uint32_t i = 0; i < s->dim; i++) {
        bool is_first = s->interleaved ? i % 2 == 0 : i < pairs;
        uint32_t pair = s->interleaved ? i / 2 : i % (pairs ? pairs : 1), apart = s->interleaved ? 1 : pairs;
        double y = head[i];
        if (i < s->rotary_dim)
            y = y * (double)held_at(s, c, r, s->dim + 2 * pair) +
                (is_first ? -head[i + apart] : head[i - apart]) *
                    (double)held_at(s, c, r, s->dim + 2 * pair + 1);
        dst[i] = (float)y;
    }
}

/* Computes the layer norm of a key in place. */
static void ref_key(const struct indexer_shape *s, const struct indexer_call *c, float *key, double *normed)
{
    double of_channels = 0;
    for (uint32_t i = 0; s->layer_norm && i < s->dim; i++)
        of_channels += (double)key[i] / s->dim;
    for (uint32_t i = 0; i < s->dim; i++)
        key[i] = (float)((double)key[i] - of_channels);
    ref_norm(key, host_floats(c->k_norm), s->dim, (double)s->eps, normed);
    for (uint32_t i = 0; s->layer_norm && i < s->dim; i++)
        normed[i] += (double)host_floats(c->k_bias)[i];
}

/* Averages the keys of the block whose last token is t. row: room for one. */
static void ref_pool(const struct indexer_shape *s, const struct indexer_call *c, uint32_t t, float *key,
                     double *normed, double *row)
{
    uint32_t ratio = s->choice.ratio, d = s->dim;
    for (uint32_t i = 0; i < d; i++)
        row[i] = 0;
    for (uint32_t j = 0; j < ratio; j++) {
        for (uint32_t i = 0; i < d; i++)
            key[i] = held_at(s, c, t + j, i);
        ref_key(s, c, key, normed);
        for (uint32_t i = 0; i < d; i++) {
            double sum = 0, own = (double)held_at(s, c, t + j, d + i) +
                                  (double)host_floats(c->pool_bias)[(uint64_t)j * d + i];
            for (uint32_t k = 0; k < ratio; k++)
                sum += exp((double)held_at(s, c, t + k, d + i) +
                           (double)host_floats(c->pool_bias)[(uint64_t)k * d + i] - own);
            row[i] += normed[i] / sum;
        }
    }
    for (uint32_t i = 0; i < d; i++)
        key[i] = (float)row[i];
    kv_row_put(s->kv_type, key, d, indexer_row(s, c, (c->pos + t) / ratio));
}

static void ref_block(const struct indexer_shape *s, const struct indexer_call *c, uint32_t t, float *mean,
                      double *normed)
{
    for (uint32_t i = 0; i < s->dim; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < indexer_row_ratio(s); j++)
            sum += (double)held_at(s, c, t + j, i);
        mean[i] = (float)(sum / indexer_row_ratio(s));
    }
    ref_key(s, c, mean, normed);
    ref_turn(s, c, t, normed, mean);
    kv_row_put(s->kv_type, mean, s->dim, indexer_row(s, c, (c->pos + t) / indexer_row_ratio(s)));
}

int indexer_prepare_ref(const void *self, const void *what, struct host *h)
{
    const struct indexer_shape *s = &((const struct indexer *)self)->shape;
    const struct indexer_call *c = what;
    uint32_t held = indexer_row_ratio(s) - 1, width = indexer_width(s);
    float *mean = host_scratch(h, s->dim, sizeof *mean);
    double *normed = host_scratch(h, s->dim, sizeof *normed), *row = host_scratch(h, s->dim, sizeof *row);
    for (uint32_t t = 0; mean && normed && row && t < c->n; t++) {
        for (uint32_t i = 0; i < s->n_heads; i++) {
            const float *q = host_floats(c->queries) + (uint64_t)t * c->stride + (uint64_t)i * s->dim;
            if (!s->layer_norm)
                ref_norm(q, host_floats(c->q_norm), s->dim, (double)s->eps, normed);
            for (uint32_t k = 0; s->layer_norm && k < s->dim; k++)
                normed[k] = (double)q[k];
            ref_turn(s, c, held + t, normed, host_floats_mut(c->q) + ((uint64_t)t * s->n_heads + i) * s->dim);
        }
        if ((c->pos + t + 1) % indexer_row_ratio(s))
            continue;
        if (s->pooled)
            ref_pool(s, c, t, mean, normed, row);
        else
            ref_block(s, c, t, mean, normed);
    }
    for (uint32_t r = 0; r < held; r++)
        for (uint32_t i = 0; i < width; i++)
            host_floats_mut(c->window_out)[(uint64_t)r * width + i] = held_at(s, c, c->n + r, i);
    return host_error(h);
}

struct scored {
    float score;
    uint32_t block;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->block < y->block ? -1 : 1;
}

static int by_block(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double ref_dot_row(const struct indexer_shape *s, const struct indexer_call *c, const float *q,
                          uint32_t b)
{
    const void *row = indexer_row(s, c, b);
    double dot = 0;
    for (uint32_t k = 0; k < s->dim; k++)
        dot += (double)q[k] * (double)kv_row_get(s->kv_type, row, s->dim, k);
    return dot;
}

/* Returns token t's score of block b; q: its queries. */
static double ref_score(const struct indexer_shape *s, const struct indexer_call *c, const float *q,
                        uint32_t t, uint32_t b)
{
    double score = 0;
    for (uint32_t i = 0; i < s->n_heads; i++) {
        double dot = ref_dot_row(s, c, q + (uint64_t)i * s->dim, b);
        double w = s->weighted ? (double)host_floats(c->weights)[(uint64_t)t * c->weight_stride + i] : 1;
        score += dot > 0 ? w * dot : 0;
    }
    return score;
}

/* Returns a head's score of block b; q: its query. */
static double ref_largest(const struct indexer_shape *s, const struct indexer_call *c, const float *q,
                          uint32_t b)
{
    double most = -INFINITY;
    for (uint32_t i = 0; i < s->choice.ratio; i++)
        most = fmax(most, ref_dot_row(s, c, q, b * s->choice.ratio + i));
    return most;
}

/* Lists the candidates of token t, which has n groups; `all` has the scores of its blocks by index. */
static void ref_find(const struct indexer_shape *s, const struct indexer_call *c, uint32_t t,
                     const struct scored *all, uint32_t n, struct scored *groups)
{
    uint32_t n_blocks = kv_choice_n_ranked(&s->choice, c->pos + t);
    uint32_t *list = (uint32_t *)host_at(c->candidates) + (uint64_t)t * (s->groups + 1);
    for (uint32_t g = 0; g < n; g++) {
        groups[g] = (struct scored){g + 1 == n ? INFINITY : -INFINITY, g};
        for (uint32_t b = g * s->group; b < n_blocks && b < (g + 1) * s->group; b++)
            groups[g].score = fmaxf(groups[g].score, all[b].score);
    }
    qsort(groups, n, sizeof *groups, by_score);
    for (uint32_t i = 0; i < s->groups; i++)
        list[i] = groups[i].block;
    qsort(list, s->groups, sizeof *list, by_block);
    list[s->groups] = n;
}

/* Leaves out the blocks of token t that are no candidates. */
static void ref_take(const struct indexer_shape *s, const struct indexer_call *c, uint32_t t,
                     struct scored *all)
{
    const uint32_t *list = host_words(c->candidates) + (uint64_t)t * (s->groups + 1);
    uint32_t n_blocks = kv_choice_n_ranked(&s->choice, c->pos + t), at = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        while (at < s->groups && list[at] < b / s->group)
            at++;
        if (at == s->groups || list[at] != b / s->group)
            all[b].score = -INFINITY;
    }
}

/* all: room for a token's blocks and groups. */
static void ref_token(const struct indexer_shape *s, const struct indexer_call *c, uint32_t t,
                      struct scored *all)
{
    uint32_t n = kv_choice_n_ranked(&s->choice, c->pos + t), n_lists = kv_choice_n_lists(&s->choice),
             n_groups = indexer_n_groups(s, c->pos + t);
    uint32_t *list = (uint32_t *)host_at(c->chosen) + (uint64_t)t * kv_choice_stride(&s->choice);
    const float *q = host_floats(c->q) + (uint64_t)t * s->n_heads * s->dim;
    for (uint32_t h = 0; h < n_lists; h++, q += s->dim, list += s->choice.budget + 1) {
        for (uint32_t b = 0; b < n; b++)
            all[b] = (struct scored){
                (float)(s->choice.heads ? ref_largest(s, c, q, b) : ref_score(s, c, q, t, b)), b};
        if (n_groups && s->finds)
            ref_find(s, c, t, all, n_groups, all + n);
        else if (n_groups)
            ref_take(s, c, t, all);
        qsort(all, n, sizeof *all, by_score);
        for (uint32_t i = 0; i < s->choice.budget; i++)
            list[i] = all[i].block;
        qsort(list, s->choice.budget, sizeof *list, by_block);
        list[s->choice.budget] = n;
    }
}

int indexer_choose_ref(const void *self, const void *what, struct host *h)
{
    const struct indexer_shape *s = &((const struct indexer *)self)->shape;
    const struct indexer_call *c = what;
    uint32_t last = c->pos + c->n - 1;
    uint64_t n = (uint64_t)kv_choice_n_ranked(&s->choice, last) + indexer_n_groups(s, last);
    struct scored *all = host_scratch(h, n, sizeof *all);
    for (uint32_t t = indexer_n_whole(s, c); all && t < c->n; t++)
        ref_token(s, c, t, all);
    return host_error(h);
}
