/* catalogue.h - asks the server what a repository has, and the user what of it is wanted. */
#ifndef MOEFLUX_CLI_GET_CATALOGUE_H
#define MOEFLUX_CLI_GET_CATALOGUE_H

struct download_options;
struct listing;
struct moeflux_err;

/* Reads the list of files of a revision. ERR_IO says whether the repository, the licence or the token is
 * missing; ERR_FORMAT, ERR_INTERRUPTED, ERR_MEMORY. */
int catalogue_read(const struct download_options *d, const char *revision, struct listing *l,
                   struct moeflux_err *e);

/* Prints the GGUF files and sets with their sizes on stderr. Returns ERR_USAGE, which asks for --include. */
int catalogue_ask(const struct listing *l, const char *name, struct moeflux_err *e);

#endif
