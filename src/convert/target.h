/* target.h - DST.partial while it is being filled, and what of it is finished.
 *
 * DST.partial/convert.state begins with the source's identity and gets one line for every finished file
 * (name, bytes, XXH3-64). A run that finds it takes the finished files over; another source's is refused. */
#ifndef MOEFLUX_CONVERT_TARGET_H
#define MOEFLUX_CONVERT_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct side_file;

enum { CONVERT_NAME = 64 };

struct convert_sum {
    char name[CONVERT_NAME]; /* below the directory */
    uint64_t bytes, xxh3;
};

struct convert_target {
    char *final, *partial; /* DST and DST.partial; the same for a part that was renamed before */
    int state_fd;          /* locked; -1: not begun */
    uint64_t identity;
    struct convert_sum *sums; /* finished files */
    size_t n_sums, cap_sums;
};

/* Looks at DST and DST.partial; changes nothing but leftovers of half-written files. ERR_USAGE: DST exists,
 * or DST.partial is not an unfinished conversion of this source, or another process is at it. is_part: DST
 * may be unfinished under its own name too, since parts are renamed before the model is. */
int convert_target_open(struct convert_target *t, const char *dst, bool is_part, uint64_t identity,
                        struct moeflux_err *e);
void convert_target_close(struct convert_target *t);

/* Makes the directories and the state file, where they are not there yet. */
int convert_target_begin(struct convert_target *t, struct moeflux_err *e);

/* The finished file's sum, or NULL when it has to be (re)written. */
const struct convert_sum *convert_target_find(const struct convert_target *t, const char *name,
                                              uint64_t bytes);

/* A file is written to the side (base/side_file.h): create, write to the descriptor, finish (commit, record,
 * free). After a failure before finish: side_file_free. */
int convert_target_create(const struct convert_target *t, const char *name, struct side_file *f,
                          struct moeflux_err *e);
int convert_target_finish(struct convert_target *t, const char *name, struct side_file *f, uint64_t bytes,
                          uint64_t xxh3, struct moeflux_err *e);

/* A small file at once. */
int convert_target_put(struct convert_target *t, const char *name, const void *bytes, size_t n,
                       struct moeflux_err *e);

/* Renames DST.partial, whose files are on the disk already, to DST. A run that is killed after it still finds
 * its state. */
int convert_target_rename(struct convert_target *t, struct moeflux_err *e);
/* Waits until the new name is on the disk. */
int convert_target_sync_name(const struct convert_target *t, struct moeflux_err *e);
/* Removes the state, and waits until that and the name are on the disk too. */
int convert_target_end(struct convert_target *t, struct moeflux_err *e);

#endif
