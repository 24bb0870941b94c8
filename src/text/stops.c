#include "text/stops.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Returns how many bytes match when `c` follows the first n_matched bytes of the text. */
static size_t follow(const struct stop_text *t, size_t n_matched, char c)
{
    while (n_matched > 0 && t->text[n_matched] != c)
        n_matched = t->shorter[n_matched - 1];
    return t->text[n_matched] == c ? n_matched + 1 : 0;
}

int stops_init(struct stops *s, const char *const *texts, size_t n, struct moeflux_err *e)
{
    *s = (struct stops){0};
    if (n == 0)
        return 0;
    if (!(s->items = mem_new(n, sizeof *s->items, e)))
        return ERR_MEMORY;
    for (; s->n < n; s->n++) {
        struct stop_text *t = &s->items[s->n];
        t->text = texts[s->n];
        t->len = strlen(t->text);
        if (!(t->shorter = mem_new(t->len, sizeof *t->shorter, e)))
            goto fail;
        for (size_t i = 1; i < t->len; i++)
            t->shorter[i] = follow(t, t->shorter[i - 1], t->text[i]);
    }
    return 0;
fail:
    stops_free(s);
    return ERR_MEMORY;
}

/* Appends the held bytes except for the last `keep`. */
static void release(struct stops *s, size_t keep, struct str *out)
{
    size_t n = s->held.len - keep;
    if (n == 0)
        return;
    str_add(out, s->held.data, n);
    memmove(s->held.data, s->held.data + n, keep + 1);
    s->held.len = keep;
}

static void begin_anew(struct stops *s)
{
    str_clear(&s->held);
    for (size_t k = 0; k < s->n; k++)
        s->items[k].n_matched = 0;
}

/* Takes one byte. Returns the longest stop that it completes, or STOPS_NONE; *most: bytes to hold back. */
static int take(struct stops *s, char c, size_t *most)
{
    int found = STOPS_NONE;
    size_t longest = 0;
    *most = 0;
    for (size_t k = 0; k < s->n; k++) {
        struct stop_text *t = &s->items[k];
        t->n_matched = follow(t, t->n_matched, c);
        if (t->n_matched > *most)
            *most = t->n_matched;
        if (t->n_matched == t->len && t->len > longest) {
            longest = t->len;
            found = (int)k;
        }
    }
    return found;
}

int stops_push(struct stops *s, const char *bytes, size_t len, struct str *out)
{
    if (s->n == 0) {
        str_add(out, bytes, len);
        return STOPS_NONE;
    }
    for (size_t i = 0; i < len; i++) {
        size_t most;
        int found = take(s, bytes[i], &most);
        str_add(&s->held, bytes + i, 1);
        out->failed |= s->held.failed;
        if (!str_ok(out))
            return STOPS_NONE;
        release(s, found == STOPS_NONE ? most : s->items[found].len, out);
        if (found != STOPS_NONE) {
            begin_anew(s);
            return found;
        }
    }
    return STOPS_NONE;
}

void stops_end(struct stops *s, struct str *out)
{
    release(s, 0, out);
    begin_anew(s);
}

void stops_free(struct stops *s)
{
    for (size_t k = 0; k < s->n; k++)
        free(s->items[k].shorter);
    free(s->items);
    str_free(&s->held);
    *s = (struct stops){0};
}
