/* batch_call.h - a line of a batch in OpenAI's form, and its result:
 *
 *   {"custom_id", "method": "POST", "url": "/v1/chat/completions" or "/v1/completions", "body": what the
 *   server takes} {"id", "custom_id", "response": {"status_code", "request_id", "body": what the server
 *   replies}, "error": null}
 *
 * A body at fault has the server's reply with its status. A line that names no body to answer has "response":
 * null and "error": {"code", "message", "line"}. */
#ifndef MOEFLUX_API_BATCH_CALL_H
#define MOEFLUX_API_BATCH_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/call.h"
#include "api/refusal.h"

struct completion;
struct generator;
struct json_t;
struct moeflux_err;

struct batch_call {           /* zeroed at first; freed with batch_call_free */
    uint64_t line;            /* from 1 */
    struct json_t *custom_id; /* a text; NULL: the line has none */
    struct call call;
    struct completion *completion;
    struct refusal no; /* of the body */
};

/* The object of a line in this form, the caller's. NULL: it has another one, or is no JSON. */
struct json_t *batch_call_parse(const char *text, size_t len);

/* Reads what batch_call_parse gave. model: its name, borrowed. ERR_FORMAT with a text that names the line, or
 * ERR_USAGE with b->no filled; custom_id is there all the same, where the line tells it. ERR_MEMORY, ERR_IO.
 * */
int batch_call_read(struct batch_call *b, const struct json_t *root, uint64_t line, const char *model,
                    const struct generator *g, const struct call_defaults *defaults, struct moeflux_err *e);

/* The results, as one line without its end, from malloc; NULL without memory. */
char *batch_call_answer(const struct batch_call *b); /* all asks are done: what they gave, or b->no */
char *batch_call_error(const struct batch_call *b, const char *text);

/* Whether an object is such a result: its custom_id, or JSON's null with *line; and whether it `failed`.
 * Borrowed; NULL: it is none. */
struct json_t *batch_call_result(const struct json_t *object, uint64_t *line, bool *failed);

void batch_call_free(struct batch_call *b);

#endif
