/* continue.h - prompts that end with an unfinished message. A part of chat. */
#ifndef MOEFLUX_TEXT_CHAT_CONTINUE_H
#define MOEFLUX_TEXT_CHAT_CONTINUE_H

#include "text/chat/chat.h"

struct moeflux_err;

/* Renders a prompt with `continues`. Its last message has the text to continue: `content`, or if that is
 * empty `reasoning_content`. Errors: as chat_render. */
int continue_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                    struct moeflux_err *e);

#endif
