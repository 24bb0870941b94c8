#include "text/utf8.h"

#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include "base/str.h"

#define REPLACEMENT "\xef\xbf\xbd"

enum verdict { WHOLE, CUT_SHORT, INVALID };

/* Returns the length of a character that starts with `lead`, or 0 if none does. *low, *high: the range of its
 * second byte; narrower than 80..BF to exclude overlong forms, surrogates and values over U+10FFFF. */
static size_t lead_info(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef)
        return 3;
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/* Checks the first character of text[0..len), len > 0. *used: its length, or that of the maximal subpart. */
static enum verdict look(const char *text, size_t len, size_t *used)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t low, high;
    size_t need = lead_info(p[0], &low, &high);
    *used = 1;
    if (need == 0)
        return INVALID;
    while (*used < need) {
        if (*used == len)
            return CUT_SHORT;
        if (p[*used] < low || p[*used] > high)
            return INVALID;
        low = 0x80;
        high = 0xbf;
        ++*used;
    }
    return WHOLE;
}

/* Returns the first byte at or after `at` that is not ASCII, or `len`. Takes eight bytes at once: most text
 * is ASCII. */
static size_t skip_ascii(const char *text, size_t len, size_t at)
{
    uint64_t eight;
    for (; len - at >= sizeof eight; at += sizeof eight) {
        memcpy(&eight, text + at, sizeof eight);
        if (eight & 0x8080808080808080u)
            break;
    }
    while (at < len && (uint8_t)text[at] < 0x80)
        at++;
    return at;
}

bool utf8_is_valid(const char *text, size_t len)
{
    for (size_t at = skip_ascii(text, len, 0), used; at < len; at = skip_ascii(text, len, at + used))
        if (look(text + at, len - at, &used) != WHOLE)
            return false;
    return true;
}

size_t utf8_clean(const char *text, size_t len, struct str *out)
{
    size_t n_replaced = 0, done = 0, used;
    for (size_t at = skip_ascii(text, len, 0); at < len; at = skip_ascii(text, len, at + used)) {
        if (look(text + at, len - at, &used) != WHOLE) {
            str_add(out, text + done, at - done);
            str_add_text(out, REPLACEMENT);
            done = at + used;
            n_replaced++;
        }
    }
    if (len)
        str_add(out, text + done, len - done);
    return n_replaced;
}

/* Removes from `held` what is a complete character or invalid. */
static void release_complete(struct utf8_stream *s, struct str *out)
{
    while (s->n_held) {
        size_t used;
        enum verdict v = look(s->held, s->n_held, &used);
        if (v == CUT_SHORT)
            return;
        if (v == WHOLE)
            str_add(out, s->held, used);
        else
            str_add_text(out, REPLACEMENT);
        s->n_held -= used;
        memmove(s->held, s->held + used, s->n_held);
    }
}

void utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t len, struct str *out)
{
    for (size_t i = 0; i < len; i++) {
        s->held[s->n_held++] = bytes[i];
        release_complete(s, out);
    }
}

void utf8_stream_end(struct utf8_stream *s, struct str *out)
{
    if (s->n_held)
        str_add_text(out, REPLACEMENT);
    s->n_held = 0;
}

struct json_t *utf8_json(const char *text, size_t len)
{
    struct str clean = {0};
    utf8_clean(text, len, &clean);
    json_t *made = str_ok(&clean) ? json_stringn(str_text(&clean), clean.len) : NULL;
    str_free(&clean);
    return made;
}
