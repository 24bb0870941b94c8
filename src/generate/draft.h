/* draft.h - evaluates the tokens of one answer: each by itself, or with proposed ones that may follow it
 * (engine/run/verify.h).
 *
 * A proposed token counts when it is the one that is chosen after those before it: with the same logits, the
 * same constraint and the same random number as without drafts. So drafts change no answer, only the number
 * of evaluations.
 *
 *   ngram   what followed the longest earlier occurrence of the text's end, in the sequence
 *   file    a text to follow: its next tokens, from where the answer agrees with it
 *   mtp     the model's own layer of multi-token prediction (engine/run/drafter.h): one token more than were
 *           right in the last chain
 *   auto    ngram or, if the text does not repeat, mtp, while that saves time: not where experts are read
 *           from disk, and as many tokens as the shares of right proposals and the measured times suggest
 *           (layer_costs.h) */
#ifndef MOEFLUX_GENERATE_DRAFT_H
#define MOEFLUX_GENERATE_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/run/verify.h"
#include "generate/layer_costs.h"
#include "moeflux_chat.h"

struct draft;
struct generator;
struct moeflux_err;

enum draft_kind { DRAFT_AUTO, DRAFT_OFF, DRAFT_NGRAM, DRAFT_FILE, DRAFT_MTP };

struct draft_options { /* zeroed: auto */
    enum draft_kind kind;
    /* DRAFT_FILE: the text; DRAFT_MTP: the layer's file, NULL: the model has it. Borrowed */
    const char *path;
    uint32_t most; /* tokens, 1 to MOEFLUX_MAX_DRAFT; 0: MOEFLUX_MAX_DRAFT */
    /* the answer has a constraint, whose mask differs from token to token, or log-probabilities: a device
     * does not sample. Set by answer_run */
    bool needs_logits;
    bool no_files; /* draft_options_parse refuses paths: the text comes from a client */
    bool no_layer; /* it refuses DRAFT_MTP: the model was opened without the layer */
};

/* Reads "off", "ngram", "mtp", "mtp:PATH", "auto" or "file:PATH" into kind and path, which borrows from
 * the text. name: what the error names. ERR_USAGE. */
int draft_options_parse(struct draft_options *o, const char *name, const char *text, struct moeflux_err *e);

/* How much drafts have saved on a model so far, for auto; zeroed: nothing is known. */
enum { DRAFT_CLASSES = 5 };
struct draft_costs {
    bool is_known;
    float rates[DRAFT_CLASSES]; /* shares of right first tokens, by the length of the occurrence */
    float slope;                /* time of each further token of a chain; one token by itself: 1 */
    uint64_t single_ns;         /* one token by itself, with the sampling after it */
    uint64_t pick_ns;           /* sampling after a token of a chain */
    struct layer_costs layer;
};

struct draft_counts {
    uint64_t n_drafted;  /* proposed tokens that were evaluated */
    uint64_t n_accepted; /* those of them that are part of the answer */
    uint64_t n_runs;     /* evaluations */
};

/* Makes the draft of an answer to the generator's sequence. *out is NULL without drafts. ERR_UNSUPPORTED:
 * this model, as it was opened, cannot evaluate what was explicitly asked for. ERR_IO, ERR_FORMAT: the file;
 * ERR_MEMORY. */
int draft_new(struct draft **out, const struct draft_options *o, struct generator *g, struct moeflux_err *e);
void draft_free(struct draft *d); /* NULL is legal */

/* Appends a token to the generator's sequence, passes it to the sampler and samples the next one. With a
 * draft the token may have been in a chain, or a chain begins with it. more: the next token will probably be
 * evaluated (moeflux_session_step). */
int draft_step(struct generator *g, int32_t id, bool more, int32_t *next, struct moeflux_err *e);
/* Appends a token; g->logits gets the logits after it. */
int draft_token(struct generator *g, int32_t id, struct moeflux_err *e);
/* Returns whether the token needs no evaluation, since it was in the last chain. */
bool draft_has(const struct generator *g, int32_t id);
struct draft_counts draft_counts_of(const struct draft *d); /* NULL: zeros */

/* Returns the tokens per evaluation; n_runs is not 0. */
static inline double draft_rate(const struct draft_counts *c)
{
    return (double)(c->n_runs + c->n_accepted) / (double)c->n_runs;
}

#endif
