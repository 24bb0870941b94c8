/* item.h - one line of --batch and its result, in moeflux's own form (generate/request.h) or in OpenAI's
 * (api/batch_line.h). */
#ifndef MOEFLUX_CLI_BATCH_ITEM_H
#define MOEFLUX_CLI_BATCH_ITEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/batch_line.h"
#include "generate/jobs.h"

struct answer;
struct batch_times;
struct generator;
struct moeflux_err;

/* Values for what a line leaves open. */
struct batch_defaults {
    struct request_options options;
    const char *model; /* name in answers of OpenAI's form */
    const struct moeflux_tokenizer *tokenizer;
    uint64_t base_seed;        /* seed of line n without one: base_seed + n - 1 */
    struct batch_times *times; /* the answers' times are added; borrowed; NULL: to none */
};

/* allocated by batch_item_read; freed with batch_item_free */
struct batch_item {
    const struct moeflux_tokenizer *tokenizer;
    uint64_t line;  /* line number, the first is 1 */
    char *key;      /* identifies the result (json_id_key) */
    bool has_id;    /* the key comes from an id, not from the line's number */
    bool is_openai; /* OpenAI's form: `openai`; else `own` */
    struct choice own;
    struct batch_line openai;
    struct batch_times *times; /* batch_defaults.times */
    char *result;              /* the line to write, from malloc; NULL: the answers are not complete */
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

/* Returns the answers that the line wants, *n >= 1 of them, after batch_item_encode. */
struct choice *batch_item_choices(struct batch_item *b, uint32_t *n);

/* The functions of the item's job, whose owner is the item. They fill `result`. */
extern const struct job_calls batch_item_calls;

/* Returns the result of a line that is refused, as one line without its end, from malloc; NULL: no memory. */
char *batch_item_refused(struct batch_item *b, int rc, const struct moeflux_err *e);

/* NULL is legal. */
void batch_item_free(struct batch_item *b);

#endif
