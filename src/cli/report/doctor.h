/* doctor.h - `moeflux doctor`: one page about the program, this machine and its devices, for a bug report. It
 * has no names of people, files or machines. */
#ifndef MOEFLUX_CLI_REPORT_DOCTOR_H
#define MOEFLUX_CLI_REPORT_DOCTOR_H

struct moeflux_err;
struct options;
struct output;
struct term;

/* Prints the page as text or JSON. build: the program's build. The page is printed whatever is wrong with a
 * device or a model; ERR_DEVICE or the first failure's code then follows: a device cannot be used as asked,
 * the self-test fails, the model cannot run here. */
int doctor_run(const struct options *o, const char *build, const struct term *t, struct output *out,
               struct moeflux_err *e);

#endif
