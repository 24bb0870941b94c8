/* part_request.h - fetches a part of a file, with as many requests as it takes. */
#ifndef MOEFLUX_HUB_PART_REQUEST_H
#define MOEFLUX_HUB_PART_REQUEST_H

#include <stdatomic.h>
#include <stdint.h>

struct moeflux_err;
struct part;
struct remote;
struct retry;

struct part_request {
    struct remote *remote;
    struct retry *retry;
    const char *url;    /* the file's at the endpoint */
    const char *name;   /* the repository's and the file's: begins the errors */
    const char *commit; /* that the URL names */
    struct part *part;
    atomic_uint_fast64_t *done; /* counts bytes that have come */
};

/* Fetches all bytes of the part. A connection that is cut goes on where it ended. ERR_IO: no tries are left,
 * or the server's answer has no remedy; ERR_FORMAT: it is not the file that was listed; ERR_INTERRUPTED,
 * ERR_MEMORY. */
int part_request_run(const struct part_request *q, struct moeflux_err *e);

#endif
