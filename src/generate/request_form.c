/* What an answer must fit, from the fields that servers have for it. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json_sent.h"
#include "generate/constrain.h"
#include "generate/request.h"
#include "generate/request_fields.h"

enum kind { SCHEMA, GRAMMAR, OBJECT, REGEX, CHOICES };

/* The field that the answer must fit. */
struct form {
    enum kind kind;
    char name[64]; /* "": there is none */
    const json_t *value;
    bool of_texts; /* an answer that must be a call has none, and need not fit */
};

/* Returns whether the value asks for nothing. */
static bool is_off(const json_t *value)
{
    return !value || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

/* Notes a form. There may be only one. */
static void set_form(struct json_view *v, struct form *f, enum kind kind, const char *name,
                     const json_t *value)
{
    if (v->rc)
        return;
    if (f->name[0]) {
        v->rc = err_set(v->e, ERR_FORMAT, "%s: %s and %s exclude each other", v->where, f->name, name);
        return;
    }
    f->kind = kind;
    f->value = value;
    snprintf(f->name, sizeof f->name, "%s", name);
}

static void get_plain(struct json_view *v, struct form *f)
{
    static const struct {
        const char *name;
        enum kind kind;
    } fields[] = {
        {"json_schema", SCHEMA},     {"guided_json", SCHEMA}, {"grammar", GRAMMAR},
        {"guided_grammar", GRAMMAR}, {"guided_regex", REGEX}, {"guided_choice", CHOICES},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = json_view_get(v, fields[i].name);
        if (!is_off(value))
            set_form(v, f, fields[i].kind, fields[i].name, value);
    }
    if (json_view_bool_or(v, "json_object", false))
        set_form(v, f, OBJECT, "json_object", NULL);
}

/* Reads vLLM's object. */
static void get_structured(struct json_view *v, struct form *f)
{
    static const struct {
        const char *name;
        enum kind kind;
    } members[] = {{"json", SCHEMA},
                   {"regex", REGEX},
                   {"choice", CHOICES},
                   {"grammar", GRAMMAR},
                   {"json_object", OBJECT}};
    json_t *object = (json_t *)(uintptr_t)json_view_object(v, "structured_outputs"), *value;
    const char *key;
    json_object_foreach(object, key, value)
    {
        char name[64];
        size_t i = 0, n = sizeof members / sizeof *members;
        while (i < n && strcmp(members[i].name, key) != 0)
            i++;
        snprintf(name, sizeof name, "structured_outputs: %.30s", key);
        if (json_is_null(value) || is_off(value))
            continue;
        if (i < n)
            set_form(v, f, members[i].kind, name, value);
        else if (!v->rc)
            v->rc = err_set(v->e, ERR_UNSUPPORTED, "%s: %s is not supported", v->where, name);
    }
}

/* Reads {"type": "json_schema", "json_schema": {"schema": ...}} or {"type": "json_object"}; some clients
 * add "schema" to the latter. */
static void get_response_format(struct json_view *v, struct form *f)
{
    const json_t *format = json_view_object(v, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *schema = json_member(format, "schema"), *named = json_member(format, "json_schema");
    if (v->rc || !format)
        return;
    if (!type)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: response_format: type: expected a text", v->where);
    else if (strcmp(type, "json_schema") == 0)
        set_form(v, f, SCHEMA, "response_format", json_member(named, "schema"));
    else if (strcmp(type, "json_object") == 0)
        set_form(v, f, schema ? SCHEMA : OBJECT, "response_format", schema);
    else if (strcmp(type, "text") != 0)
        v->rc = err_set(
            v->e, ERR_FORMAT,
            "%s: response_format: expected the type text, json_object or json_schema, found \"%.40s\"",
            v->where, type);
    f->of_texts = true;
    if (!v->rc && f->kind == SCHEMA && f->value == schema && !json_is_object(schema) && schema)
        v->rc = err_set(v->e, ERR_FORMAT, "%s: response_format: schema: expected an object", v->where);
    if (!v->rc && strcmp(type, "json_schema") == 0 && !json_is_object(f->value))
        v->rc = err_set(v->e, ERR_FORMAT, "%s: response_format: json_schema.schema: expected an object",
                        v->where);
}

/* Makes the grammar of a schema, which may be a text. */
static int add_schema(const json_t *value, const char *name, struct str *out, struct moeflux_err *e)
{
    if (json_is_string(value))
        return constrain_grammar(CONSTRAIN_JSON_SCHEMA, json_string_value(value), json_string_length(value),
                                 name, out, e);
    json_t *schema = json_sent_round(value);
    int rc =
        schema ? constrain_schema(schema, name, out, e) : err_set(e, ERR_MEMORY, "%s: out of memory", name);
    json_decref(schema);
    return rc;
}

static int add_text(enum constrain_kind kind, const json_t *value, const char *name, struct str *out,
                    struct moeflux_err *e)
{
    if (!json_is_string(value))
        return err_set(e, ERR_FORMAT, "%s: expected a text", name);
    return constrain_grammar(kind, json_string_value(value), json_string_length(value), name, out, e);
}

static int make_grammar(const struct form *f, const char *where, struct str *out, struct moeflux_err *e)
{
    char name[128];
    snprintf(name, sizeof name, "%.50s: %s", where, f->name);
    switch (f->kind) {
    case SCHEMA:
        return add_schema(f->value, name, out, e);
    case GRAMMAR:
        return add_text(CONSTRAIN_GRAMMAR, f->value, name, out, e);
    case REGEX:
        return add_text(CONSTRAIN_REGEX, f->value, name, out, e);
    case CHOICES:
        return constrain_choices(f->value, name, out, e);
    default:
        return constrain_grammar(CONSTRAIN_JSON_OBJECT, NULL, 0, name, out, e);
    }
}

int request_form_take(struct request *r, struct json_view *v, struct moeflux_err *e)
{
    struct request_options *o = &r->options;
    struct form f = {0};
    get_plain(v, &f);
    get_structured(v, &f);
    get_response_format(v, &f);
    if (v->rc)
        return v->rc;
    int rc = f.name[0] ? make_grammar(&f, v->where, &r->grammar, e) : 0;
    if (f.of_texts && o->must_call)
        str_clear(&r->grammar);
    if (r->grammar.len)
        o->grammar = str_text(&r->grammar);
    r->has_format = f.of_texts && r->grammar.len;
    if (!rc && o->grammar && o->must_call)
        rc = err_set(e, ERR_FORMAT, "%s: tool_choice: a call cannot fit a grammar of its own too", v->where);
    if (!rc && (o->grammar || o->must_call) && o->ignore_eos)
        rc = err_set(e, ERR_FORMAT, "%s: ignore_eos and a grammar exclude each other", v->where);
    return rc;
}
