/* listing.h - the files of a repository at one commit, as the server lists them. Everything in it is checked:
 * names become paths, and digests names of files. */
#ifndef MOEFLUX_HUB_LISTING_H
#define MOEFLUX_HUB_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hub/digest.h"

struct moeflux_err;

enum { LISTING_COMMIT = 41, LISTING_ARCHITECTURE = 64 };

struct listing_file {
    char *name; /* "Q4/model-00001-of-00002.gguf": a relative path without "." and ".." */
    uint64_t bytes;
    enum digest_kind kind;
    char digest[DIGEST_TEXT];
    bool wanted, excluded; /* set by selection.h; what is excluded counts as if it were not there */
};

struct listing {
    char commit[LISTING_COMMIT];
    char architecture[LISTING_ARCHITECTURE]; /* general.architecture of the GGUF files; "": not given */
    struct listing_file *files;              /* the server's order */
    uint32_t n;
};

/* Reads a reply of /api/models/NAME/revision/REVISION?blobs=true. where: begins the errors. The sum of all
 * sizes fits 64 bits, and files with the same digest have the same size. ERR_FORMAT names the file and the
 * field; ERR_MEMORY. listing_free is legal after a failure, too. */
int listing_read(struct listing *l, const char *text, size_t n, const char *where, struct moeflux_err *e);
void listing_free(struct listing *l);

/* Returns one file for each digest among `files` ([n]): [*n_blobs], freed with free(). Files with the same
 * digest are one blob. NULL with `e` filled. */
const struct listing_file **listing_blobs(const struct listing_file *const *files, uint32_t n,
                                          uint32_t *n_blobs, struct moeflux_err *e);

/* Returns the file of this name; NULL: there is none. */
const struct listing_file *listing_find(const struct listing *l, const char *name);

/* Whether a name may become a path in a directory. */
bool listing_is_safe(const char *name);
/* Whether a text consists of n digits of hexadecimal, in small letters. */
bool listing_is_hex(const char *text, size_t n);

#endif
