/* amx.h - the tile registers of AMX: 8 registers of 16 rows of 64 bytes, and the product that fills one with
 * 16 x 16 integers.
 *
 * These are macros, because an instruction names its registers. gcc's intrinsics are not used, because they
 * do not declare which memory they read. A test defines the macros itself on processors without AMX
 * (tests/lib/amx_emulated.h). */
#ifndef MOEFLUX_CPU_AMX_H
#define MOEFLUX_CPU_AMX_H

#include <stdint.h>

enum { AMX_ROWS = 16, AMX_ROW_BYTES = 64, AMX_BYTES = AMX_ROWS * AMX_ROW_BYTES };

/* What ldtilecfg reads: rows, and bytes of a row, of each register; palette 1. */
struct amx_config {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct amx_config) == 64, "what ldtilecfg reads");

/* The memory that an instruction reads or writes, whatever its type. */
struct __attribute__((may_alias)) amx_tile {
    uint8_t bytes[AMX_BYTES];
};

#ifndef AMX_EMULATED
#define AMX_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)))
#define AMX_RELEASE()         __asm__ volatile("tilerelease")
#define AMX_ZERO(r)           __asm__ volatile("tilezero %tmm" #r)
/* The rows are contiguous. */
#define AMX_LOAD(r, from)                                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #r ::"r"(from), "r"((int64_t)AMX_ROW_BYTES),               \
                     "m"(*(const struct amx_tile *)(const void *)(from)))
#define AMX_STORE(r, to)                                                                                     \
    __asm__ volatile("tilestored %%tmm" #r ", (%1,%2,1)"                                                     \
                     : "=m"(*(struct amx_tile *)(void *)(to))                                                \
                     : "r"(to), "r"((int64_t)AMX_ROW_BYTES))
/* r[i][j] += the sum over 64 k of signed bytes a[i][k] * unsigned bytes b[k / 4][4 j + k % 4] */
#define AMX_ADD_PRODUCT(r, a, b) __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #r)
#endif

#endif
