/* DeepSeek-V4's attention: config.h describes it. No operation computes it yet. */
#include "arch/part.h"
#include "base/err.h"

static void needs(const struct config *c, const struct part_config *p, const struct exec_caps *caps,
                  uint32_t max_chunk, struct part_needs *out)
{
    (void)c, (void)p, (void)caps, (void)max_chunk;
    *out = (struct part_needs){0};
}

static int open(void **self, const struct part_room *room, const struct part_config *p, struct moeflux_err *e)
{
    (void)room, (void)p;
    *self = NULL;
    return err_set(e, ERR_UNSUPPORTED, "model_type is deepseek_v4: its attention is not computed");
}

static void close(void *self)
{
    (void)self;
}

const struct part part_compressed = {.needs = needs, .open = open, .close = close};
