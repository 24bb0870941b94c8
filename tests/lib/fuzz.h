/* fuzz.h - deterministic mutations of valid inputs, for parsers in the ordinary test suite. A fuzz test lives
 * in tests/test_fuzz_<parser>.c: it mutates real files a fixed number of times and requires that the parser
 * answers each with success or an error with a text, without a crash or a leak (make asan). */
#ifndef MOEFLUX_TESTS_FUZZ_H
#define MOEFLUX_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

struct fuzz {
    uint64_t state; /* seed; any value */
};

uint64_t fuzz_next(struct fuzz *f);
/* A number below n (n > 0). */
uint64_t fuzz_below(struct fuzz *f, uint64_t n);
/* Changes buf[0..len) (room for `cap`) by one to eight random edits: flip a bit, replace, insert, delete or
 * repeat a run, put an interesting number or JSON token, cut the end. Returns the new length, at most cap. */
size_t fuzz_mutate(struct fuzz *f, uint8_t *buf, size_t len, size_t cap);

#endif
