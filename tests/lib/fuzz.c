#include "fuzz.h"

#include <string.h>

/* splitmix64 */
uint64_t fuzz_next(struct fuzz *f)
{
    uint64_t z = (f->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t fuzz_below(struct fuzz *f, uint64_t n)
{
    return fuzz_next(f) % n;
}

static const char *const interesting[] = {
    "0",
    "-1",
    "18446744073709551615",
    "9223372036854775808",
    "1e999",
    "4294967296",
    "null",
    "true",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\\u0000",
    "\\ud800",
    "[[[[[[[[[[[[",
    "\xff\xfe",
    "\xf0\x9f",
    "NaN",
    "-0.0",
    "\"\"",
};

static size_t insert(uint8_t *buf, size_t len, size_t cap, size_t at, const void *src, size_t n)
{
    if (n > cap - len)
        n = cap - len;
    memmove(buf + at + n, buf + at, len - at);
    memcpy(buf + at, src, n);
    return len + n;
}

static size_t edit(struct fuzz *f, uint8_t *buf, size_t len, size_t cap)
{
    size_t at = len ? fuzz_below(f, len) : 0;
    size_t run = len ? 1 + fuzz_below(f, len - at < 32 ? len - at : 32) : 0;
    uint8_t copy[32];
    switch (fuzz_below(f, 6)) {
    case 0:
        if (len)
            buf[at] ^= (uint8_t)(1u << fuzz_below(f, 8));
        return len;
    case 1:
        if (len)
            buf[at] = (uint8_t)fuzz_next(f);
        return len;
    case 2: {
        const char *s = interesting[fuzz_below(f, sizeof interesting / sizeof *interesting)];
        return insert(buf, len, cap, at, s, strlen(s));
    }
    case 3:
        memmove(buf + at, buf + at + run, len - at - run);
        return len - run;
    case 4:
        memcpy(copy, buf + at, run);
        return insert(buf, len, cap, at, copy, run);
    default:
        return fuzz_below(f, 8) == 0 ? at : len;
    }
}

size_t fuzz_mutate(struct fuzz *f, uint8_t *buf, size_t len, size_t cap)
{
    uint64_t n = 1 + fuzz_below(f, 8);
    for (uint64_t i = 0; i < n; i++)
        len = edit(f, buf, len, cap);
    return len;
}
