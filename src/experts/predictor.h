/* predictor.h - predicts which experts a layer will choose, before its router runs.
 *
 * There are two sources: the layer's choice for the token before, and the layer's own router applied early,
 * to the hidden state of the layer before (computed by the engine). In batched decode the predictions for all
 * sequences are merged. Each sequence has a place, where its choice for its token before is kept while others
 * are evaluated. Counts, of different experts: recall = n_right / n_predictable, precision = n_right /
 * n_predicted. */
#ifndef MOEFLUX_EXPERTS_PREDICTOR_H
#define MOEFLUX_EXPERTS_PREDICTOR_H

#include <stdbool.h>
#include <stdint.h>

struct moeflux_err;

enum predictor_kind { PREDICT_NONE = 0, PREDICT_PREVIOUS = 1, PREDICT_ROUTER = 2, PREDICT_BOTH = 3 };

/* An expert that some sequences are likely to choose. */
struct predicted {
    uint32_t expert;
    float missing; /* estimated probability that none of them chooses it; only the order counts */
};

enum { PREDICTOR_PLACES = 64 };

struct predictor {
    enum predictor_kind kind;
    uint32_t n_layers, top_k, most;
    uint32_t *previous;    /* [n_layers][PREDICTOR_PLACES][top_k] */
    uint8_t *has_previous; /* [n_layers][PREDICTOR_PLACES] */
    uint32_t *places;      /* [most]: places of the current sequences */
    uint32_t *named;       /* [n_named] the current prediction: most likely first, all different */
    struct predicted *all; /* [n_named] the same experts, with their probabilities */
    uint32_t n_named;
    uint32_t layer; /* the layer of the current prediction */
    uint64_t n_predicted, n_right, n_predictable;
};

/* most: the sequences of one evaluation, at most PREDICTOR_PLACES. Selects the first `most` places.
 * ERR_MEMORY. */
int predictor_open(struct predictor *p, enum predictor_kind kind, uint32_t n_layers, uint32_t top_k,
                   uint32_t most, struct moeflux_err *e);
void predictor_close(struct predictor *p);
/* Selects the places of the next n sequences, all different. Drops a prediction that was not observed. */
void predictor_select(struct predictor *p, const uint32_t *places, uint32_t n);
/* Forgets the last choices at a place, which now has another sequence or position. The counts stay. */
void predictor_forget(struct predictor *p, uint32_t place);

/* Predicts the experts of `layer` for one token of each of n sequences into p->named. early: [n][top_k] the
 * choices of the early router, best first, or NULL. A choice of fewer experts ends with NO_EXPERT. */
void predictor_predict(struct predictor *p, uint32_t layer, const uint32_t *early, uint32_t n);
/* Takes the layer's choice, [n][top_k], and counts how much of its prediction was right, if there was one. */
void predictor_observe(struct predictor *p, uint32_t layer, const uint32_t *choice, uint32_t n);

#endif
