/* model_file.h - reads tensors from open files, also those in pieces. */
#ifndef MOEFLUX_MODEL_MODEL_FILE_H
#define MOEFLUX_MODEL_MODEL_FILE_H

#include "model/model.h"

struct moeflux_err;

/* Returns where byte `from` of a tensor in pieces lies, in bytes from t->off. *n: the bytes from there to the
 * piece's end. *later: the number of pieces of the same run that follow. */
uint64_t model_file_find_piece(const struct tensor_pieces *p, uint64_t from, uint64_t *n, uint64_t *later);

/* Reads bytes [from, from + n) of a tensor in these files; it must have them. ERR_IO. */
int model_file_read(const struct open_file *files, const struct tensor *t, uint64_t from, uint64_t n,
                    void *dst, struct moeflux_err *e);

#endif
