#include "cpu_bits.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

#define FILE_NAME "tests/lib/cpu_bits.txt"

uint64_t cpu_random_next(struct cpu_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float cpu_random_float(struct cpu_random *r)
{
    return (float)(cpu_random_next(r) >> 40) * 0x1p-23f - 1;
}

const struct cpu_isa *cpu_next_isa(uint32_t *idx)
{
    while (*idx < CPU_N_ISAS) {
        const struct cpu_isa *isa = cpu_isa_at((*idx)++);
        if (isa)
            return isa;
    }
    return NULL;
}

/* All NaNs are one: their sign and payload differ between processors. */
static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return isnan(v) ? 0x7fc00000u : u;
}

/* FNV-1a over 32-bit words. */
static uint64_t hash(const float *v, uint64_t n)
{
    uint64_t h = 14695981039346656037u;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ bits_of(v[i])) * 1099511628211u;
    return h;
}

void cpu_bits_check(const char *what, const char *isa, const float *v, uint64_t n)
{
    char name[64];
    uint64_t want, got = hash(v, n);
    FILE *f = fopen(FILE_NAME, "r");
    bool found = false;
    if (!f)
        fail_msg("%s cannot be opened", FILE_NAME);
    while (!found && fscanf(f, "%63s %" SCNx64, name, &want) == 2)
        found = strcmp(name, what) == 0;
    fclose(f);
    if (!found || want != got)
        fail_msg("%s: the bits of %s %s: %s %016" PRIx64, FILE_NAME, isa,
                 found ? "are others" : "are missing", what, got);
}

void cpu_bits_equal(const char *what, const char *isa, const float *v, const float *want, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (bits_of(v[i]) != bits_of(want[i]))
            fail_msg("%s, %s: value %" PRIu64 " is %.9g (%08x), expected %.9g (%08x)", what, isa, i,
                     (double)v[i], bits_of(v[i]), (double)want[i], bits_of(want[i]));
}
