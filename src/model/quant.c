#include "model/quant.h"

enum { FINITE_BLOCK = 512 };

/* A fixed count, so that the compiler turns it into vector code without checks. */
static uint16_t worst_exponent(const uint16_t x[FINITE_BLOCK])
{
    uint16_t bad = 0;
    for (int i = 0; i < FINITE_BLOCK; i++)
        bad |= (uint16_t)((x[i] & 0x7f80u) == 0x7f80u);
    return bad;
}

bool quant_bf16_finite(const void *values, uint64_t n)
{
    const uint8_t *p = values;
    uint16_t block[FINITE_BLOCK];
    for (; n >= FINITE_BLOCK; n -= FINITE_BLOCK, p += sizeof block) {
        memcpy(block, p, sizeof block);
        if (worst_exponent(block))
            return false;
    }
    memset(block, 0, sizeof block);
    if (n > 0)
        memcpy(block, p, n * 2);
    return !worst_exponent(block);
}
