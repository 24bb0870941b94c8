/* token_list.h - a growing list of token ids. */
#ifndef MOEFLUX_BASE_TOKEN_LIST_H
#define MOEFLUX_BASE_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

struct token_list { /* zeroed at first; freed with token_list_free */
    int32_t *ids;   /* [n] */
    size_t n, cap;
};
/* ERR_MEMORY. */
int token_list_add(struct token_list *l, int32_t id, struct moeflux_err *e);
/* Makes room for n ids, which the caller writes. ERR_MEMORY. */
int token_list_resize(struct token_list *l, size_t n, struct moeflux_err *e);
void token_list_free(struct token_list *l);

#endif
