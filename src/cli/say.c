#include "cli/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "text/printable.h"

static void put(const char *bytes, size_t n)
{
    fwrite(bytes, 1, n, stderr);
    fflush(stderr);
}

/* Prints a message that is readable even without memory for the filter. */
static void put_ascii(const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fputc((bytes[i] >= ' ' && bytes[i] <= '~') || bytes[i] == '\n' ? bytes[i] : '?', stderr);
}

static void put_filtered(const char *bytes, size_t n)
{
    struct printable p = {0};
    struct str out = {0};
    printable_push(&p, bytes, n, &out);
    printable_end(&p, &out);
    if (str_ok(&out))
        put(str_text(&out), out.len);
    else
        put_ascii(bytes, n);
    str_free(&out);
}

static void put_text(const char *bytes, size_t n)
{
    if (isatty(STDERR_FILENO))
        put_filtered(bytes, n);
    else
        put(bytes, n);
}

void say(const char *fmt, ...)
{
    char text[1024], *longer = NULL;
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    /* Without memory for the whole text its beginning is printed. */
    if (n >= (int)sizeof text && (longer = malloc((size_t)n + 1)))
        vsnprintf(longer, (size_t)n + 1, fmt, again);
    if (n > 0)
        put_text(longer ? longer : text, longer ? (size_t)n : strlen(text));
    free(longer);
    va_end(again);
    va_end(ap);
}

void say_text(const struct str *text)
{
    put_text(str_text(text), text->len);
}

void say_escape(const char *sequence)
{
    put(sequence, strlen(sequence));
}
