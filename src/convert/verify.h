/* verify.h - reads a finished DST.partial and those of its parts back and compares them. */
#ifndef MOEFLUX_CONVERT_VERIFY_H
#define MOEFLUX_CONVERT_VERIFY_H

#include "convert/parts.h"
#include "convert/plan.h"
#include "convert/work.h"

/* Compares every file's checksum with the one taken while writing, and experts 0, 1, E/2 and E-1 of every
 * layer with the source. Reads from the disk, not from the page cache, if the system allows that. ERR_IO
 * names a file that differs; it is deleted, so that the next run writes it again. */
int convert_verify(const struct convert_plan *p, const struct convert_parts *parts, struct convert_work *w,
                   struct moeflux_err *e);

#endif
