/* pages.h - what tests of pages need of the system. */
#ifndef MOEFLUX_TESTS_PAGES_H
#define MOEFLUX_TESTS_PAGES_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static inline size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Skips the test where the system cannot bring pages in when it is asked to: Linux before 5.14. */
static inline void need_populate(void)
{
    size_t n = page_bytes();
    void *page = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    bool can = madvise(page, n, MADV_POPULATE_READ) == 0 && madvise(page, n, MADV_POPULATE_WRITE) == 0;
    munmap(page, n);
    if (can)
        return;
    puts("SKIP the system cannot populate pages");
    skip();
}

#endif
