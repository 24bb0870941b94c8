/* hash.h - computes XXH3-64 of a file, as `xxhsum -H3` prints it. */
#ifndef MOEFLUX_CONVERT_HASH_H
#define MOEFLUX_CONVERT_HASH_H

#include <stdint.h>

struct moeflux_err;
struct convert_work;

/* Hashes the first `bytes` bytes. Reports progress to `w` (may be NULL) and stops if that fails. */
int convert_hash_file(int fd, const char *path, uint64_t bytes, struct convert_work *w, uint64_t *xxh3,
                      struct moeflux_err *e);

#endif
