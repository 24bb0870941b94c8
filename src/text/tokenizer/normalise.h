/* normalise.h - what becomes of a text before it is split. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_NORMALISE_H
#define MOEFLUX_TEXT_TOKENIZER_NORMALISE_H

#include <stdbool.h>
#include <stddef.h>

struct moeflux_err;
struct str;

struct normaliser {
    bool nfc;          /* Unicode's normalisation form C */
    bool space_prefix; /* a text that is not empty gets a space in front */
    bool marks_spaces; /* every space becomes VOCAB_SPACE */
};

/* Appends the normalised form of `text` (valid UTF-8) to `out`. Takes linear time. ERR_MEMORY. */
int normalise_add(const struct normaliser *n, const char *text, size_t len, struct str *out,
                  struct moeflux_err *e);

#endif
