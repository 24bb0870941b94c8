/* gguf_vocab.h - makes tokenizer.json and tokenizer_config.json (text/tokenizer/tokenizer.h) from a GGUF
 * file.
 *
 * tokenizer.ggml.model is gpt2 (byte-level BPE: the vocabulary, its merges, and the splitting of texts that
 * tokenizer.ggml.pre names), gemma4 (SentencePiece's BPE with merges) or llama (the same with scores). */
#ifndef MOEFLUX_TEXT_TOKENIZER_GGUF_VOCAB_H
#define MOEFLUX_TEXT_TOKENIZER_GGUF_VOCAB_H

#include "base/str.h"

struct gguf;
struct moeflux_err;

/* Append the file's text to `out`. ERR_FORMAT: a list is missing, or lists differ in length. ERR_UNSUPPORTED:
 * another kind of tokenizer, or an unknown tokenizer.ggml.pre; the message lists the known ones. */
int gguf_vocab_tokenizer(const struct gguf *g, struct str *out, struct moeflux_err *e);
int gguf_vocab_config(const struct gguf *g, struct str *out, struct moeflux_err *e);
/* Appends the chat template; nothing if the file has none. */
int gguf_vocab_template(const struct gguf *g, struct str *out, struct moeflux_err *e);

#endif
