/* plan.h - `moeflux --plan` and the plan in `moeflux inspect`: prints what a run would put where, before it
 * loads anything. */
#ifndef MOEFLUX_CLI_REPORT_PLAN_H
#define MOEFLUX_CLI_REPORT_PLAN_H

struct moeflux_err;
struct json_t;
struct moeflux_plan;
struct options;
struct output;

/* Makes the plan and prints it as text or JSON. Fails as moeflux_make_plan does. */
int plan_report_run(const struct options *o, struct output *out, struct moeflux_err *e);

void plan_report_print(const struct moeflux_plan *p, struct output *out);
/* Returns the plan as an object, owned by the caller. */
struct json_t *plan_report_json(const struct moeflux_plan *p);

#endif
