/* stats.h - what a run cost: the --stats table and the numbers of --json. */
#ifndef MOEFLUX_CLI_REPORT_STATS_H
#define MOEFLUX_CLI_REPORT_STATS_H

#include <stddef.h>
#include <stdint.h>

struct answer;
struct json_t;
struct generator;

struct stats {         /* of one answer */
    uint32_t n_prompt; /* tokens evaluated before it */
    uint32_t n_reused; /* tokens of the prompt that did not have to be */
    uint64_t start_ns; /* clock_ns() when their evaluation began */
    uint64_t prefill_ns;
};

/* Tokens per second; NaN where nothing was measured. */
double stats_rate(uint64_t n_tokens, uint64_t ns);

/* Seconds from the start of the prompt to the first sampled token; NaN without one. */
double stats_first_token_s(const struct stats *st, const struct answer *a);

/* Prints on stderr the table of one answer and of the engine since it was opened. `a` may be NULL (nothing
 * was generated). */
void stats_print(const struct stats *st, const struct answer *a, const struct generator *s);

/* The engine's counters as an object; NULL without memory. The caller owns it. */
struct json_t *stats_engine_json(const struct generator *s);

/* A float as the user wrote it: 0.9, which as a double is 0.89999998. */
double stats_share(float share);

/* A number, or null where it is not known. */
struct json_t *stats_number(double value);

#endif
