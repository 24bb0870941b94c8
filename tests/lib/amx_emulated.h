/* amx_emulated.h - the tile registers of src/cpu/amx.h in plain C, for processors without them. Included
 * before it. */
#ifndef MOEFLUX_TESTS_AMX_EMULATED_H
#define MOEFLUX_TESTS_AMX_EMULATED_H

#include <assert.h>
#include <string.h>

#define AMX_EMULATED
#include "cpu/amx.h"

struct amx_emulated {
    struct amx_config config;
    uint8_t of[8][AMX_BYTES];
};
/* Belongs to the thread, like the processor's registers. */
static _Thread_local struct amx_emulated amx;

/* Bytes beyond those that a register is configured to have are spoilt. */
static __attribute__((noinline)) void amx_load(int r, const void *from)
{
    const uint64_t n = (uint64_t)amx.config.rows[r] * amx.config.row_bytes[r];
    assert(amx.config.palette == 1 && amx.config.row_bytes[r] == AMX_ROW_BYTES && n <= AMX_BYTES);
    memset(amx.of[r], 0xee, AMX_BYTES);
    memcpy(amx.of[r], from, n);
}

static __attribute__((noinline)) void amx_store(int r, void *to)
{
    assert(amx.config.palette == 1);
    memcpy(to, amx.of[r], (uint64_t)amx.config.rows[r] * amx.config.row_bytes[r]);
}

static inline int32_t amx_word(const uint8_t *from)
{
    int32_t v;
    memcpy(&v, from, sizeof v);
    return v;
}

static __attribute__((noinline)) void amx_add_product(int r, int a, int b)
{
    assert(amx.config.rows[r] == amx.config.rows[a] && amx.config.rows[b] == amx.config.row_bytes[a] / 4 &&
           amx.config.row_bytes[r] == amx.config.row_bytes[b]);
    for (int i = 0; i < amx.config.rows[r]; i++)
        for (int j = 0; j < amx.config.row_bytes[r] / 4; j++) {
            uint8_t *at = amx.of[r] + i * AMX_ROW_BYTES + 4 * j;
            int32_t sum = amx_word(at);
            for (int k = 0; k < amx.config.row_bytes[a]; k++)
                sum += (int8_t)amx.of[a][i * AMX_ROW_BYTES + k] *
                       amx.of[b][k / 4 * AMX_ROW_BYTES + 4 * j + k % 4];
            memcpy(at, &sum, sizeof sum);
        }
}

#define AMX_CONFIGURE(from)      (amx.config = *(from))
#define AMX_RELEASE()            (amx.config = (struct amx_config){0})
#define AMX_ZERO(r)              memset(amx.of[r], 0, AMX_BYTES)
#define AMX_LOAD(r, from)        amx_load(r, from)
#define AMX_STORE(r, to)         amx_store(r, to)
#define AMX_ADD_PRODUCT(r, a, b) amx_add_product(r, a, b)

#endif
