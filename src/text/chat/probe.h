/* probe.h - finds out what a chat template does, by rendering short conversations. A part of chat. */
#ifndef MOEFLUX_TEXT_CHAT_PROBE_H
#define MOEFLUX_TEXT_CHAT_PROBE_H

#include "text/chat/chat.h"

struct moeflux_err;

/* Finds out how the template handles thinking, with c->thinking and c->effort_word. ERR_UNSUPPORTED: it
 * cannot be switched as asked, or the template cannot be run. */
int probe_thinking(struct chat *c, struct moeflux_err *e);

/* Finds the tokens after an answer. ERR_UNSUPPORTED: the template does not repeat the answer's text. */
int probe_tail(struct chat *c, struct moeflux_err *e);

/* Appends what the template writes between the thinking and the answer of a message. *found: false if it
 * writes no thinking. Errors: as jinja_render. */
int probe_between(const struct chat *c, struct chat_text *out, bool *found, struct moeflux_err *e);

/* Renders a question with an effort by the template's word, which stays in c->switches. *fails: the template
 * refuses it. ERR_MEMORY. */
int probe_effort(struct chat *c, const char *word, struct chat_text *out, bool *fails, struct moeflux_err *e);

#endif
