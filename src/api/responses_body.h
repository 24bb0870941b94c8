/* responses_body.h - the body of a request in the form of OpenAI's responses. */
#ifndef MOEFLUX_API_RESPONSES_BODY_H
#define MOEFLUX_API_RESPONSES_BODY_H

struct api_request_defaults;
struct chat_body;
struct json_t;

/* Begins the `encrypted_content` of a reasoning item, which is the thinking itself. Clients that keep nothing
 * on the server send back this field alone. */
#define RESPONSES_THINKING "moeflux:"

/* Converts a body; struct dialect explains the arguments. to->given: the body's fields, with `input` as an
 * array of items. */
void responses_body_read(const struct json_t *body, const struct api_request_defaults *defaults,
                         struct chat_body *to);

#endif
