#include "text/pattern.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/quote.h"
#include "base/str.h"

#define SPACES                                                                                               \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
/* The complement, for \S inside a set. */
#define NOT_SPACES                                                                                           \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"          \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

struct translation {
    const char *p;
    size_t len, at;
    bool in_set;
    struct str *out;
    struct moeflux_err *e;
};

static int refuse(const struct translation *t, const char *why)
{
    return err_set(t->e, ERR_UNSUPPORTED, "pattern %s: %s at character %zu", quote_bytes(t->p, t->len).text,
                   why, t->at);
}

static bool looking_at(const struct translation *t, const char *text)
{
    size_t n = strlen(text);
    return t->len - t->at >= n && memcmp(t->p + t->at, text, n) == 0;
}

/* Copies n bytes as they are. */
static void keep(struct translation *t, size_t n)
{
    str_add(t->out, t->p + t->at, n);
    t->at += n;
}

/* Copies \p{..} and \x{..} whole: their braces are no quantifier. */
static int keep_braced_escape(struct translation *t)
{
    if (t->at + 2 >= t->len || t->p[t->at + 2] != '{')
        return refuse(t, "an escape that needs {braces}");
    const char *close = memchr(t->p + t->at, '}', t->len - t->at);
    if (!close)
        return refuse(t, "an escape without its closing brace");
    keep(t, (size_t)(close - (t->p + t->at)) + 1);
    return 0;
}

static int translate_escape(struct translation *t)
{
    if (t->at + 1 >= t->len)
        return refuse(t, "a lone backslash");
    char c = t->p[t->at + 1];
    if (c == 's' || c == 'S') {
        const char *open = t->in_set ? "" : c == 's' ? "[" : "[^";
        str_add_text(t->out, open);
        str_add_text(t->out, c == 'S' && t->in_set ? NOT_SPACES : SPACES);
        str_add_text(t->out, t->in_set ? "" : "]");
        t->at += 2;
        return 0;
    }
    if (c == 'p' || c == 'P' || c == 'x')
        return keep_braced_escape(t);
    bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_word && !strchr("rntfdD", c))
        return refuse(t, "an escape whose meaning differs between regular expression engines");
    keep(t, 2);
    return 0;
}

/* One step inside [...]. */
static int translate_set(struct translation *t)
{
    char c = t->p[t->at];
    if (c == '\\')
        return translate_escape(t);
    if (c == '[')
        return refuse(t, "a set inside a set");
    if (looking_at(t, "&&"))
        return refuse(t, "an intersection of sets");
    t->in_set = c != ']';
    keep(t, 1);
    return 0;
}

static int open_set(struct translation *t)
{
    keep(t, looking_at(t, "[^") ? 2 : 1);
    if (looking_at(t, "]"))
        return refuse(t, "an empty set");
    t->in_set = true;
    return 0;
}

static int open_group(struct translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)"};
    if (looking_at(t, "(*"))
        return refuse(t, "a backtracking verb");
    if (!looking_at(t, "(?")) {
        keep(t, 1);
        return 0;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (looking_at(t, kinds[i])) {
            keep(t, strlen(kinds[i]));
            return 0;
        }
    }
    return refuse(t, "an unknown kind of group");
}

/* {n}, {n,} and {n,m}; anything else in braces is text in one engine and a quantifier in the other. */
static int translate_braces(struct translation *t)
{
    size_t start = t->at + 1, i = start;
    while (i < t->len && t->p[i] >= '0' && t->p[i] <= '9')
        i++;
    if (i == start)
        return refuse(t, "an unescaped brace");
    if (i < t->len && t->p[i] == ',')
        i++;
    while (i < t->len && t->p[i] >= '0' && t->p[i] <= '9')
        i++;
    if (i >= t->len || t->p[i] != '}')
        return refuse(t, "an unescaped brace");
    if (i + 1 < t->len && t->p[i + 1] == '+')
        return refuse(t, "a quantifier of a quantifier");
    keep(t, i + 1 - t->at);
    return 0;
}

static int translate_outside(struct translation *t)
{
    switch (t->p[t->at]) {
    case '\\':
        return translate_escape(t);
    case '[':
        return open_set(t);
    case '(':
        return open_group(t);
    case '{':
        return translate_braces(t);
    default:
        keep(t, 1);
        return 0;
    }
}

int pattern_translate(const char *pattern, size_t len, struct str *out, struct moeflux_err *e)
{
    struct translation t = {.p = pattern, .len = len, .out = out, .e = e};
    while (t.at < len) {
        int rc = t.in_set ? translate_set(&t) : translate_outside(&t);
        if (rc < 0)
            return rc;
    }
    return str_ok(out) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a pattern of %zu bytes", len);
}
