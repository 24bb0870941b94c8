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
        out->n += (size_t)utf8proc_decompose_char(cp, out->data + out->n, MAX_DECOMPOSED, DECOMPOSE_OPTIONS,
                                                  &bound);
    }
    return 0;
}

static uint8_t class_of(int32_t cp)
{
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* Sorts a run of combining marks by class, stably, by counting. utf8proc's own sort is quadratic in the run.
 * */
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

static int add_composed(struct codepoints *text, struct str *out, struct moeflux_err *e)
{
    if (!text->data)
        return 0;
    utf8proc_ssize_t n = utf8proc_normalize_utf32(text->data, (utf8proc_ssize_t)text->n, COMPOSE_OPTIONS);
    for (utf8proc_ssize_t i = 0; i < n; i++) {
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
