/* tool_text.h - the tools in the system's text, for chat templates that leave them out. A part of chat.
 *
 * The templates of DeepSeek-V3 to V3.1 write calls and their results, but not which tools there are.
 * DeepSeek-V3.1's model card has the text that its callers put after the system's. Other engines give V3 and
 * R1 the same text with their own form of a call, and so does this file. */
#ifndef MOEFLUX_TEXT_CHAT_TOOL_TEXT_H
#define MOEFLUX_TEXT_CHAT_TOOL_TEXT_H

struct chat;
struct chat_prompt;
struct chat_text;
struct moeflux_err;
struct tool_form;

/* Sets c->leaves_tools_out, and then c->tool_list if it is known how calls of the form (NULL: none) are
 * taught. */
int tool_text_open(struct chat *c, const struct tool_form *f, struct moeflux_err *e);

/* Does the work of chat_render for a prompt with tools if there is a c->tool_list. */
int tool_text_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                     struct moeflux_err *e);

#endif
