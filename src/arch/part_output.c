#include "arch/part_output.h"

#include <stdlib.h>

#include "arch/loader.h"
#include "arch/scratch.h"
#include "base/err.h"
#include "base/mem.h"

void part_output_allocate(struct part_output *o, uint32_t cols, uint32_t n, struct scratch *to)
{
    o->cols = cols;
    scratch_floats(to, &o->rows, (uint64_t)n * cols);
}

int part_output_load(struct part_output *o, struct exec *x, struct loader *l, struct moeflux_err *e)
{
    float *zeros = mem_new(o->cols, sizeof *zeros, e);
    int rc = zeros ? loader_put(l, zeros, o->cols, &o->zeros, e) : ERR_MEMORY;
    free(zeros);
    return rc < 0 ? rc : add_open(&o->zero, x, e);
}

void part_output_close(struct part_output *o, struct exec *x)
{
    exec_buffer_free(x, &o->rows);
}

void part_output_clear(const struct part_output *o, struct exec *x, uint32_t n)
{
    add_run(&o->zero, x,
            &(struct add_call){
                .y = o->zeros, .x = o->rows.address, .n = n * o->cols, .every = o->cols, .sets = true});
}
