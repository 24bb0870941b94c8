/* talk.h - a conversation with an opened model: asking, answering, going back, keeping it under a name. */
#ifndef MOEFLUX_CLI_TALK_TALK_H
#define MOEFLUX_CLI_TALK_TALK_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/report/stats.h"
#include "cli/terminal/bar.h"
#include "generate/answer.h"
#include "generate/conversation.h"
#include "generate/generator.h"

struct moeflux_err;
struct line;
struct options;
struct output;
struct term;

struct talk { /* zeroed at first */
    const struct options *options;
    const struct term *term;
    struct output *out;
    struct line *line;
    struct bar bar;
    struct str grammar; /* that every answer must fit; empty: none */
    struct generator generator;
    struct conversation conversation;
    struct answer answer; /* the last one */
    struct stats stats;   /* of the last answer */
    float *first_logits;  /* [vocab_size], after the last question, for /retry; NULL until there are some */
    uint32_t first_at;    /* the question's end, where they and a checkpoint are; 0: nowhere */
    char *name;           /* of the saved conversation; NULL: it has none */
    uint64_t seen;        /* hash of its text's file as it was read or written last; 0: neither */
    uint32_t n_kept;      /* tokens of the state in its file */
    bool is_kept;         /* the sequence has not changed since */
    bool is_reseeded;     /* the sampler has to be made again with the generator's seed */
    bool quit;
    bool is_script; /* there is one question: failures are returned, nobody could use a command */
};

/* A dim line on stderr. */
void talk_note(const struct talk *t, const char *text);

/* Asks and answers on `out`. What fails is told, and the conversation goes on; only a lost stdout is
 * returned. Of a script every failure is. */
int talk_ask(struct talk *t, const char *text, struct moeflux_err *e);
/* The same in the place of the last question, which stays where the new one does not fit. */
int talk_ask_instead(struct talk *t, const char *text, struct moeflux_err *e);
/* The last question again, with another seed. */
int talk_retry(struct talk *t, struct moeflux_err *e);
/* Back before the last question. */
int talk_undo(struct talk *t, struct moeflux_err *e);

/* An empty conversation without a name, with the same system text. */
int talk_clear(struct talk *t, struct moeflux_err *e);

/* Writes a conversation that has a name: its text always, its state when it has grown much, or (`all`) has
 * changed. */
int talk_keep(struct talk *t, bool all, struct moeflux_err *e);
/* The same at a moment when a failure can only be told. False: it was. */
bool talk_keep_quietly(struct talk *t, bool all);
/* Replaces the conversation by a saved one. On failure there still is the old one. */
int talk_load(struct talk *t, const char *name, struct moeflux_err *e);

/* Prints the last `n` questions and answers on stderr. */
void talk_show(const struct talk *t, size_t n);

void talk_free(struct talk *t);

#endif
