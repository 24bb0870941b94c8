/* The backend of test programs in the place of Vulkan's (src/exec/exec_vulkan.c): a program that is linked
 * with this file has it in place of that. Its devices are named
 *   interpreted-LANES          4 to 128; matrices in quads, in KHR's form; float16 denormals
 *   interpreted-LANES-rows     the same with matrices row by row, in NV's form
 *   interpreted-LANES-denorm   no matrices
 *   interpreted-LANES-plain    neither matrices nor denormals
 * Devices with 8 or 16 lanes, and with rows, have few registers.
 * Kernels with matrices run with 32 lanes, as on every device. MOEFLUX_SEED orders subgroups; else 1 does.
 * MOEFLUX_LANES_SPEED prints the lane operations of a second.
 * Memory is host memory, a page that nobody has after the last one of each buffer; new buffers have NaNs.
 * Operations run at once, so what is neither memory nor a kernel is as on the reference (exec_host.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "args.h"
#include "base/clock.h"
#include "base/mem.h"
#include "exec/backend.h"
#include "exec/kernel.h"
#include "run.h"
#include "vulkan/khr_kernel.h"
#include "vulkan/matrices.h"
#include "vulkan/pipeline.h"

enum { MOST_WORKGROUP = 1024, MOST_SHARED = 49152, PAGE = 4096 };

struct interpreted {
    struct exec base;
    struct backend backend;
    char name[32];
    uint32_t lanes;
    enum form { IN_QUADS, IN_ROWS, DENORM, PLAIN } form;
    uint64_t seed, n_lane_operations, run_ns;
    struct spirv_memory memory;
    struct pipeline_set kernels;    /* none of them is created */
    struct spirv_program *programs; /* [kernels.n], empty until the first dispatch */
    size_t room;
};

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

static void interpreted_close(struct exec *x)
{
    struct interpreted *v = (struct interpreted *)x;
    for (size_t i = 0; i < v->kernels.n; i++)
        spirv_program_free(&v->programs[i]);
    if (v->run_ns && getenv("MOEFLUX_LANES_SPEED"))
        printf("%s: %.3g lane operations in %.2f s, %.3g a second\n", v->name, (double)v->n_lane_operations,
               (double)v->run_ns * 1e-9, (double)v->n_lane_operations / (double)v->run_ns * 1e9);
    free(v->programs);
    free(v->kernels.all);
    spirv_memory_close(&v->memory);
    free(v);
}

/* Returns whether lanes have few registers, like those of Intel's GPUs, whose subgroups have 8 or 16. */
static bool has_few_registers(const struct interpreted *v)
{
    return v->form == IN_ROWS || v->lanes == 8 || v->lanes == 16;
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
                              .doubles_factors = v->form == IN_ROWS, /* so that both are run */
                              .lane_registers = has_few_registers(v) ? 128 : 256,
                              .has_denorm = v->form != PLAIN && !x->forbids_denorm,
                              .subgroup_size = v->lanes,
                              .max_workgroup = MOST_WORKGROUP,
                              .max_shared_bytes = MOST_SHARED,
                              .max_alloc_bytes = (uint64_t)4 << 30,
                              .total_bytes = (uint64_t)8 << 30,
                              .free_bytes = (uint64_t)8 << 30};
}

/* --- memory --- */

/* Bytes of the mapping of a buffer: whole pages, and the one that nobody has. */
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
    return spirv_memory_add(&((struct interpreted *)x)->memory, b->address, size_round_up(b->bytes, 4), e);
}

static int interpreted_buffer_import(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                                     uint8_t *host, struct moeflux_err *e)
{
    (void)kind;
    b->host = host;
    b->address = (uint64_t)(uintptr_t)host;
    return spirv_memory_add(&((struct interpreted *)x)->memory, b->address, b->bytes, e);
}

static void interpreted_buffer_free(struct exec *x, struct exec_buffer *b)
{
    if (!b->host)
        return;
    spirv_memory_drop(&((struct interpreted *)x)->memory, b->address);
    if (!b->is_borrowed)
        munmap(b->host, mapped_bytes(b->bytes));
}

/* --- kernels --- */

static int prepare(struct interpreted *v, const struct pipeline *k, struct spirv_program *p,
                   struct moeflux_err *e)
{
    *p = (struct spirv_program){.name = k->name,
                                .lanes = ends_in(k->name, "coop") ? MATRIX_LANES : v->lanes,
                                .in_quads = v->form == IN_QUADS};
    size_t n;
    const uint32_t *words = pipeline_words(k->name, &n);
    uint32_t *by_khr = NULL;
    int rc = k->by_khr ? khr_kernel(words, n, &by_khr, &n, e) : 0;
    rc = rc < 0 ? rc : spirv_compile(p, by_khr ? by_khr : words, n, k->spec, k->n_spec, e);
    free(by_khr);
    if (rc == 0 && (p->n_lanes > MOST_WORKGROUP || p->shared_bytes > MOST_SHARED)) {
        rc = err_set(e, ERR_DEVICE, "%s: %u lanes with %u bytes of shared memory", k->name, p->n_lanes,
                     p->shared_bytes);
        spirv_program_free(p);
    }
    return rc;
}

int exec_kernel_later(struct exec *x, struct kernel *k, const char *name, uint32_t args_bytes,
                      const uint32_t *spec, uint32_t n_spec, struct moeflux_err *e)
{
    struct interpreted *v = (struct interpreted *)x;
    void *all = v->programs;
    bool by_khr = interpreted_caps(x).uses_khr && ends_in(name, "coop");
    *k = (struct kernel){.args_bytes = args_bytes};
    if (mem_grow(&all, &v->room, v->kernels.n + 1, sizeof *v->programs, e) < 0)
        return ERR_MEMORY;
    v->programs = all;
    v->programs[v->kernels.n] = (struct spirv_program){0};
    k->pipeline = pipeline_find(&v->kernels, name, by_khr, spec, n_spec, e);
    if (k->pipeline < 0)
        return k->pipeline;
    k->label = exec_find_label(x, v->kernels.all[k->pipeline].name);
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
    struct interpreted *v = (struct interpreted *)x;
    struct spirv_program *p = &v->programs[k->pipeline];
    uint64_t start = clock_ns();
    if (x->fault.code || (!p->n_blocks && prepare(v, &v->kernels.all[k->pipeline], p, &x->fault) < 0))
        return;
    spirv_dispatch(p, &v->memory, args, k->args_bytes, (const uint32_t[]){gx, gy, gz}, v->seed,
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

/* --- opening --- */

static void interpreted_run(struct exec *x, const struct op *what, const void *op, const void *call)
{
    what->vulkan(op, call, x);
}

static int set_backend(struct interpreted *v, struct moeflux_err *e)
{
    struct exec *reference;
    int rc = exec_reference_open(&reference, &(struct exec_options){0}, e);
    if (rc < 0)
        return rc;
    v->backend = *reference->backend;
    reference->backend->close(reference);
    v->base.backend = &v->backend;
    v->backend.close = interpreted_close;
    v->backend.caps = interpreted_caps;
    v->backend.buffer_new = interpreted_buffer_new;
    v->backend.buffer_import = interpreted_buffer_import;
    v->backend.buffer_free = interpreted_buffer_free;
    v->backend.run = interpreted_run;
    v->backend.each = NULL;
    v->backend.wake = NULL;
    return 0;
}

static bool read_name(struct interpreted *v, const char *device)
{
    static const char *const forms[] = {
        [IN_QUADS] = "", [IN_ROWS] = "-rows", [DENORM] = "-denorm", [PLAIN] = "-plain"};
    for (v->lanes = 4; v->lanes <= SPIRV_MOST_LANES; v->lanes *= 2)
        for (v->form = IN_QUADS; v->form <= PLAIN; v->form++) {
            snprintf(v->name, sizeof v->name, "interpreted-%u%s", v->lanes, forms[v->form]);
            if (strcmp(v->name, device) == 0)
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
    int rc = read_name(v, o->device)
                 ? set_backend(v, e)
                 : err_set(e, ERR_DEVICE, "no device named %s: expected interpreted-4 to interpreted-128",
                           o->device);
    if (rc < 0) {
        free(v);
        return rc;
    }
    const char *seed = getenv("MOEFLUX_SEED");
    v->base.profile = o->profile;
    v->seed = seed ? strtoull(seed, NULL, 10) : 1;
    *out = &v->base;
    return 0;
}
