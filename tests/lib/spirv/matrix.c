/* Cooperative matrices of a subgroup: 16 x 16, float16 factors, float32 sums in the order of the columns.
 * Which lane has which number Vulkan leaves open: a program has one of two ways, in quads
 * (kernels/lib/quads.glsl) or row by row, so that no kernel relies on either unasked. */
#include <math.h>
#include <string.h>

#include "run.h"

enum { SIDE = 16 };

/* Row and column of lane `lane`'s i-th number of a matrix with `cols` columns. */
static void place(bool in_quads, bool is_second, uint32_t lanes, uint32_t cols, uint32_t lane, uint32_t i,
                  uint32_t *row, uint32_t *col)
{
    if (!in_quads) {
        uint32_t at = i * lanes + lane;
        *row = at / cols;
        *col = at % cols;
        return;
    }
    uint32_t line = lane / 4 + i / 4 * 8, along = lane % 4 * 2 + (i & 1) + (i & 2) * 4;
    *row = is_second ? along : line;
    *col = is_second ? line : along;
}

static void needs_all(struct spirv_lanes *s, const struct spirv_insn *i)
{
    if (!s->is_full || s->n_live != s->n)
        spirv_fault(s, i, 0, "%u of the subgroup's %u lanes are at a matrix", s->n_active, s->n);
}

/* Each lane's numbers; the place is lane 0's. */
static void access_all(struct spirv_lanes *s, const struct spirv_insn *i, bool is_store)
{
    uint32_t each = i->more & 255, stride = spirv_slot(s, i->b)[0], half = each == 2 ? SPIRV_IS_HALF : 0;
    uint64_t first = spirv_place(s, i, 0);
    needs_all(s, i);
    for (uint32_t k = 0; k < i->n; k++)
        for (uint32_t l = 0; l < s->n; l++) {
            uint32_t row, col, *d = spirv_slot(s, i->d + k);
            place(s->p->in_quads, i->more & MATRIX_IS_SECOND, s->n, i->more >> 16, l, k, &row, &col);
            uint32_t off =
                i->more & MATRIX_BY_COLUMNS ? col * stride + row * each : row * stride + col * each;
            uint8_t *at = spirv_at(s, i, l, first + off, each, is_store ? SPIRV_WRITES : SPIRV_READS);
            if (!at)
                return;
            if (is_store)
                spirv_set(at, each | half, d[l]);
            else
                d[l] = spirv_get(at, each | half);
        }
}

void spirv_matrix_load(struct spirv_lanes *s, const struct spirv_insn *i)
{
    access_all(s, i, false);
}
void spirv_matrix_store(struct spirv_lanes *s, const struct spirv_insn *i)
{
    access_all(s, i, true);
}

/* Gathers a whole matrix from the lanes, or spreads it. */
static void spread(struct spirv_lanes *s, uint32_t slot, uint32_t n, bool is_second, float m[SIDE][SIDE],
                   bool back)
{
    for (uint32_t k = 0; k < n; k++) {
        float *r = (float *)(void *)spirv_slot(s, slot + k);
        for (uint32_t l = 0; l < s->n; l++) {
            uint32_t row, col;
            place(s->p->in_quads, is_second, s->n, SIDE, l, k, &row, &col);
            *(back ? &r[l] : &m[row][col]) = back ? m[row][col] : r[l];
        }
    }
}

void spirv_matrix_muladd(struct spirv_lanes *s, const struct spirv_insn *i)
{
    float a[SIDE][SIDE], b[SIDE][SIDE], c[SIDE][SIDE];
    needs_all(s, i);
    spread(s, i->a, i->n, false, a, false);
    spread(s, i->b, i->n, true, b, false);
    spread(s, i->c, i->n, false, c, false);
    for (int row = 0; row < SIDE; row++)
        for (int k = 0; k < SIDE; k++)
            for (int col = 0; col < SIDE; col++)
                c[row][col] += a[row][k] * b[k][col];
    spread(s, i->d, i->n, false, c, true);
}
