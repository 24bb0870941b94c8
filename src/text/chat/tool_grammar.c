/* Grammars of tool calls, for an answer that must make one. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/quote.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/schema_writer.h"
#include "text/chat/tool_forms.h"

static const char GEMMA_QUOTE[] = "\"<|\\\"|>\""; /* TOOL_GEMMA_QUOTE */

/* A string without quotes, up to the token in front of a tag. */
static const char NESTED_PLAIN[] = "plain ::= ( [^\\x5d\\x00] | \"]\"+ [^\\x5d<\\x00] )*\n";

/* Appends tags, or what is between them. */
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

/* Appends a name: letters that look like a tag are none. */
static void add_words(struct str *out, const char *text)
{
    schema_add_literal(text, strlen(text), out);
    str_add_text(out, " ");
}

/* Returns the length of the character that begins here. */
static size_t character(const char *text)
{
    size_t n = 1;
    while (((unsigned char)text[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Appends the first character as a literal. */
static void add_character(struct str *out, const char *text)
{
    char one[8] = {0};
    size_t n = character(text);
    memcpy(one, text, n < sizeof one ? n : sizeof one - 1);
    add_literal(out, one);
}

/* Appends characters of a class in brackets. */
static void add_class(struct str *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        str_addf(out, memchr("]\\^-[", text[i], 5) ? "\\x%02x" : "%c", (unsigned char)text[i]);
}

/* Appends rules of a text that has come to tag[at], by the name of the tag: it may not be completed.
 * "<" begins tags and occurs nowhere else in them. */
static void add_tag_rules(struct str *out, const char *name, const char *tag, size_t at)
{
    for (unsigned k = 0; tag[at]; k++) {
        size_t n = character(tag + at);
        str_addf(out, "%s%u ::= [^<\\x00", name, k);
        add_class(out, tag + at, n);
        str_add_text(out, "] | \"<\" tag");
        if (tag[at + n]) {
            str_add_text(out, " | ");
            add_character(out, tag + at);
            str_addf(out, "%s%u", name, k + 1);
        }
        str_add_text(out, "\n");
        at += n;
    }
}

/* Appends the rule of a string without quotes that has no control token of tags (sections.h). */
static void add_split_plain(struct str *out)
{
    str_add_text(out, "plain ::= ( [^<\\x00] | \"<\" [^|\\x00] )* \"<\"?\n");
}

/* Appends an expression of the beginnings of a tag, with which a text may end: what follows does not
 * complete them. */
static void add_beginnings(struct str *out, const char *tag)
{
    unsigned n_open = 0;
    for (size_t n; *tag && tag[character(tag)]; tag += n, n_open++) {
        n = character(tag);
        str_add_text(out, n_open ? "( " : "");
        add_character(out, tag);
    }
    while (n_open > 1) {
        str_add_text(out, ")? ");
        n_open--;
    }
}

/* Appends the rule of a string without quotes. It has neither of these tags; after "<" they differ.
 * open may be NULL. */
static void add_plain(struct str *out, const char *close, const char *open)
{
    const char *const tags[] = {close, open}, *const names[] = {"close", "open"};
    str_add_text(out, "plain ::= ( [^<\\x00] | \"<\" tag )* ( ");
    add_beginnings(out, close);
    str_add_text(out, open ? "| " : "");
    add_beginnings(out, open ? open : "");
    str_add_text(out, ")?\ntag ::= [^<\\x00");
    for (int i = 0; i < 2 && tags[i]; i++)
        add_class(out, tags[i] + 1, character(tags[i] + 1));
    str_add_text(out, "] | \"<\" tag");
    for (int i = 0; i < 2 && tags[i]; i++) {
        str_add_text(out, " | ");
        add_character(out, tags[i] + 1);
        str_addf(out, "%s0", names[i]);
    }
    str_add_text(out, "\n");
    for (int i = 0; i < 2 && tags[i]; i++)
        add_tag_rules(out, names[i], tags[i], 1 + character(tags[i] + 1));
}

static const char *name_of(const json_t *function)
{
    return json_string_value(json_object_get(function, "name"));
}

/* The beginning of the errors about a function's schema. */
struct place {
    char text[200];
};

static struct place place_of(const struct tool_grammar *g, const json_t *function)
{
    struct place p;
    snprintf(p.text, sizeof p.text, "%.80s: tools: %.60s: parameters", g->where, name_of(function));
    return p;
}

/* Returns the schema of the function's parameters, with the type object. The caller releases it. */
static json_t *object_schema(const json_t *function, const char *place, struct moeflux_err *e)
{
    const json_t *parameters = json_member(function, "parameters"), *type = json_member(parameters, "type");
    if (type && !json_is_text(type, "object")) {
        err_set(e, ERR_FORMAT, "%s: expected the type object", place);
        return NULL;
    }
    json_t *schema = parameters ? json_copy((json_t *)(uintptr_t)parameters) : json_object();
    if (schema && json_object_set_new(schema, "type", json_string("object")) == 0)
        return schema;
    json_decref(schema);
    err_set(e, ERR_MEMORY, "out of memory for the grammar of the tools");
    return NULL;
}

/* quote: as in struct json_schema_part. Then members are sorted by their bytes, an order that the
 * reader does not need. */
static int add_quoted_object(const json_t *function, const char *quote, struct tool_grammar *g)
{
    struct place place = place_of(g, function);
    json_t *schema = object_schema(function, place.text, g->e);
    char *sorted = schema && quote ? json_dumps(schema, JSON_SORT_KEYS) : NULL;
    if (!schema)
        return (int)g->e->code;
    if (quote) {
        json_decref(schema);
        schema = sorted ? json_loads(sorted, JSON_ALLOW_NUL, NULL) : NULL;
        free(sorted);
        if (!schema)
            return err_set(g->e, ERR_MEMORY, "out of memory for the grammar of the tools");
    }
    struct json_schema_part part = {
        .root = schema, .name = place.text, .out = g->rules, .n_rules = g->n_rules, .quote = quote};
    int rc = json_schema_add(&part, schema, false, &g->calls, g->e);
    g->n_rules = part.n_rules;
    json_decref(schema);
    return rc;
}

static int add_object(const json_t *function, struct tool_grammar *g)
{
    return add_quoted_object(function, NULL, g);
}

int tool_write_gemma(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    (void)f;
    add_literal(&g->calls, "call:");
    add_words(&g->calls, name_of(function));
    return add_quoted_object(function, GEMMA_QUOTE, g);
}

int tool_write_hermes(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    (void)f;
    char *name = json_dumps(json_object_get(function, "name"), JSON_ENCODE_ANY);
    add_literal(&g->calls, "{\"name\": ");
    add_words(&g->calls, name ? name : "");
    add_literal(&g->calls, ", \"arguments\": ");
    g->calls.failed |= !name;
    free(name);
    int rc = add_object(function, g);
    str_add_text(&g->calls, " \"}\"");
    return rc;
}

int tool_write_deepseek3(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    add_literal(&g->calls, "function");
    add_literal(&g->calls, f->separator);
    add_words(&g->calls, name_of(function));
    str_add_text(&g->calls, "\"\\n```json\\n\" ");
    int rc = add_object(function, g);
    str_add_text(&g->calls, " \"\\n```\"");
    return rc;
}

int tool_write_deepseek31(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    add_words(&g->calls, name_of(function));
    add_literal(&g->calls, f->separator);
    return add_object(function, g);
}

/* Writes Kimi's call, with any number. */
int tool_write_kimi(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    add_literal(&g->calls, "functions.");
    add_words(&g->calls, name_of(function));
    str_add_text(&g->calls, "\":\" [0-9] [0-9]? ");
    add_literal(&g->calls, f->separator);
    return add_object(function, g);
}

/* Writes a call in a message. The function's name is in the header, where white space or a control
 * token ends it. */
int tool_write_message(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    const char *name = name_of(function);
    size_t n = strlen(name), most = TOOL_MAX_NAME - (sizeof "functions." - 1);
    (void)f;
    if (n > most || strcspn(name, " \t\r\n<") != n)
        return err_set(g->e, ERR_UNSUPPORTED,
                       "%.80s: tools: %s: this model's calls need names of at most %zu bytes without white "
                       "space and <",
                       g->where, quote_bytes(name, n).text, most);
    add_words(&g->calls, name);
    add_literal(&g->calls, TOOL_NAME_END);
    return add_object(function, g);
}

/* ---- parameters one by one ---- */

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *list = json_member(schema, "required");
    size_t i = 0, n = json_array_size(list);
    while (i < n && !json_is_text(json_array_get(list, i), key))
        i++;
    return i < n;
}

/* Refuses other keywords than these: the grammar has the parameters that the schema
 * names, and nothing more. */
static int check_keywords(const json_t *schema, const char *place, struct moeflux_err *e)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0)
            i++;
        if (i == sizeof known / sizeof *known && !json_schema_is_annotation(key))
            return err_set(e, ERR_UNSUPPORTED,
                           "%s: #/%s: this keyword is not supported in calls of this form", place,
                           quote_bytes(key, strlen(key)).text);
    }
    const json_t *properties = json_object_get(schema, "properties"),
                 *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_object_get(properties, json_string_value(json_array_get(list, i))))
            return err_set(e, ERR_UNSUPPORTED,
                           "%s: #/required: names a parameter that properties does not have", place);
    return 0;
}

/* Adds the attribute with a value's type, and the end of its tag. kinds: JSON_SCHEMA_* bits that it may have;
 * 0: it is a string. */
static void add_type(const struct tool_plain *p, unsigned kinds, struct tool_grammar *g)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } types[] = {{"object", JSON_SCHEMA_OBJECT},
                 {"array", JSON_SCHEMA_LIST},
                 {"number", JSON_SCHEMA_INTEGER | JSON_SCHEMA_FRACTION},
                 {"boolean", JSON_SCHEMA_BOOLEAN},
                 {"null", JSON_SCHEMA_NULL}};
    bool any = false;
    add_literal(&g->calls, " type=\"");
    str_add_text(&g->calls, "( ");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].kinds & kinds) {
            str_add_text(&g->calls, any ? "| " : "");
            add_literal(&g->calls, types[i].name);
            any = true;
        }
    if (!any)
        add_literal(&g->calls, "string");
    str_add_text(&g->calls, ") ");
    add_literal(&g->calls, "\"");
    add_literal(&g->calls, p->tag_end);
}

/* Appends a name in quotes, with XML's escapes in forms that have them. */
static void add_name(const struct tool_plain *p, const char *name, struct tool_grammar *g)
{
    struct str escaped = {0};
    for (const char *c = name; *c; c++)
        if (p->tag_end && (*c == '"' || *c == '&'))
            str_add_text(&escaped, *c == '"' ? "&quot;" : "&amp;");
        else
            str_add(&escaped, c, 1);
    add_words(&g->calls, str_text(&escaped));
    g->calls.failed |= escaped.failed;
    str_free(&escaped);
}

/* Adds each parameter once, in the schema's order. */
static int add_parameters(const struct tool_plain *p, const json_t *parameters, const char *place,
                          struct tool_grammar *g)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach(json_object_get(parameters, "properties"), key, value)
    {
        char path[80];
        snprintf(path, sizeof path, "/properties/%.60s", key);
        struct json_schema_part part = {
            .root = parameters, .name = place, .path = path, .out = g->rules, .n_rules = g->n_rules};
        int kind = tool_value_kind(parameters, value);
        /* A form that tells strings from JSON would read null as a string's letters. */
        bool is_json =
            kind == TOOL_VALUE_JSON || ((p->has_kind || p->tag_end) && kind == TOOL_VALUE_TEXT_OR_NULL);
        str_add_text(&g->calls, "( ");
        add_literal(&g->calls, p->key_open);
        add_name(p, key, g);
        add_literal(&g->calls, p->key_close);
        if (p->has_kind)
            add_literal(&g->calls, is_json ? TOOL_IS_JSON : TOOL_IS_TEXT);
        if (p->tag_end)
            add_type(p, is_json ? json_schema_kinds(parameters, value) : 0, g);
        if (p->value_open) {
            add_literal(&g->calls, p->is_tight ? "" : "\n");
            add_literal(&g->calls, p->value_open);
        }
        add_literal(&g->calls, p->is_on_lines ? "\n" : "");
        rc = json_schema_add(&part, value, !is_json, &g->calls, g->e);
        g->n_rules = part.n_rules;
        str_add_text(&g->calls, " ");
        add_literal(&g->calls, p->is_on_lines ? "\n" : "");
        add_literal(&g->calls, p->value_close);
        add_literal(&g->calls, p->is_tight ? "" : "\n");
        str_addf(&g->calls, ")%s ", is_required(parameters, key) ? "" : "?");
        if (rc)
            break;
    }
    return rc;
}

int tool_write_plain(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    const struct tool_plain *p = f->plain;
    struct place place = place_of(g, function);
    json_t *schema = object_schema(function, place.text, g->e);
    if (!schema)
        return (int)g->e->code;
    add_literal(&g->calls, p->name_open);
    add_name(p, name_of(function), g);
    add_literal(&g->calls, p->is_tight && !p->tag_end ? "" : p->name_close);
    if (p->tag_end) { /* any number: calls are counted from 1 */
        str_add_text(&g->calls, "\" index=\\\"\" [1-9] [0-9]? \"\\\"\" ");
        add_literal(&g->calls, p->tag_end);
    }
    add_literal(&g->calls, p->is_tight || strchr(p->name_close, '\n') ? "" : "\n");
    int rc = check_keywords(schema, place.text, g->e);
    if (!rc)
        rc = add_parameters(p, schema, place.text, g);
    add_literal(&g->calls, p->end ? p->end : "");
    json_decref(schema);
    return rc;
}

/* ---- parameters as elements ---- */

/* A tool's parameters, and the token in front of each tag. */
struct nested {
    const json_t *root;
    const char *place, *mark;
    unsigned depth; /* elements around the current one */
};
enum { MAX_NESTED = 32 }; /* deeper values are JSON texts; fewer than the reader's MAX_ELEMENTS */

static int add_elements(struct nested *n, const json_t *schema, const char *path, struct tool_grammar *g);

/* Returns whether an object or a list is described by its members' schemas alone. */
static bool is_nested(const json_t *schema)
{
    static const char *const notes[] = {"title", "description", "default", "examples"};
    struct moeflux_err ignored;
    size_t n_known = 2;
    if (json_is_text(json_member(schema, "type"), "object"))
        return json_object_size(json_member(schema, "properties")) > 0 &&
               !check_keywords(schema, "", &ignored);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        n_known += json_object_get(schema, notes[i]) != NULL;
    return json_is_text(json_member(schema, "type"), "array") &&
           json_is_object(json_member(schema, "items")) && json_object_size(schema) == n_known;
}

static void add_tag(const struct nested *n, const char *slash, const char *name, struct tool_grammar *g)
{
    add_literal(&g->calls, n->mark);
    add_literal(&g->calls, *slash ? "</" : "<");
    add_words(&g->calls, name);
    add_literal(&g->calls, ">");
}

static int add_nested_value(struct nested *n, const json_t *schema, const char *path, struct tool_grammar *g);

/* Adds a list of any length. */
static int add_entries(struct nested *n, const json_t *schema, const char *path, struct tool_grammar *g)
{
    struct str below = {0};
    str_addf(&below, "%s/items", path);
    str_add_text(&g->calls, "( ");
    add_tag(n, "", "item", g);
    int rc = add_nested_value(n, json_member(schema, "items"), str_text(&below), g);
    add_tag(n, "/", "item", g);
    str_add_text(&g->calls, ")* ");
    str_free(&below);
    return rc;
}

/* Adds a value: a string without quotes, elements, or a JSON text. */
static int add_nested_value(struct nested *n, const json_t *schema, const char *path, struct tool_grammar *g)
{
    bool is_json = tool_value_kind(n->root, schema) == TOOL_VALUE_JSON;
    int rc;
    if (is_json && n->depth < MAX_NESTED && is_nested(schema)) {
        n->depth++;
        rc = json_member(schema, "properties") ? add_elements(n, schema, path, g)
                                               : add_entries(n, schema, path, g);
        n->depth--;
        return rc;
    }
    struct json_schema_part part = {
        .root = n->root, .name = n->place, .path = path, .out = g->rules, .n_rules = g->n_rules};
    rc = json_schema_add(&part, schema, !is_json, &g->calls, g->e);
    g->n_rules = part.n_rules;
    str_add_text(&g->calls, " ");
    return rc;
}

/* Adds the members of an object in the schema's order. */
static int add_elements(struct nested *n, const json_t *schema, const char *path, struct tool_grammar *g)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach(json_object_get(schema, "properties"), key, value)
    {
        struct str below = {0};
        str_addf(&below, "%s/properties/%.60s", path, key);
        if (!*key || strlen(key) > TOOL_MAX_NAME || *key == '/' || strpbrk(key, " \t\r\n<>"))
            rc = err_set(g->e, ERR_UNSUPPORTED, "%s: #%s: expected a name without white space, < and >",
                         n->place, str_text(&below));
        str_add_text(&g->calls, "( ");
        add_tag(n, "", key, g);
        if (!rc)
            rc = add_nested_value(n, value, str_text(&below), g);
        add_tag(n, "/", key, g);
        str_addf(&g->calls, ")%s ", is_required(schema, key) ? "" : "?");
        str_free(&below);
        if (rc)
            break;
    }
    return rc;
}

int tool_write_nested(const struct tool_form *f, const struct json_t *function, struct tool_grammar *g)
{
    struct place place = place_of(g, function);
    json_t *schema = object_schema(function, place.text, g->e);
    if (!schema)
        return (int)g->e->code;
    add_words(&g->calls, name_of(function));
    add_literal(&g->calls, "\">");
    int rc = check_keywords(schema, place.text, g->e);
    if (!rc)
        rc = add_elements(&(struct nested){schema, place.text, f->quote, 0}, schema, "", g);
    json_decref(schema);
    return rc;
}

/* ---- tools that need not be called, whose schemas are refused ---- */

/* Returns a schema of parameters that allows any value that the reader takes: it reads values without JSON
 * syntax by the tool's own schema. The caller releases it. */
static json_t *free_parameters(const struct tool_form *f, const json_t *own)
{
    json_t *free_ones = json_object(), *required = json_array();
    const char *key;
    json_t *value;
    if (!f->plain) {
        json_decref(free_ones);
        json_decref(required);
        return json_pack("{s:s}", "type", "object");
    }
    json_object_foreach(json_object_get(own, "properties"), key, value)
    {
        int kind = tool_value_kind(own, value);
        json_object_set_new(
            free_ones, key,
            kind == TOOL_VALUE_TEXT ? json_pack("{s:s}", "type", "string")
            : kind == TOOL_VALUE_TEXT_OR_NULL
                ? json_pack("{s:[s,s]}", "type", "string", "null")
                : json_pack("{s:[s,s,s,s,s]}", "type", "object", "array", "number", "boolean", "null"));
        if (is_required(own, key))
            json_array_append_new(required, json_string(key));
    }
    return json_pack("{s:s, s:o, s:o}", "type", "object", "properties", free_ones, "required", required);
}

static int write_free(const struct tool_form *f, const json_t *function, struct tool_grammar *g)
{
    json_t *parameters = free_parameters(f, json_member(function, "parameters"));
    json_t *free_one =
        json_pack("{s:O, s:o}", "name", json_object_get(function, "name"), "parameters", parameters);
    int rc = free_one ? f->write(f, free_one, g)
                      : err_set(g->e, ERR_MEMORY, "out of memory for the grammar of the tools");
    json_decref(free_one);
    return rc;
}

static void cut(struct str *s, size_t len)
{
    if (str_ok(s) && s->data)
        s->data[s->len = len] = '\0';
}

/* Writes the calls of a tool. If its schema is refused, and another tool may be called, its arguments are
 * free: the answer can do without it. */
static int write_tool(const struct tool_form *f, const json_t *function, bool is_forced,
                      struct tool_grammar *g)
{
    size_t n_calls = g->calls.len, n_rules = g->rules->len;
    int rc = f->write(f, function, g);
    if (is_forced || (rc != ERR_UNSUPPORTED && rc != ERR_FORMAT))
        return rc;
    cut(&g->calls, n_calls);
    cut(g->rules, n_rules);
    return write_free(f, function, g);
}

/* ---- all calls ---- */

/* Writes the tags around the calls; many: one call or more. */
static void add_frame(const struct tool_form *f, bool many, struct tool_grammar *g)
{
    str_add_text(g->rules, "root ::= ");
    if (f->is_message) {
        str_addf(g->rules, "%s\n", str_text(&g->calls));
        return;
    }
    if (f->section_open)
        add_literal(g->rules, f->section_open);
    add_literal(g->rules, f->section_padding ? f->section_padding : "");
    str_add_text(g->rules, "call ");
    if (many) {
        str_add_text(g->rules, "( ");
        add_literal(g->rules, f->between);
        str_add_text(g->rules, "call )* ");
    }
    add_literal(g->rules, f->section_padding ? f->section_padding : "");
    if (f->section_close)
        add_literal(g->rules, f->section_close);
    str_add_text(g->rules, "\ncall ::= ");
    add_literal(g->rules, f->call_open);
    add_literal(g->rules, f->padding);
    str_addf(g->rules, "( %s ) ", str_text(&g->calls));
    add_literal(g->rules, f->padding);
    add_literal(g->rules, f->call_close);
    str_add_text(g->rules, "\n");
}

int tool_form_grammar(const struct tool_form *f, const struct tool_choice *c, struct str *out,
                      struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    struct tool_grammar g = {.rules = out, .where = c->where, .e = e ? e : &own};
    int rc = 0;
    bool is_gemma = f->write == tool_write_gemma;
    json_schema_add_json(is_gemma ? GEMMA_QUOTE : NULL, out);
    if (f->plain && f->is_split)
        add_split_plain(out);
    else if (f->plain)
        add_plain(out, f->plain->value_close, f->plain->key_open);
    else if (is_gemma)
        add_plain(out, TOOL_GEMMA_QUOTE, NULL);
    else
        str_add_text(out, NESTED_PLAIN);
    for (size_t i = 0; rc == 0 && i < json_array_size(c->tools); i++) {
        const json_t *function = json_member(json_array_get(c->tools, i), "function");
        if (c->name && !json_is_text(json_member(function, "name"), c->name))
            continue;
        str_add_text(&g.calls, g.calls.len ? " | " : "");
        rc = write_tool(f, function, !c->is_free && (c->name || json_array_size(c->tools) == 1), &g);
    }
    if (rc == 0)
        add_frame(f, !c->name && !c->once, &g);
    if (rc == 0 && (!str_ok(out) || !str_ok(&g.calls)))
        rc = err_set(e, ERR_MEMORY, "out of memory for the grammar of the tools");
    str_free(&g.calls);
    return rc;
}
