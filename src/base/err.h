/* err.h - the one way a failure is told.
 *
 * What can fail returns int: 0 or a documented value >= 0 on success, a negative ERR_* otherwise. The caller
 * owns a struct moeflux_err and passes it down; the place that finds the fault fills it with one line that names the
 * file, tensor or flag, what was expected and what was found. */
#ifndef MOEFLUX_BASE_ERR_H
#define MOEFLUX_BASE_ERR_H

enum moeflux_err_code {
    ERR_IO = -1,          /* the operating system refused: open, read, write, rename */
    ERR_FORMAT = -2,      /* a file's content is not what it must be */
    ERR_MEMORY = -3,      /* host memory could not be had */
    ERR_USAGE = -4,       /* the caller asked for something that makes no sense */
    ERR_DEVICE = -5,      /* the GPU or its driver failed */
    ERR_UNSUPPORTED = -6, /* well formed, but not something this program or device can do */
    ERR_NO_FIT = -7,      /* does not fit the memory or disk there is */
    ERR_INTERRUPTED = -8, /* the user stopped it */
};

struct moeflux_err {
    enum moeflux_err_code code; /* 0 while nothing failed */
    char text[512];             /* one line, no full stop, no newline */
};

/* Fills `e` (which may be NULL) and returns `code`, so that a failure is one line: return err_set(e, ...).
 * A text that is too long is cut; control characters (of names that come from files) become '?'. */
int err_set(struct moeflux_err *e, enum moeflux_err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As err_set, with ": " and the text of errno (taken on entry) appended. */
int err_errno(struct moeflux_err *e, enum moeflux_err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The analyser sees one source file at a time and cannot know that these return what they are given. */
#ifdef __clang_analyzer__
#define err_set(e, code, ...)   (err_set(e, code, __VA_ARGS__), (int)(code))
#define err_errno(e, code, ...) (err_errno(e, code, __VA_ARGS__), (int)(code))
#endif

#endif
