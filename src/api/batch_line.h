/* batch_line.h - a line of a batch, and its result. A line has moeflux's own form, the fields of
 * moeflux-batch(5), or OpenAI's:
 *
 *   {"custom_id", "method": "POST", "url": "/v1/chat/completions" or "/v1/completions",
 *    "body": the body of such an HTTP request}
 *   {"id", "custom_id", "response": {"status_code", "request_id", "body": the body of the reply},
 *    "error": null}
 *
 * A wrong body has the reply and the status that the server would send. A line without a valid body has
 * "response": null and "error": {"code", "message", "line"}. */
#ifndef MOEFLUX_API_BATCH_LINE_H
#define MOEFLUX_API_BATCH_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/api_request.h"
#include "api/refusal.h"

struct api_reader;
struct json_t;
struct moeflux_err;
struct reply;

/* What lines are read with. */
struct batch_reader {
    const struct api_reader *reader;
    const char *model;  /* name in answers of OpenAI's form; borrowed */
    uint64_t base_seed; /* seed of line n without one: base_seed + n - 1 */
    size_t max_bytes;   /* the longest line */
    bool as_openai;     /* the form of the last line that could be parsed; one that cannot be takes it */
};

struct batch_line {           /* zeroed at first; freed with batch_line_free */
    uint64_t line;            /* number of the line, from 1 */
    char *key;                /* identifies the result (json_id_key) */
    bool has_id;              /* the key comes from an id, not from the line's number */
    bool is_openai;           /* OpenAI's form: the members from custom_id on; else `own` */
    const char *skipped_tool; /* type of the first tool that is left out, borrowed; NULL: none */

    struct moeflux_request *own;

    struct json_t *custom_id; /* a string; NULL: the line has none */
    struct api_request request;
    struct reply *reply;
    struct refusal refusal; /* why the body is refused */
};

/* Reads a line. text NULL: it had more than from->max_bytes. A line of OpenAI's form gets its tokens here.
 * ERR_FORMAT, ERR_USAGE: the line is refused, with a text that names it; key is set even then. ERR_MEMORY,
 * ERR_IO. */
int batch_line_read(struct batch_line *b, struct batch_reader *from, const char *text, size_t len,
                    uint64_t line, struct moeflux_err *e);
/* Makes the tokens of a line of the own form. ERR_USAGE: more than the context holds; else as
 * moeflux_chat_encode. */
int batch_line_encode(struct batch_line *b, const struct batch_reader *from, struct moeflux_err *e);

/* Returns whether the chat template leaves the line's tools out, after batch_line_encode. */
bool batch_line_hides_tools(const struct batch_line *b);

/* Returns the requests that the line makes, *n >= 1 of them, after batch_line_encode. Borrowed. */
struct moeflux_request *const *batch_line_requests(const struct batch_line *b, uint32_t *n);
/* Returns the tokens of the first one's prompt. */
size_t batch_line_n_tokens(const struct batch_line *b);
/* Returns the id of a line of the own form, borrowed; NULL: it has none. */
struct json_t *batch_line_id(const struct batch_line *b);

/* Return the result of OpenAI's form as one line without newline, freed with free(); NULL: no memory.
 * _answer: once all choices are done, the reply or b->refusal. _error: a line without a valid body. */
char *batch_line_answer(const struct batch_line *b);
char *batch_line_error(const struct batch_line *b, const char *text);

/* Recognises such a result. Returns its custom_id, or JSON's null with *line set; borrowed. *failed: it is an
 * error. NULL: the object is no result. */
struct json_t *batch_line_result(const struct json_t *object, uint64_t *line, bool *failed);

void batch_line_free(struct batch_line *b);

#endif
