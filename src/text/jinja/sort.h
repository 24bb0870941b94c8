/* sort.h - a stable sort by Python's order. A part of jinja. */
#ifndef MOEFLUX_TEXT_JINJA_SORT_H
#define MOEFLUX_TEXT_JINJA_SORT_H

#include "text/jinja/value.h"

/* Sorts by the keys. reverse: the largest first; equal ones keep their order in any case. */
void jinja_sort(struct jinja_state *s, struct jinja_entry *entries, size_t n, bool reverse);

#endif
