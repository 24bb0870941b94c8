#include "arch/part_output.h"

#include <stdlib.h>

#include "arch/loader.h"
#include "arch/scratch.h"
#include "base/err.h"
#include "base/mem.h"
#include "model/config.h"

void part_output_allocate(struct part_output *o, const struct config *c, uint32_t n, struct scratch *to)
{
    o->hidden = c->hidden;
    scratch_floats(to, &o->rows, (uint64_t)n * c->hidden);
}

int part_output_load(struct part_output *o, struct exec *x, struct loader *l, struct moeflux_err *e)
{
    float *zeros = mem_new(o->hidden, sizeof *zeros, e);
    int rc = zeros ? loader_put(l, zeros, o->hidden, &o->zeros, e) : ERR_MEMORY;
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
                .y = o->zeros, .x = o->rows.address, .n = n * o->hidden, .every = o->hidden, .sets = true});
}
