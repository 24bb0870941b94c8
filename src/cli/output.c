#include "cli/output.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/utf8.h"

/* Large enough that a write is cheap per byte, small enough to hold. */
#define HOLD_BYTES (64u << 10)

void output_init(struct output *o, int fd)
{
    *o = (struct output){.fd = fd, .is_terminal = isatty(fd)};
}

static void fail(struct output *o, const char *what)
{
    if (errno == EPIPE)
        err_set(&o->fault, ERR_IO, "%s", "");
    else
        err_errno(&o->fault, ERR_IO, "stdout: %s", what);
}

static void write_held(struct output *o)
{
    size_t done = 0;
    while (!o->fault.code && done < o->held.len) {
        ssize_t put = write(o->fd, o->held.data + done, o->held.len - done);
        if (put < 0 && errno != EINTR)
            fail(o, "write");
        else if (put > 0)
            done += (size_t)put;
    }
    str_clear(&o->held);
}

void output_add(struct output *o, const char *bytes, size_t n)
{
    if (o->fault.code)
        return;
    if (o->is_terminal)
        printable_push(&o->filter, bytes, n, &o->held);
    else
        str_add(&o->held, bytes, n);
    if (!str_ok(&o->held))
        err_set(&o->fault, ERR_MEMORY, "out of memory for the output");
    else if (o->held.len >= HOLD_BYTES)
        write_held(o);
}

void output_text(struct output *o, const char *text)
{
    output_add(o, text, strlen(text));
}

void output_escape(struct output *o, const char *sequence)
{
    printable_end(&o->filter, &o->held);
    str_add_text(&o->held, sequence);
}

void output_addf(struct output *o, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0)
        output_add(o, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

int output_json(struct output *o, struct json_t *value, struct moeflux_err *e)
{
    char *text = value ? json_dumps(value, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(value);
    if (!text)
        return err_set(e, ERR_MEMORY, "out of memory for the JSON output");
    output_text(o, text);
    output_text(o, "\n");
    free(text);
    return output_flush(o, e);
}

struct json_t *output_json_text(const char *bytes, size_t n)
{
    return utf8_json(bytes, n);
}

int output_flush(struct output *o, struct moeflux_err *e)
{
    write_held(o);
    if (!o->fault.code)
        return 0;
    return err_set(e, o->fault.code, "%s", o->fault.text);
}

int output_close(struct output *o, struct moeflux_err *e)
{
    printable_end(&o->filter, &o->held);
    write_held(o);
    bool wrote = o->fd >= 0;
    if (wrote && close(o->fd) < 0 && !o->fault.code && errno != EINTR)
        fail(o, "close");
    str_free(&o->held);
    o->fd = -1;
    if (!o->fault.code)
        return 0;
    return err_set(e, o->fault.code, "%s", o->fault.text);
}
