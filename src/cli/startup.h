/* startup.h - what the process needs before any work: its standard files, enough open files, and no
 * software Vulkan drivers that nobody asked for. */
#ifndef MOEFLUX_CLI_STARTUP_H
#define MOEFLUX_CLI_STARTUP_H

struct options;

/* Opens what the caller closed of stdin, stdout and stderr, so that reads and writes fail and no other
 * file gets its number. Must precede every open. */
void startup_keep_standard_files(void);

/* Raises the limit of open files. A model with experts on 8 disks has 8 files a layer, each open twice for
 * direct reads; the usual limit is 1024. If it cannot be raised, opening names the first file that is too
 * many. */
void startup_allow_many_files(void);

/* Keeps the Vulkan loader (1.3.234 or newer) from loading software drivers unless --device names one or the
 * devices are listed: the driver of Mesa brings a compiler along, 60 ms of each start. What the user has set
 * in the environment stays. */
void startup_skip_software_drivers(const struct options *o);

#endif
