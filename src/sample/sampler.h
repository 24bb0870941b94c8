/* sampler.h - logits to the next token id. Deterministic: the same seed, options and logits give the same
 * ids, here and on a device (ops/sample/sample.h): weights and their sums are integers
 * (kernels/sample/weight.h). */
#ifndef MOEFLUX_SAMPLE_SAMPLER_H
#define MOEFLUX_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct sampler;

struct sampler_bias {
    int32_t id;
    float value;
};

struct sampler_options {
    float temperature;    /* 0: greedy, the lowest index of the maximum */
    uint32_t top_k;       /* keep the k largest; 0: all */
    float top_p;          /* keep the smallest set whose probabilities sum to at least p; 1: all */
    float min_p;          /* drop what is below min_p times the largest probability; 0: none */
    float repeat_penalty; /* 1: off; else positive logits are divided by it, the others multiplied */
    uint32_t repeat_last; /* how many of the last tokens the penalty looks at; at most 2^20 */
    /* Taken from the logit of a token that the answer has, once and for each time; -2 to 2, 0: off. */
    float presence_penalty, frequency_penalty;
    const struct sampler_bias *bias; /* [n_bias] added to the logits of these ids, each there once; copied */
    uint32_t n_bias;
    uint64_t seed;
};

/* The options as both compute with them. The set that is kept has an order, larger logits first, equal ones
 * by id, but it is drawn from by ascending id: the first id whose weight and those before it add up to more
 * than sum * random / 2^64. */
struct sampler_rule {
    uint32_t n_ids;
    uint32_t repeat_last; /* 0: no penalty */
    float penalty, inverse_penalty;
    float scale;     /* log2(e) / temperature; 0: greedy */
    uint32_t top_k;  /* 0: all */
    uint32_t top_p;  /* of 2^32; 0: all */
    uint32_t min_p;  /* of 2^31, the weight of the largest logit */
    bool counts;     /* there is a presence or frequency penalty or a bias, which sampler_pick alone knows */
    uint64_t random; /* of 2^64 */
};

/* ERR_USAGE names the option that is out of range (temperature < 0, top_p outside (0, 1], ...). */
int sampler_check(const struct sampler_options *o, struct moeflux_err *e);

/* n_ids: logits from this index on are never chosen (padded vocabularies); `allowed` (may be NULL) is a
 * bitmap, bit i of byte i / 8: 0 = id i has no token and is never chosen. It is copied. */
struct sampler *sampler_new(const struct sampler_options *o, uint32_t n_ids, const uint8_t *allowed,
                            struct moeflux_err *e);
void sampler_free(struct sampler *s);

/* What is chosen from now on is in this set too: bit i % 64 of word i / 64, [n_ids / 64, rounded up]; NULL:
 * no set. It is copied. Never allocates. */
void sampler_set_mask(struct sampler *s, const uint64_t *mask);
/* ... or is this id, until the next sampler_set_mask. */
void sampler_allow(struct sampler *s, int32_t id);

/* Tells the sampler of a token that is now part of the text (prompt or answer), for the penalties. */
void sampler_accept(struct sampler *s, int32_t id);
/* What is accepted from now on is the answer: presence and frequency penalty look at it alone. */
void sampler_begin_answer(struct sampler *s);
/* Forgets the accepted tokens and starts the seed's sequence again. */
void sampler_reset(struct sampler *s);

/* Order: repeat penalty (once for each distinct token), presence and frequency penalty, bias, top-k,
 * temperature, softmax, top-p, min-p, draw. Equal logits go lowest index first. -infinity is never chosen,
 * nor is what has less than 2^-32 of the largest probability. Never allocates. Returns the id, or ERR_DEVICE
 * when a logit that could be chosen is NaN or +infinity (it names the index), or when all of them are
 * -infinity. */
int32_t sampler_pick(struct sampler *s, const float *logits, struct moeflux_err *e);

/* For a choice that is made elsewhere (ops/sample/sample.h), of the next token or of the one after it. */

/* What sampler_pick will go by, after `ahead` more picks. */
struct sampler_rule sampler_next_rule(const struct sampler *s, uint32_t ahead);
/* [n_ids / 64, rounded up] bit set: not chosen. Borrowed until the next sampler_set_mask. */
const uint64_t *sampler_blocked(const struct sampler *s);
/* The tokens that the penalty looks at beside the one that is accepted next, or, if that is *next, beside the
 * one after it: the oldest first, negative ones stand for none. At most repeat_last - 1; returns how many. */
uint32_t sampler_recent(const struct sampler *s, const int32_t *next, int32_t *out);
/* The next pick was made elsewhere. */
void sampler_skip(struct sampler *s);

/* Fills `e` with what sampler_pick says of logits with a fault, SAMPLE_NAN .. SAMPLE_NOTHING (args.h), and
 * returns ERR_DEVICE. id: the first that is at fault. */
int sampler_refuse(uint32_t fault, uint32_t id, uint32_t n_ids, struct moeflux_err *e);

#endif
