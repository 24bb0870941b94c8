/* speed.h - part of `moeflux inspect`: prints measured speeds, the tokens per second that they allow, and
 * advice. */
#ifndef MOEFLUX_CLI_REPORT_SPEED_H
#define MOEFLUX_CLI_REPORT_SPEED_H

struct json_t;
struct moeflux_err;
struct moeflux_needs;
struct moeflux_plan;
struct lab_speeds;
struct output;

/* Prints them as text. plan NULL: there is none. ERR_MEMORY. */
int speed_report_print(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct lab_speeds *s, struct output *out, struct moeflux_err *e);

/* Adds "speeds", "forecast", "here", "placement", "tensor_split" and "advice" to an object. */
void speed_report_json(const struct moeflux_needs *n, const struct moeflux_plan *plan,
                       const struct lab_speeds *s, struct json_t *object);

#endif
