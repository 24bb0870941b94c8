/* MiniMax-M3's tool calls: each parameter is an element with its name, and each tag begins with one token.
 * Members of an object are elements inside it, entries of a list are elements called item. A value may also
 * be a JSON text. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/chat/tool_forms.h"
#include "text/grammar/schema_writer.h"

/* The open elements are t->key. Each is what it contains, its name and a newline. The first one is the call,
 * without a name. */
enum { OBJECT = '{', LIST = '[', UNKNOWN = '?', MAX_ELEMENTS = 64, MAX_VISITS = 512 };

static const char ITEM[] = "item";

static int read_children(struct tool_calls *t);

/* ---- open elements ---- */

/* Returns the innermost element. */
static char *innermost(const struct tool_calls *t)
{
    size_t at = t->key.len - 1;
    while (at > 0 && t->key.data[at - 1] != '\n')
        at--;
    return t->key.data + at;
}

static void open_element(struct tool_calls *t, char contains, const char *name, size_t len)
{
    str_add(&t->key, &contains, 1);
    str_add(&t->key, name, len);
    str_add_text(&t->key, "\n");
}

static void close_element(struct tool_calls *t)
{
    t->key.len = (size_t)(innermost(t) - t->key.data);
    t->key.data[t->key.len] = '\0';
    t->phase = read_children;
}

static unsigned n_elements(const struct tool_calls *t)
{
    unsigned n = 0;
    for (size_t i = 0; i < t->key.len; i++)
        n += t->key.data[i] == '\n';
    return n;
}

/* The innermost element's closing tag. */
struct closing {
    char text[TOOL_MAX_NAME + 64];
};

static struct closing closing_of(const struct tool_calls *t)
{
    struct closing c;
    const char *name = innermost(t) + 1;
    snprintf(c.text, sizeof c.text, "%s</%.*s>", t->form->quote, (int)strcspn(name, "\n"), name);
    return c;
}

/* ---- schemas ---- */

static const char *const unions[] = {"anyOf", "oneOf", "allOf"};

/* A search in a schema, which may refer to itself. */
struct search {
    const json_t *root;
    unsigned n_left; /* schemas that it may still visit */
};

/* Returns the schema of a member or, name NULL, of a list's entries; NULL: there is none. */
static const json_t *schema_below(struct search *s, const json_t *schema, const char *name)
{
    const char *ref = json_string_value(json_member(schema, "$ref"));
    const json_t *found =
        name ? json_member(json_member(schema, "properties"), name) : json_member(schema, "items");
    if (!schema || s->n_left == 0)
        return NULL;
    s->n_left--;
    if (!found && ref)
        found = schema_below(s, schema_find(s->root, ref), name);
    for (size_t k = 0; !found && k < sizeof unions / sizeof *unions; k++) {
        const json_t *list = json_member(schema, unions[k]);
        for (size_t i = 0; !found && i < json_array_size(list); i++)
            found = schema_below(s, json_array_get(list, i), name);
    }
    if (!found && name && json_is_object(json_member(schema, "additionalProperties")))
        found = json_member(schema, "additionalProperties");
    return found;
}

/* Returns whether a schema names this type, or has `key`, which only this type has (NULL: none). */
static bool names_type(struct search *s, const json_t *schema, const char *type, const char *key)
{
    const char *ref = json_string_value(json_member(schema, "$ref"));
    const json_t *own = json_member(schema, "type");
    if (!schema || s->n_left == 0)
        return false;
    s->n_left--;
    bool found = own ? json_is_text(own, type) : key && json_member(schema, key);
    for (size_t i = 0; !found && i < json_array_size(own); i++)
        found = json_is_text(json_array_get(own, i), type);
    if (!found && ref)
        found = names_type(s, schema_find(s->root, ref), type, key);
    for (size_t k = 0; !found && k < sizeof unions / sizeof *unions; k++) {
        const json_t *list = json_member(schema, unions[k]);
        for (size_t i = 0; !found && i < json_array_size(list); i++)
            found = names_type(s, json_array_get(list, i), type, key);
    }
    return found;
}

static bool has_type(const json_t *root, const json_t *schema, const char *type, const char *key)
{
    return names_type(&(struct search){root, MAX_VISITS}, schema, type, key);
}

/* What the schema says of the innermost element's value. */
struct expected {
    int kind; /* TOOL_VALUE_* */
    bool string, object, list;
};

static struct expected expected_of(const struct tool_calls *t)
{
    const json_t *root = NULL;
    for (size_t i = 0; !root && i < json_array_size(t->tools); i++) {
        const json_t *function = json_member(json_array_get(t->tools, i), "function");
        if (json_is_text(json_member(function, "name"), str_text(&t->name)))
            root = json_member(function, "parameters");
    }
    const json_t *schema = root;
    char contains = OBJECT;
    for (const char *at = strchr(t->key.data, '\n') + 1; *at;) {
        char name[TOOL_MAX_NAME + 1];
        size_t len = strcspn(at, "\n") - 1;
        snprintf(name, sizeof name, "%.*s", (int)len, at + 1);
        schema = schema_below(&(struct search){root, MAX_VISITS}, schema, contains == LIST ? NULL : name);
        contains = *at;
        at += len + 2;
    }
    return (struct expected){.kind = tool_value_kind(root, schema),
                             .string = has_type(root, schema, "string", NULL),
                             .object = has_type(root, schema, "object", "properties"),
                             .list = has_type(root, schema, "array", "items")};
}

/* ---- values ---- */

/* Reads a string, which is given out as it comes. */
static int read_string(struct tool_calls *t)
{
    struct closing c = closing_of(t);
    size_t n;
    const char *rest = tool_rest(t, &n), *end = memmem(rest, n, c.text, strlen(c.text));
    size_t len = end ? (size_t)(end - rest) : n - tool_held(rest, n, c.text);
    tool_add_escaped(&t->arguments, rest, len);
    t->at += len;
    if (!end)
        return TOOL_WAIT;
    str_add_text(&t->arguments, "\"");
    t->at += strlen(c.text);
    close_element(t);
    return TOOL_GO;
}

/* Reads a number, a word, a JSON text, or a string that may be null. */
static int read_scalar(struct tool_calls *t)
{
    static const char space[] = " \t\r\n";
    struct closing c = closing_of(t);
    size_t n, n_close = strlen(c.text);
    /* The tag can only begin in the last bytes of what was searched before. */
    size_t seen = t->n_seen > n_close ? t->n_seen - n_close : 0;
    const char *rest = tool_rest(t, &n), *end = memmem(rest + seen, n - seen, c.text, n_close);
    t->n_seen = n;
    if (!end)
        return TOOL_WAIT;
    size_t len = (size_t)(end - rest);
    t->at += len + n_close;
    for (; t->kind == TOOL_VALUE_JSON && len > 0 && strchr(space, *rest); len--)
        rest++;
    while (t->kind == TOOL_VALUE_JSON && len > 0 && strchr(space, rest[len - 1]))
        len--;
    struct expected x = expected_of(t);
    if (len == 0 && !x.string && (x.list || x.object))
        str_add_text(&t->arguments, x.list ? "[]" : "{}");
    else
        tool_add_value(t, rest, len);
    close_element(t);
    return TOOL_GO;
}

/* Finds out whether an element is next, without reading it. *is_item: it is an entry of a list. */
static int find_child(struct tool_calls *t, bool *is_item)
{
    char open[64], item[64];
    size_t begin = t->at;
    snprintf(open, sizeof open, "%s<", t->form->quote);
    snprintf(item, sizeof item, "%s<%s>", t->form->quote, ITEM);
    tool_skip_space(t);
    size_t from = t->at, n;
    tool_rest(t, &n);
    int got = n == 0 ? TOOL_WAIT : tool_expect(t, open);
    if (got == TOOL_GO) {
        tool_rest(t, &n);
        got = n == 0 ? TOOL_WAIT : tool_expect(t, "/") == TOOL_GO ? TOOL_NO_CALL : TOOL_GO;
        t->at = from;
        int entry = got == TOOL_GO ? tool_expect(t, item) : got;
        *is_item = entry == TOOL_GO;
        got = entry == TOOL_WAIT ? TOOL_WAIT : got;
    }
    t->at = begin;
    return got;
}

/* Begins a value, after its opening tag. A string contains all up to its closing tag, other tags too. */
static int begin_value(struct tool_calls *t)
{
    struct expected x = expected_of(t);
    bool is_item = false, is_text = x.string && !x.object && !x.list;
    int child = is_text ? TOOL_NO_CALL : find_child(t, &is_item);
    if (child == TOOL_WAIT)
        return TOOL_WAIT;
    t->kind = x.kind;
    t->n_seen = 0;
    if (child == TOOL_GO) {
        char contains = is_item && (x.list || !x.object) ? LIST : OBJECT;
        *innermost(t) = contains;
        str_add(&t->arguments, &contains, 1);
        t->phase = read_children;
        return TOOL_GO;
    }
    str_add_text(&t->arguments, x.kind == TOOL_VALUE_TEXT ? "\"" : "");
    t->phase = x.kind == TOOL_VALUE_TEXT ? read_string : read_scalar;
    return TOOL_GO;
}

/* ---- elements ---- */

/* Reads the opening tag of an element. */
static int read_child(struct tool_calls *t)
{
    struct str name = {0};
    size_t begin = t->at;
    char contains = *innermost(t), last = t->arguments.data[t->arguments.len - 1];
    int got = tool_expect(t, t->form->quote);
    if (got == TOOL_GO)
        got = tool_expect(t, "<");
    if (got == TOOL_GO)
        got = tool_read_name(t, ">", &name);
    const char *text = str_text(&name);
    if (got == TOOL_GO && (*text == '/' || n_elements(t) > MAX_ELEMENTS || name.len > TOOL_MAX_NAME ||
                           (contains == LIST && strcmp(text, ITEM) != 0)))
        got = TOOL_NO_CALL;
    if (got == TOOL_WAIT)
        t->at = begin;
    if (got == TOOL_GO) {
        str_add_text(&t->arguments, last == OBJECT || last == LIST ? "" : ", ");
        if (contains == OBJECT) {
            str_add_text(&t->arguments, "\"");
            tool_add_escaped(&t->arguments, text, name.len);
            str_add_text(&t->arguments, "\": ");
        }
        open_element(t, UNKNOWN, text, name.len);
        t->key.failed |= name.failed;
        t->phase = begin_value;
    }
    str_free(&name);
    return got;
}

/* Reads the next element of an object or a list, or its end. The call's own closing tag is left. */
static int read_children(struct tool_calls *t)
{
    bool is_call = n_elements(t) == 1;
    struct closing c = closing_of(t);
    tool_skip_space(t);
    size_t begin = t->at;
    int closed = tool_expect(t, is_call ? t->form->call_close : c.text);
    if (closed == TOOL_GO) {
        str_add_text(&t->arguments, *innermost(t) == OBJECT ? "}" : "]");
        close_element(t);
        t->at = is_call ? begin : t->at;
        return is_call ? tool_finish(t) : TOOL_GO;
    }
    int opened = read_child(t);
    if (opened != TOOL_NO_CALL || closed != TOOL_WAIT)
        return opened;
    t->at = begin;
    return TOOL_WAIT;
}

int tool_read_nested(struct tool_calls *t)
{
    int got = tool_read_name(t, "\">", &t->name);
    if (got != TOOL_GO)
        return got;
    str_add_text(&t->arguments, "{");
    str_clear(&t->key);
    open_element(t, OBJECT, "", 0);
    t->phase = read_children;
    return TOOL_GO;
}
