/* logprob_lines.h - how likely the tokens of an answer were, for people to read. */
#ifndef MOEFLUX_CLI_REPORT_LOGPROB_LINES_H
#define MOEFLUX_CLI_REPORT_LOGPROB_LINES_H

struct answer;
struct tokenizer;

/* Prints on stderr one line for each token of an answer with log-probabilities. t: NULL: ids instead of
 * texts. */
void logprob_lines_say(const struct tokenizer *t, const struct answer *a);

#endif
