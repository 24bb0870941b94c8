#include "engine/run/crossing.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"

/* A multiple of any device's gpu.import_align, and large, so that few pages have to be pinned. */
enum { PAGE = 2 << 20 };

void crossing_open(struct crossing *c, struct exec *from, struct exec *to, uint64_t bytes)
{
    uint64_t all = size_round_up(2 * bytes, PAGE);
    *c = (struct crossing){.half_bytes = bytes, .from = from, .to = to};
    c->pages = aligned_alloc(PAGE, all);
    if (!c->pages)
        return;
    (void)madvise(c->pages, all, MADV_HUGEPAGE);
    int rc = exec_buffer_import(from, &c->out, EXEC_HOST, c->pages, all, NULL);
    if (rc == 0)
        rc = exec_buffer_import(to, &c->in, EXEC_HOST, c->pages, all, NULL);
    if (rc < 0)
        crossing_close(c);
}

void crossing_close(struct crossing *c)
{
    exec_buffer_free(c->from, &c->out);
    exec_buffer_free(c->to, &c->in);
    free(c->pages);
    *c = (struct crossing){0};
}

struct crossing_half crossing_out(const struct crossing *c, uint32_t half)
{
    return (struct crossing_half){&c->out, half * c->half_bytes};
}

struct crossing_half crossing_in(const struct crossing *c, uint32_t half)
{
    return (struct crossing_half){&c->in, half * c->half_bytes};
}
