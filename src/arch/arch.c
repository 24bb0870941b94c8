#include "arch/arch.h"

#include <stddef.h>

#include "base/err.h"
#include "model/config.h"

const struct arch *arch_find(const struct config *c, struct moeflux_err *e)
{
    switch (c->family) {
    case FAMILY_QWEN35MOE:
        return &arch_qwen35moe;
    case FAMILY_DEEPSEEK3:
        return &arch_deepseek3;
    }
    err_set(e, ERR_UNSUPPORTED, "no architecture for family %d", (int)c->family);
    return NULL;
}
