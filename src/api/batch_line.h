/* batch_line.h - a line of a batch in OpenAI's form, and its result:
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

struct generator;
struct json_t;
struct moeflux_err;
struct reply;

struct batch_line {           /* zeroed at first; freed with batch_line_free */
    uint64_t line;            /* number of the line, from 1 */
    struct json_t *custom_id; /* a string; NULL: the line has none */
    struct api_request request;
    struct reply *reply;
    struct refusal refusal; /* why the body is refused */
};

/* Returns the object of a line in this form, owned by the caller. NULL: the line has another form, or is not
 * JSON. */
struct json_t *batch_line_parse(const char *text, size_t len);

/* Reads the object of batch_line_parse. model: its name, borrowed. ERR_FORMAT with a text that names the
 * line, or ERR_USAGE with b->refusal filled; custom_id is set even then if the line has one. ERR_MEMORY,
 * ERR_IO. */
int batch_line_read(struct batch_line *b, const struct json_t *root, uint64_t line, const char *model,
                    const struct generator *g, const struct api_request_defaults *defaults,
                    struct moeflux_err *e);

/* Return the result as one line without newline, freed with free(); NULL: no memory. _answer: once all
 * choices are done, the reply or b->refusal. _error: a line without a valid body. */
char *batch_line_answer(const struct batch_line *b);
char *batch_line_error(const struct batch_line *b, const char *text);

/* Recognises such a result. Returns its custom_id, or JSON's null with *line set; borrowed. *failed: it is an
 * error. NULL: the object is no result. */
struct json_t *batch_line_result(const struct json_t *object, uint64_t *line, bool *failed);

void batch_line_free(struct batch_line *b);

#endif
