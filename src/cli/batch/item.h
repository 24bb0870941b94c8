/* item.h - one line of --batch (api/batch_line.h), its job and its result. */
#ifndef MOEFLUX_CLI_BATCH_ITEM_H
#define MOEFLUX_CLI_BATCH_ITEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/batch_line.h"
#include "moeflux_chat.h"

struct batch_times;

/* Tokens of prompts, those of them that had to be computed, and the time that took. */
struct batch_prompts {
    uint64_t n, n_computed, ns;
};

/* allocated by batch_item_read; freed with batch_item_free */
struct batch_item {
    struct batch_line line;
    const struct moeflux_tokenizer *tokenizer;
    struct batch_times *times;    /* the answers' times are added; borrowed; NULL: to none */
    struct moeflux_job *job;      /* NULL: none, or it was taken */
    struct batch_prompts prompts; /* sums over the job's answers */
    char *answer;                 /* what the job's callbacks made, from malloc; NULL: nothing */
    char *result;                 /* the line to write, from malloc; NULL: there is none yet */
    bool failed;                  /* the result is an error */
};

/* Reads a line (batch_line_read). ERR_FORMAT, ERR_USAGE: the line is refused; *out is an item all the same,
 * for batch_item_refused. ERR_MEMORY. */
int batch_item_read(struct batch_item **out, struct batch_reader *from, const char *text, size_t len,
                    uint64_t line, struct moeflux_err *e);

/* Makes the item's job, which fills `answer`. Errors: those of moeflux_job_new. */
int batch_item_new_job(struct batch_item *b, struct moeflux_pool *pool, struct moeflux_err *e);

/* Returns the result of a line that is refused, as one line without its end, from malloc; NULL: no memory. */
char *batch_item_refused(struct batch_item *b, int rc, const struct moeflux_err *e);

/* Sets the result, whose ownership it takes, and frees what it was made from. NULL: ERR_MEMORY. */
int batch_item_set_result(struct batch_item *b, char *line, struct moeflux_err *e);

/* NULL is legal. */
void batch_item_free(struct batch_item *b);

#endif
