/* sort.h - a stable sort by Python's order. A part of jinja. */
#ifndef MOEFLUX_TEXT_JINJA_SORT_H
#define MOEFLUX_TEXT_JINJA_SORT_H

#include "text/jinja/value.h"

/* Sorts by the keys; with `reverse` the largest come first, equal ones in the order that they had. */
void jinja_sort(struct jinja_state *s, struct jinja_entry *entries, size_t n, bool reverse);

#endif
