#include "arch/posts.h"

#include "arch/loader.h"
#include "arch/scratch.h"
#include "base/err.h"
#include "model/config.h"
#include "model/part_tensors.h"

int posts_open(struct posts *p, struct exec *x, const struct config *c, struct moeflux_err *e)
{
    p->exec = x;
    return normed_add_open(&p->op, x, c->hidden, c->rms_eps, e);
}

void posts_allocate(struct posts *p, const struct config *c, uint32_t n, struct scratch *to)
{
    scratch_floats(to, &p->kept, (uint64_t)n * c->hidden);
}

void posts_close(struct posts *p, struct exec *x)
{
    exec_buffer_free(x, &p->kept);
}

int posts_load_block(struct posts_block *w, struct loader *l, uint32_t layer, const struct config_block *b,
                     struct moeflux_err *e)
{
    struct part_tensor t[POST_TENSORS];
    part_posts(l->config, b, t);
    w->keeps = b->keeps;
    int rc = loader_vectors(l, layer, &t[POST_NORM], 1, &w->norm, e);
    if (rc == 0)
        rc = loader_vectors(l, layer, &t[POST_OUTER], 1, &w->outer, e);
    return rc < 0 ? rc : loader_vectors(l, layer, &t[POST_FACTOR], 1, &w->factor, e);
}

void posts_add(const struct posts *p, const struct posts_block *w, uint64_t x, uint32_t from, uint32_t n)
{
    uint64_t row = (uint64_t)from * p->op.cols * sizeof(float);
    struct normed_add_call call = {.y = p->out + row, .norm = w->norm, .n = n};
    if (w->keeps) {
        call.dst = p->kept.address + row;
    } else {
        call.add = w->outer ? p->kept.address + row : 0;
        call.outer = w->outer;
        call.factor = w->factor;
        call.base = call.dst = x + row;
    }
    normed_add_run(&p->op, p->exec, &call);
}
