/* endpoints.h - what is at which path. */
#ifndef MOEFLUX_SERVER_ENDPOINTS_H
#define MOEFLUX_SERVER_ENDPOINTS_H

struct endpoint;

/* NULL: nothing is there for this method. *other: the method that something is there for, or NULL. */
const struct endpoint *endpoints_find(const char *method, const char *path, const char **other);

#endif
