/* bench_pipelines.c - the registers, spills and memory of every pipeline of models, compiled for hardware
 * that is not in this machine (tests/lib/offline.h). Not a test: scripts/bench-pipelines runs it and makes
 * tables.
 *
 *    RADV_FORCE_FAMILY=navi21 build/tests/bench_pipelines LANES GPU_MEMORY_GB DIR...
 *
 * LANES: the subgroup size, 0 for the device's own. Prints a line for each pipeline with tabs between:
 * device, directory, kernel, phases (o: opening, p: prompts, d: decode, b: batched decode, -: not run),
 * lanes, registers, spills, scalar spills, scratch bytes, shared bytes, code bytes, occupancy, compile
 * time in ms, constants. -1: not reported by the driver. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "offline.h"

enum { CHUNK = 512, CONTEXT = 8192 };

static void print_pipeline(const char *device, const char *dir, const struct offline_pipeline *p)
{
    char phases[OFFLINE_PHASES + 1] = "", *to = phases;
    for (int i = 0; i < OFFLINE_PHASES; i++)
        if (p->n_runs[i])
            *to++ = "opdb"[i];
    printf("%s\t%s\t%s\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64
           "\t%" PRId64 "\t%" PRId64 "\t%.1f\t%s\n",
           device, dir, p->kernel, phases[0] ? phases : "-", p->lanes, p->registers, p->spills,
           p->scalar_spills, p->scratch_bytes, p->shared_bytes, p->code_bytes, p->occupancy, p->compile_ms,
           p->constants);
}

static int run(const char *dir, uint32_t lanes, uint64_t gpu_memory_bytes)
{
    struct offline_pipeline *all = NULL;
    size_t n = 0;
    char device[256] = "";
    struct moeflux_err e = {0};
    const struct offline_request q = {
        .dir = dir, .lanes = lanes, .chunk = CHUNK, .context = CONTEXT, .gpu_memory_bytes = gpu_memory_bytes};
    int rc = offline_compile(&q, &all, &n, device, &e);
    for (size_t i = 0; i < n; i++)
        print_pipeline(device, dir, &all[i]);
    fflush(stdout);
    free(all);
    if (rc < 0)
        fprintf(stderr, "bench_pipelines: %s: %s\n", dir, e.text);
    return rc;
}

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc < 4) {
        fprintf(stderr, "usage: bench_pipelines LANES GPU_MEMORY_GB DIR...\n");
        return 2;
    }
    for (int i = 3; i < argc; i++)
        failed |= run(argv[i], (uint32_t)strtoul(argv[1], NULL, 10), strtoull(argv[2], NULL, 10) << 30) < 0;
    return failed;
}
