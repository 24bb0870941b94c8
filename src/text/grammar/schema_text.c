/* Grammars of JSON strings and values: literals, formats, names other than given ones. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/schema_writer.h"

#define HEX "[0-9A-Fa-f]"

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
    str_add_text(body, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\')
            str_addf(body, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
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
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (text)
            schema_add_literal(text, strlen(text), body);
        else
            body->failed = true;
        free(text);
    }
}

/* ---- formats ---- */

/* Dates that exist in every year: no 29 February. */
#define DATE                                                                                                 \
    "[1-9] [0-9]{3} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | "    \
    "(\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" (\"0\" [1-9] | \"1\" [0-9] " \
    "| \"2\" "                                                                                               \
    "[0-8]))"
#define HOUR "([01] [0-9] | \"2\" [0-3])"
#define TIME                                                                                                 \
    HOUR " \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? (\"Z\" | [-+] " HOUR " \":\" [0-5] "      \
         "[0-9])"

const char *schema_format(const char *name)
{
    static const struct {
        const char *name, *body;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE " \"T\" " TIME},
        {"uuid", HEX "{8} \"-\" " HEX "{4} \"-\" " HEX "{4} \"-\" " HEX "{4} \"-\" " HEX "{12}"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].body;
    return NULL;
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
