/* gguf_file.h - reads the tokenizer inside a GGUF file. A part of the tokenizer. */
#ifndef MOEFLUX_TEXT_TOKENIZER_GGUF_FILE_H
#define MOEFLUX_TEXT_TOKENIZER_GGUF_FILE_H

struct moeflux_err;
struct tokenizer;

/* Fills the zeroed `t`, with its first token and its chat template. On failure `t` is partly filled.
 * Errors as tokenizer_open. */
int tokenizer_gguf_read(const char *path, struct tokenizer *t, struct moeflux_err *e);

#endif
