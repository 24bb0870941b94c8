/* tokenizer_build.h - small tokenizer.json files made by a test. */
#ifndef MOEFLUX_TESTS_TOKENIZER_BUILD_H
#define MOEFLUX_TESTS_TOKENIZER_BUILD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct tokenizer;

/* A complete file as a tree: the 256 bytes as ids 0..255, the merges "a b" -> "ab" (256) and "ab c" -> "abc"
 * (257), the added special token "<end>" (258), NFC, the Split pattern \s+|\S+ and ByteLevel. Change it, then
 * open it. */
json_t *tokenizer_build(void);

/* Adds `text` (bytes, not the byte alphabet) to the vocabulary. */
void tokenizer_build_token(json_t *root, const char *text, size_t len, int32_t id);
/* Appends a merge of two byte texts; the parts and the result must be tokens. */
void tokenizer_build_merge(json_t *root, const char *left, const char *right);
/* Appends an added token. */
void tokenizer_build_added(json_t *root, const char *content, int32_t id, bool normalised, bool special);
/* Replaces the Split steps by these regular expressions; ByteLevel stays last. */
void tokenizer_build_splits(json_t *root, const json_t *patterns);

/* Opens `text` or a tree as a file. The tree is released. */
struct tokenizer *tokenizer_build_open_text(const char *text, size_t len, struct moeflux_err *e);
struct tokenizer *tokenizer_build_open(json_t *root, struct moeflux_err *e);

#endif
