/* file.h - reads tokenizer.json into the parts of a tokenizer. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_FILE_H
#define MOEFLUX_TEXT_TOKENIZER_FILE_H

#include <stdbool.h>

#include "base/progress.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/normalise.h"
#include "text/tokenizer/pretokenize.h"
#include "text/tokenizer/vocab.h"

struct moeflux_err;

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    int32_t byte_ids[256]; /* the token that stands for one byte; -1: none */
    /* SentencePiece: [b] some token has a space after the byte b. After other bytes merging can stop. */
    bool joins_space[256];
    bool ignore_merges; /* a piece that is a token becomes that token without merging */
    struct normaliser normaliser;
    int32_t bos;                  /* id of the token before every text; -1: none */
    char *chat_template;          /* Jinja source; NULL: the directory has none */
    char *tool_template;          /* Jinja source for prompts with tools; NULL: none */
    struct json_t *variables;     /* object: more variables of the chat template; NULL: none */
    struct json_t *special_texts; /* object: the texts of bos_token, eos_token and others, by name */
    struct pretokenizer pretokenizer;
    struct moeflux_progress progress; /* called while a text is encoded; may stop it */
    struct added added;               /* all added tokens, by their content in the file */
    struct added added_raw;           /* those looked for in the raw text */
    struct added added_normalised;    /* those looked for in normalised text; normalised themselves */
};

/* Fills the zeroed `t`. After a failure it is partly filled and may be passed to tokenizer_free. Errors as
 * tokenizer_open; each names `path`. */
int tokenizer_file_read(const char *path, struct tokenizer *t, struct moeflux_err *e);
/* Does the same with the file's text. */
int tokenizer_file_read_text(const char *path, const char *text, size_t len, struct tokenizer *t,
                             struct moeflux_err *e);

#endif
