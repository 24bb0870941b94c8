/* predictor.h - which experts a layer is likely to choose, before its router has.
 *
 * Two sources: what the layer chose for the token before, and the layer's own router applied early, to the
 * hidden state of the layer before (computed by the engine). For a token of each of several sequences each
 * one's sources are taken together. What a sequence chose for its token before is kept while others are
 * evaluated: each has a place here. Counted are recall = n_right / n_predictable and precision = n_right /
 * n_predicted, of different experts. */
#ifndef MOEFLUX_EXPERTS_PREDICTOR_H
#define MOEFLUX_EXPERTS_PREDICTOR_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

enum predictor_kind { PREDICT_NONE = 0, PREDICT_PREVIOUS = 1, PREDICT_ROUTER = 2, PREDICT_BOTH = 3 };

/* An expert that some sequences are likely to choose. */
struct predicted {
    uint32_t expert;
    float missing; /* how likely none of them chooses it, for comparison */
};

enum { PREDICTOR_PLACES = 64 };

struct predictor {
    enum predictor_kind kind;
    uint32_t n_layers, top_k, most;
    uint32_t *previous;    /* [n_layers][PREDICTOR_PLACES][top_k] */
    uint8_t *has_previous; /* [n_layers][PREDICTOR_PLACES] */
    uint32_t *places;      /* [most]: of the sequences at hand */
    uint32_t *named;       /* [n_named] the current prediction: most likely first, all different */
    struct predicted *all; /* of `named`, in the same order */
    uint32_t n_named;
    uint32_t layer; /* of the current prediction */
    uint64_t n_predicted, n_right, n_predictable;
};

/* most: sequences with a token each, at most PREDICTOR_PLACES; the first ones' places are at hand. */
int predictor_open(struct predictor *p, enum predictor_kind kind, uint32_t n_layers, uint32_t top_k,
                   uint32_t most, struct moeflux_err *e);
void predictor_close(struct predictor *p);
/* The places of the n sequences that come next, all different. A prediction that was not looked at is
 * dropped. */
void predictor_select(struct predictor *p, const uint32_t *places, uint32_t n);
/* Forgets the token before at a place: another sequence's, or another position's. The counts stay. */
void predictor_forget(struct predictor *p, uint32_t place);

/* Predicts the experts of `layer` for a token of each of n sequences into p->named. early: [n][top_k] the
 * choices of the early router, best first, or NULL. A choice of fewer experts ends with NO_EXPERT. */
void predictor_predict(struct predictor *p, uint32_t layer, const uint32_t *early, uint32_t n);
/* The layer has chosen [n][top_k]: counts how much of its prediction was right, if there was one. */
void predictor_observe(struct predictor *p, uint32_t layer, const uint32_t *choice, uint32_t n);

#endif
