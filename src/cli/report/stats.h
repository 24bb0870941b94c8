/* stats.h - times and counts of a run: the table of --stats and the numbers of --json. */
#ifndef MOEFLUX_CLI_REPORT_STATS_H
#define MOEFLUX_CLI_REPORT_STATS_H

#include <stddef.h>
#include <stdint.h>

struct json_t;
struct loaded;
struct moeflux_answer_info;

/* Returns tokens per second; NaN: nothing was measured. */
double stats_rate(uint64_t n_tokens, uint64_t ns);

/* Returns the seconds from the beginning of the prompt's evaluation to the first token; NaN: there is
 * none. */
double stats_first_token_s(const struct moeflux_answer_info *a);

/* Prints a table on stderr: of one answer, and of the engine since it was opened. a NULL: nothing was
 * generated. */
void stats_print(const struct loaded *l, const struct moeflux_answer_info *a);
/* Does the same for many answers, whose prompts had n_prompt tokens that were computed in prompt_ns. */
void stats_print_all(const struct loaded *l, uint64_t n_prompt, uint64_t prompt_ns);

/* Returns the engine's counters as an object, owned by the caller; NULL: no memory. */
struct json_t *stats_engine_json(const struct loaded *l);

/* Returns the double that prints like the float: 0.9 instead of 0.89999998. */
double stats_share(float share);

/* Returns a number, or null if it is NaN or infinite. */
struct json_t *stats_number(double value);

#endif
