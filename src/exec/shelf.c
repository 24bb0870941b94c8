#include "exec/shelf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "vulkan/device.h"
#include "vulkan/pipeline.h"

/* The most devices that a shelf holds. */
enum { PLACES = 4 };

struct place {
    char *which; /* NULL: empty */
    struct gpu gpu;
    struct pipeline_set pipelines;
};

struct exec_shelf {
    struct place places[PLACES];
};

struct exec_shelf *exec_shelf_new(struct moeflux_err *e)
{
    return mem_new(1, sizeof(struct exec_shelf), e);
}

static void close_device(struct gpu *g, struct pipeline_set *p)
{
    pipeline_set_close(p, g);
    gpu_close(g);
}

void exec_shelf_free(struct exec_shelf *s)
{
    for (uint32_t i = 0; s && i < PLACES; i++)
        if (s->places[i].which) {
            close_device(&s->places[i].gpu, &s->places[i].pipelines);
            free(s->places[i].which);
        }
    free(s);
}

bool exec_shelf_take(struct exec_shelf *s, const char *which, struct gpu *g, struct pipeline_set *p)
{
    for (uint32_t i = 0; i < PLACES; i++) {
        struct place *at = &s->places[i];
        if (!at->which || strcmp(at->which, which) != 0)
            continue;
        *g = at->gpu;
        *p = at->pipelines;
        free(at->which);
        *at = (struct place){0};
        return true;
    }
    return false;
}

void exec_shelf_put(struct exec_shelf *s, const char *which, struct gpu *g, struct pipeline_set *p)
{
    struct place *at = NULL;
    bool is_lost = g->vk.DeviceWaitIdle(g->device) != VK_SUCCESS;
    for (uint32_t i = 0; !at && !is_lost && i < PLACES; i++)
        if (!s->places[i].which)
            at = &s->places[i];
    struct moeflux_err ignored;
    char *name = at ? mem_text(which, &ignored) : NULL;
    if (!name) {
        close_device(g, p);
        return;
    }
    *at = (struct place){.which = name, .gpu = *g, .pipelines = *p};
    *g = (struct gpu){0};
    *p = (struct pipeline_set){0};
}
