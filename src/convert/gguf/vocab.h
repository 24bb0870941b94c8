/* vocab.h - the tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json, which
 * text/tokenizer/tokenizer.h reads.
 *
 * Byte-level BPE alone: the vocabulary, its merges, and how texts are split, which tokenizer.ggml.pre names.
 * */
#ifndef MOEFLUX_CONVERT_GGUF_VOCAB_H
#define MOEFLUX_CONVERT_GGUF_VOCAB_H

#include <stdbool.h>

#include "base/str.h"

struct gguf;
struct moeflux_err;

/* ERR_FORMAT: a list is missing, or they differ in length. ERR_UNSUPPORTED: another kind of tokenizer, or a
 * name that is not known; those that are are listed. */
int gguf_vocab_tokenizer(const struct gguf *g, struct str *out, struct moeflux_err *e);
int gguf_vocab_config(const struct gguf *g, struct str *out, struct moeflux_err *e);
/* Empty where the file has none. */
int gguf_vocab_template(const struct gguf *g, struct str *out, struct moeflux_err *e);
/* Whether the file has a tokenizer at all. */
bool gguf_vocab_is_there(const struct gguf *g);

#endif
