/* plan.h - `moeflux --plan` and the plan in `moeflux inspect`: what a run would decide before it loads
 * anything. */
#ifndef MOEFLUX_CLI_REPORT_PLAN_H
#define MOEFLUX_CLI_REPORT_PLAN_H

struct moeflux_err;
struct json_t;
struct moeflux_plan;
struct options;
struct output;

int plan_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

void plan_report_print(const struct moeflux_plan *p, struct output *out);
/* The plan as an object of its own, owned by the caller. */
struct json_t *plan_report_json(const struct moeflux_plan *p);

#endif
