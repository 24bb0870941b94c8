/* target.h - fills DST.partial and records which of its files are finished.
 *
 * DST.partial/convert.state begins with the source's identity, followed by a line for every finished file
 * (name, bytes, XXH3-64). A later run keeps the finished files. A state with another identity is refused. */
#ifndef MOEFLUX_CONVERT_TARGET_H
#define MOEFLUX_CONVERT_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct moeflux_err;
struct side_file;

enum { CONVERT_NAME = 64 };

struct convert_sum {
    char name[CONVERT_NAME]; /* path within the directory */
    uint64_t bytes, xxh3;
};

struct convert_target {
    char *final, *partial; /* DST and DST.partial; equal for a part that is renamed already */
    int state_fd;          /* locked; -1: not begun */
    uint64_t identity;
    struct convert_sum *sums; /* finished files */
    size_t n_sums, cap_sums;
};

/* Examines DST and DST.partial; changes nothing, except that it removes half-written files. is_part: DST may
 * be unfinished under its final name, since parts are renamed before the model. ERR_USAGE: DST exists,
 * DST.partial is not an unfinished conversion of this source, or another process is writing it. */
int convert_target_open(struct convert_target *t, const char *dst, bool is_part, uint64_t identity,
                        struct moeflux_err *e);
void convert_target_close(struct convert_target *t);

/* Makes missing directories and the state file. */
int convert_target_begin(struct convert_target *t, struct moeflux_err *e);

/* Returns the finished file's sum, or NULL if it must be (re)written. */
const struct convert_sum *convert_target_find(const struct convert_target *t, const char *name,
                                              uint64_t bytes);

/* Write a file under a temporary name (base/side_file.h): create, write to the descriptor, finish (commits,
 * records and frees). After a failure before finish the caller calls side_file_free. */
int convert_target_create(const struct convert_target *t, const char *name, struct side_file *f,
                          struct moeflux_err *e);
int convert_target_finish(struct convert_target *t, const char *name, struct side_file *f, uint64_t bytes,
                          uint64_t xxh3, struct moeflux_err *e);

/* Writes a small file, and makes its folder if its name has one. */
int convert_target_put(struct convert_target *t, const char *name, const void *bytes, size_t n,
                       struct moeflux_err *e);

/* Renames DST.partial, whose files are synced already, to DST. The state stays, for the next run if this one
 * is killed. */
int convert_target_rename(struct convert_target *t, struct moeflux_err *e);
/* Syncs the new name to the disk. */
int convert_target_sync_name(const struct convert_target *t, struct moeflux_err *e);
/* Removes the state, and syncs that and the name to the disk. */
int convert_target_end(struct convert_target *t, struct moeflux_err *e);

#endif
