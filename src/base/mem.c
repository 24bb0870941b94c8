#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void *mem_new(uint64_t n, uint64_t size, struct moeflux_err *e)
{
    uint64_t bytes;
    if (!size_mul(n, size, &bytes) || bytes > PTRDIFF_MAX) {
        err_set(e, ERR_MEMORY, "out of memory: %llu items of %llu bytes are more than can be addressed",
                (unsigned long long)n, (unsigned long long)size);
        return NULL;
    }
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        err_set(e, ERR_MEMORY, "out of memory: %llu bytes were asked for", (unsigned long long)bytes);
    return p;
}

int mem_grow(void **array, size_t *cap, size_t need, size_t size, struct moeflux_err *e)
{
    if (need <= *cap)
        return 0;
    size_t next = *cap ? *cap : 16;
    while (next < need && next <= SIZE_MAX / 2)
        next *= 2;
    uint64_t bytes;
    void *p = NULL;
    if (next >= need && size_mul(next, size, &bytes) && bytes <= PTRDIFF_MAX)
        p = realloc(*array, bytes);
    if (!p)
        return err_set(e, ERR_MEMORY, "out of memory: %zu items of %zu bytes were asked for", need, size);
    *array = p;
    *cap = next;
    return 0;
}

char *mem_text(const char *text, struct moeflux_err *e)
{
    size_t n = strlen(text) + 1;
    char *copy = mem_new(n, 1, e);
    return copy ? memcpy(copy, text, n) : NULL;
}
