/* parts.h - manages the directories that a conversion writes: DST (part 0) and those of --spread
 * (model/spread.h).
 *
 * Each is a convert_target with a state of its own. A layer of an interrupted run is kept if all parts have
 * it. */
#ifndef MOEFLUX_CONVERT_PARTS_H
#define MOEFLUX_CONVERT_PARTS_H

#include <stdbool.h>

#include "convert/plan.h"
#include "convert/target.h"
#include "model/spread.h"

struct convert_parts {
    const struct convert_plan *plan; /* borrowed */
    struct spread spread;            /* stripe 0: layers have different ones */
    struct convert_target targets[SPREAD_MAX_PARTS];
};

/* Makes it empty; convert_parts_close is legal afterwards. */
void convert_parts_init(struct convert_parts *p);

/* Opens DST and the directories of `spread`, parts 1 and following, separated by commas; NULL: none. Their
 * paths become absolute, since the model may be opened from anywhere. ERR_USAGE: as for convert_target_open;
 * too many directories; or one is named twice. */
int convert_parts_open(struct convert_parts *p, const struct convert_plan *plan, const char *dst,
                       const char *spread, struct moeflux_err *e);
void convert_parts_close(struct convert_parts *p);

/* Checks free space: need[part] bytes. ERR_NO_FIT: a file system has less than the parts on it need. */
int convert_parts_check_room(const struct convert_parts *p, const uint64_t *need, struct moeflux_err *e);

/* Return how a layer's experts are cut, and the bytes of its file in every part. */
struct spread convert_parts_spread(const struct convert_parts *p, uint32_t layer);
uint64_t convert_parts_layer_bytes(const struct convert_parts *p, uint32_t layer);

int convert_parts_begin(struct convert_parts *p, struct moeflux_err *e);

/* Returns whether all parts have the layer. */
bool convert_parts_have(const struct convert_parts *p, uint32_t layer);

/* Returns the id, a hash of the expert files' checksums. Conversions with the same bytes have the same id,
 * and their parts are interchangeable. All layers must be finished. */
uint64_t convert_parts_id(const struct convert_parts *p);

/* Renames all directories to their final names, the model's last. */
int convert_parts_commit(struct convert_parts *p, struct moeflux_err *e);

#endif
