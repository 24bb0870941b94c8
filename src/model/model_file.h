/* model_file.h - arrays of open model files. */
#ifndef MOEFLUX_MODEL_MODEL_FILE_H
#define MOEFLUX_MODEL_MODEL_FILE_H

#include "model/model_dir.h"

/* Opens `path` for reading and appends it to (*files)[*n]. Returns 0; ERR_IO. */
int model_file_add(struct model_file **files, uint32_t *n, const char *path, struct moeflux_err *e);

/* Closes and frees all n. */
void model_file_close_all(struct model_file *files, uint32_t n);

#endif
