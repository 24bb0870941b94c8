/* sampler.h - chooses the next token id from logits.
 *
 * Deterministic: the same seed, options and logits give the same ids on every machine, on the host and on a
 * device (ops/sample/sample.h). Weights and their sums are integers (kernels/sample/weight.h). What is
 * computed in floating point goes by ascending id and uses only operations that IEEE 754 rounds correctly:
 * penalties, biases, and mean and deviation of top-n-sigma, in double. */
#ifndef MOEFLUX_SAMPLE_SAMPLER_H
#define MOEFLUX_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moeflux.h"

struct sampler;

enum { SAMPLER_MAX_TAIL = 20, SAMPLER_MAX_BREAKER = 40 };

/* A sequence of tokens that ends a repetition: one of the options' dry_sequence_breakers as tokens. Either
 * one token that contains the text, or a head, a token whose last bytes are the text's first, and the tokens
 * of the text's rest. */
struct sampler_breaker {
    int32_t head;
    uint32_t n_tail;                /* 0: the head contains the whole text */
    int32_t tail[SAMPLER_MAX_TAIL]; /* tokens of the rest, in their order */
};
struct sampler_breakers {
    struct sampler_breaker *all; /* [n] */
    size_t n;
};

/* The options in the form in which host and device compute with them. Top-k and top-p keep ids by falling
 * logit, equal ones by rising id. The draw goes by rising id: it takes the first id at which the running sum
 * of the weights exceeds sum * random / 2^64. */
struct sampler_rule {
    uint32_t n_ids;
    uint32_t repeat_last; /* 0: no penalty */
    float penalty, inverse_penalty;
    float scale;     /* log2(e) / temperature; 0: greedy */
    uint32_t top_k;  /* 0: all */
    uint32_t top_p;  /* probability in units of 2^-32; 0: all */
    uint32_t min_p;  /* smallest weight; the largest logit has weight 2^31 */
    bool counts;     /* has a presence or frequency penalty or a bias */
    bool host_only;  /* has one of these or an option that is not named here: only sampler_pick can choose */
    uint64_t random; /* fraction in units of 2^-64 */
};

/* Checks the options. ERR_USAGE names the one that is out of range (temperature < 0, top_p outside (0, 1],
 * ...). */
int sampler_check(const struct moeflux_sampler_options *o, struct moeflux_err *e);

/* Makes a sampler, which copies the options. breakers: what o->dry_sequence_breakers are as tokens
 * (engine/breakers.h); copied; NULL: none. n_ids: ids from this on are never chosen (padded vocabularies).
 * allowed (may be NULL): a bitmap, bit i % 8 of byte i / 8; 0: id i has no token and is never chosen. Copied.
 * Returns NULL with `e` filled: ERR_USAGE, ERR_MEMORY. */
struct sampler *sampler_new(const struct moeflux_sampler_options *o, const struct sampler_breakers *breakers,
                            uint32_t n_ids, const uint8_t *allowed, struct moeflux_err *e);
void sampler_free(struct sampler *s);

/* Restricts the choice to a set of ids: bit i % 64 of word i / 64, [n_ids / 64, rounded up]; NULL: all.
 * Copied. Never allocates. */
void sampler_set_mask(struct sampler *s, const uint64_t *mask);
/* Allows this id too, until the next sampler_set_mask. */
void sampler_allow(struct sampler *s, int32_t id);

/* Adds a token to the text (prompt or answer), for the penalties. */
void sampler_accept(struct sampler *s, int32_t id);
/* Begins the answer: presence and frequency penalty count only the tokens accepted after this. */
void sampler_begin_answer(struct sampler *s);
/* Forgets the accepted tokens and starts the seed's sequence again. */
void sampler_reset(struct sampler *s);

/* Returns whether there is an id that is not blocked. */
bool sampler_can_pick(const struct sampler *s);
/* ERR_USAGE with sampler_pick's message if there is none. */
int sampler_check_mask(const struct sampler *s, struct moeflux_err *e);

/* Chooses an id. Order: repeat penalty (once for each distinct token), presence and frequency penalty, DRY,
 * bias, n-sigma, top-k, typical-p, temperature, softmax, top-p, min-p, XTC, draw. typical-p and XTC compute
 * probabilities at temperature 1.
 *
 * XTC acts on a pick with the probability xtc_probability: of the ids with a probability of at least
 * xtc_threshold, it drops all except the least likely one. It drops none if fewer than min_keep ids would be
 * left. Whether it acts is derived from the pick's random number, so it depends only on the seed and on the
 * number of the pick.
 *
 * Of equal logits the lowest id comes first. Never chooses a logit of -infinity, nor an id with less than
 * 2^-32 of the largest probability. Never allocates. Returns the id; ERR_USAGE: the mask allows no id;
 * ERR_DEVICE: the logit of an allowed id is NaN or +infinity (the message names the id), or all of them are
 * -infinity. */
int32_t sampler_pick(struct sampler *s, const float *logits, struct moeflux_err *e);

/* --- sampling on a device (ops/sample/sample.h): of the next token or of the one after it --- */

/* Returns the rule of the pick after `ahead` more picks. */
struct sampler_rule sampler_next_rule(const struct sampler *s, uint32_t ahead);
/* Returns the blocked ids as a bitmap, [n_ids / 64, rounded up]. Borrowed until the next sampler_set_mask. */
const uint64_t *sampler_blocked(const struct sampler *s);
/* Fills `out` with the window of the repeat penalty after the next sampler_accept, without the token that it
 * adds. next (may be NULL): a token that is accepted before that one. The oldest come first; negative: none.
 * Returns how many, at most repeat_last - 1. */
uint32_t sampler_recent(const struct sampler *s, const int32_t *next, int32_t *out);
/* Counts a pick that the device has made. */
void sampler_skip(struct sampler *s);

/* Fills `e` with sampler_pick's message about faulty logits and returns ERR_DEVICE. fault: SAMPLE_NAN ..
 * SAMPLE_NOTHING (args.h); id: the first one with the fault. */
int sampler_refuse(uint32_t fault, uint32_t id, uint32_t n_ids, struct moeflux_err *e);

#endif
