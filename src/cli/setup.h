/* setup.h - opens a model as the flags ask for it, and what the verbs need to answer with it. */
#ifndef MOEFLUX_CLI_SETUP_H
#define MOEFLUX_CLI_SETUP_H

#include <stdint.h>

#include "cli/chat_template.h"
#include "moeflux_chat.h"

struct bar;
struct options;

struct loaded { /* zeroed at first; freed with setup_close */
    /* [n_models]: the model, and with --replicate its copies on the other devices */
    struct moeflux_model *models[MOEFLUX_MAX_DEVICES];
    uint32_t n_models;
    struct moeflux_model_info info;  /* the model's */
    struct chat_template template;   /* the user's */
    struct moeflux_chat *chat;       /* setup_chat; else NULL */
    struct moeflux_session *session; /* setup_start; else NULL */
    uint32_t max_context;            /* tokens of the session */
    uint64_t seed, load_ns;
};

/* Opens the model. The bar shows loading and, later, prefill. */
int setup_open(struct loaded *l, const struct options *o, struct bar *bar, struct moeflux_err *e);

/* Opens the model with `progress` instead of the bar's, and keeps memory free for the contexts of
 * n_sequences. With --replicate there is a copy for each device, and the sequences are divided among them. A
 * chat that `l` has gets the new models. */
int setup_open_for(struct loaded *l, const struct options *o, struct bar *bar, uint32_t n_sequences,
                   struct moeflux_progress progress, struct moeflux_err *e);

/* Counts the devices that --device names. Opens nothing. ERR_USAGE, ERR_DEVICE. */
int setup_n_devices(const struct options *o, uint32_t *n, struct moeflux_err *e);

/* Opens the chat, with the user's template. ERR_USAGE: that needs a tokenizer. Errors: those of
 * moeflux_chat_open and chat_template_use, too. */
int setup_chat(struct loaded *l, const struct options *o, struct moeflux_err *e);
/* Checks that there is a tokenizer. ERR_USAGE: `what` needs it. */
int setup_need_tokenizer(const struct loaded *l, const struct options *o, const char *what,
                         struct moeflux_err *e);

/* Checks --ctx-size. own: the model's maximum, in tokens. ERR_USAGE. */
int setup_check_context(const struct options *o, uint32_t own, struct moeflux_err *e);

/* Makes the session, and draws a seed if none is given. max_context: tokens; 0: the default. */
int setup_start(struct loaded *l, const struct options *o, uint32_t max_context, struct moeflux_err *e);

/* Sums the statistics of the model and its copies. */
void setup_get_stats(const struct loaded *l, struct moeflux_stats *out);

/* Writes the files of --usage and --trace after a run that ended with `rc`, if the model was opened and the
 * run did not fail (an interruption is no failure). With --stats and --trace it prints the trace's replay.
 * Returns rc, or ERR_IO with `e` filled by the first file that failed. */
int setup_save_usage(const struct loaded *l, const struct options *o, int rc, struct moeflux_err *e);

/* Closes the models only: their device is lost. */
void setup_close_models(struct loaded *l);
void setup_close(struct loaded *l);

#endif
