/* model_dirs.h - model directories that must open, and such that must not. Everything asserts. */
#ifndef MOEFLUX_TESTS_MODEL_DIRS_H
#define MOEFLUX_TESTS_MODEL_DIRS_H

#include "model/model_dir.h"

struct model_dir model_dirs_open(const char *dir);
/* Opening fails with this code and one line that has the text. */
void model_dirs_refuse(const char *dir, int code, const char *text);
/* So does opening a copy of a directory in whose file one text is replaced by another. */
void model_dirs_refuse_copy(const char *from, const char *file, const char *old, const char *with, int code,
                            const char *text);

#endif
