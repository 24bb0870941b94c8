#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef err_set
#undef err_errno

static void set_text(struct moeflux_err *e, int code, const char *fmt, va_list ap)
{
    e->code = code;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    /* Names from files end up here; a line break or an escape sequence in one must not reach the terminal. */
    for (char *c = e->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

int err_set(struct moeflux_err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        set_text(e, code, fmt, ap);
        va_end(ap);
    }
    return code;
}

int err_need_list(struct moeflux_err *e, const char *name, const void *pointer, ...)
{
    va_list ap;
    va_start(ap, pointer);
    while (name && pointer) {
        name = va_arg(ap, const char *);
        pointer = name ? va_arg(ap, const void *) : NULL;
    }
    va_end(ap);
    return name ? err_set(e, ERR_USAGE, "the %s is NULL", name) : 0;
}

int err_errno(struct moeflux_err *e, int code, const char *fmt, ...)
{
    int saved = errno;
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        set_text(e, code, fmt, ap);
        va_end(ap);
        size_t len = strlen(e->text);
        char reason[128];
        /* The GNU strerror_r returns the text, which need not be in the buffer. */
        snprintf(e->text + len, sizeof e->text - len, ": %s", strerror_r(saved, reason, sizeof reason));
    }
    return code;
}
