/* item.h - a line of --batch in either form, ours (generate/request.h) or OpenAI's (api/batch_line.h), and
 * its result. */
#ifndef MOEFLUX_CLI_BATCH_ITEM_H
#define MOEFLUX_CLI_BATCH_ITEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/batch_line.h"
#include "generate/request.h"

struct answer;
struct choice;
struct generator;
struct moeflux_err;
struct stats;

/* What a line says nothing about. */
struct batch_defaults {
    struct request_options options;
    const char *model;  /* its name in answers of OpenAI's form */
    uint64_t base_seed; /* of requests that have none: this and the number of the line */
};

struct batch_item { /* from malloc; freed with batch_item_free */
    uint64_t line;
    char *key;      /* request_key, of either form */
    bool has_id;    /* the key is of an id */
    bool is_openai; /* the line is `openai`; else it is `own` */
    struct request own;
    struct batch_line openai;
};

/* Reads a line, text NULL: it had more than max_bytes. as_openai: what the lines before have shown, for one
 * that cannot be parsed; it is brought up to date. The item is there whenever *out is not NULL, also of a
 * line that is refused: ERR_FORMAT or ERR_USAGE, and batch_item_refused has the result. Tokens are not made
 * yet. ERR_MEMORY. */
int batch_item_read(struct batch_item **out, const char *text, size_t len, uint64_t line, size_t max_bytes,
                    const struct generator *g, const struct batch_defaults *defaults, bool *as_openai,
                    struct moeflux_err *e);

/* Makes the tokens, and compares their number with the context. As request_encode. */
int batch_item_encode(struct batch_item *b, struct generator *g, struct moeflux_err *e);

/* Returns how many choices a line asks for, and the request of one. *choice: NULL for a line of our form. */
uint32_t batch_item_n_choices(const struct batch_item *b);
const struct request *batch_item_request(const struct batch_item *b, uint32_t idx, struct choice **choice);

/* Results, one line each without its end, from malloc; NULL without memory. */
char *batch_item_answer(const struct batch_item *b, const struct generator *g, const struct answer *a,
                        const struct stats *st);
char *batch_item_refused(struct batch_item *b, int rc, const struct moeflux_err *e);

/* NULL is legal. */
void batch_item_free(struct batch_item *b);

#endif
