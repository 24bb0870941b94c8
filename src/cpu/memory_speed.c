#include "cpu/memory_speed.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "cpu/team.h"

enum { BLOCK = 2 << 20, MIN_PASSES = 3, MAX_PASSES = 20 };
/* Several times the largest cache, within limits. */
#define LEAST_BYTES ((uint64_t)64 << 20)
#define MOST_BYTES  ((uint64_t)1 << 30)
#define PASSES_NS   ((uint64_t)100000000)

typedef uint64_t words __attribute__((vector_size(64)));

struct area {
    uint8_t *bytes;
    uint64_t *sums; /* one for each block, so that the compiler keeps the reads */
};

/* Each thread writes the blocks that it will read: they lie in its node's memory, each in a huge page if
 * there are any. */
static void fill_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct area *a = ctx;
    (void)thread;
    memset(a->bytes + (uint64_t)block * BLOCK, 1, BLOCK);
}

static void sum_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct area *a = ctx;
    const words *w = (const words *)(const void *)(a->bytes + (uint64_t)block * BLOCK);
    words even = {0}, odd = {0};
    (void)thread;
    for (uint32_t i = 0; i < BLOCK / sizeof *w; i += 2) {
        even += w[i];
        odd += w[i + 1];
    }
    even += odd;
    a->sums[block] = even[0] + even[7];
}

static uint64_t area_bytes(uint64_t most)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t want = size_max(4 * (cache > 0 ? (uint64_t)cache : 0), LEAST_BYTES);
    return size_max(size_min(size_min(want, MOST_BYTES), most) / BLOCK, 1) * BLOCK;
}

static double fastest_pass(struct team *t, struct area *a, uint32_t n_blocks)
{
    uint64_t best = UINT64_MAX, begin = clock_ns();
    (void)madvise(a->bytes, (size_t)n_blocks * BLOCK, MADV_HUGEPAGE);
    team_for(t, n_blocks, fill_block, a);
    for (int i = 0; i < MIN_PASSES || (i < MAX_PASSES && clock_ns() - begin < PASSES_NS); i++) {
        uint64_t start = clock_ns();
        team_for(t, n_blocks, sum_block, a);
        best = size_min(best, size_max(clock_ns() - start, 1));
    }
    return (double)n_blocks * BLOCK * 1e9 / (double)best;
}

int memory_speed_measure(uint32_t n_threads, uint64_t bytes, double *bytes_s, struct moeflux_err *e)
{
    uint64_t n = area_bytes(bytes);
    struct area a = {aligned_alloc(BLOCK, n), mem_new(n / BLOCK, sizeof *a.sums, e)};
    struct team *t = a.bytes && a.sums ? team_new(n_threads, e) : NULL;
    int rc = t ? 0 : ERR_MEMORY;
    if (!a.bytes)
        rc = err_set(e, ERR_MEMORY, "out of memory: %llu bytes were asked for", (unsigned long long)n);
    if (rc == 0)
        *bytes_s = fastest_pass(t, &a, (uint32_t)(n / BLOCK));
    team_free(t);
    free(a.bytes);
    free(a.sums);
    return rc;
}
