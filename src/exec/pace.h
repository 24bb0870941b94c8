/* pace.h - how long kernels take on this device, learned from their last runs, so that no submission takes
 * long.
 *
 * Desktop drivers end work that keeps a device for seconds, and Ctrl-C waits for what the device was given.
 * The time of a dispatch is taken as its workgroups times what one of the same kernel took lately. Where that
 * is more than a submission may take, the dispatch runs in pieces: workgroups do not depend on each other, so
 * the results are the same bit by bit however the work is cut. */
#ifndef MOEFLUX_EXEC_PACE_H
#define MOEFLUX_EXEC_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PACE_KERNELS = 256 };

struct pace {
    uint64_t most_ns; /* a submission should take at most */
    struct {
        double group_ns; /* of one workgroup */
        bool has_run, is_known;
    } kernels[PACE_KERNELS]; /* by their number, modulo PACE_KERNELS */
};

void pace_init(struct pace *p, uint64_t most_ns);

/* `n_groups` workgroups of the kernel took `ns`. Its first run is not counted: drivers may compile in it. A
 * longer time is believed at once, a shorter one by half: work grows with the context, and submissions should
 * rather be too short. */
void pace_learn(struct pace *p, uint32_t kernel, uint64_t n_groups, uint64_t ns);
/* Every kernel is unknown again, its first run aside. */
void pace_forget(struct pace *p);
bool pace_knows(const struct pace *p, uint32_t kernel);
/* Nanoseconds; 0 for a kernel that is not known. */
uint64_t pace_estimate(const struct pace *p, uint32_t kernel, uint64_t n_groups);

/* How much of a dispatch to run next: of `n_steps` that are left, each of `step_groups` workgroups. Pieces
 * are about equal, each within most_ns as far as one step is; a kernel that is not known runs a sixteenth
 * first. At least 1. */
uint32_t pace_piece(const struct pace *p, uint32_t kernel, uint32_t n_steps, uint64_t step_groups);

#endif
