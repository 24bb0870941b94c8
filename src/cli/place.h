/* place.h - where the program keeps files: whether a place can be written, and the directory of kept state.
 * */
#ifndef MOEFLUX_CLI_PLACE_H
#define MOEFLUX_CLI_PLACE_H

struct moeflux_err;
struct options;

/* A file that cannot be written at the end of a long run is better told before it: the directory of `path`
 * must take new files. ERR_IO names `flag` and the path. */
int place_check(const char *flag, const char *path, struct moeflux_err *e);

/* `name` below $XDG_STATE_HOME/moeflux, else ~/.local/state/moeflux, in fresh memory; the directories above
 * it are made, for the user alone. NULL: neither variable has an absolute path, or there is no memory. */
char *place_of_state(const char *name);

/* Refuses outputs (--logits, --hidden, --usage, --trace, --prompt-cache, --output) that are files of the
 * model directory, by whatever name: they would replace a part of the model. What an earlier run wrote there
 * by the same flag may be written again; of --logits and --hidden nothing may lie there, because every
 * safetensors file of the directory is taken for weights. ERR_USAGE. */
int place_check_outputs(const struct options *o, struct moeflux_err *e);

#endif
