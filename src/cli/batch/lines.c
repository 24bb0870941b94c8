#include "cli/batch/lines.h"

#include <string.h>

#include "base/err.h"

int lines_open(struct lines *l, const char *path, struct moeflux_err *e)
{
    *l = (struct lines){.input.fd = -1};
    return input_open(&l->input, path, e);
}

/* Reads what is available. */
static int read_more(struct lines *l, bool wait, struct moeflux_err *e)
{
    /* Lines that were returned make room. */
    if (l->at) {
        memmove(l->held.data, l->held.data + l->at, l->held.len - l->at);
        l->held.len -= l->at;
        l->at = 0;
    }
    int rc = input_read(&l->input, wait, &l->held, e);
    l->ended = rc == INPUT_END;
    return rc;
}

/* Returns the line of `len` bytes at `at`, whose line end has `end` bytes. */
static int take_line(struct lines *l, size_t len, size_t end, const char **text, size_t *out_len)
{
    bool fits = !l->too_long && len <= LINES_MAX_BYTES;
    *text = str_text(&l->held) + l->at;
    *out_len = len;
    l->at += len + end;
    l->n++;
    l->too_long = false;
    return fits ? LINES_LINE : LINES_TOO_LONG;
}

int lines_next(struct lines *l, bool wait, const char **text, size_t *len, struct moeflux_err *e)
{
    size_t seen = 0;
    for (;;) {
        const char *start = str_text(&l->held) + l->at;
        size_t left = l->held.len - l->at;
        const char *stop = memchr(start + seen, '\n', left - seen);
        if (stop || (l->ended && (left || l->too_long)))
            return take_line(l, stop ? (size_t)(stop - start) : left, stop != NULL, text, len);
        if (l->ended)
            return LINES_END;
        l->too_long |= left > LINES_MAX_BYTES;
        if (l->too_long) {
            str_free(&l->held);
            l->at = left = 0;
        }
        seen = left;
        int rc = read_more(l, wait, e);
        if (rc < 0)
            return rc;
        if (rc == INPUT_NOT_YET)
            return LINES_NOT_YET;
    }
}

void lines_close(struct lines *l)
{
    input_close(&l->input);
    str_free(&l->held);
    *l = (struct lines){.input.fd = -1};
}
