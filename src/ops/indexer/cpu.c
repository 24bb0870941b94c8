/* The native implementation of indexer.h. */
#include "ops/indexer/cpu.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "ops/indexer/indexer.h"
#include "ops/loops.h"

/* TOKENS: most tokens whose scores are kept at the same time. MOST_SCORES: most scores of them, unless one
 * token alone has more. */
enum { TOKENS = 64, MOST_SCORES = 4 << 20 };

struct job {
    const struct indexer_shape *shape;
    const struct indexer_call *call;
    const struct loops *loops;
    float *rooms; /* `room` floats a thread: at least room_of(shape), and a token's groups */
    uint64_t room;
    float *scores;            /* [n_scored][lists][n_blocks] */
    uint32_t first, n_scored; /* tokens whose scores are kept */
    uint32_t n_blocks;
};

/* POOL_ROWS: rows of room for a pool. */
enum { POOL_ROWS = 4 };

/* Returns a token's key in [window; chunk], and its cosines and sines. */
static const float *key_at(const struct job *j, uint32_t r)
{
    const struct indexer_shape *s = j->shape;
    uint32_t held = indexer_row_ratio(s) - 1;
    return r < held ? host_floats(j->call->window_in) + (uint64_t)r * indexer_width(s)
                    : host_floats(j->call->keys) + (uint64_t)(r - held) * j->call->key_stride;
}

static const float *rope_at(const struct job *j, uint32_t r)
{
    const struct indexer_shape *s = j->shape;
    uint32_t held = indexer_row_ratio(s) - 1;
    return r < held ? key_at(j, r) + s->dim
                    : host_floats(j->call->rope) + (uint64_t)(r - held) * s->rotary_dim;
}

/* Returns the floats of a thread's scratch: a row, and with lists of heads their scores of the rows in a
 * block of the cache. */
static uint64_t room_of(const struct indexer_shape *s)
{
    uint64_t row = s->pooled ? (uint64_t)POOL_ROWS * s->dim : indexer_width(s);
    return row + ((uint64_t)s->choice.heads << KV_BLOCK_SHIFT);
}

static void subtract_mean(float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] -= (float)(sum / n);
}

/* Computes the layer norm of a key in place. */
static void norm_key(const struct job *j, float *key)
{
    const struct indexer_shape *s = j->shape;
    if (s->layer_norm)
        subtract_mean(key, s->dim);
    j->loops->norm(key, host_floats(j->call->k_norm), s->dim, s->eps, key);
    for (uint32_t i = 0; s->layer_norm && i < s->dim; i++)
        key[i] += host_floats(j->call->k_bias)[i];
}

/* Averages the keys of the block whose last token is t by their gates. room: POOL_ROWS rows. The first
 * becomes the block's. */
static void pool_keys(const struct job *j, uint32_t t, float *room)
{
    uint32_t d = j->shape->dim, ratio = j->shape->choice.ratio;
    float *row = room, *key = row + d, *top = key + d, *total = top + d;
    for (uint32_t k = 0; k < ratio; k++) {
        const float *gate = key_at(j, t + k) + d, *bias = host_floats(j->call->pool_bias) + (uint64_t)k * d;
        for (uint32_t i = 0; i < d; i++)
            top[i] = k == 0 || gate[i] + bias[i] > top[i] ? gate[i] + bias[i] : top[i];
    }
    memset(row, 0, d * sizeof *row);
    memset(total, 0, d * sizeof *total);
    for (uint32_t k = 0; k < ratio; k++) {
        const float *gate = key_at(j, t + k) + d, *bias = host_floats(j->call->pool_bias) + (uint64_t)k * d;
        float share[64];
        memcpy(key, key_at(j, t + k), d * sizeof *key);
        norm_key(j, key);
        for (uint32_t from = 0; from < d; from += 64) {
            uint32_t n = (uint32_t)size_min(64, d - from);
            for (uint32_t i = 0; i < n; i++)
                share[i] = gate[from + i] + bias[from + i] - top[from + i];
            j->loops->exp_below(share, n, 0, share);
            for (uint32_t i = 0; i < n; i++) {
                row[from + i] += share[i] * key[from + i];
                total[from + i] += share[i];
            }
        }
    }
    for (uint32_t i = 0; i < d; i++)
        row[i] /= total[i];
}

/* Computes the mean of these keys, normed. */
static void mean_of_keys(const struct job *j, uint32_t t, float *mean)
{
    uint32_t ratio = indexer_row_ratio(j->shape);
    for (uint32_t i = 0; i < j->shape->dim; i++) {
        mean[i] = key_at(j, t)[i];
        for (uint32_t k = 1; k < ratio; k++)
            mean[i] += key_at(j, t + k)[i];
        mean[i] /= (float)ratio;
    }
    norm_key(j, mean);
}

static void prepare_token(void *ctx, uint32_t t, uint32_t thread)
{
    const struct job *j = ctx;
    const struct indexer_shape *s = j->shape;
    const struct indexer_call *c = j->call;
    uint32_t d = s->dim, pairs = s->rotary_dim / 2, ratio = indexer_row_ratio(s);
    uint32_t apart = s->interleaved ? 0 : pairs;
    const float *row = host_floats(c->queries) + (uint64_t)t * c->stride;
    float *q = host_floats_mut(c->q) + (uint64_t)t * s->n_heads * d;
    float *mean = j->rooms + (uint64_t)thread * j->room;
    for (uint32_t h = 0; h < s->n_heads; h++, row += d, q += d) {
        if (s->layer_norm)
            memcpy(q, row, d * sizeof *q);
        else
            j->loops->norm(row, host_floats(c->q_norm), d, s->eps, q);
        j->loops->turn(q, rope_at(j, ratio - 1 + t), pairs, apart);
    }
    if ((c->pos + t + 1) % ratio)
        return;
    if (s->pooled)
        pool_keys(j, t, mean);
    else
        mean_of_keys(j, t, mean);
    j->loops->turn(mean, rope_at(j, t), pairs, apart);
    loops_put_row(j->loops, s->kv_type, mean, d, indexer_row(s, c, (c->pos + t) / ratio));
}

int indexer_prepare_cpu(const void *self, const void *what, struct host *h)
{
    const struct indexer_shape *s = &((const struct indexer *)self)->shape;
    struct job j = {.shape = s, .call = what, .loops = loops_of(h)};
    j.room = room_of(s);
    j.rooms = host_scratch(h, team_n_threads(h->team) * j.room, sizeof *j.rooms);
    if (!j.rooms)
        return host_error(h);
    team_for(h->team, j.call->n, prepare_token, &j);
    for (uint32_t r = 0; r + 1 < indexer_row_ratio(s); r++) {
        float *to = host_floats_mut(j.call->window_out) + (uint64_t)r * indexer_width(s);
        memcpy(to, key_at(&j, j.call->n + r), s->dim * sizeof *to);
        const float *rest = s->pooled ? key_at(&j, j.call->n + r) + s->dim : rope_at(&j, j.call->n + r);
        memcpy(to + s->dim, rest, (indexer_width(s) - s->dim) * sizeof *to);
    }
    return host_error(h);
}

/* Returns the blocks that are ranked for a token. */
static uint32_t n_ranked(const struct job *j, uint32_t t)
{
    return kv_choice_n_ranked(&j->shape->choice, j->call->pos + t);
}

/* Sets each head's score of the blocks begin .. end - 1 to the largest of its rows' scores, which are in
 * tile->scores. */
static void keep_largest(const struct job *j, const struct indexer_tile *tile, uint32_t begin, uint32_t end,
                         float *scores)
{
    uint32_t ratio = j->shape->choice.ratio;
    for (uint32_t h = 0; h < tile->n_heads; h++)
        for (uint32_t b = begin; b < end; b++) {
            const float *from = tile->scores + (uint64_t)h * tile->stride + (uint64_t)(b - begin) * ratio;
            float most = from[0];
            for (uint32_t i = 1; i < ratio; i++)
                most = from[i] > most ? from[i] : most;
            scores[(uint64_t)h * j->n_blocks + b] = most;
        }
}

/* Computes a token's scores of the rows in one block of the cache; i: index of the token's scores. */
static void score_token(const struct job *j, uint32_t i, uint32_t piece, uint32_t thread)
{
    const struct indexer_shape *s = j->shape;
    const struct indexer_call *c = j->call;
    uint32_t t = j->first + i, ratio = s->choice.ratio, rows = ratio / indexer_row_ratio(s);
    /* The index blocks that begin in the piece. */
    uint32_t begin = div_up(piece << KV_BLOCK_SHIFT, ratio),
             end = div_up((piece + 1) << KV_BLOCK_SHIFT, ratio);
    end = (uint32_t)size_min(end, n_ranked(j, t));
    if (begin >= end)
        return;
    float *room = j->rooms + (uint64_t)thread * j->room,
          *scores = j->scores + (uint64_t)i * kv_choice_n_lists(&s->choice) * j->n_blocks;
    const struct indexer_tile tile = {
        .q = host_floats(c->q) + (uint64_t)t * s->n_heads * s->dim,
        .weights = s->weighted ? host_floats(c->weights) + (uint64_t)t * c->weight_stride : NULL,
        .rows = indexer_row(s, c, begin * rows),
        .wide = room,
        .scores = s->choice.heads ? room + indexer_width(s) : scores + begin,
        .n_heads = s->n_heads,
        .dim = s->dim,
        .n = (end - begin) * rows,
        .stride = 1 << KV_BLOCK_SHIFT,
        .f16 = s->kv_type == KV_TYPE_F16,
        .by_head = s->choice.heads > 0};
    j->loops->indexer_scores(&tile);
    if (tile.by_head)
        keep_largest(j, &tile, begin, end, scores);
}

/* A piece's rows stay in the nearest cache for all tokens. */
static void score_piece(void *ctx, uint32_t piece, uint32_t thread)
{
    const struct job *j = ctx;
    for (uint32_t i = 0; i < j->n_scored; i++)
        score_token(j, i, piece, thread);
}

/* Returns an integer with the order of the numbers; -0 equals 0. */
static uint32_t ordered(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Returns the budget-th largest of n scores as `ordered` gives it, digit by digit; *n_equal: how many of the
 * scores that equal it are among the largest. */
static uint32_t threshold_of(const float *scores, uint32_t n, uint32_t budget, uint32_t *n_equal)
{
    enum { DIGIT = 8, DIGITS = 1 << DIGIT };
    uint32_t top = 0, known = 0;
    for (uint32_t shift = 32; shift > 0;) {
        uint32_t counts[DIGITS] = {0}, digit = DIGITS - 1;
        shift -= DIGIT;
        for (uint32_t i = 0; i < n; i++)
            if ((ordered(scores[i]) & known) == top)
                counts[ordered(scores[i]) >> shift & (DIGITS - 1)]++;
        for (; digit > 0 && counts[digit] < budget; digit--)
            budget -= counts[digit];
        top |= digit << shift;
        known |= (uint32_t)(DIGITS - 1) << shift;
    }
    *n_equal = budget;
    return top;
}

/* Lists the `n_list` best of n scores by increasing index, then n. */
static void list_best(const float *scores, uint32_t n, uint32_t n_list, uint32_t *list)
{
    uint32_t n_equal, n_chosen = 0, least = threshold_of(scores, n, n_list, &n_equal);
    for (uint32_t b = 0; b < n && n_chosen < n_list; b++) {
        uint32_t score = ordered(scores[b]);
        if (score > least || (score == least && n_equal > 0))
            list[n_chosen++] = b;
        n_equal -= score == least && n_equal > 0;
    }
    list[n_list] = n;
}

/* Lists the candidates of a token with n groups; scores: of its n_blocks blocks. groups: room for n. */
static void find_candidates(const struct job *j, const float *scores, uint32_t n_blocks, uint32_t n,
                            float *groups, uint32_t *list)
{
    uint32_t size = j->shape->group;
    for (uint32_t g = 0; g < n; g++) {
        const float *from = scores + (uint64_t)g * size;
        uint32_t end = (uint32_t)size_min(size, n_blocks - g * size);
        groups[g] = from[0];
        for (uint32_t i = 1; i < end; i++)
            groups[g] = from[i] > groups[g] ? from[i] : groups[g];
    }
    groups[n - 1] = INFINITY;
    list_best(groups, n, j->shape->groups, list);
}

/* Leaves out the blocks that are no candidates. */
static void take_candidates(const struct job *j, float *scores, uint32_t n_blocks, const uint32_t *list)
{
    uint32_t size = j->shape->group, next = 0;
    for (uint32_t i = 0; i <= j->shape->groups; i++) {
        uint32_t begin = i < j->shape->groups ? list[i] * size : n_blocks;
        for (uint32_t b = next; b < begin; b++)
            scores[b] = -INFINITY;
        next = begin + size;
    }
}

/* Chooses for one list of a token; i: index of the token's scores times the lists of a token, plus list. */
static void choose_list(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct indexer_shape *s = j->shape;
    uint32_t n_lists = kv_choice_n_lists(&s->choice), t = j->first + i / n_lists;
    uint32_t n = n_ranked(j, t), n_groups = indexer_n_groups(s, j->call->pos + t);
    float *scores = j->scores + (uint64_t)i * j->n_blocks;
    uint32_t *list =
        (uint32_t *)host_at(j->call->chosen) + ((uint64_t)t * n_lists + i % n_lists) * (s->choice.budget + 1);
    uint32_t *candidates =
        n_groups ? (uint32_t *)host_at(j->call->candidates) + (uint64_t)t * (s->groups + 1) : NULL;
    if (n_groups && s->finds)
        find_candidates(j, scores, n, n_groups, j->rooms + (uint64_t)thread * j->room, candidates);
    else if (n_groups)
        take_candidates(j, scores, n, candidates);
    list_best(scores, n, s->choice.budget, list);
}

int indexer_choose_cpu(const void *self, const void *what, struct host *h)
{
    const struct indexer_shape *s = &((const struct indexer *)self)->shape;
    struct job j = {.shape = s, .call = what, .loops = loops_of(h)};
    uint32_t n = j.call->n, n_pos = j.call->pos + n, n_lists = kv_choice_n_lists(&s->choice);
    j.first = indexer_n_whole(s, j.call);
    j.n_blocks = n_pos / s->choice.ratio;
    uint32_t step = (uint32_t)size_max(1, size_min(TOKENS, MOST_SCORES / ((uint64_t)j.n_blocks * n_lists)));
    j.room = size_max(room_of(s), indexer_n_groups(s, n_pos - 1));
    j.rooms = host_scratch(h, team_n_threads(h->team) * j.room, sizeof *j.rooms);
    j.scores = host_scratch(h, size_min(n - j.first, step) * n_lists * j.n_blocks, sizeof *j.scores);
    if (!j.rooms || !j.scores)
        return host_error(h);
    for (; j.first < n; j.first += step) {
        j.n_scored = (uint32_t)size_min(n - j.first, step);
        team_for(h->team, div_up(n_pos, 1 << KV_BLOCK_SHIFT), score_piece, &j);
        team_for(h->team, j.n_scored * n_lists, choose_list, &j);
    }
    return host_error(h);
}
