/* store_fill.h - fills an expert store at open, by files that count how often each expert was chosen
 * (usage.h). */
#ifndef MOEFLUX_EXPERTS_STORE_FILL_H
#define MOEFLUX_EXPERTS_STORE_FILL_H

#include "base/progress.h"
#include "experts/store.h"

/* Counts the experts of the set that the file `pin` pins: all it names, but at most half of the slots that
 * the budget pays for, and no more than leave slots for two tokens' experts of one layer. 0: every expert has
 * a slot anyway. ERR_IO: the file is missing. ERR_FORMAT. ERR_NO_FIT: no slot can be pinned. */
int store_fill_count_pinned(const struct model_dir *m, const struct expert_set *set, const char *pin,
                            uint64_t budget_bytes, uint32_t *n_pinned, struct moeflux_err *e);

/* Reads experts into the slots: every expert if all have a slot; else those that the files of counts name,
 * the most used into device slots, the next into host slots. Experts of the pin file are never evicted.
 * ERR_INTERRUPTED. ERR_IO, ERR_FORMAT: of a file of counts, or of an expert. */
int store_fill_load(struct expert_store *s, const struct moeflux_progress *p, struct moeflux_err *e);

#endif
