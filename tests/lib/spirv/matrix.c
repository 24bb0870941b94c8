/* Cooperative matrices of a subgroup: 16 x 16, float16 factors, float32 sums in the order of the columns.
 * Which lane has which number Vulkan leaves open: a program has one of two ways, in quads
 * (kernels/lib/quads.glsl) or row by row, so that no kernel relies on either unasked. */
#include "run.h"

enum { SIDE = 16 };

/* Row and column of lane `lane`'s i-th number of a matrix with `cols` columns. */
static void place(const struct spirv_lanes *s, bool is_second, uint32_t cols, uint32_t lane, uint32_t i,
                  uint32_t *row, uint32_t *col)
{
    uint32_t at = i * s->n + lane;
    uint32_t line = lane / 4 + i / 4 * 8, along = lane % 4 * 2 + (i & 1) + (i & 2) * 4;
    *row = !s->p->in_quads ? at / cols : is_second ? along : line;
    *col = !s->p->in_quads ? at % cols : is_second ? line : along;
}

static void needs_all(struct spirv_lanes *s, const struct spirv_insn *i)
{
    if (!s->is_full || s->n_live != s->n)
        spirv_fault(s, i, 0, "%u of the subgroup's %u lanes are at a matrix", s->n_active, s->n);
}

/* Each lane's numbers; the place is lane 0's. */
void spirv_matrix_access(struct spirv_lanes *s, const struct spirv_insn *i)
{
    uint64_t places[SPIRV_MOST_LANES], first = spirv_place(s, i, 0);
    uint32_t each = i->more & 255, stride = spirv_slot(s, i->b)[0], row, col;
    bool by_columns = i->more & MATRIX_BY_COLUMNS;
    needs_all(s, i);
    for (uint32_t k = 0; k < i->n; k++) {
        for (uint32_t l = 0; l < s->n; l++) {
            place(s, i->more & MATRIX_IS_SECOND, i->size, l, k, &row, &col);
            places[l] = first + (by_columns ? col * stride + row * each : row * stride + col * each);
        }
        spirv_move(s, i, i->d + k, 1, places);
    }
}

/* Gathers a whole matrix from the lanes, or spreads it. */
static void spread(struct spirv_lanes *s, uint32_t slot, uint32_t n, bool is_second, float m[SIDE][SIDE],
                   bool back)
{
    for (uint32_t k = 0; k < n; k++) {
        float *r = (float *)(void *)spirv_slot(s, slot + k);
        for (uint32_t l = 0; l < s->n; l++) {
            uint32_t row, col;
            place(s, is_second, SIDE, l, k, &row, &col);
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
