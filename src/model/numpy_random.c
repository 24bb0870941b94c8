#include "model/numpy_random.h"

typedef unsigned __int128 u128;

enum { POOL = 4, STATE_WORDS = 4, SHIFT = 16 };

static uint32_t hash(uint32_t value, uint32_t *constant)
{
    value ^= *constant;
    *constant *= 0x931e8875u;
    value *= *constant;
    return value ^ value >> SHIFT;
}

static uint32_t mix(uint32_t x, uint32_t y)
{
    uint32_t z = 0xca01f9ddu * x - 0x4973f715u * y;
    return z ^ z >> SHIFT;
}

/* Fills the pool of a SeedSequence whose entropy is one word. */
static void fill_pool(uint32_t seed, uint32_t pool[POOL])
{
    uint32_t constant = 0x43b0d7e5u;
    for (int i = 0; i < POOL; i++)
        pool[i] = hash(i == 0 ? seed : 0, &constant);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to)
                pool[to] = mix(pool[to], hash(pool[from], &constant));
}

static uint32_t draw_word(uint32_t from, uint32_t *constant)
{
    uint32_t word = from ^ *constant;
    *constant *= 0x58f38dedu;
    word *= *constant;
    return word ^ word >> SHIFT;
}

/* Draws 64-bit words of the state from the pool, the lower half first. */
static void draw_state(const uint32_t pool[POOL], uint64_t out[STATE_WORDS])
{
    uint32_t constant = 0x8b51f9ddu;
    for (int i = 0; i < STATE_WORDS; i++) {
        uint32_t low = draw_word(pool[2 * i % POOL], &constant);
        out[i] = low | (uint64_t)draw_word(pool[(2 * i + 1) % POOL], &constant) << 32;
    }
}

struct pcg {
    u128 state, increment;
};

static void step(struct pcg *g)
{
    const u128 factor = (u128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    g->state = g->state * factor + g->increment;
}

static uint64_t next(struct pcg *g)
{
    step(g);
    uint64_t folded = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned turn = (unsigned)(g->state >> 122);
    return folded >> turn | folded << (-turn & 63);
}

static struct pcg begin(uint32_t seed)
{
    uint32_t pool[POOL];
    uint64_t words[STATE_WORDS];
    fill_pool(seed, pool);
    draw_state(pool, words);
    struct pcg g = {.increment = ((u128)words[2] << 64 | words[3]) << 1 | 1};
    step(&g);
    g.state += (u128)words[0] << 64 | words[1];
    step(&g);
    return g;
}

void numpy_random_integers(uint32_t seed, uint64_t below, uint32_t n, uint64_t *out)
{
    struct pcg g = begin(seed);
    for (uint32_t i = 0; i < n; i++) {
        /* Lemire's method: the high half of a product, unless the low half is one of those that occur too
         * often. */
        u128 product = (u128)next(&g) * below;
        while ((uint64_t)product < below && (uint64_t)product < -below % below)
            product = (u128)next(&g) * below;
        out[i] = (uint64_t)(product >> 64);
    }
}
