/* read_fixture.h - what tests of the reader share: a packed model that a test may spoil, requests and their
 * bytes. */
#ifndef MOEFLUX_TESTS_READ_FIXTURE_H
#define MOEFLUX_TESTS_READ_FIXTURE_H

#include "experts/reader.h"
#include "model/model_dir.h"

#define TINY "tests/models/tiny"
enum { N_MODES = 4, PAGE = 4096, POISON = 0xa5 };

struct fixture {
    char *tmp;
    const char *dir;
    struct model_dir model;
};

/* A packed copy of a model. */
void open_packed(struct fixture *f, const char *src);
void close_packed(struct fixture *f);

/* Makes requests for experts 0 to n - 1 of layer 0, each with poisoned memory of
 * its own, aligned to a page. */
struct read_request *new_requests(const struct model_dir *m, uint32_t n);
void free_requests(struct read_request *q, uint32_t n);
/* The request has brought the bytes of its expert. */
void check_bytes(const struct model_dir *m, const struct read_request *q);

struct reader *open_reader(const struct model_dir *m, const struct reader_options *o);
/* Reads experts [0, n) of a layer at once and compares them. */
void read_and_compare(struct reader *r, const struct model_dir *m, uint32_t layer, uint32_t n);

/* Whether the mode can be had for a model: io_uring may be forbidden, a disk may
 * have blocks of 4096 bytes. */
bool can_open(const struct model_dir *m, enum reader_mode mode);
/* The modes that a model can be read by here. */
struct mode_list {
    enum reader_mode modes[N_MODES];
    uint32_t n;
};
struct mode_list modes_of(const struct model_dir *m);

#endif
