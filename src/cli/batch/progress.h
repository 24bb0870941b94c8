/* progress.h - one line on the terminal that says how far a batch is. */
#ifndef MOEFLUX_CLI_BATCH_PROGRESS_H
#define MOEFLUX_CLI_BATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct term;

struct batch_progress {
    bool on;               /* stderr is a terminal that takes escape sequences */
    bool shown;            /* the line is on the screen */
    bool is_among_results; /* results go to a terminal too, perhaps the same one */
    uint64_t total;        /* lines; 0: not known */
    uint64_t start_ns, drawn_ns;
};

/* Begins now. total: lines; 0: not known. to_stdout: results go to stdout. */
void batch_progress_begin(struct batch_progress *p, const struct term *t, uint64_t total, bool to_stdout);
/* Draws the line, at most five times a second. there: results of an earlier run. */
void batch_progress_show(struct batch_progress *p, uint64_t answered, uint64_t failed, uint64_t there);
/* Wipes the line if a result that is written next would stand after it. */
void batch_progress_make_way(struct batch_progress *p);
/* Wipes the line. To be called before anything else is printed. */
void batch_progress_end(struct batch_progress *p);

#endif
