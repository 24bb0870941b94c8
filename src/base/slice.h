/* slice.h - the time slices that the scheduler gives the calling thread. */
#ifndef MOEFLUX_BASE_SLICE_H
#define MOEFLUX_BASE_SLICE_H

/* Asks for the shortest slices, for a thread that mostly sleeps and does little when it wakes. When all
 * processors are busy, such a thread runs as soon as it wakes, instead of waiting some milliseconds for the
 * end of another thread's slice. Its share of processor time does not grow. No effect before Linux 6.12 and
 * where a container forbids it. */
void slice_shorten(void);

#endif
