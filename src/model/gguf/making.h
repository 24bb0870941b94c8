/* making.h - what the makers of a configuration from a GGUF file's metadata share (config.h): reading keys of
 * the file, putting keys of config.json. A key of the file is named without the architecture in front of it.
 * The functions do nothing if m->rc is an error, and set it if they fail: ERR_FORMAT, or ERR_UNSUPPORTED for
 * what no operation computes. Private to this folder. */
#ifndef MOEFLUX_MODEL_GGUF_MAKING_H
#define MOEFLUX_MODEL_GGUF_MAKING_H

#include <stdbool.h>
#include <stdint.h>

struct gguf;
struct gguf_value;
struct json_t;
struct moeflux_err;

enum { MAKING_NAME = 64, MAKING_KEY = 128 }; /* bytes of a tensor's name and of a key, with the NUL */

/* The configuration being made; the first failure sticks. */
struct making {
    const struct gguf *g;
    const char *arch; /* prefix of the keys */
    struct json_t *out;
    uint64_t n_layers; /* the model's own, without those of multi-token prediction */
    int rc;
    struct moeflux_err *e;
};

/* Returns the file's path, for errors. */
const char *making_path_of(const struct making *m);
/* Fails because of a key of the file. */
void making_fail_key(struct making *m, const char *key, const char *what);

/* --- the file's keys and tensors --- */

/* Returns the value of a key; NULL: there is none. */
const struct gguf_value *making_find(const struct making *m, const char *key);
bool making_has(const struct making *m, const char *theirs);
bool making_has_tensor(const struct making *m, const char *name);
/* Returns a whole number, or the largest of a list with one for each layer. fallback: the value of a missing
 * key; negative: it is an error. */
uint64_t making_whole(struct making *m, const char *theirs, int64_t fallback);

/* --- keys of config.json --- */

/* Puts a value, which it takes. */
void making_put(struct making *m, const char *ours, struct json_t *value);
void making_put_whole(struct making *m, const char *ours, uint64_t n);
/* Puts a number, multiplied. may: the key may be missing. */
void making_put_real(struct making *m, const char *ours, const char *theirs, double times, bool may);
/* Put a list of numbers, if the file has it; a list of whole numbers, which it must have, each plus
 * `plus`. */
void making_put_reals(struct making *m, const char *ours, const char *theirs);
void making_put_list(struct making *m, const char *ours, const char *theirs, uint64_t plus);
/* Puts the router's scores: sigmoid (2), else softmax, also if the key is missing. */
void making_put_scoring(struct making *m);

/* How a key of config.json follows from one of the file; MAY: it may be missing. */
enum making_how { WHOLE, WHOLE_MAY, REAL, REAL_MAY, FLAG_MAY };
struct making_pair {
    const char *ours, *theirs; /* NULL ends a list */
    enum making_how how;
};
void making_put_pairs(struct making *m, const struct making_pair *pairs);

/* Families in config_gqa.c. */
void config_gqa_put_gemma4(struct making *m);
void config_gqa_put_minimax_m3(struct making *m);
void config_gqa_put_step35(struct making *m);
void config_gqa_put_mimo2(struct making *m);
void config_gqa_put_nemotron_h(struct making *m);

#endif
