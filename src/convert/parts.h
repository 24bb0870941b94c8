/* parts.h - the directories that a conversion writes: DST (part 0), and those of --spread (model/spread.h).
 *
 * Each is a convert_target with a state of its own. A layer is kept from an interrupted run if all parts have
 * it. */
#ifndef MOEFLUX_CONVERT_PARTS_H
#define MOEFLUX_CONVERT_PARTS_H

#include <stdbool.h>

#include "convert/plan.h"
#include "convert/target.h"
#include "model/spread.h"

struct convert_parts {
    const struct convert_plan *plan; /* borrowed */
    struct spread spread;            /* with a stripe if all layers have the same */
    struct convert_target targets[SPREAD_MAX_PARTS];
};

/* None open; convert_parts_close is legal after it. */
void convert_parts_init(struct convert_parts *p);

/* spread: the directories of parts 1 and on, with commas between them; NULL: none. They become absolute: the
 * model may be opened from anywhere. ERR_USAGE: as convert_target_open, too many, or one that is named twice.
 * */
int convert_parts_open(struct convert_parts *p, const struct convert_plan *plan, const char *dst,
                       const char *spread, struct moeflux_err *e);
void convert_parts_close(struct convert_parts *p);

/* ERR_NO_FIT when a file system has less free than what the parts on it need: need[part] bytes. */
int convert_parts_check_room(const struct convert_parts *p, const uint64_t *need, struct moeflux_err *e);

/* How a layer's experts are cut, and the bytes of its file in every part. */
struct spread convert_parts_spread(const struct convert_parts *p, uint32_t layer);
uint64_t convert_parts_layer_bytes(const struct convert_parts *p, uint32_t layer);

int convert_parts_begin(struct convert_parts *p, struct moeflux_err *e);

/* Whether all parts have the layer. */
bool convert_parts_have(const struct convert_parts *p, uint32_t layer);

/* Of the expert files' checksums: two conversions with the same bytes have the same id, and their parts may
 * stand in for each other. All layers are there. */
uint64_t convert_parts_id(const struct convert_parts *p);

/* Gives all their names, the model last. */
int convert_parts_commit(struct convert_parts *p, struct moeflux_err *e);

#endif
