#include "text/tokenizer/nfc.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#define DECOMPOSE_OPTIONS ((utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE))
#define COMPOSE_OPTIONS   ((utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE))
/* A canonical decomposition has at most four characters. */
#define MAX_DECOMPOSED 4
#define N_CLASSES      256

/* Returns whether all characters are below U+0300, which have no byte of CC or more. A text of only such
 * characters is in form C. */
static bool is_plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((uint8_t)text[i] >= 0xcc)
            return false;
    return true;
}

/* Hugging Face's tokenizers normalise by Unicode 9. Characters whose class or composition came later stay as
 * and where they are. Blocks of Unicode 13 and 16 that have
 * compositions are here whole. U+11A7 is here because utf8proc 2.8 drops it after a Hangul syllable. */
static const struct {
    int32_t first, last;
} inert[] = {
    {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},   {0x1715, 0x1715},   {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x105c0, 0x105ff}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x11380, 0x113ff}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11900, 0x1195f},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16100, 0x1613f}, {0x16d40, 0x16d7f},
    {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
};

/* Binary search: the table is asked for each character of a text that is not Latin. */
static bool is_inert(int32_t cp)
{
    size_t low = 0, high = sizeof inert / sizeof *inert;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (inert[mid].last < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof inert / sizeof *inert && inert[low].first <= cp;
}

struct codepoints {
    int32_t *data;
    size_t n, cap;
};

static int decompose(const char *text, size_t len, struct codepoints *out, struct moeflux_err *e)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    for (size_t at = 0; at < len;) {
        utf8proc_int32_t cp;
        at += (size_t)utf8proc_iterate(p + at, (utf8proc_ssize_t)size_min(len - at, 4), &cp);
        void *data = out->data;
        int rc = mem_grow(&data, &out->cap, out->n + MAX_DECOMPOSED, sizeof *out->data, e);
        if (rc < 0)
            return rc;
        out->data = data;
        int bound = 0;
        if (is_inert(cp)) {
            out->data[out->n++] = cp;
            continue;
        }
        out->n += (size_t)utf8proc_decompose_char(cp, out->data + out->n, MAX_DECOMPOSED, DECOMPOSE_OPTIONS,
                                                  &bound);
    }
    return 0;
}

static uint8_t class_of(int32_t cp)
{
    return is_inert(cp) ? 0 : (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* Sorts a run of combining marks by class, stably, by counting. utf8proc's own sort
 * is quadratic in the run. */
static void sort_marks(int32_t *marks, size_t n, int32_t *tmp)
{
    size_t start[N_CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++)
        start[class_of(marks[i]) + 1]++;
    for (size_t c = 0; c < N_CLASSES; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        tmp[start[class_of(marks[i])]++] = marks[i];
    memcpy(marks, tmp, n * sizeof *marks);
}

static int order_marks(struct codepoints *text, struct moeflux_err *e)
{
    int32_t *tmp = mem_new(text->n, sizeof *tmp, e);
    if (!tmp)
        return ERR_MEMORY;
    for (size_t i = 0; i < text->n;) {
        size_t end = i;
        while (end < text->n && class_of(text->data[end]) != 0)
            end++;
        if (end - i > 1)
            sort_marks(text->data + i, end - i, tmp);
        i = end > i ? end : i + 1;
    }
    free(tmp);
    return 0;
}

/* Composes each stretch between inert characters alone: nothing composes with them or across them. Returns
 * the new length. */
static size_t compose(struct codepoints *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->n;) {
        size_t end = i;
        while (end < text->n && !is_inert(text->data[end]))
            end++;
        utf8proc_ssize_t kept = 0;
        if (end > i)
            kept = utf8proc_normalize_utf32(text->data + i, (utf8proc_ssize_t)(end - i), COMPOSE_OPTIONS);
        memmove(text->data + n, text->data + i, (size_t)kept * sizeof *text->data);
        n += (size_t)kept;
        if (end < text->n)
            text->data[n++] = text->data[end];
        i = end + 1;
    }
    return n;
}

static int add_composed(struct codepoints *text, struct str *out, struct moeflux_err *e)
{
    if (!text->data)
        return 0;
    size_t n = compose(text);
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        str_add(out, bytes, (size_t)utf8proc_encode_char(text->data[i], (utf8proc_uint8_t *)bytes));
    }
    return str_ok(out) ? 0 : err_set(e, ERR_MEMORY, "out of memory for %zu characters of text", text->n);
}

int nfc_add(const char *text, size_t len, struct str *out, struct moeflux_err *e)
{
    if (is_plain(text, len)) {
        str_add(out, text, len);
        return str_ok(out) ? 0 : err_set(e, ERR_MEMORY, "out of memory for %zu bytes of text", len);
    }
    struct codepoints points = {0};
    int rc = decompose(text, len, &points, e);
    if (rc == 0)
        rc = order_marks(&points, e);
    if (rc == 0)
        rc = add_composed(&points, out, e);
    free(points.data);
    return rc;
}
