/* slice.h - the time slices that the system gives the calling thread. */
#ifndef MOEFLUX_BASE_SLICE_H
#define MOEFLUX_BASE_SLICE_H

/* Asks for the shortest slices: for a thread that mostly sleeps and does little when it wakes. Where all
 * processors compute it then runs when it wakes, not when the slice of another thread of some milliseconds is
 * over. It gets no larger share of a processor. Before Linux 6.12, and where a container forbids it, nothing
 * changes. */
void slice_shorten(void);

#endif
