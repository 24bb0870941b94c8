/* pace.h - estimates how long kernels take on this device from their last runs, so that submissions stay
 * short.
 *
 * Desktop drivers kill work that keeps a device busy for seconds, and Ctrl-C has to wait for what is
 * queued. The estimate is the number of workgroups times what a workgroup of the same kernel took last. A
 * dispatch that would exceed the limit runs in pieces. Workgroups of these kernels do not depend on each
 * other, so the results are the same bit by bit however the work is cut. Where they do (kernel.is_one_piece),
 * a dispatch runs whole. */
#ifndef MOEFLUX_EXEC_PACE_H
#define MOEFLUX_EXEC_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;

struct pace {
    uint64_t most_ns; /* the longest that a submission should take */
    struct pace_kernel {
        double group_ns; /* duration of one workgroup */
        bool has_run, is_known;
    } * kernels; /* [cap], index: the kernel's number */
    size_t cap;
};

void pace_init(struct pace *p, uint64_t most_ns);
void pace_close(struct pace *p);
/* Makes room for the kernels 0 .. n - 1. The other functions take these only. */
int pace_reserve(struct pace *p, uint32_t n, struct moeflux_err *e);

/* Learns that `n_groups` workgroups of the kernel took `ns`. A kernel's first run does not count: drivers may
 * compile in it. A longer time replaces the estimate, a shorter one is averaged with it: work grows with the
 * context, and too short submissions are better than too long ones. */
void pace_learn(struct pace *p, uint32_t kernel, uint64_t n_groups, uint64_t ns);
/* Forgets all times, but not which kernels have had their first run. */
void pace_forget(struct pace *p);
bool pace_knows(const struct pace *p, uint32_t kernel);
/* Returns nanoseconds; 0 for a kernel that is not known. */
uint64_t pace_estimate(const struct pace *p, uint32_t kernel, uint64_t n_groups);

/* Returns how many of the `n_steps` that are left of a dispatch to run next; each has `step_groups`
 * workgroups. Pieces are about equal and within most_ns unless a single step exceeds it. A kernel that is not
 * known runs a sixteenth first. At least 1. */
uint32_t pace_piece(const struct pace *p, uint32_t kernel, uint32_t n_steps, uint64_t step_groups);

#endif
