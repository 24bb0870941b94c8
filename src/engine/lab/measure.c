/* Measures the speeds of disk and device with the model's own files and the kernels of a run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/memory_speed.h"
#include "engine/lab/lab.h"
#include "engine/plan/devices.h"
#include "engine/plan/host_memory.h"
#include "engine/plan/load_plan.h"
#include "engine/test_hooks.h"
#include "model/sketch.h"
#include "ops/linear/linear.h"

#define DISK_NS  ((uint64_t)1000000000)
#define BATCH_NS ((uint64_t)20000000)
/* Size of the file that is written to measure the disk: a fast disk reads it in a tenth of a second. */
#define SKETCH_BYTES ((uint64_t)512 << 20)
/* Sizes of the measured matrix: far larger than the caches of a GPU or CPU. A software device is limited by
 * its cores, so a small one is enough. */
#define MATRIX_GPU_BYTES       ((uint64_t)256 << 20)
#define MATRIX_CPU_BYTES       ((uint64_t)256 << 20)
#define MATRIX_SOFTWARE_BYTES  ((uint64_t)16 << 20)
#define MATRIX_REFERENCE_BYTES ((uint64_t)2 << 20)
#define MATRIX_LEAST_BYTES     ((uint64_t)1 << 20)
#define COPY_BYTES             ((uint64_t)64 << 20)
enum { MATRIX_COLS = 2048, SMALL_ROWS_GPU = 512, SMALL_ROWS_SOFTWARE = 8, N_BATCHES = 5, MAX_REPEATS = 200 };

/* --- the disk --- */

struct disk_test {
    struct model_dir *model;
    struct reader *reader;
    uint32_t *order; /* [n_all] layer * n_experts + expert, shuffled */
    uint32_t n_all;
    uint64_t stride, bytes; /* size of a target; bytes requested so far */
    uint8_t *memory;        /* [top_k][stride] */
    struct read_request *requests;
};

static void shuffle(uint32_t *order, uint32_t n)
{
    uint64_t random = clock_ns();
    for (uint32_t i = n - 1; i > 0 && n > 0; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t j = (uint32_t)((random >> 33) % (i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

/* The experts that are read: the first n_experts of the layers [first, end). */
struct stretch {
    uint32_t first, end, n_experts;
};

/* Writes a file with experts for a model without files, and returns which they are. */
static int make_stretch(struct model_dir *m, struct stretch *out, struct moeflux_err *e)
{
    int rc = sketch_make_file(m, SKETCH_BYTES, &out->first, &out->n_experts, e);
    out->end = out->first + 1;
    return rc;
}

static int prepare(struct disk_test *w, const struct stretch *of, struct moeflux_err *e)
{
    const struct config *c = &w->model->config;
    w->stride = size_round_up(w->model->max_expert_bytes, READER_TARGET_ALIGN);
    w->order = mem_new((uint64_t)c->n_layers * c->n_experts, sizeof *w->order, e);
    w->requests = mem_new(c->top_k, sizeof *w->requests, e);
    if (!w->order || !w->requests)
        return ERR_MEMORY;
    w->memory = aligned_alloc(READER_TARGET_ALIGN, c->top_k * w->stride);
    if (!w->memory)
        return err_set(e, ERR_MEMORY, "out of memory: %llu bytes were asked for",
                       (unsigned long long)(c->top_k * w->stride));
    /* Touched now, so that the first reads do not include page faults. */
    memset(w->memory, 1, c->top_k * w->stride);
    for (uint32_t i = of->first * c->n_experts; i < of->end * c->n_experts; i++)
        if (config_has_experts(c, i / c->n_experts) && i % c->n_experts < of->n_experts)
            w->order[w->n_all++] = i;
    shuffle(w->order, w->n_all);
    return 0;
}

/* Reads experts [first, first + n) of the order, all at once. */
static int read_batch(struct disk_test *w, uint32_t first, uint32_t n, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct read_request *q = &w->requests[i];
        q->layer = w->order[first + i] / w->model->config.n_experts;
        q->expert = w->order[first + i] % w->model->config.n_experts;
        q->dst = w->memory + i * w->stride;
        q->speculative = false;
        w->bytes += w->model->experts[q->layer].bytes;
        reader_start(w->reader, q);
    }
    for (uint32_t i = 0; i < n; i++) {
        int one = reader_wait(w->reader, &w->requests[i], rc < 0 ? NULL : e);
        rc = rc < 0 ? rc : one;
    }
    return rc;
}

static int read_for_a_second(struct disk_test *w, struct lab_speeds *out, struct moeflux_err *e)
{
    uint32_t top_k = w->model->config.top_k, done = 0;
    uint64_t start = clock_ns(), ns = 0;
    while (done < w->n_all && ns < DISK_NS) {
        uint32_t n = (uint32_t)size_min(top_k, w->n_all - done);
        int rc = read_batch(w, done, n, e);
        if (rc < 0)
            return rc;
        done += n;
        ns = clock_ns() - start;
    }
    out->disk_bytes = w->bytes;
    out->disk_bytes_s = ns ? (double)out->disk_bytes * 1e9 / (double)ns : 0;
    return 0;
}

/* Opens the mode that the caller requested, else the first that works of direct, uring and pread. */
static int open_reader(struct disk_test *w, const struct moeflux_options *o, struct moeflux_err *e)
{
    struct reader_options r = {.mode = load_plan_reader_mode(o),
                               .n_threads = load_plan_n_readers(o->n_threads)};
    return reader_open(&w->reader, w->model, &r, e);
}

static void measure_disk(struct model_dir *m, const struct moeflux_options *o, struct lab_speeds *out)
{
    struct disk_test w = {.model = m};
    struct moeflux_err e = {0};
    struct stretch all = {0, m->config.n_layers, m->config.n_experts};
    int rc = m->is_sketch ? make_stretch(m, &all, &e) : 0;
    if (rc == 0)
        rc = open_reader(&w, o, &e);
    if (rc == 0)
        rc = prepare(&w, &all, &e);
    if (rc == 0)
        rc = read_for_a_second(&w, out, &e);
    if (rc == 0)
        out->disk_is_direct = reader_get_mode(w.reader) == READER_DIRECT;
    snprintf(out->disk_how, sizeof out->disk_how, "%.255s",
             rc == 0 ? reader_mode_name(reader_get_mode(w.reader)) : e.text);
    reader_close(w.reader);
    free(w.order);
    free(w.requests);
    free(w.memory);
}

/* --- the device --- */

/* A quantised matrix of zeros, and a vector for it. */
struct product {
    struct exec *exec;
    struct exec_buffer matrix, x, y;
    struct linear op;
    uint64_t bytes; /* size of the matrix */
};

static uint64_t row_bytes(void)
{
    return format_all_bytes(format_of(FORMAT_Q4), MATRIX_COLS);
}

static void product_close(struct product *p)
{
    linear_close(&p->op, p->exec);
    exec_buffer_free(p->exec, &p->matrix);
    exec_buffer_free(p->exec, &p->x);
    exec_buffer_free(p->exec, &p->y);
}

static int product_open(struct product *p, struct exec *x, uint32_t rows, struct moeflux_err *e)
{
    *p = (struct product){.exec = x, .bytes = rows * row_bytes()};
    const struct format *f = format_of(FORMAT_Q4);
    uint64_t codes = rows * format_code_bytes(f, MATRIX_COLS),
             scales = rows * format_scale_bytes(f, MATRIX_COLS);
    int rc = exec_buffer_new(x, &p->matrix, EXEC_DEVICE, p->bytes, e);
    if (rc == 0)
        rc = exec_buffer_new(x, &p->x, EXEC_DEVICE, MATRIX_COLS * sizeof(float), e);
    if (rc == 0)
        rc = exec_buffer_new(x, &p->y, EXEC_DEVICE, rows * sizeof(float), e);
    const struct weights w = {.weight = p->matrix.address,
                              .scales = p->matrix.address + codes,
                              .biases = p->matrix.address + codes + scales,
                              .rows = rows,
                              .cols = MATRIX_COLS,
                              .format = FORMAT_Q4};
    if (rc == 0)
        rc = linear_open(&p->op, x, &w, 1, e);
    if (rc == 0) {
        exec_begin(x);
        exec_zero(x, &p->matrix, 0, p->matrix.bytes);
        exec_zero(x, &p->x, 0, p->x.bytes);
        rc = exec_finish(x, e);
    }
    if (rc < 0)
        product_close(p);
    return rc;
}

static void record_products(void *ctx, uint32_t n)
{
    struct product *p = ctx;
    const struct linear_call call = {
        .x = p->x.address, .y = p->y.address, .x_stride = MATRIX_COLS, .y_stride = p->op.rows, .n = 1};
    for (uint32_t i = 0; i < n; i++)
        linear_run(&p->op, p->exec, &call);
}

struct timing {
    struct exec *exec;
    void (*record)(void *ctx, uint32_t n); /* records n repetitions of what is timed */
    void *ctx;
    double round_trip_s; /* time of an empty submission, subtracted */
};

/* Measures the nanoseconds of a batch of n. */
static int time_batch(const struct timing *t, uint32_t n, uint64_t *ns, struct moeflux_err *e)
{
    uint64_t start = clock_ns();
    exec_begin(t->exec);
    t->record(t->ctx, n);
    int rc = exec_finish(t->exec, e);
    *ns = clock_ns() - start;
    return rc;
}

/* Measures the seconds of one repetition: the fastest of several batches, since other programs may use the
 * device too. The first batch warms up; the second shows how many repetitions make a batch long enough for
 * the clock. */
static int time_one(const struct timing *t, double *each_s, struct moeflux_err *e)
{
    uint64_t ns, best = UINT64_MAX;
    int rc = time_batch(t, 1, &ns, e);
    if (rc == 0)
        rc = time_batch(t, 1, &ns, e);
    if (rc < 0)
        return rc;
    uint32_t n = (uint32_t)size_max(1, size_min(BATCH_NS / (ns + 1), MAX_REPEATS));
    for (int i = 0; i < N_BATCHES; i++) {
        rc = time_batch(t, n, &ns, e);
        if (rc < 0)
            return rc;
        best = size_min(best, ns);
    }
    double s = (double)best / 1e9 - t->round_trip_s;
    *each_s = s > 0 ? s / n : 0;
    return 0;
}

static int measure_round_trip(struct exec *x, struct lab_speeds *out, struct moeflux_err *e)
{
    enum { TURNS = 20 };
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TURNS; i++) {
        uint64_t start = clock_ns();
        exec_begin(x);
        int rc = exec_finish(x, e);
        if (rc < 0)
            return rc;
        best = size_min(best, clock_ns() - start);
    }
    out->round_trip_s = (double)best / 1e9;
    return 0;
}

static int measure_kernel(struct exec *x, struct lab_speeds *out, struct moeflux_err *e)
{
    struct exec_caps caps = exec_get_caps(x);
    struct product p;
    uint64_t bytes = caps.is_native     ? MATRIX_CPU_BYTES
                     : caps.is_host     ? MATRIX_REFERENCE_BYTES
                     : caps.is_software ? MATRIX_SOFTWARE_BYTES
                                        : MATRIX_GPU_BYTES;
    int rc = product_open(&p, x, (uint32_t)(bytes / row_bytes()), e);
    /* The device may be nearly full. */
    while (rc == ERR_NO_FIT && bytes > MATRIX_LEAST_BYTES)
        rc = product_open(&p, x, (uint32_t)((bytes /= 2) / row_bytes()), e);
    if (rc < 0)
        return rc;
    const struct timing t = {x, record_products, &p, out->round_trip_s};
    double each_s;
    rc = time_one(&t, &each_s, e);
    out->kernel_bytes_s = rc == 0 && each_s > 0 ? (double)p.bytes / each_s : 0;
    product_close(&p);
    return rc;
}

/* Measures the cost of a dispatch that computes almost nothing. A product of a layer's size is such a
 * dispatch on a GPU. */
static int measure_dispatch(struct exec *x, struct lab_speeds *out, struct moeflux_err *e)
{
    struct product p;
    int rc = product_open(&p, x, exec_get_caps(x).is_software ? SMALL_ROWS_SOFTWARE : SMALL_ROWS_GPU, e);
    if (rc < 0)
        return rc;
    const struct timing t = {x, record_products, &p, out->round_trip_s};
    double each_s, data_s = out->kernel_bytes_s > 0 ? (double)p.bytes / out->kernel_bytes_s : 0;
    rc = time_one(&t, &each_s, e);
    if (rc == 0 && each_s > data_s)
        out->dispatch_s = each_s - data_s;
    product_close(&p);
    return rc;
}

/* Times copies of experts, one after the other, on the copy engines if the device has some. */
static int time_moves(struct exec *x, const struct exec_buffer *to, const struct exec_buffer *from,
                      uint64_t piece, uint64_t *ns, struct moeflux_err *e)
{
    uint64_t ticket, start = clock_ns();
    for (uint64_t at = 0; at + piece <= to->bytes; at += piece)
        exec_move(x, to, at, from, at, piece);
    int rc = exec_move_submit(x, &ticket, e);
    if (rc == 0)
        rc = exec_move_wait(x, ticket, e);
    *ns = clock_ns() - start;
    return rc;
}

/* piece: bytes of one copy. */
static int measure_copy(struct exec *x, uint64_t piece, struct lab_speeds *out, struct moeflux_err *e)
{
    struct exec_buffer from = {0}, to = {0};
    uint64_t bytes = size_max(COPY_BYTES / piece, 1) * piece, ns, best = UINT64_MAX;
    if (exec_get_caps(x).is_unified)
        return 0;
    int rc = exec_buffer_new(x, &from, EXEC_HOST, bytes, e);
    if (rc == 0)
        rc = exec_buffer_new(x, &to, EXEC_DEVICE, bytes, e);
    for (int i = 0; rc == 0 && i < N_BATCHES; i++) {
        rc = time_moves(x, &to, &from, piece, &ns, e);
        best = size_min(best, ns);
    }
    if (rc == 0)
        out->copy_bytes_s = (double)bytes * 1e9 / (double)best;
    exec_buffer_free(x, &from);
    exec_buffer_free(x, &to);
    return rc;
}

/* Measures the CPU's products, the speed of experts on the CPU next to a device. If it cannot be measured,
 * the speed stays 0. */
static void measure_cpu(const struct moeflux_options *o, struct lab_speeds *out)
{
    struct exec *x = NULL;
    struct lab_speeds cpu = {0};
    if (load_plan_open_cpu(&x, o, NULL, NULL) == 0 && measure_kernel(x, &cpu, NULL) == 0)
        out->cpu_bytes_s = cpu.kernel_bytes_s;
    exec_close(x);
}

static int measure_exec(struct exec *x, uint64_t piece, struct lab_speeds *out, struct moeflux_err *e)
{
    int rc = measure_round_trip(x, out, e);
    if (rc == 0)
        rc = measure_kernel(x, out, e);
    if (rc == 0)
        rc = measure_dispatch(x, out, e);
    return rc < 0 ? rc : measure_copy(x, piece, out, e);
}

static struct lab_device_speeds speeds_of(const struct lab_speeds *one)
{
    return (struct lab_device_speeds){.kernel_bytes_s = one->kernel_bytes_s,
                                      .dispatch_s = one->dispatch_s,
                                      .round_trip_s = one->round_trip_s,
                                      .copy_bytes_s = one->copy_bytes_s};
}

/* Adds a device with this share of the layers to the sums of a token's times on all devices. */
static void add_speeds(struct lab_speeds *sum, const struct lab_speeds *one, double share)
{
    sum->kernel_bytes_s += one->kernel_bytes_s > 0 ? share / one->kernel_bytes_s : 0;
    sum->copy_bytes_s += one->copy_bytes_s > 0 ? share / one->copy_bytes_s : 0;
    sum->dispatch_s += share * one->dispatch_s;
    sum->round_trip_s += share * one->round_trip_s;
}

/* Measures the devices. The speed of several is that of a token that passes through the layers of all. */
static int measure_execs(const struct devices *d, const struct model_dir *m, const struct moeflux_options *o,
                         struct lab_speeds *out, struct moeflux_err *e)
{
    struct expert_layers layers[MOEFLUX_MAX_DEVICES];
    struct exec_caps caps[MOEFLUX_MAX_DEVICES];
    struct lab_speeds sum = {0};
    uint64_t piece = expert_store_floor_bytes(m) / size_max(m->config.top_k, 1);
    for (uint32_t i = 0; i < d->n; i++) {
        size_t at = strlen(out->device);
        caps[i] = exec_get_caps(d->execs[i]);
        snprintf(out->device + at, sizeof out->device - at, "%s%s", i ? " + " : "", caps[i].name);
    }
    out->n_devices = d->n;
    if (d->n == 1) {
        int done = measure_exec(d->execs[0], piece, out, e);
        out->devices[0] = speeds_of(out);
        return done;
    }
    int rc = devices_share_layers(o, caps, d->n, &m->config, layers, e);
    for (uint32_t i = 0; rc == 0 && i < d->n; i++) {
        struct lab_speeds one = {0};
        rc = measure_exec(d->execs[i], piece, &one, e);
        out->devices[i] = speeds_of(&one);
        add_speeds(&sum, &one, (double)(layers[i].end - layers[i].first) / m->config.n_layers);
    }
    out->kernel_bytes_s = sum.kernel_bytes_s > 0 ? 1 / sum.kernel_bytes_s : 0;
    out->copy_bytes_s = sum.copy_bytes_s > 0 ? 1 / sum.copy_bytes_s : 0;
    out->dispatch_s = sum.dispatch_s;
    out->round_trip_s = sum.round_trip_s;
    return rc;
}

static void measure_device(const struct model_dir *m, const struct moeflux_options *o,
                           const struct test_hooks *h, struct lab_speeds *out, bool *is_native)
{
    struct devices d;
    struct moeflux_err e = {0};
    bool has_gpu = false;
    int rc = devices_parse(&d, o->device, &e);
    if (rc == 0)
        rc = devices_open(&d, o, h, NULL, &e);
    if (rc == 0) {
        rc = measure_execs(&d, m, o, out, &e);
        *is_native = rc == 0 && exec_get_caps(d.execs[0]).is_native;
        for (uint32_t i = 0; i < d.n; i++)
            has_gpu = has_gpu || !exec_get_caps(d.execs[i]).is_host;
        devices_close(&d);
    }
    if (rc < 0)
        snprintf(out->device_fault, sizeof out->device_fault, "%s", e.text);
    else if (has_gpu)
        measure_cpu(o, out);
}

int lab_measure_device(const struct moeflux_options *o, const char *device, struct lab_device_speeds *out,
                       struct moeflux_err *e)
{
    /* About the size of an expert. */
    const uint64_t piece = (uint64_t)4 << 20;
    struct exec *x = NULL;
    struct lab_speeds s = {0};
    const struct exec_options open = {.device = device, .n_threads = o->n_threads, .isa = o->cpu_isa};
    int rc = exec_open(&x, &open, e);
    if (rc == 0)
        rc = measure_exec(x, piece, &s, e);
    exec_close(x);
    *out = speeds_of(&s);
    return rc;
}

/* --- other devices, and memory --- */

int lab_measure_memory(uint32_t n_threads, double *bytes_s, struct moeflux_err *e)
{
    uint64_t spare = host_memory_free("") / 4;
    return memory_speed_measure(n_threads ? n_threads : cores_useful(""), spare, bytes_s, e);
}

/* Whether the opened device is d. */
static bool is_same(const struct lab_speeds *s, bool is_native, const struct moeflux_device *d)
{
    return strcmp(d->kind, "cpu") == 0 ? is_native : strcmp(d->name, s->device) == 0;
}

static double products_of(const struct moeflux_device *d, const struct moeflux_options *o)
{
    struct exec *x = NULL;
    struct moeflux_err ignored;
    struct lab_speeds s = {0};
    const struct exec_options open = {.device = d->option, .n_threads = o->n_threads};
    int rc = exec_open(&x, &open, &ignored);
    if (rc == 0)
        rc = measure_round_trip(x, &s, &ignored);
    if (rc == 0)
        rc = measure_kernel(x, &s, &ignored);
    exec_close(x);
    return rc == 0 ? s.kernel_bytes_s : 0;
}

/* Measures the other devices. Software devices run on the same cores as the cpu, so they are left out. */
static void measure_others(const struct moeflux_options *o, bool is_native, struct lab_speeds *out)
{
    enum { MAX_LISTED = 16 };
    struct moeflux_device all[MAX_LISTED];
    struct moeflux_err ignored;
    int n = moeflux_list_devices(all, MAX_LISTED, &ignored);
    for (int i = 0; i < n && i < MAX_LISTED; i++) {
        const struct moeflux_device *d = &all[i];
        if (!d->usable || is_same(out, is_native, d) || strcmp(d->kind, "software") == 0)
            continue;
        double speed = products_of(d, o);
        if (speed <= out->kernel_bytes_s || speed <= out->faster_bytes_s)
            continue;
        out->faster_bytes_s = speed;
        snprintf(out->faster_device, sizeof out->faster_device, "%s", d->option);
        snprintf(out->faster_name, sizeof out->faster_name, "%s", d->name);
    }
}

int lab_measure(const struct moeflux_options *o, struct lab_speeds *out, struct moeflux_err *e)
{
    return test_hooks_measure(o, NULL, out, e);
}

int test_hooks_measure(const struct moeflux_options *o, const struct test_hooks *h, struct lab_speeds *out,
                       struct moeflux_err *e)
{
    struct model_dir m = {0};
    bool is_native = false;
    *out = (struct lab_speeds){0};
    int rc = load_plan_check(o, e);
    if (rc == 0)
        rc = load_plan_look_at_model(&m, o, e);
    if (rc < 0)
        return rc;
    measure_disk(&m, o, out);
    measure_device(&m, o, h, out, &is_native);
    model_dir_close(&m);
    /* If there is too little memory for the test, the speed of memory stays 0. */
    struct moeflux_err ignored;
    out->n_threads = o->n_threads ? o->n_threads : cores_useful("");
    if (lab_measure_memory(out->n_threads, &out->memory_bytes_s, &ignored) < 0)
        out->memory_bytes_s = 0;
    bool is_one = !o->device || !(strchr(o->device, ',') || strcmp(o->device, "all") == 0);
    if (!out->device_fault[0] && is_one)
        measure_others(o, is_native, out);
    return 0;
}
