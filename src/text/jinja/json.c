/* The filter tojson: writes a value as Python's json.dumps does. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "text/jinja/run.h"
#include "text/jinja/sort.h"

struct writer {
    struct jinja_build *b;
    bool ascii, sorted, has_indent;
    struct jinja_text indent, comma, colon;
};

static void write_value(struct writer *w, struct jinja_value v, size_t depth);

static void write_text(struct writer *w, struct jinja_text t)
{
    static const char named[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    jinja_build_literal(w->b, "\"");
    for (size_t i = 0, n; i < t.len; i += n) {
        int32_t c = jinja_character(t, i);
        char escape[16] = "";
        n = jinja_width(t, i);
        for (const char *p = named; *p; p += 2)
            if (*p == c)
                snprintf(escape, sizeof escape, "\\%c", p[1]);
        if (!*escape && (c < 0x20 || (w->ascii && c >= 0x7f && c < 0x10000)))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        else if (w->ascii && c >= 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800u + (((unsigned)c - 0x10000) >> 10),
                     0xdc00u + (((unsigned)c - 0x10000) & 0x3ff));
        if (*escape)
            jinja_build_as(w->b, t, i, escape, strlen(escape));
        else
            jinja_build_text(w->b, jinja_cut(t, i, i + n));
    }
    jinja_build_literal(w->b, "\"");
}

static void write_number(struct writer *w, struct jinja_value v)
{
    char text[JINJA_FLOAT_TEXT];
    if (v.kind != JINJA_FLOAT) {
        snprintf(text, sizeof text, "%lld", (long long)v.number);
    } else {
        jinja_float_text(v.real, text);
        if (strstr(text, "nan"))
            strcpy(text, "NaN");
        else if (strstr(text, "inf"))
            strcpy(text, *text == '-' ? "-Infinity" : "Infinity");
    }
    jinja_build_literal(w->b, text);
}

static void write_line(struct writer *w, size_t depth)
{
    if (!w->has_indent)
        return;
    jinja_build_literal(w->b, "\n");
    for (size_t i = 0; i < depth; i++)
        jinja_build_text(w->b, w->indent);
}

static void write_list(struct writer *w, const struct jinja_list *l, size_t depth)
{
    jinja_build_literal(w->b, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jinja_build_text(w->b, w->comma);
        write_line(w, depth + 1);
        write_value(w, l->items[i], depth + 1);
    }
    if (l->n)
        write_line(w, depth);
    jinja_build_literal(w->b, "]");
}

static void write_key(struct writer *w, struct jinja_value key)
{
    if (key.kind == JINJA_TEXT) {
        write_text(w, key.text);
        return;
    }
    if (key.kind != JINJA_NONE && !jinja_is_number(key))
        jinja_fail(w->b->s, ERR_FORMAT, "JSON has no key that is a %s", jinja_type(key));
    jinja_build_literal(w->b, "\"");
    write_value(w, key, 0);
    jinja_build_literal(w->b, "\"");
}

static void write_dict(struct writer *w, const struct jinja_dict *d, size_t depth)
{
    const struct jinja_entry *entries = d->entries;
    if (w->sorted && d->n) {
        struct jinja_entry *copy = jinja_alloc(w->b->s, d->n, sizeof *copy);
        memcpy(copy, d->entries, d->n * sizeof *copy);
        jinja_sort(w->b->s, copy, d->n, false);
        entries = copy;
    }
    jinja_build_literal(w->b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jinja_build_text(w->b, w->comma);
        write_line(w, depth + 1);
        write_key(w, entries[i].key);
        jinja_build_text(w->b, w->colon);
        write_value(w, entries[i].value, depth + 1);
    }
    if (d->n)
        write_line(w, depth);
    jinja_build_literal(w->b, "}");
}

static void write_value(struct writer *w, struct jinja_value v, size_t depth)
{
    jinja_enter(w->b->s);
    jinja_count(w->b->s, 1);
    switch (v.kind) {
    case JINJA_NONE:
        jinja_build_literal(w->b, "null");
        break;
    case JINJA_BOOL:
        jinja_build_literal(w->b, v.truth ? "true" : "false");
        break;
    case JINJA_INT:
    case JINJA_FLOAT:
        write_number(w, v);
        break;
    case JINJA_TEXT:
        if (v.is_number)
            jinja_build_text(w->b, v.text);
        else
            write_text(w, v.text);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        write_list(w, v.list, depth);
        break;
    case JINJA_DICT:
        write_dict(w, v.dict, depth);
        break;
    default:
        jinja_fail(w->b->s, ERR_FORMAT, "JSON has no %s", jinja_type(v));
    }
    jinja_leave(w->b->s);
}

static void take_indent(struct writer *w, struct jinja_run *r, struct jinja_args *options)
{
    const struct jinja_value *v = jinja_take(options, "indent");
    if (!v || v->kind == JINJA_NONE)
        return;
    w->has_indent = true;
    w->comma = jinja_text_of(",");
    if (v->kind == JINJA_TEXT) {
        w->indent = v->text;
        return;
    }
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        jinja_fail(&r->s, ERR_FORMAT, "tojson: indent is a %s", jinja_type(*v));
    struct jinja_build spaces = jinja_build(&r->s);
    for (int64_t i = 0; i < jinja_whole(*v); i++)
        jinja_build_literal(&spaces, " ");
    w->indent = jinja_built(&spaces);
}

static void take_separators(struct writer *w, struct jinja_run *r, struct jinja_args *options)
{
    const struct jinja_value *v = jinja_take(options, "separators");
    if (!v || v->kind == JINJA_NONE)
        return;
    if (!jinja_is_sequence(*v) || v->list->n != 2 || v->list->items[0].kind != JINJA_TEXT ||
        v->list->items[1].kind != JINJA_TEXT)
        jinja_fail(&r->s, ERR_FORMAT, "tojson: separators: expected two texts");
    w->comma = v->list->items[0].text;
    w->colon = v->list->items[1].text;
}

void jinja_build_json(struct jinja_build *b, struct jinja_value v, struct jinja_args *options,
                      struct jinja_run *r)
{
    struct writer w = {.b = b, .comma = jinja_text_of(", "), .colon = jinja_text_of(": ")};
    w.ascii = jinja_take_bool(options, "ensure_ascii", false);
    take_indent(&w, r, options);
    take_separators(&w, r, options);
    w.sorted = jinja_take_bool(options, "sort_keys", false);
    write_value(&w, v, 0);
}
