#include "convert/experts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/format.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/side_file.h"
#include "model/packed.h"
#include "model/tensor.h"

void convert_experts_name(uint32_t layer, char out[CONVERT_NAME])
{
    snprintf(out, CONVERT_NAME, "packed_experts/layer_%02u.bin", layer);
}

/* --- one expert --- */

/* Reads an expert in the source's formats. */
static int copy_expert(const struct convert_plan *p, uint32_t layer, uint32_t expert, uint8_t *slot,
                       struct moeflux_err *e)
{
    int rc = model_dir_read_expert(&p->src, layer, expert, 0, p->src.experts[layer].bytes, slot, e);
    return rc < 0 ? rc : model_dir_check_expert(&p->src, layer, expert, slot, e);
}

/* Place and format of a projection in a slot. */
struct place {
    uint64_t w, s, b;
    uint32_t format;
};

static struct place place_of(const struct expert_layout *l, enum expert_proj proj)
{
    const struct place at[] = {[EXPERT_GATE] = {l->gate_w, l->gate_s, l->gate_b, l->formats.gate},
                               [EXPERT_UP] = {l->up_w, l->up_s, l->up_b, l->formats.up},
                               [EXPERT_DOWN] = {l->down_w, l->down_s, l->down_b, l->formats.down}};
    return at[proj];
}

/* Encodes numbers [at, at + n) of a matrix to their place. */
static bool encode(const struct convert_plan *p, enum dtype dtype, const uint8_t *numbers, uint64_t at,
                   uint64_t n, uint8_t *slot, const struct place *to, struct convert_error *sum)
{
    const struct format *f = format_of(to->format);
    uint8_t *first = slot + to->w;
    const struct convert_codes codes = {.codes = first + format_code_bytes(f, at),
                                        .scales = slot + to->s + format_scale_bytes(f, at),
                                        .biases = slot + to->b + format_scale_bytes(f, at)};
    return convert_encode(dtype, numbers, n, f, p->rule, &codes, sum);
}

/* Copies a GGUF file's codes and scales, which `to`'s format holds exactly. */
static int repack_matrix(const struct convert_plan *p, const struct convert_run *run, uint8_t *slot,
                         const struct place *to, struct convert_error *sum, struct moeflux_err *e)
{
    struct convert_error own = {0};
    uint8_t *first = slot + to->w;
    const struct convert_codes codes = {first, slot + to->s, slot + to->b};
    int rc =
        gguf_source_codes(&p->gguf, run->t, run->first, run->n, to->format, &codes, sum ? &own : NULL, e);
    if (sum)
        convert_error_add(sum, &own);
    if (rc == 0 && format_of(to->format)->has_factor) {
        const float factor = gguf_source_factor(&p->gguf, run->t, run->first);
        memset(slot + to->b, 0, FORMAT_FACTOR_BYTES);
        memcpy(slot + to->b, &factor, sizeof factor);
    }
    return rc < 0 ? rc : convert_plan_check_error(p, run->t, to->format, &own, e);
}

static int fail_value(const struct convert_plan *p, const struct tensor *t, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: tensor %s: a value is not finite", p->src.files[t->file].path,
                   tensor_label(t));
}

static int quantise_matrix(const struct convert_plan *p, const struct convert_run *run, uint8_t *slot,
                           const struct place *to, uint8_t *block, struct convert_error *sum,
                           struct moeflux_err *e)
{
    struct convert_error own = {0};
    if (format_is_block(to->format))
        return gguf_source_blocks(&p->gguf, run->t, run->first, run->n, slot + to->w, e);
    if (p->src.is_gguf && gguf_source_holds(&p->gguf, run->t, to->format))
        return repack_matrix(p, run, slot, to, sum, e);
    for (uint64_t at = 0; at < run->n; at += CONVERT_BLOCK) {
        uint64_t n = size_min(CONVERT_BLOCK, run->n - at);
        int rc = convert_plan_read(p, run->t, run->first + at, n, block, e);
        if (rc < 0)
            return rc;
        if (!encode(p, convert_plan_dtype(run->t), block, at, n, slot, to, sum ? &own : NULL))
            return fail_value(p, run->t, e);
    }
    if (sum)
        convert_error_add(sum, &own);
    return convert_plan_check_error(p, run->t, to->format, &own, e);
}

/* Gathers n numbers, from number `at`, of a matrix that is transposed in `whole`. */
static void gather(const struct convert_run *run, const uint8_t *whole, uint64_t at, uint64_t n, uint8_t *out)
{
    uint64_t width = tensor_dtype_bytes(run->t->dtype);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t r = (at + i) / run->cols, c = (at + i) % run->cols;
        memcpy(out + i * width, whole + (run->skip + r * run->row_step + c * run->col_step) * width, width);
    }
}

/* Makes codes of a transposed matrix. whole: room for all of the source's numbers. */
static int turn_matrix(const struct convert_plan *p, const struct convert_run *run, uint8_t *slot,
                       const struct place *to, uint8_t *block, uint8_t *whole, struct convert_error *sum,
                       struct moeflux_err *e)
{
    int rc = convert_plan_read(p, run->t, run->first, run->block, whole, e);
    for (uint64_t at = 0; rc == 0 && at < run->n; at += CONVERT_BLOCK) {
        uint64_t n = size_min(CONVERT_BLOCK, run->n - at);
        gather(run, whole, at, n, block);
        if (!encode(p, convert_plan_dtype(run->t), block, at, n, slot, to, sum))
            rc = fail_value(p, run->t, e);
    }
    return rc;
}

/* Converts codes from one place and format to another; equal formats are copied. Returns false if a value is
 * not finite. */
static bool change_matrix(const struct convert_plan *p, uint64_t n, const uint8_t *source,
                          const struct place *from, uint8_t *slot, const struct place *to, uint8_t *block,
                          struct convert_error *sum)
{
    const struct format *f = format_of(from->format);
    bool ok = true;
    if (from->format == to->format) {
        memcpy(slot + to->w, source + from->w, format_code_bytes(f, n));
        memcpy(slot + to->s, source + from->s, format_scale_bytes(f, n));
        memcpy(slot + to->b, source + from->b, format_bias_bytes(f, n));
        return true;
    }
    for (uint64_t at = 0; at < n && ok; at += CONVERT_BLOCK) {
        uint64_t some = size_min(CONVERT_BLOCK, n - at);
        format_decode(f, source + from->w, source + from->s, source + from->b, at, some,
                      (float *)(void *)block);
        ok = encode(p, DTYPE_F32, block, at, some, slot, to, sum);
    }
    return ok;
}

/* Takes codes of a source whose other matrices are unquantised. source: room for the codes. */
static int change_codes(const struct convert_plan *p, const struct convert_run *run, uint8_t *slot,
                        const struct place *to, uint8_t *block, uint8_t *source, struct convert_error *sum,
                        struct moeflux_err *e)
{
    const struct format *f = format_of(run->t->format);
    uint64_t codes = format_code_bytes(f, run->n), scales = format_scale_bytes(f, run->n);
    const struct place from = {0, codes, codes + scales, run->t->format};
    int rc = model_dir_read(&p->src, run->t, format_code_bytes(f, run->first), from.s, source, e);
    if (rc == 0)
        rc = model_dir_read(&p->src, run->scales, format_scale_bytes(f, run->first), scales, source + from.s,
                            e);
    if (rc == 0 && p->is_packed && !packed_biases(source + from.s, scales / 2, source + from.b))
        return fail_value(p, run->scales, e);
    if (rc == 0 && !change_matrix(p, run->n, source, &from, slot, to, block, sum))
        rc = fail_value(p, run->t, e);
    return rc;
}

static int quantise_expert(const struct convert_plan *p, uint32_t layer, uint32_t expert, uint8_t *slot,
                           uint8_t *block, struct convert_error *sum, struct moeflux_err *e)
{
    uint8_t *source = slot + p->experts[layer].bytes;
    int rc = 0;
    if (p->gguf.keeps_blocks) /* between aligned blocks are gaps, which the files have as zeros */
        memset(slot, 0, p->experts[layer].bytes);
    for (enum expert_proj proj = expert_tensors_first(&p->src.config); proj <= EXPERT_DOWN && rc == 0;
         proj++) {
        struct place to = place_of(&p->experts[layer], proj);
        struct convert_run run;
        rc = convert_plan_expert(p, layer, expert, proj, &run, e);
        if (rc < 0)
            return rc;
        if (run.scales)
            rc = change_codes(p, &run, slot, &to, block, source, sum, e);
        else if (run.col_step)
            rc = turn_matrix(p, &run, slot, &to, block, source, sum, e);
        else
            rc = quantise_matrix(p, &run, slot, &to, block, sum, e);
    }
    return rc;
}

/* Requantises an expert. The source's expert is read to the memory after the new one. */
static int change_expert(const struct convert_plan *p, uint32_t layer, uint32_t expert, uint8_t *slot,
                         uint8_t *block, struct convert_error *sum, struct moeflux_err *e)
{
    uint8_t *source = slot + p->experts[layer].bytes;
    uint64_t n = (uint64_t)p->src.config.moe_inner * config_expert_hidden(&p->src.config);
    int rc = copy_expert(p, layer, expert, source, e);
    for (enum expert_proj proj = expert_tensors_first(&p->src.config); proj <= EXPERT_DOWN && rc == 0;
         proj++) {
        struct place from = place_of(&p->src.experts[layer], proj), to = place_of(&p->experts[layer], proj);
        if (!change_matrix(p, n, source, &from, slot, &to, block, sum))
            rc = err_set(e, ERR_FORMAT, "%s: layer %u expert %u: a value is not finite", p->src.path, layer,
                         expert);
    }
    return rc;
}

int convert_experts_make(const struct convert_plan *p, uint32_t layer, uint32_t expert, uint8_t *slot,
                         uint8_t *block, struct convert_error *sum, struct moeflux_err *e)
{
    if (!p->quantised)
        return quantise_expert(p, layer, expert, slot, block, sum, e);
    return convert_plan_changes(p, layer) ? change_expert(p, layer, expert, slot, block, sum, e)
                                          : copy_expert(p, layer, expert, slot, e);
}

/* --- one layer --- */

/* The files' checksums need their bytes in order, but workers finish in any order: each waits for its turn to
 * add its expert. pool_for hands out indices in ascending order, so the worker whose turn it is always
 * runs. */
struct layer {
    const struct convert_plan *plan;
    struct convert_work *work;
    const struct convert_parts *parts;
    struct side_file files[SPREAD_MAX_PARTS];
    uint32_t layer;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint32_t next;
    bool failed;
    XXH3_state_t *hashes[SPREAD_MAX_PARTS];
};

/* Adds an expert to the checksums. It takes a whole stripe in every part; bytes that no piece fills are
 * zero. */
static void add_to_hashes(struct layer *l, uint32_t expert, const uint8_t *slot)
{
    static const uint8_t zeros[SPREAD_ALIGN];
    const struct spread s = convert_parts_spread(l->parts, l->layer);
    uint64_t bytes = l->plan->experts[l->layer].bytes, filled[SPREAD_MAX_PARTS] = {0};
    for (uint32_t i = 0; i < spread_n_pieces(&s, bytes); i++) {
        struct spread_piece x = spread_piece(&s, bytes, expert, i);
        XXH3_64bits_update(l->hashes[x.part], slot + x.at, x.bytes);
        filled[x.part] = x.bytes;
    }
    for (uint32_t i = 0; i < s.n_parts; i++)
        for (uint64_t n; filled[i] < s.stripe; filled[i] += n) {
            n = size_min(s.stripe - filled[i], sizeof zeros);
            XXH3_64bits_update(l->hashes[i], zeros, n);
        }
}

static void add_in_turn(struct layer *l, uint32_t expert, const uint8_t *slot, bool ok)
{
    pthread_mutex_lock(&l->lock);
    while (ok && !l->failed && l->next != expert)
        pthread_cond_wait(&l->turn, &l->lock);
    l->failed = l->failed || !ok;
    bool mine = !l->failed;
    pthread_mutex_unlock(&l->lock);
    if (mine)
        add_to_hashes(l, expert, slot);
    pthread_mutex_lock(&l->lock);
    l->next += mine;
    pthread_cond_broadcast(&l->turn);
    pthread_mutex_unlock(&l->lock);
}

static int write_piece(const struct layer *l, const struct spread_piece *x, const uint8_t *slot,
                       struct moeflux_err *e)
{
    const struct side_file *f = &l->files[x->part];
    int rc = file_write_at(f->fd, f->path, slot + x->at, x->bytes, x->off, e);
    /* A hint to start writing now, so that the sync at the layer's end is short. */
    if (rc == 0)
        sync_file_range(f->fd, (off_t)x->off, (off_t)x->bytes, SYNC_FILE_RANGE_WRITE);
    return rc;
}

static int write_expert(const struct layer *l, uint32_t expert, const uint8_t *slot, struct moeflux_err *e)
{
    const struct spread s = convert_parts_spread(l->parts, l->layer);
    uint64_t bytes = l->plan->experts[l->layer].bytes;
    int rc = 0;
    for (uint32_t i = 0; i < spread_n_pieces(&s, bytes) && rc == 0; i++) {
        struct spread_piece x = spread_piece(&s, bytes, expert, i);
        rc = write_piece(l, &x, slot, e);
    }
    return rc;
}

static void do_expert(void *ctx, uint32_t expert)
{
    struct layer *l = ctx;
    const struct convert_plan *p = l->plan;
    struct moeflux_err e;
    struct convert_scratch s = convert_work_take(l->work);
    bool started = convert_work_ok(l->work);
    struct convert_error sum = {0};
    int rc = 0;
    if (started)
        rc = convert_experts_make(p, l->layer, expert, s.out, s.in, &sum, &e);
    if (started && rc == 0)
        rc = write_expert(l, expert, s.out, &e);
    if (rc < 0)
        convert_work_fail(l->work, rc, &e);
    add_in_turn(l, expert, s.out, started && rc == 0);
    convert_work_give(l->work, s);
    uint64_t read = convert_plan_layer_source(p, l->layer) / p->src.config.n_experts;
    if (started && rc == 0)
        convert_work_add_error(l->work, CONVERT_CLASS_EXPERTS, &sum);
    if (started && rc == 0)
        convert_work_advance(l->work, read, read, p->experts[l->layer].bytes);
}

static int start_hashes(struct layer *l, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < l->parts->spread.n_parts; i++) {
        l->hashes[i] = XXH3_createState();
        if (!l->hashes[i])
            return err_set(e, ERR_MEMORY, "out of memory for a checksum");
        XXH3_64bits_reset(l->hashes[i]);
    }
    return 0;
}

static int start_files(struct layer *l, const char *name, struct moeflux_err *e)
{
    const struct convert_parts *p = l->parts;
    int rc = 0;
    for (uint32_t i = 0; i < p->spread.n_parts && rc == 0; i++) {
        struct side_file *f = &l->files[i];
        rc = convert_target_create(&p->targets[i], name, f, e);
        /* If an expert has less than a stripe in a part, nothing else gives the file its length. */
        if (rc == 0 && p->spread.n_parts > 1 &&
            ftruncate(f->fd, (off_t)convert_parts_layer_bytes(p, l->layer)) < 0)
            rc = err_errno(e, ERR_IO, "%s", f->path);
    }
    return rc;
}

static int write_layer(struct layer *l, struct moeflux_err *e)
{
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->turn, NULL);
    pool_for(l->work->pool, l->plan->src.config.n_experts, do_expert, l);
    pthread_cond_destroy(&l->turn);
    pthread_mutex_destroy(&l->lock);
    return convert_work_result(l->work, e);
}

int convert_experts_write(const struct convert_plan *p, uint32_t layer, struct convert_parts *parts,
                          struct convert_work *w, bool *kept, struct moeflux_err *e)
{
    char name[CONVERT_NAME];
    convert_experts_name(layer, name);
    *kept = convert_parts_have(parts, layer);
    if (*kept) {
        convert_work_advance(w, convert_plan_layer_source(p, layer), 0, 0);
        return convert_work_result(w, e);
    }
    struct layer l = {.plan = p, .work = w, .parts = parts, .layer = layer};
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++)
        l.files[i].fd = -1;
    int rc = start_hashes(&l, e);
    if (rc == 0)
        rc = start_files(&l, name, e);
    if (rc == 0)
        rc = write_layer(&l, e);
    for (uint32_t i = 0; i < parts->spread.n_parts && rc == 0; i++)
        rc = convert_target_finish(&parts->targets[i], name, &l.files[i],
                                   convert_parts_layer_bytes(parts, layer), XXH3_64bits_digest(l.hashes[i]),
                                   e);
    for (uint32_t i = 0; i < SPREAD_MAX_PARTS; i++) {
        side_file_free(&l.files[i]);
        XXH3_freeState(l.hashes[i]);
    }
    return rc;
}
