/* get.h - `moeflux get`: fetches a repository of Hugging Face into its tools' cache. */
#ifndef MOEFLUX_CLI_GET_GET_H
#define MOEFLUX_CLI_GET_GET_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Prints on stderr what the model is and whether it fits, fetches its files, and prints the snapshot's
 * directory on `out`. ERR_NO_FIT: the disk has too little room. ERR_INTERRUPTED: what has come is kept. */
int get_run(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e);

#endif
