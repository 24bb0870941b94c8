/* endpoints.h - the table of paths and the functions that answer them. */
#ifndef MOEFLUX_SERVER_ENDPOINTS_H
#define MOEFLUX_SERVER_ENDPOINTS_H

struct endpoint;
struct http_request;

/* Returns the endpoint of a path; NULL: there is none for this method. *other: a method for which there is
 * one, or NULL. */
const struct endpoint *endpoints_find(const char *method, const char *path, const char **other);

/* Returns what follows the endpoint's path in a request for a path below it: the name of a model. */
const char *endpoints_rest(const struct http_request *req);

#endif
