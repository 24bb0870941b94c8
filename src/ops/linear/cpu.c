/* The native implementation of linear.h. */
#include "base/format.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "cpu/isa.h"
#include "ops/linear/linear.h"
#include "ops/loops.h"

struct job {
    const struct linear *op;
    const struct linear_call *call;
    const struct loops *loops;
    const struct cpu_isa *isa;
    uint32_t n_stacked;
    bool quantises;                 /* some matrix needs a quantised input: for gemv or gemm_fixed */
    bool has_blocks;                /* gemv takes some matrix of a block format */
    bool packs, packs_int16, fixes; /* some matrix takes gemm, gemm_int16, gemm_fixed */
    /* The inputs; token t's input of matrix h of a stack is [h * n + t]. */
    float *normed; /* [n_stacked * n][cols]; NULL: the inputs as they are */
    struct cpu_vector *x;
    uint8_t *digits;
    uint64_t digits_bytes;   /* bytes of one input */
    float *packed, *int16;   /* gemm, gemm_int16 only: matrix h's input at h * n * cols */
    uint32_t n_packs;        /* pieces of work that pack a matrix's input */
    struct cpu_fixed *fixed; /* gemm_fixed only: matrix h's input */
    /* Each thread's scratch: gemm's or gemm_fixed's, and results to be added. */
    uint8_t *rooms;
    uint64_t gemm_bytes, room_bytes;
    /* Blocks of rows; those of a segment are contiguous, repeated for each matrix of a stack. */
    uint32_t block_rows[LINEAR_MAX_SEGMENTS], first_block[LINEAR_MAX_SEGMENTS + 1];
};

/* Tiles of tokens that are packed at once. */
enum { PACK_TILES = 4 };

static bool is_few(const struct host *host, const struct linear_call *c)
{
    return host->is_batch_invariant || (c->chunk ? c->chunk : c->n) <= LOOPS_FEW;
}

static const float *input_of(const struct job *j, uint32_t h, uint32_t t)
{
    const struct linear_call *c = j->call;
    return host_floats(c->x) + (uint64_t)t * c->x_stride + (uint64_t)h * c->x_step;
}

static void prepare_input(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct linear_call *c = j->call;
    uint32_t cols = j->op->cols;
    const float *x = input_of(j, i / c->n, i % c->n);
    (void)thread;
    if (j->normed) {
        float *to = j->normed + (uint64_t)i * cols;
        j->loops->norm(x, host_floats(c->norm), cols, c->eps, to);
        x = to;
    }
    if (!j->x)
        return;
    struct cpu_vector *v = &j->x[i];
    *v = (struct cpu_vector){.x = x, .cols = cols};
    if (!j->quantises)
        return;
    cpu_vector_place(v, cols, j->has_blocks, j->digits + i * j->digits_bytes);
    j->isa->quantise(v, x);
}

static void pack_some(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t n = j->call->n, h = i / j->n_packs, first = i % j->n_packs * PACK_TILES, cols = j->op->cols;
    uint64_t at = (uint64_t)h * n * cols;
    (void)thread;
    struct cpu_pack_call call = {.x = j->normed ? j->normed + at : input_of(j, h, 0),
                                 .x_stride = j->normed ? cols : j->call->x_stride,
                                 .n = n,
                                 .cols = cols,
                                 .first = first,
                                 .last = (uint32_t)size_min(first + PACK_TILES, cpu_n_tiles(n))};
    if (j->packed) {
        call.packed = j->packed + at;
        j->isa->pack(&call);
    }
    if (j->int16) {
        call.packed = j->int16 + at;
        j->isa->pack_int16(&call);
    }
}

static void pack_fixed_some(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    uint32_t tiles = cpu_fixed_tiles(j->fixed), h = i / tiles, tile = i % tiles;
    (void)thread;
    j->isa->pack_fixed(&(struct cpu_pack_fixed_call){
        .x = j->x + (uint64_t)h * j->call->n, .to = &j->fixed[h], .first = tile, .last = tile + 1});
}

/* Returns whether gemm_fixed computes the matrix's products in this call. */
static bool takes_fixed(const struct host *host, const struct linear_call *c, const struct weights *w)
{
    return host->takes_fixed && !is_few(host, c) && cpu_format_takes_fixed(w->format);
}

/* Returns whether gemm_int16 computes them. */
static bool takes_int16(const struct host *host, const struct linear_call *c, const struct weights *w)
{
    return host->takes_int16 && !is_few(host, c) && cpu_format_takes_int16(w->format);
}

/* Computes rows of matrix h for all tokens with gemm or gemm_int16. y [n][stride] */
static void multiply_packed(const struct job *j, const struct cpu_matrix *rows, uint32_t h, uint8_t *room,
                            float *y, uint64_t stride)
{
    const struct linear_call *c = j->call;
    bool is_int16 = j->int16 && cpu_format_takes_int16(rows->format);
    const float *x = is_int16 ? j->int16 : j->packed;
    (is_int16 ? j->isa->gemm_int16
              : j->isa->gemm)(&(struct cpu_gemm_call){.w = rows,
                                                      .packed = x + (uint64_t)h * c->n * j->op->cols,
                                                      .n = c->n,
                                                      .last = rows->rows,
                                                      .y = y,
                                                      .y_stride = stride,
                                                      .scratch = room});
}

/* Computes rows of matrix h for all tokens. y: where the first row's results go. */
static void run_rows(const struct job *j, const struct cpu_matrix *rows, uint32_t h, uint32_t thread,
                     float *y)
{
    const struct linear_call *c = j->call;
    uint8_t *room = j->rooms + thread * j->room_bytes;
    float *sums = (float *)(void *)(room + j->gemm_bytes), *to = c->add ? sums : y;
    uint64_t stride = c->add ? rows->rows : c->y_stride;
    if (j->fixed && cpu_format_takes_fixed(rows->format))
        j->isa->gemm_fixed(&(struct cpu_gemm_fixed_call){
            .w = rows, .x = &j->fixed[h], .last = rows->rows, .y = to, .y_stride = stride, .scratch = room});
    else if (j->packed || j->int16)
        multiply_packed(j, rows, h, room, to, stride);
    else
        for (uint32_t from = 0; from < c->n; from += CPU_MAX_BATCHED)
            j->isa->gemv(&(struct cpu_gemv_call){.w = rows,
                                                 .x = &j->x[(uint64_t)h * c->n + from],
                                                 .n = (uint32_t)size_min(c->n - from, CPU_MAX_BATCHED),
                                                 .last = rows->rows,
                                                 .y = to + from * stride,
                                                 .y_stride = stride});
    for (uint32_t i = 0; c->add && i < c->n; i++)
        for (uint32_t r = 0; r < rows->rows; r++)
            y[(uint64_t)i * c->y_stride + r] += sums[(uint64_t)i * rows->rows + r];
}

static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct linear_call *c = j->call;
    uint32_t i = 0, row = 0, n_blocks = j->first_block[j->op->n_segments], h = block / n_blocks;
    for (block %= n_blocks; block >= j->first_block[i + 1]; i++)
        row += j->op->w[i].rows;
    uint32_t first = (block - j->first_block[i]) * j->block_rows[i];
    const struct weights w = weights_rows(&j->op->w[i], (c->first_stacked + h) * j->op->step + first,
                                          (uint32_t)size_min(j->block_rows[i], j->op->w[i].rows - first));
    const struct cpu_matrix rows = loops_matrix(&w);
    run_rows(j, &rows, h, thread, host_floats_mut(c->y) + (uint64_t)h * c->y_step + row + first);
}

/* The rows of a stack are those of one matrix in the file, so they are divided like one. */
static void run_blocks(struct job *j, struct host *host)
{
    uint32_t n = j->op->n_segments;
    const uint32_t stack[] = {0, j->first_block[n] * j->n_stacked};
    bool is_stack = j->n_stacked > 1;
    team_for_rows(host->team, &(struct team_matrices){is_stack ? stack : j->first_block, is_stack ? 1 : n, 1},
                  run_block, j);
}

static void divide(struct job *j, const struct host *host)
{
    for (uint32_t i = 0; i < j->op->n_segments; i++) {
        const struct weights *w = &j->op->w[i];
        uint32_t rows = loops_block_rows(w);
        if (!is_few(host, j->call))
            rows = (uint32_t)size_max(rows / CPU_STRIP_ROWS, 1) * CPU_STRIP_ROWS;
        bool is_fixed = takes_fixed(host, j->call, w), is_int16 = takes_int16(host, j->call, w);
        j->quantises |= is_fixed || (cpu_format_takes_digits(w->format) && is_few(host, j->call));
        j->has_blocks |= format_is_block(w->format) && is_few(host, j->call);
        j->fixes |= is_fixed;
        j->packs_int16 |= is_int16;
        j->packs |= !is_fixed && !is_int16 && !is_few(host, j->call);
        j->block_rows[i] = rows;
        j->first_block[i + 1] = j->first_block[i] + div_up(w->rows, rows);
    }
}

static void place_fixed(struct job *j, struct host *host)
{
    uint64_t bytes = cpu_fixed_bytes(j->op->cols, j->call->n);
    j->fixed = host_scratch(host, j->n_stacked, sizeof *j->fixed);
    uint8_t *memory = host_scratch(host, j->n_stacked, bytes);
    for (uint32_t h = 0; j->fixed && memory && h < j->n_stacked; h++)
        cpu_fixed_place(&j->fixed[h], j->op->cols, j->call->n, memory + h * bytes);
}

static int make_room(struct job *j, struct host *host)
{
    const struct linear_call *c = j->call;
    uint64_t inputs = (uint64_t)c->n * j->n_stacked;
    j->digits_bytes = cpu_vector_bytes(j->op->cols, j->has_blocks);
    j->normed = c->norm ? host_scratch(host, inputs * j->op->cols, sizeof *j->normed) : NULL;
    j->x = is_few(host, c) || j->fixes ? host_scratch(host, inputs, sizeof *j->x) : NULL;
    j->digits = host_scratch(host, j->quantises ? inputs : 0, j->digits_bytes);
    j->packed = j->packs ? host_scratch(host, inputs * j->op->cols, sizeof *j->packed) : NULL;
    j->int16 = j->packs_int16 ? host_scratch(host, inputs * j->op->cols, sizeof *j->int16) : NULL;
    if (j->fixes)
        place_fixed(j, host);
    j->gemm_bytes = size_max(j->packs || j->packs_int16 ? cpu_gemm_scratch_bytes(j->op->cols) : 0,
                             j->fixes ? cpu_gemm_fixed_scratch_bytes(j->op->cols) : 0);
    j->room_bytes = j->gemm_bytes + (c->add ? (uint64_t)c->n * LOOPS_MAX_BLOCK_ROWS * sizeof(float) : 0);
    j->rooms = host_scratch(host, team_n_threads(host->team), j->room_bytes);
    return host_error(host);
}

uint64_t linear_cpu_host_bytes(uint32_t cols, uint32_t n, bool has_fixed, bool has_int16)
{
    uint64_t fixed = n * cpu_vector_bytes(cols, false) + cpu_fixed_bytes(cols, n);
    return (has_int16 ? 3 : 2) * (uint64_t)n * cols * sizeof(float) + (has_fixed ? fixed : 0);
}

int linear_cpu(const void *self, const void *what, struct host *host)
{
    const struct linear *op = self;
    const struct linear_call *c = what;
    struct job j = {.op = op,
                    .call = c,
                    .loops = loops_of(host),
                    .isa = host->isa,
                    .n_stacked = c->n_stacked ? c->n_stacked : op->n_stacked,
                    .n_packs = div_up(cpu_n_tiles(c->n), PACK_TILES)};
    divide(&j, host);
    int rc = make_room(&j, host);
    if (rc < 0)
        return rc;
    if (j.normed || j.x)
        team_for(host->team, c->n * j.n_stacked, prepare_input, &j);
    if (j.packed || j.int16)
        team_for(host->team, j.n_packs * j.n_stacked, pack_some, &j);
    if (j.fixed)
        team_for(host->team, cpu_fixed_tiles(j.fixed) * j.n_stacked, pack_fixed_some, &j);
    run_blocks(&j, host);
    return 0;
}
