/* heard_calls.h - what tool_calls reports of a text, for tests. */
#ifndef MOEFLUX_TESTS_HEARD_CALLS_H
#define MOEFLUX_TESTS_HEARD_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"
#include "text/chat/tool_calls.h"

struct fuzz;

/* Events in one line: text as it is, a call as [name|arguments], [name|arguments! where it failed, and
 * [name|arguments~ where the answer ended. */
struct heard {
    struct str all;
    unsigned n_calls;
    bool in_call;
};

/* A tool_sink's function; ctx: a struct heard. */
int heard_event(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e);
/* Reads a text in pieces of 1 to `most` bytes, 0: whole, in the form of the template, with TOOLS. */
struct heard heard_of(const char *template, const char *text, struct fuzz *f, size_t most);

#endif
