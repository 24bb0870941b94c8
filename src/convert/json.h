/* json.h - makes the JSON files of a packed directory as texts (malloc'ed; NULL with `e` filled). */
#ifndef MOEFLUX_CONVERT_JSON_H
#define MOEFLUX_CONVERT_JSON_H

#include "convert/parts.h"
#include "convert/plan.h"
#include "convert/target.h"

/* model_weights.json */
char *convert_json_manifest(const struct convert_plan *p, struct moeflux_err *e);
/* packed_experts/layout.json */
char *convert_json_layout(const struct convert_plan *p, struct moeflux_err *e);
/* config.json: the source's text; with the quantization block added if the source was not quantised */
char *convert_json_config(const struct convert_plan *p, struct moeflux_err *e);
#define CONVERT_CHECKSUMS "checksums.json"

/* checksums.json: XXH3-64 as 16 hex digits of all other finished files, except spread.json, which a user may
 * edit */
char *convert_json_checksums(const struct convert_target *t, struct moeflux_err *e);

/* spread.json, and part.json of a part (model/spread.h) */
char *convert_json_spread(const struct convert_parts *p, uint64_t id, struct moeflux_err *e);
char *convert_json_part(const struct convert_parts *p, uint64_t id, uint32_t part, struct moeflux_err *e);

#endif
