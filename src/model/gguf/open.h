/* open.h - opens a GGUF file as a model: tensors and experts where they lie in the file. */
#ifndef MOEFLUX_MODEL_GGUF_OPEN_H
#define MOEFLUX_MODEL_GGUF_OPEN_H

struct model_dir;
struct moeflux_err;

/* Opens m->path, the file or the first of a split set, and fills the rest of the zeroed `m`. After a failure
 * the caller closes it. ERR_FORMAT, ERR_UNSUPPORTED and ERR_IO name the file and the key or tensor. */
int gguf_open_model(struct model_dir *m, struct moeflux_err *e);

#endif
