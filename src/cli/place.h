/* place.h - checks where output files may go, and finds the directory for the program's own state. */
#ifndef MOEFLUX_CLI_PLACE_H
#define MOEFLUX_CLI_PLACE_H

struct moeflux_err;
struct options;

/* Checks before a long run that its output can be written: the directory of `path` must take new files.
 * ERR_IO names `flag` and the path. */
int place_check(const char *flag, const char *path, struct moeflux_err *e);

/* Returns the path of `name` in $XDG_STATE_HOME/moeflux, else in ~/.local/state/moeflux; the caller frees it.
 * The directories above it are made, readable by the user only. NULL: neither variable has an absolute path,
 * or no memory. */
char *place_of_state(const char *name);

/* Refuses outputs (--logits, --hidden, --usage, --trace, --prompt-cache, --output) that are files of the
 * model directory, by whatever name or link: they would replace a part of the model. A file that an earlier
 * run wrote there by the same flag may be replaced. --logits and --hidden may not write there at all, because
 * every safetensors file of the directory is taken for weights. ERR_USAGE. */
int place_check_outputs(const struct options *o, struct moeflux_err *e);

#endif
