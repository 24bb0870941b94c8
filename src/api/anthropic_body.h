/* anthropic_body.h - the body of a request in the form of Anthropic's messages. */
#ifndef MOEFLUX_API_ANTHROPIC_BODY_H
#define MOEFLUX_API_ANTHROPIC_BODY_H

struct api_request_defaults;
struct chat_body;
struct json_t;

/* Converts a body; struct dialect explains the arguments. */
void anthropic_body_read(const struct json_t *body, const struct api_request_defaults *defaults,
                         struct chat_body *to);

#endif
