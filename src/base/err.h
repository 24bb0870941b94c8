/* err.h - the one way a failure is reported.
 *
 * What can fail returns int: 0 or a documented value >= 0 on success, a negative ERR_* otherwise. The caller
 * owns a struct moeflux_err and passes it down; the function that finds the fault fills it with one line,
 * which names the file, tensor or flag, what was expected and what was found. The pointer may be NULL
 * everywhere: a function that needs the code or the text of what it has called has an error of its own. */
#ifndef MOEFLUX_BASE_ERR_H
#define MOEFLUX_BASE_ERR_H

/* The public header includes no other file of the project. This floor uses only its struct moeflux_err. */
#include "moeflux.h"

/* Its codes, under short names. */
enum {
    ERR_IO = MOEFLUX_ERR_IO,
    ERR_FORMAT = MOEFLUX_ERR_FORMAT,
    ERR_MEMORY = MOEFLUX_ERR_MEMORY,
    ERR_USAGE = MOEFLUX_ERR_USAGE,
    ERR_DEVICE = MOEFLUX_ERR_DEVICE,
    ERR_UNSUPPORTED = MOEFLUX_ERR_UNSUPPORTED,
    ERR_NO_FIT = MOEFLUX_ERR_NO_FIT,
    ERR_INTERRUPTED = MOEFLUX_ERR_INTERRUPTED,
    ERR_LOST = MOEFLUX_ERR_LOST,
};

/* Fills `e` (which may be NULL) and returns `code`, so that a failure is one line: return err_set(e, ...).
 * A text that is too long is cut; control characters (of names that come from files) become '?'. */
int err_set(struct moeflux_err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Checks the arguments of a function of the library: pairs of a name and a pointer. Returns 0, or ERR_USAGE
 * with a text that names the first one that is NULL. */
#define err_need(e, ...) err_need_list(e, __VA_ARGS__, (const char *)NULL)
int err_need_list(struct moeflux_err *e, const char *name, const void *pointer, ...)
    __attribute__((sentinel));

/* Does the same as err_set, with ": " and the text of errno (taken on entry) appended. */
int err_errno(struct moeflux_err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The analyser sees one source file at a time and cannot know that these return what they are given. */
#ifdef __clang_analyzer__
#define err_set(e, code, ...)   (err_set(e, code, __VA_ARGS__), (int)(code))
#define err_errno(e, code, ...) (err_errno(e, code, __VA_ARGS__), (int)(code))
#endif

#endif
