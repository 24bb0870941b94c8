/* Cooperative matrices of a subgroup: 16 x 16, float16 factors, float32 sums in the order of the columns. */
#include "matrix.h"

#include <math.h>
#include <string.h>

#include "arithmetic.h"
#include "numbers.h"
#include "run.h"

enum { SIDE = 16, BY_COLUMNS = 256, IS_SECOND = 512 };

static void needs_all(struct spirv_lanes *s, const struct spirv_insn *i)
{
    if (!s->is_full || s->n_live != s->n)
        spirv_fault(s, i, 0, "%u of the subgroup's %u lanes are at a matrix", s->n_active, s->n);
}

/* The bytes of lane l's number k, or NULL once it was reported. */
static uint8_t *element(struct spirv_lanes *s, const struct spirv_insn *i, uint32_t l, uint32_t k, bool is_store)
{
    uint32_t row, col, each = i->more & 255, stride = spirv_slot(s, i->b)[0];
    spirv_matrix_place(s->p->in_quads, i->more & IS_SECOND, s->n, i->more >> 16, l, k, &row, &col);
    uint32_t bytes = i->more & BY_COLUMNS ? col * stride + row * each : row * stride + col * each;
    enum spirv_use use = is_store ? SPIRV_WRITES : SPIRV_READS;
    if (i->is_wide)
        return spirv_buffer_at(s, i, l, ((const uint64_t *)(const void *)spirv_slot(s, i->a))[0] + i->imm + bytes, each, use);
    uint32_t offset = i->a == SPIRV_NO_SLOT ? 0 : spirv_slot(s, i->a)[0];
    return spirv_shared_at(s, i, l, offset + i->imm + bytes, each, use);
}

static void access_all(struct spirv_lanes *s, const struct spirv_insn *i, bool is_store)
{
    uint32_t each = i->more & 255;
    needs_all(s, i);
    for (uint32_t k = 0; k < i->n; k++) {
        uint32_t *d = spirv_slot(s, i->d + k);
        for (uint32_t l = 0; l < s->n; l++) {
            uint8_t *at = element(s, i, l, k, is_store);
            uint32_t number = 0;
            if (!at)
                return;
            if (is_store) {
                number = d[l];
                if (each == 2)
                    spirv_half_bits(1, &number, &d[l], NULL, NULL);
                memcpy(at, &number, each);
                continue;
            }
            memcpy(&number, at, each);
            if (each == 2)
                spirv_bits_half(1, &d[l], &number, NULL, NULL);
            else
                d[l] = number;
        }
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

/* From the lanes to a whole matrix, or back. */
static void spread(struct spirv_lanes *s, uint32_t slot, uint32_t n, bool is_second, float m[SIDE][SIDE], bool back)
{
    for (uint32_t k = 0; k < n; k++) {
        float *r = (float *)(void *)spirv_slot(s, slot + k);
        for (uint32_t l = 0; l < s->n; l++) {
            uint32_t row, col;
            spirv_matrix_place(s->p->in_quads, is_second, s->n, SIDE, l, k, &row, &col);
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
