/* verify.h - reads a finished DST.partial, and those of its parts, back and compares. */
#ifndef MOEFLUX_CONVERT_VERIFY_H
#define MOEFLUX_CONVERT_VERIFY_H

#include "convert/parts.h"
#include "convert/plan.h"
#include "convert/work.h"

/* Every file's checksum against the one taken while writing (read from the disk, not from the cache, where
 * the system lets us), and experts 0, 1, E/2 and E-1 of every layer against the source. A file that differs
 * is deleted, so that the next run writes it again, and named in ERR_IO. */
int convert_verify(const struct convert_plan *p, const struct convert_parts *parts, struct convert_work *w,
                   struct moeflux_err *e);

#endif
