#include "base/seed.h"

#include <sys/random.h>

#include "base/err.h"

int seed_draw(uint64_t *seed, struct moeflux_err *e)
{
    uint32_t drawn;
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return err_errno(e, ERR_IO, "no random seed could be drawn");
    *seed = drawn;
    return 0;
}
