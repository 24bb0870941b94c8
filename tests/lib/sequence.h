/* sequence.h - a model with one session on it, for tests. Everything asserts. */
#ifndef MOEFLUX_TESTS_SEQUENCE_H
#define MOEFLUX_TESTS_SEQUENCE_H

#include "check.h"
#include "moeflux.h"

struct sequence {
    struct moeflux_model *m;
    struct moeflux_session *s;
    uint32_t vocab;
};

/* Opens a model with a float32 KV cache, and a session. device: NULL: $MOEFLUX_DEVICE, else the default one.
 * n_slots: slots of the expert cache in device memory; 0: every expert has one. */
struct sequence sequence_open(const char *dir, const char *device, uint32_t chunk, uint32_t n_slots,
                              uint32_t context);
/* The same with another KV cache. */
struct sequence sequence_open_kv(const char *dir, const char *device, enum moeflux_kv_type type,
                                 uint32_t chunk, uint32_t n_slots, uint32_t context);
void sequence_close(struct sequence *q);

/* ids [n] that differ from one `kind` to the next and repeat late. */
void sequence_ids(const struct sequence *q, uint32_t kind, int32_t *ids, uint32_t n);
/* One evaluation; logits [vocab] may be NULL. */
void sequence_eval(struct sequence *q, const int32_t *ids, uint32_t n, float *logits);
/* Clears the sequence, then evaluates n ids in one call and n_more in another. */
void sequence_fresh(struct sequence *q, const int32_t *ids, uint32_t n, const int32_t *more, uint32_t n_more,
                    float *logits);
/* The largest difference of two rows, in parts of the largest logit. */
float sequence_distance(const struct sequence *q, const float *a, const float *b);
/* What chunks of other sizes may make of it. */
float sequence_tolerance(const struct sequence *q);
/* Asserts that the call's code is `code` and its text has `text` in it. */
void sequence_refused(int rc, const struct moeflux_err *e, int code, const char *text);

#endif
