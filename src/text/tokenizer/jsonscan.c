#include "text/tokenizer/jsonscan.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

#define MAX_DIGITS 18

int jsonscan_fault(const struct jsonscan *s, const char *what, struct moeflux_err *e)
{
    size_t line = 1;
    for (size_t i = 0; i < s->at && i < s->end; i++)
        line += s->text[i] == '\n';
    return err_set(e, ERR_FORMAT, "not valid JSON: expected %s (line %zu)%s", what, line,
                   s->at >= s->end ? ", found the end" : "");
}

char jsonscan_peek(struct jsonscan *s)
{
    while (s->at < s->end) {
        char c = s->text[s->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
        s->at++;
    }
    return '\0';
}

/* Takes `c` if it comes next. */
static bool take(struct jsonscan *s, char c)
{
    if (jsonscan_peek(s) != c || s->at >= s->end)
        return false;
    s->at++;
    return true;
}

int jsonscan_open(struct jsonscan *s, char bracket, struct moeflux_err *e)
{
    if (!take(s, bracket))
        return jsonscan_fault(s, bracket == '{' ? "an object" : "an array", e);
    return 0;
}

int jsonscan_more(struct jsonscan *s, char bracket, size_t idx, struct moeflux_err *e)
{
    if (take(s, bracket))
        return 0;
    if (idx > 0 && !take(s, ','))
        return jsonscan_fault(s, bracket == '}' ? "',' or '}'" : "',' or ']'", e);
    return 1;
}

static int hex4(const struct jsonscan *s, size_t at, uint32_t *value)
{
    if (s->end - at < 4)
        return -1;
    *value = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = s->text[i];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            digit = (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return -1;
        *value = *value << 4 | digit;
    }
    return 0;
}

static void add_utf8(struct str *out, uint32_t cp)
{
    char b[4];
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; cp >>= 6)
        b[i] = (char)(0x80 | (cp & 0x3f));
    b[0] = (char)(n == 1 ? cp : (0xf0u << (4 - n) & 0xf0u) | cp);
    str_add(out, b, n);
}

/* Takes an escape of four hex digits, or a surrogate pair. The reader stands at the (first) u. */
static int take_unicode(struct jsonscan *s, struct str *out, struct moeflux_err *e)
{
    uint32_t cp, low;
    if (hex4(s, s->at + 1, &cp) < 0 || cp == 0)
        return jsonscan_fault(s, "four hexadecimal digits other than 0000", e);
    s->at += 5;
    if (cp >= 0xd800 && cp <= 0xdfff) {
        if (cp > 0xdbff || s->end - s->at < 6 || memcmp(s->text + s->at, "\\u", 2) != 0 ||
            hex4(s, s->at + 2, &low) < 0 || low < 0xdc00 || low > 0xdfff)
            return jsonscan_fault(s, "a whole surrogate pair", e);
        s->at += 6;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    add_utf8(out, cp);
    return 0;
}

/* Takes the rest of an escape, after the backslash. */
static int take_escape(struct jsonscan *s, struct str *out, struct moeflux_err *e)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end)
        return jsonscan_fault(s, "a known escape", e);
    char c = s->text[s->at];
    if (c == 'u')
        return take_unicode(s, out, e);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known)
        return jsonscan_fault(s, "a known escape", e);
    str_add(out, &to[known - from], 1);
    s->at++;
    return 0;
}

/* Returns the offset after the characters that stand for themselves. */
static size_t plain_run(const struct jsonscan *s)
{
    size_t at = s->at;
    while (at < s->end && s->text[at] != '"' && s->text[at] != '\\' && (unsigned char)s->text[at] >= 0x20)
        at++;
    return at;
}

/* Decodes the rest of a string with escapes into the scratch. */
static int take_escaped(struct jsonscan *s, struct str *scratch, struct moeflux_err *e)
{
    str_clear(scratch);
    for (;;) {
        size_t stop = plain_run(s);
        str_add(scratch, s->text + s->at, stop - s->at);
        s->at = stop;
        if (stop == s->end || (s->text[stop] != '"' && s->text[stop] != '\\'))
            return jsonscan_fault(s, "the end of a string", e);
        s->at++;
        if (s->text[stop] == '"')
            return str_ok(scratch) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a string");
        int rc = take_escape(s, scratch, e);
        if (rc < 0)
            return rc;
    }
}

int jsonscan_string(struct jsonscan *s, struct str *scratch, struct jsonscan_text *out, struct moeflux_err *e)
{
    if (!take(s, '"'))
        return jsonscan_fault(s, "a string", e);
    size_t stop = plain_run(s);
    if (stop < s->end && s->text[stop] == '"') {
        *out = (struct jsonscan_text){s->text + s->at, stop - s->at};
        s->at = stop + 1;
        return 0;
    }
    int rc = take_escaped(s, scratch, e);
    *out = (struct jsonscan_text){str_text(scratch), scratch->len};
    return rc;
}

bool jsonscan_is(struct jsonscan_text text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.bytes, word, text.len) == 0;
}

int jsonscan_members(struct jsonscan *s, struct str *scratch,
                     int (*member)(void *ctx, struct jsonscan *s, struct jsonscan_text key,
                                   struct moeflux_err *e),
                     void *ctx, struct moeflux_err *e)
{
    int rc = jsonscan_open(s, '{', e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; (rc = jsonscan_more(s, '}', i, e)) > 0; i++) {
        struct jsonscan_text key = {0};
        rc = jsonscan_string(s, scratch, &key, e);
        if (rc == 0 && !take(s, ':'))
            rc = jsonscan_fault(s, "':'", e);
        if (rc == 0)
            rc = member(ctx, s, key, e);
        if (rc < 0)
            return rc;
    }
    return rc;
}

static bool is_digit(const struct jsonscan *s)
{
    return s->at < s->end && s->text[s->at] >= '0' && s->text[s->at] <= '9';
}

int jsonscan_integer(struct jsonscan *s, int64_t *value, struct moeflux_err *e)
{
    bool negative = take(s, '-');
    size_t start = s->at;
    int64_t v = 0;
    for (; is_digit(s) && s->at - start < MAX_DIGITS; s->at++)
        v = v * 10 + (s->text[s->at] - '0');
    size_t n = s->at - start;
    bool padded = n > 1 && s->text[start] == '0';
    bool fraction = s->at < s->end && s->text[s->at] && strchr(".eE", s->text[s->at]);
    if (n == 0 || is_digit(s) || padded || fraction) {
        s->at = start;
        return jsonscan_fault(s, "an integer", e);
    }
    *value = negative ? -v : v;
    return 0;
}

static int skip_string(struct jsonscan *s, struct moeflux_err *e)
{
    for (s->at++; s->at < s->end; s->at++) {
        if (s->text[s->at] == '"') {
            s->at++;
            return 0;
        }
        if (s->text[s->at] == '\\')
            s->at++;
    }
    s->at = s->end;
    return jsonscan_fault(s, "the end of a string", e);
}

int jsonscan_skip(struct jsonscan *s, struct moeflux_err *e)
{
    size_t depth = 0;
    do {
        char c = jsonscan_peek(s);
        if (s->at >= s->end || (depth == 0 && strchr(",:]}", c)))
            return jsonscan_fault(s, "a value", e);
        if (c == '"') {
            int rc = skip_string(s, e);
            if (rc < 0)
                return rc;
            continue;
        }
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        s->at++;
        /* A number or a word has more characters; inside brackets the outer loop skips them one by one. */
        while (depth == 0 && c != '}' && c != ']' && s->at < s->end && !strchr(",:]} \n\r\t", s->text[s->at]))
            s->at++;
    } while (depth > 0);
    return 0;
}
