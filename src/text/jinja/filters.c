/* Filters of single values, and the table of all filters. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/jinja/run.h"

/* --- numbers --- */

static struct jinja_value filter_abs(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    bool negative = jinja_is_number(v) && jinja_real(v) < 0;
    return jinja_signed(r, negative ? '-' : '+', v);
}

/* Reads a text, without white space around it, as a number: an int if `whole`, else a float. Returns false if
 * it is not a number. */
static bool read_number(struct jinja_text t, bool whole, int64_t base, struct jinja_value *out)
{
    char text[64], *end;
    t = jinja_strip(t, NULL, JINJA_LEFT | JINJA_RIGHT);
    if (t.len == 0 || t.len >= sizeof text || memchr(t.bytes, 'x', t.len) || memchr(t.bytes, 'X', t.len) ||
        memchr(t.bytes, 'p', t.len) || memchr(t.bytes, '\0', t.len))
        return false;
    memcpy(text, t.bytes, t.len);
    text[t.len] = '\0';
    errno = 0;
    if (whole)
        *out = jinja_int(strtoll(text, &end, (int)base));
    else
        *out = jinja_float(strtod(text, &end));
    return *end == '\0' && end != text && (errno == 0 || !whole);
}

static struct jinja_value truncated(double x, struct jinja_value fallback)
{
    return isfinite(x) && fabs(x) < 9.2e18 ? jinja_int((int64_t)x) : fallback;
}

static struct jinja_value filter_int(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_value *given = jinja_take(args, "default");
    int64_t base = jinja_take_int(r, args, "base", 10);
    struct jinja_value fallback = given ? *given : jinja_int(0), read;
    if (base != 10 && base != 2 && base != 8 && base != 16)
        jinja_fail(&r->s, ERR_UNSUPPORTED, "int: the base is not 2, 8, 10 or 16");
    if (v.kind == JINJA_INT || v.kind == JINJA_BOOL)
        return jinja_int(jinja_whole(v));
    if (v.kind == JINJA_FLOAT)
        return truncated(v.real, fallback);
    if (v.kind == JINJA_TEXT && read_number(v.text, true, base, &read))
        return read;
    if (v.kind == JINJA_TEXT && read_number(v.text, false, 10, &read))
        return truncated(read.real, fallback);
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
    return fallback;
}

static struct jinja_value filter_float(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_value *given = jinja_take(args, "default");
    struct jinja_value read;
    if (jinja_is_number(v))
        return jinja_float(jinja_real(v));
    if (v.kind == JINJA_TEXT && read_number(v.text, false, 10, &read))
        return read;
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
    return given ? *given : jinja_float(0);
}

/* Rounds by printf, which uses the exact value of the double, not its shortest decimal form. */
static double round_decimal(double x, int64_t precision)
{
    char text[400];
    if (!isfinite(x) || precision > 22)
        return x;
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return nearbyint(x / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, x);
    return strtod(text, NULL);
}

static struct jinja_value filter_round(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    int64_t precision = jinja_take_int(r, args, "precision", 0);
    struct jinja_text method = jinja_take_text(r, args, "method", "common");
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
    if (!jinja_is_number(v) || precision < -300 || precision > 300)
        jinja_fail(&r->s, ERR_FORMAT, "round of a %s, expected a number and up to 300 places", jinja_type(v));
    double x = jinja_real(v), unit = pow(10, (double)precision);
    if (jinja_text_is(method, "ceil"))
        return jinja_float(ceil(x * unit) / unit);
    if (jinja_text_is(method, "floor"))
        return jinja_float(floor(x * unit) / unit);
    if (!jinja_text_is(method, "common"))
        jinja_fail(&r->s, ERR_FORMAT, "round: method: expected common, ceil or floor");
    if (v.kind != JINJA_FLOAT && precision >= 0)
        return jinja_int(jinja_whole(v));
    x = round_decimal(x, precision);
    return v.kind == JINJA_FLOAT ? jinja_float(x) : truncated(x, v);
}

/* --- texts --- */

static struct jinja_value as_safe_as(struct jinja_value v, struct jinja_text text)
{
    struct jinja_value made = jinja_of_text(text);
    made.safe = v.kind == JINJA_TEXT && v.safe;
    return made;
}

static struct jinja_value filter_string(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return as_safe_as(v, jinja_str(&r->s, v));
}

static struct jinja_value filter_safe(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    struct jinja_value text = filter_string(r, v, args);
    text.safe = true;
    return text;
}

static struct jinja_value filter_upper(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return as_safe_as(v, jinja_to_case(&r->s, jinja_str(&r->s, v), JINJA_UPPER));
}

static struct jinja_value filter_lower(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return as_safe_as(v, jinja_to_case(&r->s, jinja_str(&r->s, v), JINJA_LOWER));
}

static struct jinja_value filter_capitalize(struct jinja_run *r, struct jinja_value v,
                                            struct jinja_args *args)
{
    (void)args;
    return as_safe_as(v, jinja_to_case(&r->s, jinja_str(&r->s, v), JINJA_CAPITALIZE));
}

/* Words begin after white space and - ( { [ <, unlike in str.title. */
static struct jinja_value filter_title(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    struct jinja_text t = jinja_str(&r->s, v);
    struct jinja_build b = jinja_build(&r->s);
    size_t start = 0;
    for (size_t i = 0; i <= t.len; i += i < t.len ? jinja_width(t, i) : 1) {
        bool apart = i < t.len && (jinja_is_space(jinja_character(t, i)) || strchr("-({[<", t.bytes[i]));
        if (i < t.len && !apart)
            continue;
        jinja_build_text(&b, jinja_to_case(&r->s, jinja_cut(t, start, i), JINJA_CAPITALIZE));
        if (i == t.len)
            break;
        start = i + jinja_width(t, i);
        jinja_build_text(&b, jinja_cut(t, i, start));
    }
    return jinja_of_text(jinja_built(&b));
}

static struct jinja_value filter_trim(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_value *set = jinja_take(args, "chars");
    if (set && set->kind != JINJA_NONE && set->kind != JINJA_TEXT)
        jinja_fail(&r->s, ERR_FORMAT, "trim: chars is a %s", jinja_type(*set));
    return as_safe_as(v, jinja_strip(jinja_str(&r->s, v), set && set->kind == JINJA_TEXT ? &set->text : NULL,
                                     JINJA_LEFT | JINJA_RIGHT));
}

static struct jinja_value filter_replace(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    struct jinja_text from = jinja_str(&r->s, jinja_need(r, args, "old"));
    struct jinja_text to = jinja_str(&r->s, jinja_need(r, args, "new"));
    const struct jinja_value *count = jinja_take(args, "count");
    int64_t most = count && jinja_is_number(*count) && count->kind != JINJA_FLOAT ? jinja_whole(*count) : -1;
    return jinja_of_text(jinja_replace(&r->s, jinja_str(&r->s, v), from, to, most));
}

static struct jinja_value filter_indent(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    const struct jinja_value *width = jinja_take(args, "width");
    bool first = jinja_take_bool(args, "first", false), blank = jinja_take_bool(args, "blank", false);
    struct jinja_build b = jinja_build(&r->s), spaces = jinja_build(&r->s), whole = jinja_build(&r->s);
    if (width && width->kind == JINJA_TEXT)
        jinja_build_text(&spaces, width->text);
    else if (width && width->kind != JINJA_INT)
        jinja_fail(&r->s, ERR_FORMAT, "indent: width is a %s", jinja_type(*width));
    else
        for (int64_t i = 0; i < (width ? width->number : 4); i++)
            jinja_build_literal(&spaces, " ");
    if (v.kind != JINJA_TEXT)
        jinja_fail(&r->s, ERR_FORMAT, "indent of a %s, expected a text", jinja_type(v));
    /* jinja2 adds a line end before it splits, so a text that ends with one has an empty last line. */
    jinja_build_text(&whole, v.text);
    jinja_build_literal(&whole, "\n");
    const struct jinja_list *lines = jinja_lines(&r->s, jinja_built(&whole), false).list;
    for (size_t i = 0; i < lines->n; i++) {
        jinja_build_literal(&b, i ? "\n" : "");
        if (i ? blank || lines->items[i].text.len : first)
            jinja_build_text(&b, jinja_built(&spaces));
        jinja_build_text(&b, lines->items[i].text);
    }
    return as_safe_as(v, jinja_built(&b));
}

static struct jinja_value filter_escape(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    struct jinja_build b = jinja_build(&r->s);
    if (v.kind == JINJA_TEXT && v.safe)
        return v;
    jinja_build_escaped(&b, jinja_str(&r->s, v));
    return filter_safe(r, jinja_of_text(jinja_built(&b)), args);
}

/* --- any values --- */

static struct jinja_value filter_default(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)r;
    const struct jinja_value *given = jinja_take(args, "default_value");
    bool by_truth = jinja_take_bool(args, "boolean", false);
    if (by_truth ? jinja_truth(v) : v.kind != JINJA_UNDEFINED)
        return v;
    return given ? *given : jinja_literal("");
}

static struct jinja_value filter_length(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    (void)args;
    return jinja_int((int64_t)jinja_length(&r->s, v));
}

static struct jinja_value filter_tojson(struct jinja_run *r, struct jinja_value v, struct jinja_args *args)
{
    struct jinja_build b = jinja_build(&r->s);
    jinja_build_json(&b, v, args, r);
    return jinja_of_text(jinja_built(&b));
}

jinja_filter *jinja_filter_find(struct jinja_text name)
{
    static const struct {
        const char *name;
        jinja_filter *filter;
    } filters[] = {
        {"abs", filter_abs},
        {"batch", jinja_filter_batch},
        {"capitalize", filter_capitalize},
        {"count", filter_length},
        {"d", filter_default},
        {"default", filter_default},
        {"dictsort", jinja_filter_dictsort},
        {"e", filter_escape},
        {"escape", filter_escape},
        {"first", jinja_filter_first},
        {"float", filter_float},
        {"indent", filter_indent},
        {"int", filter_int},
        {"items", jinja_filter_items},
        {"join", jinja_filter_join},
        {"last", jinja_filter_last},
        {"length", filter_length},
        {"list", jinja_filter_list},
        {"lower", filter_lower},
        {"map", jinja_filter_map},
        {"max", jinja_filter_max},
        {"min", jinja_filter_min},
        {"reject", jinja_filter_reject},
        {"rejectattr", jinja_filter_rejectattr},
        {"replace", filter_replace},
        {"reverse", jinja_filter_reverse},
        {"round", filter_round},
        {"safe", filter_safe},
        {"select", jinja_filter_select},
        {"selectattr", jinja_filter_selectattr},
        {"sort", jinja_filter_sort},
        {"string", filter_string},
        {"sum", jinja_filter_sum},
        {"title", filter_title},
        {"tojson", filter_tojson},
        {"trim", filter_trim},
        {"unique", jinja_filter_unique},
        {"upper", filter_upper},
    };
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (jinja_text_is(name, filters[i].name))
            return filters[i].filter;
    return NULL;
}
