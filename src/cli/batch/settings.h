/* settings.h - the options of --batch that change answers: its results keep them, so that a file does not get
 * results of two kinds without being asked to. */
#ifndef MOEFLUX_CLI_BATCH_SETTINGS_H
#define MOEFLUX_CLI_BATCH_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

struct json_t;
struct options;

/* Returns an object: the model's name, and each option that is not at its default. Long texts are
 * represented by a hash. Owned by the caller; NULL: no memory. */
struct json_t *settings_of(const struct options *o);
/* Adds which model it is (moeflux_model_fingerprint). */
void settings_add_model(struct json_t *settings, uint64_t fingerprint);

/* Writes what differs, as `"temperature" is 0.5 there, 0.7 here`, and returns buf. NULL: nothing. */
const char *settings_difference(const struct json_t *there, const struct json_t *here, char *buf, size_t cap);

#endif
