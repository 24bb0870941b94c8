/* which_model.h - says what a path that is no model directory is instead, and what to do. The engine itself
 * says only what it misses. */
#ifndef MOEFLUX_CLI_WHICH_MODEL_H
#define MOEFLUX_CLI_WHICH_MODEL_H

#include <stdbool.h>

struct moeflux_err;

/* Checks the path of -m, inspect, or convert SRC. takes_config: a config.json is enough. ERR_UNSUPPORTED: a
 * directory of GGUF files, or with files of PyTorch only. ERR_FORMAT: pointers of git-lfs, or a file instead
 * of its directory. 0: it looks like a model, or what is wrong is left to its reader. */
int which_model_check(const char *path, bool takes_config, struct moeflux_err *e);
/* ERR_IO: there is no such path. Says what a model is. */
int which_model_require(const char *path, struct moeflux_err *e);

/* Refuses a word that is neither flag nor value. is_first: nothing is before it. ERR_USAGE says which
 * command, -m or -p was probably meant. */
int which_model_refuse_word(const char *word, bool is_first, struct moeflux_err *e);

#endif
