/* tokenizer.h - text to token ids and back, by a model's tokenizer.json, tiktoken.model or GGUF file.
 *
 * encode: cut at added tokens -> normalise (normalise.h) -> split (the file's own patterns, PCRE2) -> BPE.
 * decode: concatenate the tokens' bytes.
 *
 * Implements the parts of Hugging Face tokenizers' file format that byte-level BPE models use, and those of
 * SentencePiece's BPE with byte fallback; anything else in a file is refused, never ignored. A
 * tokenizer is read-only after tokenizer_open and the setters, so any number of threads may use
 * it. */
#ifndef MOEFLUX_TEXT_TOKENIZER_TOKENIZER_H
#define MOEFLUX_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/token_list.h"

struct json_t;
struct moeflux_err;
struct moeflux_progress;
struct tokenizer;

/* Reads `path` (a tokenizer.json, or a vocabulary in tiktoken's format: *.model, *.tiktoken), and
 * tokenizer_config.json and chat_template.jinja from its directory; or a GGUF file, which has all of these.
 * Returns NULL with `e` filled: ERR_IO, ERR_FORMAT (what is wrong and where), ERR_UNSUPPORTED (another kind
 * of tokenizer), ERR_MEMORY. */
struct tokenizer *tokenizer_open(const char *path, struct moeflux_err *e);
void tokenizer_free(struct tokenizer *t);

/* How added tokens ("<|im_start|>") inside the text are encoded. */
enum token_specials { SPECIALS_AS_TEXT, SPECIALS_AS_TOKENS };

/* Sets the callback that tokenizer_encode calls at least every few milliseconds, on the encoding thread. It
 * may stop the encoding. */
void tokenizer_set_progress(struct tokenizer *t, const struct moeflux_progress *p);

/* The chat templates of a model. */
struct tokenizer_templates {
    char *chat, *tools;       /* Jinja source, from malloc; NULL: none */
    struct json_t *variables; /* object: more variables of the template; NULL: none */
};
/* Exchanges the tokenizer's templates and these ones. */
void tokenizer_swap_templates(struct tokenizer *t, struct tokenizer_templates *with);
void tokenizer_free_templates(struct tokenizer_templates *of);

/* Appends the ids of `text` (`len` bytes) to `out`. Invalid UTF-8 is replaced by U+FFFD; *n_replaced (may be
 * NULL) is increased by the number of replacements. Takes O(n log n) time. ERR_UNSUPPORTED: a pattern of the
 * model would need more time; the message names it and the place. ERR_INTERRUPTED, ERR_MEMORY. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, enum token_specials specials,
                     struct token_list *out, size_t *n_replaced, struct moeflux_err *e);

/* Encodes a whole prompt: appends to the empty `out` tokenizer_bos and the ids of the text, unless they begin
 * with it. Other arguments and errors are those of tokenizer_encode. */
int tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len,
                            enum token_specials specials, struct token_list *out, size_t *n_replaced,
                            struct moeflux_err *e);

/* Sets *bytes to the bytes of token `id` and returns their number: 0 if the id has no token (padded
 * vocabularies). Borrowed from the tokenizer. */
size_t tokenizer_bytes(const struct tokenizer *t, int32_t id, const char **bytes);

/* Returns whether `id` has a token. An id without one is never sampled. */
bool tokenizer_has(const struct tokenizer *t, int32_t id);

/* Returns whether `id` is an added token that is marked special (a control token, not shown to the user). */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* Returns whether `id` is an added token, special or not: a control token or a tag,
 * never part of plain text. */
bool tokenizer_is_added(const struct tokenizer *t, int32_t id);

/* Returns the id of an added token by its content, or -1. */
int32_t tokenizer_added_id(const struct tokenizer *t, const char *content);

/* Returns the id that the model's files put before every text, or -1. tokenizer_encode does not add it, since
 * its text may be a part of a longer one. */
int32_t tokenizer_bos(const struct tokenizer *t);

/* Finds the first added token in text[from..to), special or not. Returns 1 with its id and place, or 0 with
 * *start = *end = to. ERR_UNSUPPORTED, ERR_INTERRUPTED. */
int tokenizer_next_added(const struct tokenizer *t, const char *text, size_t from, size_t to, int32_t *id,
                         size_t *start, size_t *end, struct moeflux_err *e);

/* Returns the chat template of the model's files (Jinja source), or NULL. Borrowed. */
const char *tokenizer_chat_template(const struct tokenizer *t);
/* Returns the separate template for prompts with tools ("tool_use"), or NULL. Borrowed. */
const char *tokenizer_tool_template(const struct tokenizer *t);
/* Returns an object with the texts of bos_token, eos_token and others, by name. Borrowed. */
const struct json_t *tokenizer_special_texts(const struct tokenizer *t);

/* Returns the variables of the templates, or NULL. Borrowed. */
const struct json_t *tokenizer_variables(const struct tokenizer *t);

/* Returns the most bytes of text that n tokens can stand for. */
uint64_t tokenizer_most_bytes(const struct tokenizer *t, uint32_t n);

/* Returns the largest id that has a token, plus 1. */
int32_t tokenizer_n_ids(const struct tokenizer *t);

#endif
