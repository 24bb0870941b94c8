/* config.h - reads the token that starts a text, and the chat template, from the files next to
 * tokenizer.json. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_CONFIG_H
#define MOEFLUX_TEXT_TOKENIZER_CONFIG_H

#include <jansson.h>
#include <stdbool.h>

struct moeflux_err;
struct tokenizer;

/* Reads the post_processor of a tokenizer.json, which may put one token before a text (t->bos).
 * ERR_UNSUPPORTED: it does anything else. */
int tokenizer_config_post(struct tokenizer *t, const json_t *root, struct moeflux_err *e);

/* Reads the file `name` from the directory of `path`. *where: its path, owned by the caller. *text, *len: its
 * content, owned by the caller; *text stays NULL if there is no such file. ERR_IO, ERR_MEMORY. */
int tokenizer_config_sibling(const char *path, const char *name, char **where, char **text, size_t *len,
                             struct moeflux_err *e);

/* Reads tokenizer_config.json, chat_template.jinja and additional_chat_templates/tool_use.jinja from the
 * directory of `path`, if they exist. The first one's add_bos_token and bos_token override the
 * post_processor. `t` must have its tokens already. */
int tokenizer_config_read(struct tokenizer *t, const char *path, struct moeflux_err *e);
/* Does the same with the text of a tokenizer_config.json; `where` is for messages. */
int tokenizer_config_read_text(struct tokenizer *t, const char *text, size_t len, const char *where,
                               struct moeflux_err *e);

#endif
