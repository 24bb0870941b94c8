/* tokenizer.h - text to token ids and back, as a model's tokenizer.json or tiktoken.model says.
 *
 * encode: cut at added tokens -> normalise (NFC) -> split (the file's own patterns, PCRE2) -> byte-level BPE.
 * decode: the bytes of the tokens in a row. Spec: the file format of Hugging Face tokenizers, the parts that
 * byte-level BPE models use; whatever else the file asks for is refused, never ignored. A tokenizer is
 * read-only after tokenizer_open and tokenizer_set_progress: any number of threads may use it. */
#ifndef MOEFLUX_TEXT_TOKENIZER_TOKENIZER_H
#define MOEFLUX_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;
struct moeflux_err;
struct moeflux_progress;
struct tokenizer;

struct token_list { /* grows; freed with token_list_free */
    int32_t *ids;
    size_t n, cap;
};
int token_list_add(struct token_list *l, int32_t id, struct moeflux_err *e);
void token_list_free(struct token_list *l);

/* Reads `path` (a tokenizer.json, or a vocabulary in tiktoken's form: *.model, *.tiktoken) and what stands
 * beside it (tokenizer_config.json, chat_template.jinja). NULL with `e` filled: ERR_IO, ERR_FORMAT (what is
 * wrong and where), ERR_UNSUPPORTED (a kind of tokenizer that is not byte-level BPE), ERR_MEMORY. */
struct tokenizer *tokenizer_open(const char *path, struct moeflux_err *e);
void tokenizer_free(struct tokenizer *t);

/* How added tokens ("<|im_start|>") inside the text are taken. */
enum token_specials { SPECIALS_AS_TEXT, SPECIALS_AS_TOKENS };

/* Whom tokenizer_encode asks whether to go on, at least every few milliseconds, by whatever thread encodes.
 * */
void tokenizer_set_progress(struct tokenizer *t, const struct moeflux_progress *p);

/* Appends the ids of `text` (`len` bytes) to `out`. Invalid UTF-8 is replaced by U+FFFD; *n_replaced (may be
 * NULL) is increased by the number of replacements. A text of any length costs O(n log n): where the model's
 * patterns would need more it is refused (ERR_UNSUPPORTED names the pattern and the place). ERR_INTERRUPTED,
 * ERR_MEMORY. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, enum token_specials specials,
                     struct token_list *out, size_t *n_replaced, struct moeflux_err *e);

/* The bytes that stand for `id`: *bytes and its length. Empty for an id without a token (padded
 * vocabularies). Borrowed from the tokenizer. */
size_t tokenizer_bytes(const struct tokenizer *t, int32_t id, const char **bytes);

/* Whether `id` stands for anything: an id that has no token is never sampled. */
bool tokenizer_has(const struct tokenizer *t, int32_t id);

/* Whether `id` is an added token that is marked special (control tokens, not shown to a user). */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* Whether `id` is an added token, special or not: a control token or a tag, which no text is made of. */
bool tokenizer_is_added(const struct tokenizer *t, int32_t id);

/* The id of an added token by its content, or -1. */
int32_t tokenizer_added_id(const struct tokenizer *t, const char *content);

/* The id that the model's files put before every text, or -1. tokenizer_encode does not add it: a text may be
 * a part. */
int32_t tokenizer_bos(const struct tokenizer *t);

/* The first added token in text[from..len) that does not reach past `to`, special or not: 1 and its id and
 * place, or 0 with *start = *end = to. ERR_UNSUPPORTED, ERR_INTERRUPTED. */
int tokenizer_next_added(const struct tokenizer *t, const char *text, size_t from, size_t to, int32_t *id,
                         size_t *start, size_t *end, struct moeflux_err *e);

/* The chat template as the model's files have it (a Jinja program), or NULL. Borrowed. */
const char *tokenizer_chat_template(const struct tokenizer *t);
/* The one for prompts with tools, where the files have it apart ("tool_use"), or NULL. */
const char *tokenizer_tool_template(const struct tokenizer *t);
/* bos_token, eos_token and others, name to text, as the files have them. Borrowed. */
const struct json_t *tokenizer_special_texts(const struct tokenizer *t);

/* One more than the largest id that has a token. */
int32_t tokenizer_n_ids(const struct tokenizer *t);

#endif
