/* item.h - one line of --batch and its result, in moeflux's own form (generate/request.h) or in OpenAI's
 * (api/batch_line.h). */
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

/* Values for what a line leaves open. */
struct batch_defaults {
    struct request_options options;
    const char *model;  /* name in answers of OpenAI's form */
    uint64_t base_seed; /* seed of line n without one: base_seed + n - 1 */
};

/* allocated by batch_item_read; freed with batch_item_free */
struct batch_item {
    uint64_t line;  /* line number, the first is 1 */
    char *key;      /* identifies the result (request_key) */
    bool has_id;    /* the key comes from an id, not from the line's number */
    bool is_openai; /* OpenAI's form: `openai`; else `own` */
    struct request own;
    struct batch_line openai;
};

/* Reads a line. text NULL: the line had more than max_bytes. *as_openai: the form of the last line that could
 * be parsed, which one that cannot be parsed takes; it is updated. A line of OpenAI's form gets its tokens
 * here. ERR_FORMAT, ERR_USAGE: the line is refused; *out is an item all the same, for batch_item_refused.
 * ERR_MEMORY. */
int batch_item_read(struct batch_item **out, const char *text, size_t len, uint64_t line, size_t max_bytes,
                    const struct generator *g, const struct batch_defaults *defaults, bool *as_openai,
                    struct moeflux_err *e);

/* Makes the tokens of a line of our form. ERR_USAGE: more than the context holds; else as request_encode. */
int batch_item_encode(struct batch_item *b, struct generator *g, struct moeflux_err *e);

/* How many answers the line wants, and the request of each. *choice: NULL for a line of our form. */
uint32_t batch_item_n_choices(const struct batch_item *b);
const struct request *batch_item_request(const struct batch_item *b, uint32_t idx, struct choice **choice);

/* Return the result as one line without its end, from malloc; NULL: no memory. */
char *batch_item_answer(const struct batch_item *b, const struct generator *g, const struct answer *a,
                        const struct stats *st);
char *batch_item_refused(struct batch_item *b, int rc, const struct moeflux_err *e);

/* NULL is legal. */
void batch_item_free(struct batch_item *b);

#endif
