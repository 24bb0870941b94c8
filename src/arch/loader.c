#include "arch/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/format.h"
#include "base/mem.h"
#include "cpu/nodes.h"
#include "base/pool.h"
#include "model/fp8.h"
#include "model/model_dir.h"
#include "model/part_tensors.h"
#include "model/tensor.h"
#include "ops/linear/linear.h"

/* Small tensors are packed into allocations of this size. A tensor of a quarter of it or more gets its own,
 * so that little is lost at the end of a chunk. If matrices stay in their files there is little to pack. */
#define CHUNK_BYTES       ((uint64_t)8 << 20)
#define SMALL_CHUNK_BYTES ((uint64_t)256 << 10)
enum { ALIGN = 256 };
/* The least that a thread reads at once, in bytes: small, so that a staged part keeps many threads busy. */
enum { LEAST_PIECE = 256 << 10 };
/* Requirements of use in place: numbers of four bytes must be aligned, and products may load a whole register
 * past a tensor's end. */
enum { IN_PLACE_ALIGN = 4, IN_PLACE_TAIL = 64, PAGE = 4096 };

int loader_init(struct loader *l, struct exec *x, const struct model_dir *dir,
                const struct moeflux_progress *p, uint32_t n_threads, struct moeflux_err *e)
{
    *l = (struct loader){.exec = x,
                         .dir = dir,
                         .config = &dir->config,
                         .progress = p,
                         .shares = exec_get_caps(x).shares,
                         .end_bytes = dir->dense_bytes};
    l->pool = pool_new(n_threads, e);
    return l->pool ? 0 : ERR_MEMORY;
}

void loader_free(struct loader *l)
{
    for (size_t i = 0; i < l->n_chunks; i++)
        exec_buffer_free(l->exec, &l->chunks[i]);
    for (uint32_t i = 0; l->maps && i < l->dir->n_files; i++)
        mapped_close(&l->maps[i]);
    pool_free(l->pool);
    free(l->maps);
    free(l->chunks);
    *l = (struct loader){0};
}

static int add_chunk(struct loader *l, uint64_t bytes, struct moeflux_err *e)
{
    void *all = l->chunks;
    int rc = mem_grow(&all, &l->cap, l->n_chunks + 1, sizeof *l->chunks, e);
    if (rc < 0)
        return rc;
    l->chunks = all;
    rc = exec_buffer_new(l->exec, &l->chunks[l->n_chunks], EXEC_DEVICE, bytes, e);
    if (rc == 0) {
        l->n_chunks++;
        l->device_bytes += bytes;
    }
    return rc;
}

/* Finds space for `bytes` in *b from *off on. */
static int reserve(struct loader *l, uint64_t bytes, struct exec_buffer *b, uint64_t *off,
                   struct moeflux_err *e)
{
    uint64_t chunk = l->maps ? SMALL_CHUNK_BYTES : CHUNK_BYTES;
    int rc = 0;
    *off = 0;
    if (bytes >= chunk / 4) {
        rc = add_chunk(l, bytes, e);
        if (rc == 0)
            *b = l->chunks[l->n_chunks - 1];
        return rc;
    }
    uint64_t at = size_round_up(l->used, ALIGN);
    if (l->used == 0 || at + bytes > l->chunks[l->packing].bytes) {
        uint64_t left = l->end_bytes - size_min(l->loaded_bytes, l->end_bytes);
        rc = add_chunk(l, size_max(bytes, size_min(chunk, left + left / 4)), e);
        if (rc < 0)
            return rc;
        l->packing = l->n_chunks - 1;
        at = 0;
    }
    l->used = at + bytes;
    *b = l->chunks[l->packing];
    *off = at;
    return 0;
}

static int tell(struct loader *l, uint64_t bytes, struct moeflux_err *e)
{
    l->loaded_bytes += bytes;
    if (!progress_report(l->progress, "reading weights", "B", l->loaded_bytes, l->dir->dense_bytes))
        return err_set(e, ERR_INTERRUPTED, "interrupted while reading the weights");
    return 0;
}

/* --- in place --- */

int loader_use_in_place(struct loader *l, struct moeflux_err *e)
{
    l->maps = mem_new(l->dir->n_files, sizeof *l->maps, e);
    return l->maps ? 0 : ERR_MEMORY;
}

/* Whether the tensor can be read where it lies in its file. */
static bool can_stay(const struct loader *l, const struct tensor *t)
{
    const struct open_file *f = &l->dir->files[t->file];
    struct mapped *m = l->maps ? &l->maps[t->file] : NULL;
    if (!m || t->bytes == 0 || t->pieces.n_runs || t->factor.is_there || t->of_blocks ||
        t->off % IN_PLACE_ALIGN || t->off + t->bytes + IN_PLACE_TAIL > size_round_up(f->bytes, PAGE))
        return false;
    return m->at || mapped_open(m, f->fd, f->path, f->bytes, NULL) == 0;
}

/* Reads the tensor's pages in and checks them like a tensor that is copied. */
static int use_in_place(struct loader *l, const struct tensor *t, uint64_t *address, struct moeflux_err *e)
{
    const struct mapped *m = &l->maps[t->file];
    mapped_fetch_by_node(m, t->off, t->bytes, l->shares);
    int64_t n = mapped_fetch(m, t->off, t->bytes);
    errno = n < 0 ? (int)-n : 0;
    if (n < 0)
        return err_errno(e, ERR_IO, "%s: tensor %s", m->path, tensor_label(t));
    if ((uint64_t)n < t->bytes)
        return err_set(e, ERR_IO,
                       "%s: %" PRIi64 " of %" PRIu64 " bytes at offset %" PRIu64 ", then the file ends",
                       m->path, n, t->bytes, t->off);
    l->device_bytes += t->bytes;
    l->mapped_bytes += t->bytes;
    *address = (uint64_t)(uintptr_t)(m->at + t->off);
    int rc = model_dir_check_tensor(l->dir, t, m->at + t->off, e);
    return rc < 0 ? rc : tell(l, t->bytes, e);
}

int loader_check(const struct loader *l, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; l->maps && i < l->dir->n_files && rc == 0; i++)
        rc = l->maps[i].at ? open_file_check(&l->dir->files[i], e) : 0;
    return rc;
}

/* --- loading --- */

/* n bytes of a tensor from `from` on, divided among threads. */
struct piece_reads {
    const struct model_dir *dir;
    const struct tensor *tensor;
    uint64_t from;
    uint32_t n, each;
    uint8_t *to;
    struct moeflux_err errors[EXEC_STAGE_BYTES / LEAST_PIECE]; /* one for each piece */
};

static void read_piece(void *ctx, uint32_t i)
{
    struct piece_reads *r = ctx;
    uint64_t at = (uint64_t)i * r->each;
    r->errors[i] = (struct moeflux_err){0};
    (void)model_dir_read(r->dir, r->tensor, r->from + at, size_min(r->each, r->n - at), r->to + at,
                         &r->errors[i]);
}

static int read_pieces(struct loader *l, const struct tensor *t, uint64_t from, uint32_t n, uint8_t *to,
                       struct moeflux_err *e)
{
    uint64_t share = size_round_up(div_up(n, pool_n_threads(l->pool)), PAGE);
    struct piece_reads r = {l->dir, t, from, n, (uint32_t)size_max(share, LEAST_PIECE), to, {{0}}};
    uint32_t n_pieces = div_up(n, r.each);
    if (n_pieces == 1)
        return model_dir_read(l->dir, t, from, n, to, e);
    pool_for(l->pool, n_pieces, read_piece, &r);
    for (uint32_t i = 0; i < n_pieces; i++)
        if (r.errors[i].code)
            return err_set(e, r.errors[i].code, "%s", r.errors[i].text);
    return 0;
}

static int load_tensor(struct loader *l, const struct tensor *t, uint64_t *address, struct moeflux_err *e)
{
    struct exec_buffer b;
    uint64_t off;
    struct moeflux_err own = {0};
    e = e ? e : &own;
    if (can_stay(l, t))
        return use_in_place(l, t, address, e);
    /* Kernels read whole words; only half of the last one may belong to the tensor. */
    int rc = reserve(l, size_round_up(t->bytes, sizeof(uint32_t)), &b, &off, e);
    if (rc == 0 && l->shares)
        nodes_place(l->shares, b.host + off, t->bytes);
    for (uint64_t done = 0; rc == 0 && done < t->bytes;) {
        uint64_t n = size_min(t->bytes - done, EXEC_STAGE_BYTES);
        void *to = exec_stage(l->exec, &b, off + done, n, e);
        rc = to ? read_pieces(l, t, done, (uint32_t)n, to, e) : (int)e->code;
        done += n;
        if (rc == 0)
            rc = tell(l, n, e);
    }
    *address = rc == 0 ? b.address + off : 0;
    return rc;
}

enum { NAME = 128 };

static const char *name_of(uint32_t layer, const struct part_tensor *t, char out[NAME])
{
    if (layer == LOADER_NO_LAYER)
        snprintf(out, NAME, "model.%s", t->name);
    else
        snprintf(out, NAME, "model.layers.%u.%s", layer, t->name);
    return out;
}

/* Loads blocks as float32 numbers. */
static int load_widened(struct loader *l, const struct matrix *m, uint64_t *address, struct moeflux_err *e)
{
    const struct tensor *t = m->weight;
    uint64_t n = (uint64_t)m->rows * m->cols;
    float *numbers = mem_new(n, sizeof *numbers, e);
    uint8_t *blocks = mem_new(t->bytes, 1, e);
    int rc = numbers && blocks ? model_dir_read(l->dir, t, 0, t->bytes, blocks, e) : ERR_MEMORY;
    if (rc == 0) {
        format_decode(format_of(t->format), blocks, NULL, NULL, 0, n, numbers);
        rc = loader_put(l, numbers, n, address, e);
    }
    free(numbers);
    free(blocks);
    return rc < 0 ? rc : tell(l, n * sizeof *numbers, e);
}

/* Loads 8-bit floats as they are, with the scales of their groups; or their numbers as float32, if no format
 * takes their columns. */
static int load_fp8(struct loader *l, const struct matrix *m, struct weights *out, struct moeflux_err *e)
{
    const struct format *f = format_of(out->format = fp8_format(&l->dir->fp8, m->cols));
    bool is_plain = f->group == 1;
    uint64_t n = (uint64_t)m->rows * m->cols / f->group;
    int rc = is_plain ? 0 : load_tensor(l, m->weight, &out->weight, e);
    float *values = rc == 0 ? mem_new(n, sizeof *values, e) : NULL;
    if (!values)
        return rc < 0 ? rc : ERR_MEMORY;
    rc =
        is_plain ? fp8_read_f32(l->dir, m->weight, values, e) : fp8_read_scales(l->dir, m->weight, values, e);
    if (rc == 0)
        rc = loader_put(l, values, n, is_plain ? &out->weight : &out->scales, e);
    free(values);
    return rc < 0 ? rc : tell(l, n * sizeof *values, e);
}

int loader_matrix(struct loader *l, const char *base, uint32_t rows, uint32_t cols, struct weights *out,
                  struct moeflux_err *e)
{
    struct matrix m;
    int rc = model_dir_matrix(l->dir, base, rows, cols, &m, e);
    if (rc < 0)
        return rc;
    *out = (struct weights){.rows = rows, .cols = cols, .format = m.format};
    if (tensor_is_widened(m.weight))
        return load_widened(l, &m, &out->weight, e);
    if (m.format == FORMAT_NONE)
        return load_fp8(l, &m, out, e);
    rc = load_tensor(l, m.weight, &out->weight, e);
    if (rc == 0 && m.scales)
        rc = load_tensor(l, m.scales, &out->scales, e);
    if (rc == 0 && m.biases)
        rc = load_tensor(l, m.biases, &out->biases, e);
    return rc;
}

/* Reads tensor `name` of n numbers as float32 and adds its bytes to *bytes. */
static int read_vector(struct loader *l, const char *name, uint64_t n, float *to, uint64_t *bytes,
                       struct moeflux_err *e)
{
    const struct tensor *t;
    int rc = model_dir_vector(l->dir, name, n, &t, e);
    if (rc < 0)
        return rc;
    *bytes += t->bytes;
    return model_dir_read_f32(l->dir, t, to, e);
}

static int put(struct loader *l, const void *bytes, uint64_t n, uint64_t *address, struct moeflux_err *e)
{
    struct exec_buffer b;
    uint64_t off;
    int rc = reserve(l, n, &b, &off, e);
    if (rc == 0)
        rc = exec_write(l->exec, &b, off, bytes, n, e);
    if (rc == 0)
        *address = b.address + off;
    return rc;
}

int loader_put(struct loader *l, const float *values, uint64_t n, uint64_t *address, struct moeflux_err *e)
{
    return put(l, values, n * sizeof *values, address, e);
}

int loader_ids(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t row, uint64_t *address,
               struct moeflux_err *e)
{
    const struct tensor *at;
    char name[NAME];
    if (t->cols == 0)
        return 0;
    int rc = model_dir_ids(l->dir, name_of(layer, t, name), t->cols, &at, e);
    uint32_t *ids = rc == 0 ? mem_new(t->cols, sizeof(uint64_t), e) : NULL;
    if (!ids)
        return rc < 0 ? rc : ERR_MEMORY;
    rc = model_dir_read_ids(l->dir, at, row, l->config->n_experts, ids, e);
    if (rc == 0)
        rc = put(l, ids, t->cols * sizeof *ids, address, e);
    free(ids);
    return rc < 0 ? rc : tell(l, at->bytes, e);
}

int loader_vector(struct loader *l, const char *name, uint64_t n, uint64_t *address, struct moeflux_err *e)
{
    uint64_t bytes = 0;
    float *values = mem_new(n, sizeof *values, e);
    int rc = values ? read_vector(l, name, n, values, &bytes, e) : ERR_MEMORY;
    if (rc == 0)
        rc = loader_put(l, values, n, address, e);
    free(values);
    return rc < 0 ? rc : tell(l, bytes, e);
}

int loader_vectors(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t n,
                   uint64_t *address, struct moeflux_err *e)
{
    uint64_t all = 0, done = 0, bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        all += t[i].cols;
    if (all == 0)
        return 0;
    float *values = mem_new(all, sizeof *values, e);
    int rc = values ? 0 : ERR_MEMORY;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        char name[NAME];
        if (t[i].cols > 0)
            rc = read_vector(l, name_of(layer, &t[i], name), t[i].cols, values + done, &bytes, e);
        for (uint32_t c = 0; rc == 0 && t[i].factor > 0 && c < t[i].cols; c++)
            values[done + c] *= t[i].factor;
        done += t[i].cols;
    }
    if (rc == 0)
        rc = loader_put(l, values, all, address, e);
    free(values);
    return rc < 0 ? rc : tell(l, bytes, e);
}

int loader_parts(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t n,
                 struct weights *out, struct moeflux_err *e)
{
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        char name[NAME];
        bool is_again = i > 0 && t[i].cols > 0 && strcmp(t[i].name, t[i - 1].name) == 0;
        if (is_again)
            out[0] = out[-1];
        else if (t[i].cols > 0)
            rc = loader_matrix(l, name_of(layer, &t[i], name), t[i].rows, t[i].cols, out, e);
        out += t[i].cols > 0;
    }
    return rc;
}

int loader_fused(struct loader *l, uint32_t layer, const struct part_tensor *t, uint32_t n,
                 struct linear *out, struct moeflux_err *e)
{
    struct weights w[LINEAR_MAX_SEGMENTS];
    uint32_t n_there = 0;
    for (uint32_t i = 0; i < n; i++)
        n_there += t[i].cols > 0;
    int rc = loader_parts(l, layer, t, n, w, e);
    return rc < 0 ? rc : linear_open(out, l->exec, w, n_there, e);
}

int loader_finish(struct loader *l, struct moeflux_err *e)
{
    pool_free(l->pool);
    l->pool = NULL;
    return exec_stage_end(l->exec, e);
}
