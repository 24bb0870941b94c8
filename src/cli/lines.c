#include "cli/lines.h"

#include <string.h>

#include "base/err.h"

#define MAX_LINE ((size_t)1 << 30)

int lines_open(struct lines *l, const char *path, struct moeflux_err *e)
{
    *l = (struct lines){.input.fd = -1};
    return input_open(&l->input, path, e);
}

/* Reads what there is. */
static int read_more(struct lines *l, bool wait, struct moeflux_err *e)
{
    /* What was given out makes room. */
    if (l->at) {
        memmove(l->held.data, l->held.data + l->at, l->held.len - l->at);
        l->held.len -= l->at;
        l->at = 0;
    }
    int rc = input_read(&l->input, wait, &l->held, e);
    l->ended = rc == INPUT_END;
    if (rc == INPUT_BYTES && l->held.len > MAX_LINE)
        return err_set(e, ERR_FORMAT, "%s: line %llu is over %zu bytes", l->input.name,
                       (unsigned long long)l->n + 1, MAX_LINE);
    return rc;
}

int lines_next(struct lines *l, bool wait, const char **text, size_t *len, struct moeflux_err *e)
{
    size_t seen = 0;
    for (;;) {
        const char *start = str_text(&l->held) + l->at;
        size_t left = l->held.len - l->at;
        const char *stop = memchr(start + seen, '\n', left - seen);
        if (stop || (l->ended && left)) {
            *text = start;
            *len = stop ? (size_t)(stop - start) : left;
            l->at += *len + (stop != NULL);
            l->n++;
            return LINES_LINE;
        }
        if (l->ended)
            return LINES_END;
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
