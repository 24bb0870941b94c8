/* which_model.h - what a name that is no model directory is instead, and what to do then. The engine says
 * only what it misses. */
#ifndef MOEFLUX_CLI_WHICH_MODEL_H
#define MOEFLUX_CLI_WHICH_MODEL_H

#include <stdbool.h>

struct moeflux_err;

/* For -m DIR, inspect DIR and convert SRC (is_source, which may be a GGUF file). ERR_IO: a repository's name;
 * ERR_UNSUPPORTED: a GGUF file, a directory of them, or of PyTorch's files alone; ERR_FORMAT: git-lfs's
 * pointers instead of files, a file of a model instead of its directory. 0: a model as it seems, or something
 * that its reader has to name. */
int which_model_check(const char *path, bool is_source, struct moeflux_err *e);

/* For a first word that is no verb: ERR_USAGE says which verb or -m was probably meant. */
int which_model_refuse_word(const char *word, struct moeflux_err *e);

#endif
