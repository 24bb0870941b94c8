#include "engine/state/checkpoints.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct checkpoint *checkpoints_find(struct checkpoints *c, uint32_t pos)
{
    struct checkpoint *at = checkpoints_before(c, pos);
    return at && at->pos == pos ? at : NULL;
}

struct checkpoint *checkpoints_before(const struct checkpoints *c, uint32_t pos)
{
    for (size_t i = c->n; i > 0; i--)
        if (c->items[i - 1].pos <= pos)
            return &c->items[i - 1];
    return NULL;
}

void checkpoints_touch(struct checkpoints *c, struct checkpoint *used)
{
    used->last_use = ++c->clock;
}

int checkpoints_add(struct checkpoints *c, const struct checkpoint *one, struct moeflux_err *e)
{
    int rc = mem_grow((void **)&c->items, &c->room, c->n + 1, sizeof *c->items, e);
    if (rc < 0)
        return rc;
    size_t at = c->n;
    while (at > 0 && c->items[at - 1].pos > one->pos)
        at--;
    memmove(c->items + at + 1, c->items + at, (c->n - at) * sizeof *c->items);
    c->items[at] = *one;
    c->items[at].last_use = ++c->clock;
    c->n++;
    checkpoints_trim(c);
    return 0;
}

void checkpoints_trim(struct checkpoints *c)
{
    while (c->n > c->cap) {
        struct checkpoint *oldest = &c->items[0];
        for (size_t i = 1; i + 1 < c->n; i++)
            if (c->items[i].last_use < oldest->last_use)
                oldest = &c->items[i];
        checkpoints_drop(c, oldest);
    }
}

void checkpoints_drop(struct checkpoints *c, struct checkpoint *which)
{
    size_t n_after = (size_t)(c->items + c->n - which) - 1;
    free(which->state);
    memmove(which, which + 1, n_after * sizeof *which);
    c->n--;
}

void checkpoints_drop_after(struct checkpoints *c, uint32_t pos)
{
    while (c->n > 0 && c->items[c->n - 1].pos > pos)
        checkpoints_drop(c, &c->items[c->n - 1]);
}

void checkpoints_free(struct checkpoints *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->items[i].state);
    free(c->items);
    *c = (struct checkpoints){0};
}
