#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool reserve(struct str *s, size_t more)
{
    if (s->failed)
        return false;
    size_t need;
    void *data = s->data;
    if (__builtin_add_overflow(s->len, more, &need) || need == (size_t)-1 ||
        mem_grow(&data, &s->cap, need + 1, 1, NULL) < 0)
        s->failed = true;
    else
        s->data = data;
    return !s->failed;
}

void str_add(struct str *s, const char *bytes, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n)
        memcpy(s->data + s->len, bytes, n);
    s->len += n;
    s->data[s->len] = '\0';
}

void str_add_text(struct str *s, const char *text)
{
    str_add(s, text, strlen(text));
}

void str_addf(struct str *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0)
        s->failed = true;
    else if (reserve(s, (size_t)n)) {
        vsnprintf(s->data + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

void str_clear(struct str *s)
{
    s->len = 0;
    s->failed = false;
    if (s->data)
        s->data[0] = '\0';
}

const char *str_text(const struct str *s)
{
    return s->data ? s->data : "";
}

void str_free(struct str *s)
{
    free(s->data);
    *s = (struct str){0};
}

bool str_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

const char *str_after(const char *text, const char *start)
{
    size_t n = strlen(start);
    return strncmp(text, start, n) == 0 ? text + n : NULL;
}
