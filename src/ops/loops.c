#include "ops/loops.h"

#include <string.h>

#include "base/format.h"
#include "base/mem.h"
#include "cpu/isa.h"

#define DECLARE(set) extern const struct loops loops_##set;
CPU_ISAS_SHARED(DECLARE)

const struct loops *loops_of(const struct host *h)
{
#define ADDRESS(set) &loops_##set,
    static const struct loops *const all[CPU_N_ISAS] = {CPU_ISAS_SHARED(ADDRESS)};
    return all[h->isa->idx];
}

void loops_put_row(const struct loops *l, enum kv_type type, const float *from, uint32_t n, void *row)
{
    if (type == KV_TYPE_F16)
        l->store_f16(from, n, row);
    else
        kv_row_put(type, from, n, row);
}

void loops_get_row(const struct loops *l, enum kv_type type, const void *row, uint32_t n, float *out)
{
    if (type == KV_TYPE_F16)
        l->load_f16(row, n, out);
    else if (type == KV_TYPE_Q8_0)
        l->load_q8(row, n, out);
    else
        memcpy(out, row, n * sizeof *out);
}

struct cpu_matrix loops_matrix(const struct weights *w)
{
    return (struct cpu_matrix){.weight = host_at(w->weight),
                               .scales = host_at(w->scales),
                               .biases = host_at(w->biases),
                               .rows = w->rows,
                               .cols = w->cols,
                               .format = w->format};
}

/* A core reads BLOCK_BYTES in a few microseconds. */
enum { BLOCK_BYTES = 32768, LEAST_ROWS = 8 };

uint32_t loops_block_rows(const struct weights *w)
{
    uint64_t rows = BLOCK_BYTES / size_max(format_code_bytes(format_of(w->format), w->cols), 1);
    return (uint32_t)size_max(size_min(rows, LOOPS_MAX_BLOCK_ROWS) / LEAST_ROWS * LEAST_ROWS, LEAST_ROWS);
}
