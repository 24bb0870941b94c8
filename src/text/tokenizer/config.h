/* config.h - what the files beside tokenizer.json say: which token starts a text, the chat template's source.
 * A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_CONFIG_H
#define MOEFLUX_TEXT_TOKENIZER_CONFIG_H

#include <jansson.h>
#include <stdbool.h>

struct moeflux_err;
struct tokenizer;

/* Reads the post_processor of a tokenizer.json: a template may put one token before a text (t->bos).
 * ERR_UNSUPPORTED: it asks for something else. */
int tokenizer_config_post(struct tokenizer *t, const json_t *root, struct moeflux_err *e);

/* Reads file `name` of the directory in which `path` lies. *where: its path, owned by the caller; *text stays
 * NULL when there is no such file, else it and its *len are the caller's. ERR_IO, ERR_MEMORY. */
int tokenizer_config_beside(const char *path, const char *name, char **where, char **text, size_t *len,
                            struct moeflux_err *e);

/* Reads tokenizer_config.json (add_bos_token with bos_token, which wins over the post_processor;
 * chat_template) and chat_template.jinja in the directory of `path`, where they are there. `t` has its tokens
 * already. */
int tokenizer_config_read(struct tokenizer *t, const char *path, struct moeflux_err *e);

#endif
