/* hide_paths.h - takes the names of people, directories and files out of texts that are shown to others. */
#ifndef MOEFLUX_CLI_REPORT_HIDE_PATHS_H
#define MOEFLUX_CLI_REPORT_HIDE_PATHS_H

#include <stddef.h>

struct options;

/* Replaces in text[cap] the model's path, by MODEL, and the other directories of its parts, by DIR. The home
 * directory becomes ~. Any other absolute path except those of the system (/usr, /etc, /dev, /proc, /sys)
 * becomes PATH. The text is cut if it does not fit. */
void hide_paths(char *text, size_t cap, const struct options *o);

#endif
