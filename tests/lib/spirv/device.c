/* The backend of test programs in the place of Vulkan's (src/exec/exec_vulkan.c): a program that is linked
 * with this file has it in place of that. Its devices are named
 *   interpreted-LANES          4 to 128; matrices in quads, in KHR's form; float16 denormals
 *   interpreted-LANES-rows     the same with matrices row by row, in NV's form
 *   interpreted-LANES-denorm   no matrices
 *   interpreted-LANES-plain    neither matrices nor denormals
 * Kernels with matrices run with 32 lanes, as on every device. MOEFLUX_SEED orders subgroups; else 1 does.
 * MOEFLUX_LANES_SPEED prints the lane operations of a second.
 * Memory is host memory, each buffer between pages that nobody has; new buffers have NaNs. Operations run at
 * once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "exec/backend.h"
#include "exec/kernel.h"
#include "module.h"
#include "run.h"
#include "vulkan/khr_kernel.h"
#include "vulkan/matrices.h"
#include "vulkan/pipeline.h"

enum { MOST_WORKGROUP = 1024, MOST_SHARED = 49152, PAGE = 4096, MATRIX_KERNEL_LANES = 32 };

struct prepared {
    const char *name;
    bool by_khr, is_ready;
    uint32_t spec[PIPELINE_MAX_SPEC], n_spec;
    struct spirv_program program;
};

struct interpreted {
    struct exec base;
    char name[64];
    uint32_t lanes;
    enum form { IN_QUADS, IN_ROWS, DENORM, PLAIN } form;
    uint64_t seed, n_lane_operations, run_ns;
    struct spirv_memory memory;
    struct prepared *kernels;
    size_t n_kernels, room;
};

static struct interpreted *interpreted_of(struct exec *x)
{
    return (struct interpreted *)x;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

static void interpreted_close(struct exec *x)
{
    struct interpreted *v = interpreted_of(x);
    for (size_t i = 0; i < v->n_kernels; i++)
        spirv_program_free(&v->kernels[i].program);
    if (v->run_ns && getenv("MOEFLUX_LANES_SPEED"))
        printf("%s: %.3g lane operations in %.2f s, %.3g a second\n", v->name, (double)v->n_lane_operations,
               (double)v->run_ns * 1e-9, (double)v->n_lane_operations / (double)v->run_ns * 1e9);
    free(v->kernels);
    spirv_memory_close(&v->memory);
    free(v);
}

static struct exec_caps interpreted_caps(const struct exec *x)
{
    const struct interpreted *v = (const struct interpreted *)x;
    return (struct exec_caps){.name = v->name,
                              .max_invariant = EXEC_MAX_INVARIANT,
                              .runs_at_once = true,
                              .is_software = true,
                              .is_unified = true,
                              .has_coopmat = v->form < DENORM && !x->keeps_f32,
                              .prompt_is_f16 = v->form < DENORM && !x->keeps_f32,
                              .uses_khr = v->form == IN_QUADS && !x->keeps_f32,
                              .has_denorm = v->form != PLAIN && !x->forbids_denorm,
                              .subgroup_size = v->lanes,
                              .max_workgroup = MOST_WORKGROUP,
                              .max_shared_bytes = MOST_SHARED,
                              .max_alloc_bytes = (uint64_t)4 << 30,
                              .total_bytes = (uint64_t)8 << 30,
                              .free_bytes = (uint64_t)8 << 30};
}

/* --- memory --- */

/* Bytes of the mapping of a buffer, whose bytes end at the end of its pages. */
static uint64_t mapped_bytes(uint64_t bytes)
{
    return size_round_up(size_max(bytes, 1), PAGE) + PAGE;
}

static int interpreted_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                                  struct moeflux_err *e)
{
    (void)kind;
    void *p = mmap(NULL, mapped_bytes(b->bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ERR_NO_FIT, "out of memory: %llu bytes were asked for",
                       (unsigned long long)b->bytes);
    mprotect((uint8_t *)p + mapped_bytes(b->bytes) - PAGE, PAGE, PROT_NONE);
    memset(p, 0xff, mapped_bytes(b->bytes) - PAGE);
    b->host = p;
    b->address = (uint64_t)(uintptr_t)p;
    /* Whole words, as src/vulkan/memory.c. */
    return spirv_memory_add(&interpreted_of(x)->memory, b->address, size_round_up(b->bytes, 4), e);
}

static int interpreted_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                                     uint8_t *host, struct moeflux_err *e)
{
    (void)kind;
    b->host = host;
    b->address = (uint64_t)(uintptr_t)host;
    return spirv_memory_add(&interpreted_of(x)->memory, b->address, b->bytes, e);
}

static void interpreted_buffer_free(struct exec *x, struct exec_buffer *b)
{
    if (!b->host)
        return;
    spirv_memory_drop(&interpreted_of(x)->memory, b->address);
    if (!b->is_borrowed)
        munmap(b->host, mapped_bytes(b->bytes));
}

static int interpreted_stage_end(struct exec *x, struct moeflux_err *e)
{
    (void)x, (void)e;
    return 0;
}

static int interpreted_read(struct exec *x, const struct exec_buffer *b, uint64_t off, void *dst,
                            uint64_t bytes, struct moeflux_err *e)
{
    (void)x, (void)e;
    memcpy(dst, b->host + off, bytes);
    return 0;
}

static void interpreted_copy(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                             const struct exec_buffer *src, uint64_t src_off, uint64_t bytes)
{
    (void)x;
    memmove(dst->host + dst_off, src->host + src_off, bytes);
}

static void interpreted_zero(struct exec *x, const struct exec_buffer *b, uint64_t off, uint64_t bytes)
{
    (void)x;
    memset(b->host + off, 0, bytes);
}

/* --- kernels --- */

static int prepare(struct interpreted *v, struct prepared *k, struct moeflux_err *e)
{
    bool has_matrices = ends_in(k->name, "coop");
    const struct spirv_request request = {.name = k->name,
                                          .spec = k->spec,
                                          .n_spec = k->n_spec,
                                          .lanes = has_matrices ? MATRIX_KERNEL_LANES : v->lanes,
                                          .in_quads = v->form == IN_QUADS};
    struct spirv_module m;
    size_t n;
    const uint32_t *words = pipeline_words(k->name, &n);
    uint32_t *by_khr = NULL;
    int rc = k->by_khr ? khr_kernel(words, n, &by_khr, &n, e) : 0;
    if (rc == 0)
        rc = spirv_module_open(&m, by_khr ? by_khr : words, n, e);
    if (rc == 0) {
        rc = spirv_compile(&k->program, &m, &request, e);
        spirv_module_close(&m);
    }
    free(by_khr);
    if (rc == 0 && (k->program.n_lanes > MOST_WORKGROUP || k->program.shared_bytes > MOST_SHARED))
        rc = err_set(e, ERR_DEVICE, "%s: %u lanes with %u bytes of shared memory", k->name,
                     k->program.n_lanes, k->program.shared_bytes);
    k->is_ready = rc == 0;
    return rc;
}

int exec_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e)
{
    struct interpreted *v = interpreted_of(x);
    *k = (struct kernel){.args_bytes = args_bytes};
    const char *label = pipeline_find_name(name);
    if (!label || n_spec > PIPELINE_MAX_SPEC)
        return err_set(e, ERR_DEVICE, "no kernel named %s with %u constants is built in", name, n_spec);
    bool by_khr = interpreted_caps(x).uses_khr && ends_in(name, "coop");
    k->label = exec_find_label(x, label);
    for (; (size_t)k->pipeline < v->n_kernels; k->pipeline++) {
        const struct prepared *old = &v->kernels[k->pipeline];
        if (old->name == label && old->by_khr == by_khr && old->n_spec == n_spec &&
            memcmp(old->spec, spec, n_spec * sizeof *spec) == 0)
            return 0;
    }
    void *all = v->kernels;
    if (mem_grow(&all, &v->room, v->n_kernels + 1, sizeof *v->kernels, e) < 0)
        return ERR_MEMORY;
    v->kernels = all;
    struct prepared *new = &v->kernels[v->n_kernels++];
    *new = (struct prepared){.name = label, .by_khr = by_khr, .n_spec = n_spec};
    if (n_spec)
        memcpy(new->spec, spec, n_spec * sizeof *spec);
    return 0;
}

int exec_kernel(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes, const uint32_t *spec,
                uint32_t n_spec, struct moeflux_err *e)
{
    return exec_kernel_later(x, k, name, args_bytes, spec, n_spec, e);
}

void exec_dispatch(struct exec *x, const struct kernel *k, const void *args, uint32_t gx, uint32_t gy,
                   uint32_t gz)
{
    struct interpreted *v = interpreted_of(x);
    struct prepared *p = &v->kernels[k->pipeline];
    uint64_t start = clock_ns();
    if (x->fault.code || (!p->is_ready && prepare(v, p, &x->fault) < 0))
        return;
    spirv_dispatch(&p->program, &v->memory, args, k->args_bytes, (const uint32_t[]){gx, gy, gz}, v->seed,
                   &v->n_lane_operations, &x->fault);
    if (v->memory.n_faults)
        err_set(&x->fault, ERR_DEVICE, "%s", v->memory.fault);
    v->memory.n_faults = 0;
    v->run_ns += clock_ns() - start;
    x->stats.n_dispatches++;
    if (x->profile)
        exec_book_time(x, k->label, clock_ns() - start);
    exec_ask_watch(x);
}

/* --- batches --- */

static void nothing(struct exec *x)
{
    (void)x;
}

static void interpreted_set_pace(struct exec *x, uint64_t ns)
{
    (void)x, (void)ns;
}

static int interpreted_settle(struct exec *x, uint64_t ns, struct moeflux_err *e)
{
    (void)x, (void)ns, (void)e;
    return 1;
}

static void interpreted_run(struct exec *x, const struct op *what, const void *op, const void *call)
{
    what->vulkan(op, call, x);
}

/* The signature is the backend table's. NOLINTNEXTLINE(readability-non-const-parameter) */
static int interpreted_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    (void)ticket, (void)e;
    x->stats.n_submits++;
    return 0;
}

static int interpreted_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    (void)x, (void)ticket, (void)e;
    return 0;
}

static void interpreted_add_stats(const struct exec *x, struct exec_stats *out)
{
    (void)x, (void)out;
}

static const struct backend interpreted_backend = {.close = interpreted_close,
                                                   .caps = interpreted_caps,
                                                   .buffer_new = interpreted_buffer_new,
                                                   .buffer_import = interpreted_buffer_import,
                                                   .buffer_free = interpreted_buffer_free,
                                                   .stage_end = interpreted_stage_end,
                                                   .read = interpreted_read,
                                                   .watch = nothing,
                                                   .set_pace = interpreted_set_pace,
                                                   .wait_idle = interpreted_settle,
                                                   .begin = nothing,
                                                   .run = interpreted_run,
                                                   .concurrent = nothing,
                                                   .copy = interpreted_copy,
                                                   .zero = interpreted_zero,
                                                   .split = nothing,
                                                   .submit = interpreted_submit,
                                                   .wait = interpreted_wait,
                                                   .abandon = nothing,
                                                   .add_stats = interpreted_add_stats,
                                                   .reset_stats = nothing};

static bool read_name(struct interpreted *v, const char *device)
{
    static const char *const forms[] = {
        [IN_QUADS] = "", [IN_ROWS] = "-rows", [DENORM] = "-denorm", [PLAIN] = "-plain"};
    char rest[16] = "";
    int n = sscanf(device, "interpreted-%u%15s", &v->lanes, rest);
    if (n < 1 || v->lanes < 4 || v->lanes > SPIRV_MOST_LANES || (v->lanes & (v->lanes - 1)))
        return false;
    for (int i = IN_QUADS; i <= PLAIN; i++)
        if (strcmp(rest, forms[i]) == 0) {
            v->form = (enum form)i;
            return true;
        }
    return false;
}

/* Takes the place of the Vulkan backend's. */
int exec_vulkan_open(struct exec **out, const struct exec_options *o, struct moeflux_err *e)
{
    if (!o->device)
        return 1;
    struct interpreted *v = mem_new(1, sizeof *v, e);
    if (!v)
        return ERR_MEMORY;
    if (!read_name(v, o->device)) {
        free(v);
        return err_set(e, ERR_DEVICE, "no device named %s: expected interpreted-4 to interpreted-128",
                       o->device);
    }
    const char *seed = getenv("MOEFLUX_SEED");
    v->base.backend = &interpreted_backend;
    v->base.profile = o->profile;
    v->seed = seed ? strtoull(seed, NULL, 10) : 1;
    snprintf(v->name, sizeof v->name, "%s", o->device);
    *out = &v->base;
    return 0;
}
