/* vocab.h - token ids to bytes, and bytes to token ids. A part of the tokenizer.
 *
 * Byte-level BPE writes every byte as one visible character (space = U+0120). A token whose characters all
 * belong to that alphabet stands for those bytes; any other token stands for its own UTF-8.
 *
 * SentencePiece writes a space as U+2581, and a byte as <0x0A>. Any other token stands for its own UTF-8. */
#ifndef MOEFLUX_TEXT_TOKENIZER_VOCAB_H
#define MOEFLUX_TEXT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_err;

/* Ids are array indices, so this bounds what a file can make us allocate. The largest vocabularies have 0.3
 * M. */
#define VOCAB_MAX_IDS (1 << 22)

struct vocab_token {
    uint32_t off, len; /* bytes; offset and length in vocab.bytes */
    bool present;      /* some token has this id */
    bool is_bytes;     /* written in the byte alphabet, or as <0x0A> */
    bool added;        /* listed in added_tokens */
    bool special;
};

/* How tokens are written in the file. */
enum vocab_writing { VOCAB_BYTE_LEVEL, VOCAB_SENTENCEPIECE };

#define VOCAB_SPACE "\xe2\x96\x81" /* U+2581 */

struct vocab {
    enum vocab_writing writing;
    struct vocab_token *tokens; /* [n_ids] */
    int32_t n_ids;
    struct str bytes;
    uint32_t *table; /* [mask + 1] id + 1, or 0; open addressing over the findable tokens */
    size_t mask;
};

/* Makes room for ids below n_ids (at most VOCAB_MAX_IDS) and for n_tokens findable tokens. Keeps v->writing.
 * ERR_MEMORY. */
int vocab_init(struct vocab *v, int32_t n_ids, size_t n_tokens, struct moeflux_err *e);
void vocab_free(struct vocab *v);

/* Gives `id` (in range) its text as the file writes it. findable: vocab_find finds it (a token of the model,
 * not an added one; at most n_tokens). ERR_FORMAT: the id has a token already, or the findable text has an
 * id. */
int vocab_add(struct vocab *v, int32_t id, const char *text, size_t len, bool findable,
              struct moeflux_err *e);

/* Adds a findable token by the bytes it stands for. Errors as vocab_add. */
int vocab_add_bytes(struct vocab *v, int32_t id, const char *bytes, size_t len, struct moeflux_err *e);

/* Returns the id of a token by its text in the file, or -1. Overwrites `scratch`. */
int32_t vocab_find(const struct vocab *v, const char *text, size_t len, struct str *scratch);

/* Returns the id of the token, written in the byte alphabet or as <0x0A>, that stands for these bytes, or
 * -1. */
int32_t vocab_find_bytes(const struct vocab *v, const char *bytes, size_t len);

/* Returns the id of the token that stands for these bytes as its own UTF-8, or -1. */
int32_t vocab_find_text(const struct vocab *v, const char *bytes, size_t len);

#endif
