/* layout.h - finds the files of a model directory. */
#ifndef MOEFLUX_MODEL_LAYOUT_H
#define MOEFLUX_MODEL_LAYOUT_H

#include <stdbool.h>

struct moeflux_err;

struct layout { /* owned paths; NULL: the directory has no such file */
    bool packed;
    char *config, *generation_config, *tokenizer;
    char *manifest, *weights, *experts; /* packed only; `experts` is the folder of the layer files */
};

/* Finds the files of a packed directory, of one that is packed with dir/artifacts, dir/root and dir/mlx, or
 * of a plain one (config.json). ERR_IO: `dir` cannot be searched or is none of them. */
int layout_find(struct layout *l, const char *dir, struct moeflux_err *e);
void layout_free(struct layout *l);

#endif
