#include "text/printable.h"

#include <stdint.h>
#include <string.h>

#include "base/str.h"

#define REPLACEMENT "\xef\xbf\xbd"

/* Returns the length in bytes of the control character at the beginning of valid UTF-8; 0: there is none. */
static size_t control_bytes(const char *text, size_t n)
{
    uint8_t first = (uint8_t)text[0];
    if (first < 0x20 || first == 0x7f)
        return 1;
    /* U+0080 to U+009F are C2 80 to C2 9F. */
    return first == 0xc2 && n > 1 && (uint8_t)text[1] < 0xa0 ? 2 : 0;
}

static void push_control(struct printable *p, char c, struct str *out)
{
    if (c == '\n' || c == '\t')
        str_add(out, &c, 1);
    else if (c == '\r')
        p->after_cr = true;
    else
        str_add_text(out, REPLACEMENT);
}

/* Takes whole valid characters. */
static void push_valid(struct printable *p, const char *text, size_t n, struct str *out)
{
    size_t done = 0, used;
    for (size_t at = 0; at < n; at++) {
        if (p->after_cr && text[at] != '\n')
            str_add_text(out, REPLACEMENT);
        p->after_cr = false;
        if (!(used = control_bytes(text + at, n - at)))
            continue;
        str_add(out, text + done, at - done);
        push_control(p, text[at], out);
        at += used - 1;
        done = at + 1;
    }
    str_add(out, text + done, n - done);
}

void printable_push(struct printable *p, const char *bytes, size_t n, struct str *out)
{
    struct str valid = {0};
    utf8_stream_push(&p->utf8, bytes, n, &valid);
    if (str_ok(&valid))
        push_valid(p, str_text(&valid), valid.len, out);
    else
        out->failed = true;
    str_free(&valid);
}

void printable_end(struct printable *p, struct str *out)
{
    if (p->after_cr)
        str_add_text(out, REPLACEMENT);
    p->after_cr = false;
    utf8_stream_end(&p->utf8, out);
}

void printable_line(const char *text, struct str *out)
{
    struct str lines = {0};
    struct printable p = {0};
    printable_push(&p, text, strlen(text), &lines);
    printable_end(&p, &lines);
    for (const char *at = str_text(&lines); *at; at++)
        if (*at == '\n' || *at == '\t')
            str_add_text(out, REPLACEMENT);
        else
            str_add(out, at, 1);
    out->failed |= !str_ok(&lines);
    str_free(&lines);
}
