/* chat_template.h - --chat-template and --chat-template-kwargs: the user's template in the place of the
 * model's, and variables for it. */
#ifndef MOEFLUX_CLI_CHAT_TEMPLATE_H
#define MOEFLUX_CLI_CHAT_TEMPLATE_H

struct moeflux_chat;
struct moeflux_err;
struct options;

struct chat_template {
    const char *file;      /* borrowed; NULL: the option is the text itself */
    char *text;            /* NULL: not given */
    const char *variables; /* JSON, borrowed; NULL: not given */
};

/* Reads what the options name, before a model is opened. ERR_USAGE names the flag or the file; ERR_MEMORY.
 * chat_template_free is legal after a failure, too. */
int chat_template_read(struct chat_template *c, const struct options *o, struct moeflux_err *e);
void chat_template_free(struct chat_template *c);

/* Gives them to the chat, and tries the template. Errors: those of moeflux_chat_use_template, whose message
 * names the template's file. */
int chat_template_use(const struct chat_template *c, struct moeflux_chat *chat, struct moeflux_err *e);

#endif
