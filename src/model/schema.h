/* schema.h - lists the tensors that a configuration needs, except the routed experts. */
#ifndef MOEFLUX_MODEL_SCHEMA_H
#define MOEFLUX_MODEL_SCHEMA_H

#include "model/config.h"

enum { SCHEMA_NAME = 80 };

struct schema_item {
    char name[SCHEMA_NAME]; /* a matrix's base name, or a vector's whole name */
    uint32_t rows;          /* 0: a vector of `cols` elements */
    uint32_t cols;
    bool is_ids; /* whole numbers, experts by token */
};

struct schema {
    struct schema_item *items; /* owned */
    size_t n, cap;
};

/* Builds the list. ERR_MEMORY. */
int schema_build(struct schema *s, const struct config *c, struct moeflux_err *e);
/* Returns whether an item has this tensor: a vector, or the .weight of a matrix. */
bool schema_has(const struct schema *s, const char *tensor);
void schema_free(struct schema *s);

#endif
