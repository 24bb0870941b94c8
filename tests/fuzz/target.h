/* target.h - one function for each thing that is read from outside. It takes an input of any bytes, gives it
 * to the code that reads it and aborts where the answer is wrong: an error without its code or a text, a
 * result that its contract excludes. libFuzzer drives one of them in a program of its own (entry.c, `make
 * fuzz`), which sees crashes, undefined behaviour, leaks and the limits of time and memory that scripts/fuzz
 * sets; tests/unit/test_fuzz_seeds.c gives the committed inputs to all. */
#ifndef MOEFLUX_TESTS_FUZZ_TARGET_H
#define MOEFLUX_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

/* config.json */
void target_config(const uint8_t *data, size_t n);
/* the JSON header of a safetensors file; after '#' the whole file */
void target_safetensors(const uint8_t *data, size_t n);
/* a GGUF file: its metadata, tokenizer, tensors' names and numbers, the model in place */
void target_gguf(const uint8_t *data, size_t n);
/* model_weights.json */
void target_manifest(const uint8_t *data, size_t n);
/* spread.json and, after the first '|', part.json */
void target_spread(const uint8_t *data, size_t n);
/* which files a directory has: one a byte */
void target_layout(const uint8_t *data, size_t n);
/* tokenizer.json */
void target_tokenizer(const uint8_t *data, size_t n);
/* tiktoken.model, next to a fixed tokenizer_config.json */
void target_tiktoken(const uint8_t *data, size_t n);
/* a split pattern, NUL, text */
void target_pattern(const uint8_t *data, size_t n);
/* a chat template and, after a NUL, the JSON of its context */
void target_jinja(const uint8_t *data, size_t n);
/* a saved state; after '#' its checksums are made right */
void target_snapshot(const uint8_t *data, size_t n);
/* a saved conversation */
void target_session(const uint8_t *data, size_t n);
/* use counts of experts */
void target_usage(const uint8_t *data, size_t n);
/* choices of experts */
void target_trace(const uint8_t *data, size_t n);
/* lines of requests */
void target_batch(const uint8_t *data, size_t n);
/* an answer with calls of tools */
void target_calls(const uint8_t *data, size_t n);
/* a body of a request to the server: of a chat, or after "#" of a completion */
void target_completions(const uint8_t *data, size_t n);
/* a server's list of the files of a repository */
void target_listing(const uint8_t *data, size_t n);
/* a list of token ids */
void target_tokens(const uint8_t *data, size_t n);
/* a grammar */
void target_grammar(const uint8_t *data, size_t n);
/* a JSON Schema */
void target_schema(const uint8_t *data, size_t n);
/* a change of a model that is opened and run: see model.c */
void target_model(const uint8_t *data, size_t n);

/* All targets, with their names without "target_". A NULL name ends the list. */
struct target {
    const char *name;
    void (*run)(const uint8_t *data, size_t n);
};
extern const struct target target_all[];

/* Writes inputs from which fuzzing starts to dir/NAME/ for every target: what the tests' models have, and
 * what the program writes itself. */
void target_write_seeds(const char *dir);

/* --- for the targets --- */

/* A regular file with these bytes, and no others; the path is good until the next call. */
const char *target_file(const uint8_t *data, size_t n);
/* Makes the file at `path` these bytes. */
void target_put(const char *path, const uint8_t *data, size_t n);
/* A directory for the whole run, removed at its end. */
const char *target_dir(void);
/* A new one in it. */
const char *target_new_dir(const char *name);
/* Aborts unless rc is no failure or `e` has its code and one line of text. Returns whether it is none. */
int target_answered(int rc, const struct moeflux_err *e);
/* Aborts with the text unless `holds`. */
void target_need(int holds, const char *text);

#endif
