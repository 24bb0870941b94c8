/* snapshot_writer.h - files of versions 1 and 2 of a small_model's state, written byte by byte from their
 * description. */
#ifndef MOEFLUX_TESTS_SNAPSHOT_WRITER_H
#define MOEFLUX_TESTS_SNAPSHOT_WRITER_H

#include <stdint.h>

#include "base/str.h"

/* The whole file for n tokens with made-up numbers: the same in both versions. n_of: the tokens that each of
 * the two attention layers claims; NULL: n. */
void snapshot_write(struct str *out, uint32_t version, int32_t n, const int32_t *n_of);

#endif
