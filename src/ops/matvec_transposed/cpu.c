/* The native implementation of matvec_transposed.h. */
#include <string.h>

#include "base/format.h"
#include "base/mem.h"
#include "cpu/team.h"
#include "cpu/isa.h"
#include "ops/loops.h"
#include "ops/matvec_transposed/matvec_transposed.h"

/* COLS: columns of a piece. ROWS: rows that are widened at once. PIECES: those of a block of a block format,
 * which is unpacked once. */
enum { COLS = LOOPS_COLS, ROWS = 64, PIECES = 256 / COLS };

struct job {
    const struct matvec_transposed *op;
    const struct matvec_transposed_call *call;
    const struct loops *loops;
    const struct cpu_isa *isa;
    uint32_t cols, n_blocks; /* columns that are widened at once; a matrix's number of these */
};

/* Widens some rows from column `first` on. */
static void widen_rows(const struct job *j, const struct cpu_matrix *m, uint32_t row, uint32_t n_rows,
                       uint32_t first, uint32_t n, float rows[PIECES][ROWS][COLS])
{
    float wide[PIECES * COLS];
    for (uint32_t r = 0; r < n_rows; r++) {
        j->isa->widen(m, row + r, first, n, n > COLS ? wide : rows[0][r]);
        for (uint32_t c = 0; n > COLS && c < n; c += COLS)
            memcpy(rows[c / COLS][r], wide + c, size_min(COLS, n - c) * sizeof *wide);
    }
}

/* Computes some columns of one matrix for all tokens. Each output is one chain of fused multiply-adds in the
 * order of the rows. */
static void run_block(void *ctx, uint32_t block, uint32_t thread)
{
    const struct job *j = ctx;
    const struct matvec_transposed_call *c = j->call;
    const struct weights *w = &j->op->w;
    uint32_t h = block / j->n_blocks, first = block % j->n_blocks * j->cols;
    uint32_t n = (uint32_t)size_min(j->cols, w->cols - first);
    const struct cpu_matrix m = loops_matrix(w);
    float rows[PIECES][ROWS][COLS];
    (void)thread;
    if (n % COLS)
        memset(rows, 0, sizeof rows);
    for (uint32_t from = 0; from < w->rows; from += ROWS) {
        uint32_t n_rows = (uint32_t)size_min(ROWS, w->rows - from);
        widen_rows(j, &m, h * j->op->step + from, n_rows, first, n, rows);
        for (uint32_t t = 0; t < c->n; t++) {
            const float *x = host_floats(c->x) + (uint64_t)t * c->x_stride + (uint64_t)h * c->x_step + from;
            float *y = host_floats_mut(c->y) + (uint64_t)t * c->y_stride + (uint64_t)h * c->y_step + first;
            for (uint32_t k = 0; k < n; k += COLS)
                j->loops->add_rows(y + k, x, rows[k / COLS][0], n_rows, (uint32_t)size_min(COLS, n - k),
                                   from == 0);
        }
    }
}

int matvec_transposed_cpu(const void *self, const void *what, struct host *h)
{
    const struct matvec_transposed *op = self;
    uint32_t cols = format_is_block(op->w.format) ? PIECES * COLS : COLS;
    struct job j = {op, what, loops_of(h), h->isa, cols, div_up(op->w.cols, cols)};
    team_for(h->team, op->n_stacked * j.n_blocks, run_block, &j);
    return host_error(h);
}
