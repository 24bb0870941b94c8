/* file.h - reads tokenizer.json into the parts of a tokenizer. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_FILE_H
#define MOEFLUX_TEXT_TOKENIZER_FILE_H

#include <stdbool.h>

#include "base/progress.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/vocab.h"

struct moeflux_err;

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool nfc;
    int32_t bos;                  /* put before a text; -1: none */
    char *chat_template;          /* the file's own text; NULL: the directory has none */
    char *tool_template;          /* NULL: none for prompts with tools */
    struct json_t *special_texts; /* an object: bos_token and so on */
    struct pretokenizer pretokenizer;
    struct moeflux_progress progress; /* asked while a text is encoded */
    struct added added;               /* every added token by the file's own content */
    struct added added_raw;           /* what is looked for in the raw text */
    struct added added_normalised;    /* what is looked for in normalised text, itself normalised */
};

/* Fills the zeroed `t`. On failure it is partly filled: tokenizer_free takes it as it is. Errors as
 * tokenizer_open; each names `path`. */
int tokenizer_file_read(const char *path, struct tokenizer *t, struct moeflux_err *e);

#endif
