/* vocab.h - token ids, the bytes they stand for, and the way back. A part of the tokenizer.
 *
 * Byte-level BPE writes every byte as one visible character (space = U+0120). A token whose characters all
 * belong to that alphabet stands for those bytes; any other token stands for its own UTF-8. */
#ifndef MOEFLUX_TEXT_TOKENIZER_VOCAB_H
#define MOEFLUX_TEXT_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct moeflux_err;

/* Ids are array indices: this bounds what a file can make us allocate. The largest vocabularies have 0.3 M.
 * */
#define VOCAB_MAX_IDS (1 << 22)

struct vocab_token {
    uint32_t off, len; /* in vocab.bytes */
    bool present;      /* some token has this id */
    bool is_bytes;     /* written in the byte alphabet */
    bool added;        /* from added_tokens */
    bool special;
};

struct vocab {
    struct vocab_token *tokens; /* [n_ids] */
    int32_t n_ids;
    struct str bytes;
    uint32_t *table; /* [mask + 1] id + 1 or 0; open addressing over the model's own tokens */
    size_t mask;
};

/* Room for ids below n_ids (at most VOCAB_MAX_IDS) and n_tokens entries that can be found. */
int vocab_init(struct vocab *v, int32_t n_ids, size_t n_tokens, struct moeflux_err *e);
void vocab_free(struct vocab *v);

/* Gives `id` (in range) its text as the file writes it. `findable`: a token of the model, not an added one.
 * ERR_FORMAT when the id has a token or the findable text an id already. At most n_tokens findable ones. */
int vocab_add(struct vocab *v, int32_t id, const char *text, size_t len, bool findable,
              struct moeflux_err *e);

/* The same for a findable token that is given by the bytes it stands for. */
int vocab_add_bytes(struct vocab *v, int32_t id, const char *bytes, size_t len, struct moeflux_err *e);

/* The id of a token as the file writes it, or -1. `scratch` is overwritten. */
int32_t vocab_find(const struct vocab *v, const char *text, size_t len, struct str *scratch);

/* The id of the token in the byte alphabet that stands for these bytes, or -1. */
int32_t vocab_find_bytes(const struct vocab *v, const char *bytes, size_t len);

#endif
