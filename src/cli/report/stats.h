/* stats.h - times and counts of a run: the table of --stats and the numbers of --json. */
#ifndef MOEFLUX_CLI_REPORT_STATS_H
#define MOEFLUX_CLI_REPORT_STATS_H

#include <stddef.h>
#include <stdint.h>

struct answer;
struct choice;
struct json_t;
struct generator;

/* the prompt of one answer */
struct stats {
    uint32_t n_prompt; /* tokens that were evaluated */
    uint32_t n_reused; /* tokens that were not: the sequence had them */
    uint64_t start_ns; /* clock_ns() when the evaluation began */
    uint64_t prefill_ns;
};

struct stats stats_of(const struct choice *c);

/* Returns tokens per second; NaN: nothing was measured. */
double stats_rate(uint64_t n_tokens, uint64_t ns);

/* Returns the seconds from start_ns to the first sampled token; NaN: there is none. */
double stats_first_token_s(uint64_t start_ns, const struct answer *a);

/* Prints a table on stderr: of one answer, and of the engine since it was opened. a NULL: nothing was
 * generated. */
void stats_print(const struct stats *st, const struct answer *a, const struct generator *s);

/* Returns the engine's counters as an object, owned by the caller; NULL: no memory. */
struct json_t *stats_engine_json(const struct generator *s);

/* Returns the double that prints like the float: 0.9 instead of 0.89999998. */
double stats_share(float share);

/* Returns a number, or null if it is NaN or infinite. */
struct json_t *stats_number(double value);

#endif
