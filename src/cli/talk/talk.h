/* talk.h - a conversation with an opened model: asks, answers, goes back, and saves it under a name. */
#ifndef MOEFLUX_CLI_TALK_TALK_H
#define MOEFLUX_CLI_TALK_TALK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "cli/setup.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/printer.h"
#include "moeflux_chat.h"

struct line;
struct options;
struct output;
struct term;

struct talk { /* zeroed at first */
    const struct options *options;
    struct options *own; /* `options`, which /set and /think change */
    const struct term *term;
    struct output *out;
    struct line *line;
    struct str attached; /* text of /read; the next question that is asked takes it */
    char *set_text;      /* a text of /set, which `own` borrows; NULL: none */
    struct bar bar;
    char *grammar; /* every answer must fit it; NULL: none */
    struct loaded loaded;
    struct moeflux_conversation *conversation;
    struct printer printer;
    struct moeflux_answer *answer;   /* the last one; NULL: none */
    struct moeflux_answer_info info; /* the answer's; zeroed: there is none */
    char *name;                      /* name of the saved conversation; NULL: it is not saved */
    uint64_t seen;                   /* hash of NAME.json when it was last read or written; 0: never */
    uint32_t n_kept;                 /* tokens of the state in NAME.state */
    bool is_kept;                    /* the sequence has not changed since then */
    bool quit;
    bool is_script; /* there is one question only: failures are returned, since no command can follow */
};

/* Prints a dim line on stderr. */
void talk_note(const struct talk *t, const char *text);

/* Asks a question, after the attached text, and prints the answer on `out`. A failure is reported, and the
 * conversation goes on; only a failed stdout is returned. With is_script every failure is returned. */
int talk_ask(struct talk *t, const char *text, struct moeflux_err *e);
/* Asks a question instead of the last one, which stays if the new one does not fit the context. */
int talk_ask_instead(struct talk *t, const char *text, struct moeflux_err *e);
/* Answers the last question again, with the next seed, or a random one if --seed is -1. */
int talk_retry(struct talk *t, struct moeflux_err *e);
/* Goes on with the last answer if it was stopped before its end. */
int talk_continue(struct talk *t, struct moeflux_err *e);
/* Removes the last question and its answer. */
int talk_undo(struct talk *t, struct moeflux_err *e);

/* Makes the conversation in the session, empty. system: its system text; NULL: none. */
int talk_begin(struct talk *t, const char *system, struct moeflux_err *e);

/* Begins an empty conversation without a name. system: its system text; NULL: none. */
int talk_clear(struct talk *t, const char *system, struct moeflux_err *e);
/* Returns the system text; NULL: none. Borrowed until the conversation changes. */
const char *talk_system(const struct talk *t);
/* Returns the last turn; zeroed: there is none. Its texts are borrowed likewise. */
struct moeflux_turn talk_last(const struct talk *t);

/* Creates the request that says how questions are answered; the caller owns it. */
int talk_how(const struct talk *t, struct moeflux_request **out, struct moeflux_err *e);
/* Answers from now on as the options say. Errors: those of moeflux_conversation_use. */
int talk_use_options(struct talk *t, struct moeflux_err *e);

/* Saves a conversation that has a name: the text always, the state if it has grown much; with `all` if it has
 * changed. */
int talk_keep(struct talk *t, bool all, struct moeflux_err *e);
/* Saves it and reports a failure instead of returning it. False: it failed. */
bool talk_keep_quietly(struct talk *t, bool all);
/* Replaces the conversation by a saved one. After a failure to read it the old one is still there. */
int talk_load(struct talk *t, const char *name, struct moeflux_err *e);

/* Prints the last `n` questions and answers on stderr. */
void talk_show(const struct talk *t, size_t n);

void talk_free(struct talk *t);

#endif
