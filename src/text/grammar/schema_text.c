/* Grammars of JSON strings and values: literals, lengths, names other than given ones. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/schema_writer.h"

#define LARGEST_INTEGER 9223372036854775808.0 /* 2^63 */
#define HEX             "[0-9A-Fa-f]"

/* Escapes of surrogates occur only in pairs. */
const char schema_char[] =
    "([^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9A-CE-Fa-ce-f] " HEX
    "{3} | [Dd] [0-7] " HEX "{2} | [Dd] [89ABab] " HEX "{2} \"\\\\u\" [Dd] [C-Fc-f] " HEX "{2})))";

bool schema_is_raw(const struct schema_writer *w)
{
    return w->plain || w->quote;
}

const char *schema_one_char(const struct schema_writer *w)
{
    return schema_is_raw(w) ? "[^<\\x00]" : schema_char;
}

const char *schema_quote(const struct schema_writer *w)
{
    return w->plain ? "\"\"" : w->quote ? w->quote : "\"\\\"\"";
}

void schema_add_literal(const char *bytes, size_t len, struct str *body)
{
    static const char bar[] = "\xef\xbd\x9c"; /* U+FF5C */
    const size_t n_bar = sizeof bar - 1;
    str_add_text(body, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\')
            str_addf(body, "\\%c", c);
        else if (len - i >= n_bar && memcmp(bytes + i, bar, n_bar) == 0) {
            str_add_text(body, "\\uff5c");
            i += n_bar - 1;
        } else if (c < 0x20 || c == 0x7f || c == '<')
            str_addf(body, "\\x%02x", c);
        else
            str_add(body, bytes + i, 1);
    }
    str_add_text(body, "\"");
}

static void add_list(struct schema_writer *w, const json_t *value, struct str *body)
{
    const json_t *item;
    size_t i;
    str_add_text(body, "(\"[\" ws");
    json_array_foreach(value, i, item)
    {
        str_add_text(body, i ? " \",\" ws " : " ");
        schema_add_value(w, item, body);
    }
    str_add_text(body, json_array_size(value) ? " ws \"]\")" : " \"]\")");
}

static void add_members(struct schema_writer *w, const json_t *value, struct str *body)
{
    const char *key;
    json_t *member;
    bool first = true;
    str_add_text(body, "(\"{\" ws");
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        str_add_text(body, first ? " " : " \",\" ws ");
        schema_add_name(w, key, body);
        str_add_text(body, " \":\" sp ");
        schema_add_value(w, member, body);
        first = false;
    }
    str_add_text(body, first ? " \"}\")" : " ws \"}\")");
}

/* Appends a string between other quotes than JSON's. */
static void add_raw(struct schema_writer *w, const json_t *value, struct str *body)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    if (memchr(text, '<', len) || memchr(text, '\0', len))
        schema_fail(w, ERR_UNSUPPORTED, NULL, "expected a text without <");
    str_addf(body, "(%s ", w->quote);
    schema_add_literal(text, len, body);
    str_addf(body, " %s)", w->quote);
}

/* Returns the shortest text of a real number; the caller frees it. NULL: out of memory. */
static char *real_text(struct schema_writer *w, const json_t *value)
{
    char *text = NULL;
    double real = json_real_value(value);
    /* json_read makes reals of whole numbers beyond 64 bits. */
    if (fabs(real) >= LARGEST_INTEGER)
        schema_fail(w, ERR_UNSUPPORTED, NULL, "a number in const or enum beyond 64 bits");
    for (size_t digits = 15; digits <= 17 && (!text || strtod(text, NULL) != real); digits++) {
        free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
    }
    return text;
}

void schema_add_name(struct schema_writer *w, const char *name, struct str *body)
{
    json_t *text = json_string(name);
    if (!w->quote)
        schema_add_value(w, text, body);
    else if (!*name || name[strcspn(name, ":{}[],\"<> \t\r\n")])
        schema_fail(w, ERR_UNSUPPORTED, NULL, "expected a name without white space and : { } [ ] , \" < >");
    else
        schema_add_literal(name, strlen(name), body);
    json_decref(text);
}

void schema_add_value(struct schema_writer *w, const json_t *value, struct str *body)
{
    if (json_is_array(value)) {
        add_list(w, value, body);
    } else if (json_is_object(value)) {
        add_members(w, value, body);
    } else if (json_is_string(value) && w->quote) {
        add_raw(w, value, body);
    } else {
        char *text = json_is_real(value) ? real_text(w, value) : json_dumps(value, JSON_ENCODE_ANY);
        if (text)
            schema_add_literal(text, strlen(text), body);
        else
            body->failed = true;
        free(text);
    }
}

/* ---- strings ---- */

void schema_add_string(struct schema_writer *w, const json_t *schema, struct str *body)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    const char *quote = schema_quote(w), *known = "";
    uint32_t least = schema_count(w, schema, "minLength", 0),
             most = schema_count(w, schema, "maxLength", UINT32_MAX);
    /* Writers of schemas give both for one thing: the pattern says what the format means. */
    if (format && !pattern)
        known = schema_format(json_string_value(format));
    if (!known)
        schema_fail(w, ERR_UNSUPPORTED, "format", "this format is not known");
    if (w->rc)
        return;
    if (least > most)
        str_add_text(body, SCHEMA_NEVER);
    else if (pattern)
        schema_add_pattern(w, "pattern", json_string_value(pattern), json_string_length(pattern), least, most,
                           body);
    else if (known && *known)
        schema_add_pattern(w, "format", known, strlen(known), least, most, body);
    else if (least == 0 && most == UINT32_MAX)
        str_add_text(body, w->plain ? "plain" : "string");
    else if (most == UINT32_MAX)
        str_addf(body, "(%s %s{%u,} %s)", quote, schema_one_char(w), least, quote);
    else
        str_addf(body, "(%s %s{%u,%u} %s)", quote, schema_one_char(w), least, most, quote);
}

/* ---- other names ---- */

/* Returns the length in bytes of the UTF-8 character at text[at]. */
static size_t char_len(const char *text, size_t at)
{
    size_t n = 1;
    while ((text[at + n] & 0xc0) == 0x80)
        n++;
    return n;
}

static bool same_prefix(const char *a, const char *b, size_t len)
{
    return strncmp(a, b, len) == 0;
}

/* Adds what may follow the first `len` bytes of names[which], up to the closing quote, so that the whole is
 * none of the names. Writes one rule for each prefix, since parentheses may not nest so deep. */
static void add_rest(struct schema_writer *w, const char *const *names, size_t n, size_t which, size_t len,
                     struct str *body)
{
    struct str class = {0}, more = {0};
    bool is_name = false;
    for (size_t i = 0; i < n && !w->rc; i++) {
        const char *name = names[i];
        if (!same_prefix(name, names[which], len))
            continue;
        if (name[len] == '\0') {
            is_name = true;
            continue;
        }
        size_t c = char_len(name, len), earlier = 0;
        while (!same_prefix(names[earlier], name, len + c))
            earlier++;
        /* A character that needs an escape is never allowed here. */
        if (earlier < i || (unsigned char)name[len] < 0x20 || strchr("\"\\\x7f", name[len]))
            continue;
        struct str rest = {0};
        add_rest(w, names, n, i, len + c, &rest);
        unsigned rule = schema_new_rule(w);
        schema_write_rule(w, rule, &rest);
        str_free(&rest);
        if (strchr("]^-", name[len]))
            str_add_text(&class, "\\");
        str_add(&class, name + len, c);
        str_add_text(&more, " | ");
        schema_add_literal(name + len, c, &more);
        str_addf(&more, " r%u", rule);
    }
    str_addf(body, "[^\"\\\\\\x00-\\x1f\\x7f%s] [^\"\\\\\\x00-\\x1f\\x7f]* \"\\\"\"%s%s", str_text(&class),
             str_text(&more), is_name ? "" : " | \"\\\"\"");
    if (!str_ok(&class) || !str_ok(&more))
        body->failed = true;
    str_free(&class);
    str_free(&more);
}

void schema_add_other_name(struct schema_writer *w, const char *const *names, size_t n, struct str *body)
{
    struct str rest = {0};
    if (n == 0) {
        str_add_text(body, w->quote ? "name" : "string");
        return;
    }
    /* All names share the empty prefix. */
    add_rest(w, names, n, 0, 0, &rest);
    unsigned rule = schema_new_rule(w);
    schema_write_rule(w, rule, &rest);
    str_addf(body, "(\"\\\"\" r%u)", rule);
    str_free(&rest);
}
