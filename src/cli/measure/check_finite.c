#include "cli/measure/check_finite.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* Returns the index of the first number that is not finite; n: there is none. The loop over a block becomes
 * vector code, which a loop that may end at each number does not. */
static uint64_t find(const float *x, uint64_t n)
{
    enum { BLOCK = 1024 };
    uint64_t at = 0;
    for (; n - at >= BLOCK; at += BLOCK) {
        uint32_t largest = 0;
        for (uint64_t i = at; i < at + BLOCK; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits &= 0x7fffffffu;
            largest = bits > largest ? bits : largest;
        }
        if (largest >= 0x7f800000u)
            break;
    }
    while (at < n && isfinite(x[at]))
        at++;
    return at;
}

int check_finite_logits(const float *row, uint32_t n, uint32_t pos, struct moeflux_err *e)
{
    uint64_t at = find(row, n);
    return at == n
               ? 0
               : err_set(e, ERR_DEVICE, "position %u: the logit of token %u is %g, expected a finite number",
                         pos, (uint32_t)at, (double)row[at]);
}

int check_finite_hidden(const float *rows, uint32_t n, uint32_t width, uint32_t layer, uint32_t pos,
                        struct moeflux_err *e)
{
    uint64_t all = (uint64_t)n * width, at = find(rows, all);
    return at == all
               ? 0
               : err_set(
                     e, ERR_DEVICE,
                     "position %u, layer %u: element %u of the hidden state is %g, expected a finite number",
                     pos + (uint32_t)(at / width), layer, (uint32_t)(at % width), (double)rows[at]);
}
