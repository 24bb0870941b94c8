/* Grammars of calls, for an answer that has to make one. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/tool_forms.h"

/* What calls are made of. A text without quotes ends with a tag, so it has none; numbers and escapes are those that every reader of
 * JSON takes. */
static const char RULES[] =
    "ws ::= ( \" \" | \"\\n\" [ ]{0,16} )?\n"
    "object ::= \"{\" ws ( member ( \",\" ws member )* )? \"}\"\n"
    "member ::= string \":\" ws value ws\n"
    "array ::= \"[\" ws ( value ws ( \",\" ws value ws )* )? \"]\"\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" code ) )* \"\\\"\"\n"
    "code ::= [0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}\n"
    "number ::= \"-\"? ( \"0\" | [1-9] [0-9]{0,15} ) ( \".\" [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?\n"
    "plain ::= ( [^<\\x00] | \"<\"+ [^</\\x00] )*\n";

static void add_literal(struct str *out, const char *text)
{
    str_add_text(out, "\"");
    for (const char *p = text; *p; p++)
        if (*p == '"' || *p == '\\')
            str_addf(out, "\\%c", *p);
        else if ((unsigned char)*p < 0x20)
            str_addf(out, "\\x%02x", (unsigned char)*p);
        else
            str_add(out, p, 1);
    str_add_text(out, "\" ");
}

static const char *name_of(const json_t *function)
{
    return json_string_value(json_object_get(function, "name"));
}

void tool_write_hermes(const struct tool_form *f, const struct json_t *function, struct str *out)
{
    (void)f;
    char *name = json_dumps(json_object_get(function, "name"), JSON_ENCODE_ANY);
    add_literal(out, "{\"name\": ");
    add_literal(out, name ? name : "");
    add_literal(out, ", \"arguments\": ");
    str_add_text(out, "object \"}\"");
    out->failed |= !name;
    free(name);
}

void tool_write_deepseek3(const struct tool_form *f, const struct json_t *function, struct str *out)
{
    add_literal(out, "function");
    add_literal(out, f->separator);
    add_literal(out, name_of(function));
    str_add_text(out, "\"\\n```json\\n\" object \"\\n```\"");
}

void tool_write_deepseek31(const struct tool_form *f, const struct json_t *function, struct str *out)
{
    add_literal(out, name_of(function));
    add_literal(out, f->separator);
    str_add_text(out, "object");
}

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *list = json_member(schema, "required");
    size_t i = 0, n = json_array_size(list);
    while (i < n && !json_is_text(json_array_get(list, i), key))
        i++;
    return i < n;
}

/* Each parameter once, in the schema's order. */
void tool_write_xml(const struct tool_form *f, const struct json_t *function, struct str *out)
{
    static const char *const values[] = {
        [TOOL_VALUE_TEXT] = "plain", [TOOL_VALUE_TEXT_OR_NULL] = "plain", [TOOL_VALUE_JSON] = "value"};
    json_t *schema = json_object_get(function, "parameters");
    const char *key;
    json_t *value;
    (void)f;
    add_literal(out, "<function=");
    add_literal(out, name_of(function));
    add_literal(out, ">\n");
    json_object_foreach(json_object_get(schema, "properties"), key, value)
    {
        str_add_text(out, "( ");
        add_literal(out, "<parameter=");
        add_literal(out, key);
        add_literal(out, ">\n");
        str_addf(out, "%s \"\\n</parameter>\\n\" )%s ", values[tool_value_kind(value)],
                 is_required(schema, key) ? "" : "?");
    }
    add_literal(out, "</function>");
}

int tool_form_grammar(const struct tool_form *f, const struct json_t *tools, const char *name,
                      struct str *out, struct moeflux_err *e)
{
    str_add_text(out, "root ::= ");
    if (f->section_open)
        add_literal(out, f->section_open);
    str_add_text(out, "call ");
    if (!name) {
        str_add_text(out, "( ");
        add_literal(out, f->between);
        str_add_text(out, "call )* ");
    }
    if (f->section_close)
        add_literal(out, f->section_close);
    str_add_text(out, "\ncall ::= ");
    add_literal(out, f->call_open);
    add_literal(out, f->padding);
    str_add_text(out, "( ");
    bool first = true;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_member(json_array_get(tools, i), "function");
        if (name && !json_is_text(json_member(function, "name"), name))
            continue;
        str_add_text(out, first ? "" : " | ");
        f->write(f, function, out);
        first = false;
    }
    str_add_text(out, " ) ");
    add_literal(out, f->padding);
    add_literal(out, f->call_close);
    str_add_text(out, "\n");
    str_add_text(out, RULES);
    return str_ok(out) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the grammar of the tools");
}
