/* logprob_lines.h - prints the log-probabilities of an answer's tokens as lines for people. */
#ifndef MOEFLUX_CLI_REPORT_LOGPROB_LINES_H
#define MOEFLUX_CLI_REPORT_LOGPROB_LINES_H

#include "moeflux_chat.h"

/* Prints a line for each token on stderr, if the answer has log-probabilities. t NULL: ids, no texts. */
void logprob_lines_say(const struct moeflux_tokenizer *t, const struct moeflux_answer_info *a);

#endif
