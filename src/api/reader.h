/* reader.h - what bodies and lines are read with: the tokenizer and chat template of a chat, and the values
 * of fields that they do not have. The models of the chat may be lost and replaced meanwhile. */
#ifndef MOEFLUX_API_READER_H
#define MOEFLUX_API_READER_H

#include <stdint.h>

#include "api/api_request.h"
#include "moeflux_chat.h"

struct generator;
struct json_t;

struct api_reader {              /* zeroed at first; freed with api_reader_close */
    struct generator *generator; /* the chat's, without its models */
    struct request how;          /* the request of api_reader_open, read */
    struct api_request_defaults defaults;
    struct moeflux_model_info info; /* its strings are the chat's */
    uint32_t max_context;           /* tokens of a sequence */
    uint64_t most_prompt_bytes;     /* a longer text has more tokens */
};

/* Makes a reader for sequences of `context` tokens (0: as struct moeflux_pool_options). The chat must outlive
 * it. asked: has the fields that bodies do not have. progress: asked while texts are encoded, on any thread;
 * NULL: the model's own. ERR_USAGE: the context is larger than the model's. ERR_FORMAT, ERR_UNSUPPORTED: a
 * field. ERR_MEMORY. */
int api_reader_open(struct api_reader *r, struct moeflux_chat *chat, const struct moeflux_request *asked,
                    uint32_t context, const struct moeflux_progress *progress, struct moeflux_err *e);
void api_reader_close(struct api_reader *r);

/* Returns an object with the texts of bos_token and eos_token, those that the tokenizer has. Borrowed. */
struct json_t *api_reader_special_texts(const struct api_reader *r);

#endif
