#include "cpu/isa.h"

#include <stddef.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/err.h"

#define DECLARE(set) extern const struct cpu_isa cpu_isa_##set;
CPU_ISAS(DECLARE)

#define HAS(set)     has_##set()
#define ADDRESS(set) HAS(set) ? &cpu_isa_##set : NULL,
#define NAME(set)    " " #set

static bool has_portable(void)
{
    return true;
}

#if defined(__x86_64__)
/* Some compilers' __builtin_cpu_supports does not know it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* The system gives a process the tile registers on request; a second request is harmless. */
static bool has_amx(void)
{
    enum { ASK = 0x1023, TILES = 18, BIT_TILE = 1 << 24, BIT_INT8 = 1 << 25 };
    uint32_t a, b, c, d = 0;
    bool is_there = has_avx512() && __builtin_cpu_supports("avx512vbmi") &&
                    __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BIT_TILE) && (d & BIT_INT8);
    return is_there && syscall(SYS_arch_prctl, ASK, TILES) == 0;
}
#elif defined(__aarch64__)
static bool has_neon(void)
{
    return true;
}

static bool has_dotprod(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

const struct cpu_isa *cpu_isa_at(uint32_t idx)
{
    const struct cpu_isa *const sets[CPU_N_ISAS] = {CPU_ISAS(ADDRESS)};
    return idx < CPU_N_ISAS ? sets[idx] : NULL;
}

const struct cpu_isa *cpu_isa_find(const char *name, struct moeflux_err *e)
{
#define QUOTED(set) #set,
    static const char *const names[CPU_N_ISAS] = {CPU_ISAS(QUOTED)};
    static const char *const others[] = {"avx2", "avx512", "amx", "neon", "dotprod"};
    for (uint32_t i = CPU_N_ISAS; i-- > 0;) {
        const struct cpu_isa *isa = cpu_isa_at(i);
        if (!name && isa)
            return isa;
        if (!name || strcmp(name, names[i]) != 0)
            continue;
        if (!isa)
            err_set(e, ERR_USAGE, "`cpu_isa` %s: this processor does not have it", name);
        return isa;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i]) == 0) {
            err_set(e, ERR_USAGE, "`cpu_isa` %s is of another family of processors; there are%s", name,
                    CPU_ISAS(NAME));
            return NULL;
        }
    err_set(e, ERR_USAGE, "`cpu_isa` %s: no such instruction set; there are%s", name, CPU_ISAS(NAME));
    return NULL;
}
