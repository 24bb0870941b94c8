#include "base/json_sent.h"

#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

/* ---- numbers ---- */

/* Begins the string that stands for a number: U+FDD0, which is no character. */
static const char MARK[] = "\xef\xb7\x90";
enum { MARK_BYTES = sizeof MARK - 1 };

/* Returns the number of digits at text[at]. */
static size_t n_digits(const char *text, size_t len, size_t at)
{
    size_t n = 0;
    while (at + n < len && text[at + n] >= '0' && text[at + n] <= '9')
        n++;
    return n;
}

/* Returns the length of the JSON number that the text begins with; 0: there is none. */
static size_t number_len(const char *text, size_t len, bool *is_whole)
{
    size_t at = len > 0 && text[0] == '-', n = n_digits(text, len, at);
    *is_whole = true;
    if (n == 0 || (n > 1 && text[at] == '0'))
        return 0;
    at += n;
    if (at < len && text[at] == '.') {
        *is_whole = false;
        n = n_digits(text, len, at + 1);
        at += 1 + n;
    }
    if (n > 0 && at < len && (text[at] == 'e' || text[at] == 'E')) {
        *is_whole = false;
        at++;
        at += at < len && (text[at] == '+' || text[at] == '-');
        n = n_digits(text, len, at);
        at += n;
    }
    return n > 0 ? at : 0;
}

/* Returns whether jansson refuses a number as too large. */
static bool is_too_large(const char *number, bool is_whole)
{
    errno = 0;
    if (!is_whole)
        return isinf(strtod(number, NULL));
    (void)strtoll(number, NULL, 10);
    return errno == ERANGE;
}

static void add_number(const char *number, size_t n, bool is_whole, struct str *out)
{
    struct str own = {0};
    str_add(&own, number, n);
    if (str_ok(&own) && is_too_large(own.data, is_whole))
        str_addf(out, "\"%s%s\"", MARK, own.data);
    else
        str_add(out, number, n);
    out->failed |= !str_ok(&own);
    str_free(&own);
}

/* Copies the text with marked strings in the place of numbers that are too large. */
static void mark_numbers(const char *text, size_t len, struct str *out)
{
    bool in_string = false, is_whole;
    size_t done = 0;
    for (size_t i = 0; i < len; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        size_t n = in_string || i >= len ? 0 : number_len(text + i, len - i, &is_whole);
        if (n == 0)
            continue;
        str_add(out, text + done, i - done);
        add_number(text + i, n, is_whole, out);
        done = i + n;
        i = done - 1;
    }
    str_add(out, text + done, len - done);
}

struct json_t *json_sent_load(const char *text, size_t len, size_t flags, struct json_error_t *why)
{
    json_t *value = json_loadb(text, len, flags, why);
    if (value || json_error_code(why) != json_error_numeric_overflow)
        return value;
    struct str marked = {0};
    mark_numbers(text, len, &marked);
    if (str_ok(&marked))
        value = json_loadb(str_text(&marked), marked.len, flags, why);
    str_free(&marked);
    return value;
}

const char *json_sent_number(const struct json_t *value)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    bool is_whole;
    if (len <= MARK_BYTES || memcmp(text, MARK, MARK_BYTES) != 0 ||
        number_len(text + MARK_BYTES, len - MARK_BYTES, &is_whole) != len - MARK_BYTES)
        return NULL;
    return text + MARK_BYTES;
}

/* Writes the marked strings of a JSON text as numbers again, in place. */
static void unmark(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        const char *number = from + 1 + MARK_BYTES;
        bool is_marked = *from == '"' && (from == text || from[-1] != '\\') &&
                         strncmp(from + 1, MARK, MARK_BYTES) == 0,
             is_whole;
        size_t n = is_marked ? number_len(number, strlen(number), &is_whole) : 0;
        if (n > 0 && number[n] == '"') {
            memmove(to, number, n);
            to += n;
            from = number + n + 1;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
}

char *json_sent_dump(const struct json_t *value, size_t flags)
{
    char *text = value ? json_dumps(value, flags) : NULL;
    if (text && strstr(text, MARK))
        unmark(text);
    return text;
}

static bool has_marked(const json_t *value)
{
    json_t *member;
    const char *key;
    size_t i;
    json_array_foreach(value, i, member)
    {
        if (has_marked(member))
            return true;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        if (has_marked(member))
            return true;
    }
    return json_sent_number(value) != NULL;
}

static json_t *real_of(const json_t *value)
{
    double x = strtod(json_sent_number(value), NULL);
    return json_real(isinf(x) ? copysign(DBL_MAX, x) : x);
}

/* Replaces the marked members of a container, at every depth. Returns false if there is no memory. */
static bool round_members(json_t *value)
{
    json_t *member;
    const char *key;
    size_t i;
    bool ok = true;
    json_array_foreach(value, i, member)
    {
        bool is_number = json_sent_number(member) != NULL;
        ok &= is_number ? json_array_set_new(value, i, real_of(member)) == 0 : round_members(member);
    }
    json_object_foreach(value, key, member)
    {
        bool is_number = json_sent_number(member) != NULL;
        ok &= is_number ? json_object_set_new(value, key, real_of(member)) == 0 : round_members(member);
    }
    return ok;
}

struct json_t *json_sent_round(const struct json_t *value)
{
    if (!value || !has_marked(value))
        return json_incref((json_t *)(uintptr_t)value);
    if (json_sent_number(value))
        return real_of(value);
    json_t *copy = json_deep_copy(value);
    if (copy && round_members(copy))
        return copy;
    json_decref(copy);
    return NULL;
}

/* ---- escapes ---- */

enum { ESCAPE_BYTES = 6, PAIR_BYTES = 12 };

/* Returns the code unit of the escape \uXXXX at byte `at`; -1: there is none. */
static int unit_at(const char *text, size_t len, size_t at)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    int unit = 0;
    if (at > len || len - at < ESCAPE_BYTES || text[at] != '\\' || text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + ESCAPE_BYTES; i++) {
        const char *found = text[i] ? strchr(digits, text[i]) : NULL;
        if (!found)
            return -1;
        int digit = (int)(found - digits);
        unit = unit * 16 + (digit < 16 ? digit : digit - 6);
    }
    return unit;
}

/* Returns the first escape from byte `at` on that stands for no character (NUL, or half a surrogate pair);
 * len: there is none. Valid JSON has no backslash outside its strings. */
static size_t find_no_character(const char *text, size_t len, size_t at)
{
    const char *next;
    while (at < len && (next = memchr(text + at, '\\', len - at))) {
        at = (size_t)(next - text);
        int unit = unit_at(text, len, at), second = unit_at(text, len, at + ESCAPE_BYTES);
        bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
        bool paired = high && second >= 0xdc00 && second < 0xe000;
        if (unit == 0 || low || (high && !paired))
            return at;
        at += paired ? PAIR_BYTES : unit >= 0 ? ESCAPE_BYTES : 2;
    }
    return len;
}

struct json_t *json_sent_read(const char *text, size_t len, struct json_error_t *why)
{
    static const char bom[] = "\xef\xbb\xbf";
    if (len >= sizeof bom - 1 && memcmp(text, bom, sizeof bom - 1) == 0) {
        text += sizeof bom - 1;
        len -= sizeof bom - 1;
    }
    size_t at = find_no_character(text, len, 0);
    if (at == len)
        return json_sent_load(text, len, JSON_REJECT_DUPLICATES, why);
    char *own = mem_new(len, 1, NULL);
    if (!own) {
        *why = (json_error_t){.text = "out of memory"};
        return NULL;
    }
    memcpy(own, text, len);
    for (; at < len; at = find_no_character(own, len, at + ESCAPE_BYTES))
        memcpy(own + at, "\\ufffd", ESCAPE_BYTES);
    json_t *root = json_sent_load(own, len, JSON_REJECT_DUPLICATES, why);
    free(own);
    return root;
}
