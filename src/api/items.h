/* items.h - an answer as a list of items, as responses and messages have it: thinking, texts and calls, each
 * complete before the next one begins. */
#ifndef MOEFLUX_API_ITEMS_H
#define MOEFLUX_API_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_piece;

enum item_kind { ITEM_THINKING, ITEM_TEXT, ITEM_CALL };

struct item {
    enum item_kind kind;
    struct str text;    /* a call's are its arguments */
    struct str name;    /* the called function's */
    struct str call_id; /* the call's */
    bool failed;        /* it is no call after all; its bytes follow as text */
};

/* What happens to item `idx`. */
struct item_sink {
    void (*begins)(void *ctx, size_t idx);
    void (*grows)(void *ctx, size_t idx, const char *text, size_t len);
    void (*ends)(void *ctx, size_t idx);
    void *ctx;
};

struct items {         /* zeroed at first; freed with items_free */
    struct item *list; /* [n] */
    size_t n, cap;
    bool is_open;     /* the last one is not complete */
    bool failed;      /* out of memory: items are missing */
    struct str blank; /* white space that begins a text; it counts once something follows it */
    enum item_kind blank_kind;
    uint32_t n_thinking; /* tokens of thinking */
};

/* Takes a piece of the answer. sink: NULL: nobody is interested. */
void items_take(struct items *l, const struct moeflux_piece *p, const struct item_sink *sink);
/* Ends the last item. */
void items_end(struct items *l, const struct item_sink *sink);
void items_free(struct items *l);

#endif
