#include "base/mem.h"
#include "base/team.h"
#include "cpu/isa.h"
#include "ops/linear.h"
#include "ops/loops.h"

struct job {
    const struct linear *op;
    const struct linear_call *call;
    const struct loops *loops;
    const struct cpu_isa *isa;
    uint32_t n_stacked;
    bool quantises; /* some matrix is no plain one */
    /* The inputs, of matrix h of the stack those of token t at [h * n + t]. */
    float *normed; /* [n_stacked * n][cols]; NULL: as they are */
    struct cpu_vector *x;
    uint8_t *digits;
    uint64_t digits_bytes; /* of one */
    /* Blocks of rows, those of a segment one after the other, of a stack for each of its matrices. */
    uint32_t block_rows[LINEAR_MAX_SEGMENTS], first_block[LINEAR_MAX_SEGMENTS + 1];
};

static void prepare_input(void *ctx, uint32_t i, uint32_t thread)
{
    const struct job *j = ctx;
    const struct linear_call *c = j->call;
    uint32_t h = i / c->n, t = i % c->n, cols = j->op->cols;
    const float *x = host_floats(c->x) + (uint64_t)t * c->x_stride + (uint64_t)h * c->x_step;
    (void)thread;
    if (j->normed) {
        float *to = j->normed + (uint64_t)i * cols;
        j->loops->norm(x, host_floats(c->norm), cols, c->eps, to);
        x = to;
    }
    struct cpu_vector *v = &j->x[i];
    *v = (struct cpu_vector){.x = x, .cols = cols};
    if (!j->quantises)
        return;
    cpu_vector_place(v, cols, j->digits + i * j->digits_bytes);
    j->isa->quantise(v, x);
}

/* Rows of a matrix with up to CPU_MAX_TOGETHER tokens; y: the first row's place. */
static void run_some(const struct job *j, const struct cpu_matrix *rows, const struct cpu_vector *x,
                     uint32_t n, float *y)
{
    const struct linear_call *c = j->call;
    float sums[CPU_MAX_TOGETHER * LOOPS_MAX_BLOCK_ROWS];
    const struct cpu_gemv_call some = {.w = rows,
                                       .x = x,
                                       .n = n,
                                       .last = rows->rows,
                                       .y = c->add ? sums : y,
                                       .y_stride = c->add ? rows->rows : c->y_stride};
    j->isa->gemv(&some);
    for (uint32_t i = 0; c->add && i < n; i++)
        for (uint32_t r = 0; r < rows->rows; r++)
            y[(uint64_t)i * c->y_stride + r] += sums[i * rows->rows + r];
}

static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct linear_call *c = j->call;
    uint32_t i = 0, row = 0, n_blocks = j->first_block[j->op->n_segments], h = block / n_blocks;
    (void)thread;
    for (block %= n_blocks; block >= j->first_block[i + 1]; i++)
        row += j->op->w[i].rows;
    uint32_t first = (block - j->first_block[i]) * j->block_rows[i];
    const struct weights w = weights_rows(&j->op->w[i], (c->first_stacked + h) * j->op->step + first,
                                          (uint32_t)size_min(j->block_rows[i], j->op->w[i].rows - first));
    const struct cpu_matrix rows = loops_matrix(&w);
    for (uint32_t t = 0; t < c->n; t += CPU_MAX_TOGETHER)
        run_some(j, &rows, &j->x[(uint64_t)h * c->n + t], (uint32_t)size_min(c->n - t, CPU_MAX_TOGETHER),
                 host_floats_mut(c->y) + (uint64_t)t * c->y_stride + (uint64_t)h * c->y_step + row + first);
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
                    .digits_bytes = cpu_vector_bytes(op->cols)};
    for (uint32_t i = 0; i < op->n_segments; i++) {
        j.quantises |= !weights_are_plain(&op->w[i]);
        j.block_rows[i] = loops_block_rows(&op->w[i]);
        j.first_block[i + 1] = j.first_block[i] + div_up(op->w[i].rows, j.block_rows[i]);
    }
    uint64_t inputs = (uint64_t)c->n * j.n_stacked;
    j.x = host_scratch(host, inputs, sizeof *j.x);
    j.normed = c->norm ? host_scratch(host, inputs * op->cols, sizeof *j.normed) : NULL;
    j.digits = host_scratch(host, j.quantises ? inputs : 0, j.digits_bytes);
    if (host_error(host) < 0)
        return host_error(host);
    team_for(host->team, (uint32_t)inputs, prepare_input, &j);
    team_for(host->team, j.first_block[op->n_segments] * j.n_stacked, run_block, &j);
    return 0;
}
