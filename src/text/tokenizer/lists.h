/* lists.h - the lists of tokenizer.json: vocabulary, added tokens, merges. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_LISTS_H
#define MOEFLUX_TEXT_TOKENIZER_LISTS_H

#include "text/tokenizer/jsonscan.h"

struct moeflux_err;
struct tokenizer;

struct tokenizer_lists {
    struct jsonscan vocab;  /* the whole object model.vocab, valid UTF-8 */
    struct jsonscan merges; /* the whole array model.merges, valid UTF-8 */
    struct jsonscan added;  /* the whole array added_tokens, valid UTF-8; text NULL: absent */
};

/* Fills t->vocab, t->bpe and the added tokens. t->normaliser and t->vocab.writing must be set. ERR_FORMAT,
 * ERR_UNSUPPORTED, ERR_MEMORY; the message names the list and the entry. */
int tokenizer_lists_read(const struct tokenizer_lists *lists, struct tokenizer *t, struct moeflux_err *e);

#endif
