/* mem.h - checked sizes and host allocation.
 * Every product or sum of sizes that comes from a file goes through size_mul / size_add. */
#ifndef MOEFLUX_BASE_MEM_H
#define MOEFLUX_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

static inline bool size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Rounds up to a multiple of `to` (a power of two). The caller knows that `n + to` does not overflow. */
static inline uint64_t size_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) & ~(to - 1);
}

static inline uint64_t size_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t size_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns a - b; 0 if b is the larger one. */
static inline uint64_t size_minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Returns the least power of two that is at least n; 1 for 0. */
static inline uint32_t power_of_two_from(uint32_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static inline uint32_t div_up(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

/* Returns zeroed memory for n items of `size` bytes, freed with free(); n = 0 gives a valid pointer. NULL
 * with `e` filled (overflow counts as out of memory). */
void *mem_new(uint64_t n, uint64_t size, struct moeflux_err *e);

/* Grows *array (items of `size` bytes, capacity *cap) so that it holds at least `need` items; doubles.
 * ERR_MEMORY: nothing changed. */
int mem_grow(void **array, size_t *cap, size_t need, size_t size, struct moeflux_err *e);

/* Returns a copy of `text`, freed with free(); NULL with `e` filled. */
char *mem_text(const char *text, struct moeflux_err *e);

#endif
