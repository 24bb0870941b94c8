/* responses_body.h - the body of a request in the form of OpenAI's responses. */
#ifndef MOEFLUX_API_RESPONSES_BODY_H
#define MOEFLUX_API_RESPONSES_BODY_H

struct api_request_defaults;
struct chat_body;
struct json_t;
struct str;

/* Converts a body; struct dialect explains the arguments. to->given: the body's fields, with `input` as an
 * array of items. */
void responses_body_read(const struct json_t *body, const struct api_request_defaults *defaults,
                         struct chat_body *to);

/* Appends the name under which the model sees a function of a namespace, such as that of an MCP server of
 * Codex: "mcp__files__" and "read" are "mcp__files__read". */
void responses_body_join_name(const char *space, const char *name, struct str *out);

#endif
