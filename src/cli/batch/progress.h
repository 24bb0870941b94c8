/* progress.h - one line on a terminal: how far a batch is. */
#ifndef MOEFLUX_CLI_BATCH_PROGRESS_H
#define MOEFLUX_CLI_BATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct term;

struct batch_progress {
    bool on; /* stderr is a terminal that takes escape sequences */
    bool shown;
    bool is_among_results; /* results go to a terminal too, perhaps the same one */
    uint64_t total;        /* lines; 0: not known */
    uint64_t start_ns, drawn_ns;
};

/* Times count from now on. to_stdout: results go there. */
void batch_progress_begin(struct batch_progress *p, const struct term *t, uint64_t total, bool to_stdout);
/* there: results of an earlier run. Draws at most five times a second. */
void batch_progress_show(struct batch_progress *p, uint64_t answered, uint64_t failed, uint64_t there);
/* Before a result is written: wipes the line where the result would come behind it. */
void batch_progress_make_way(struct batch_progress *p);
/* Wipes the line; before anything else is printed. */
void batch_progress_end(struct batch_progress *p);

#endif
