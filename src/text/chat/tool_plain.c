/* Tool calls whose parameters are written one by one without JSON syntax, such as
 * <parameter=p>\nvalue\n</parameter>. Models leave tags out, double them, or write them in a value;
 * what a tag means is decided by what follows it. */
#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "text/chat/tool_forms.h"
#include "text/grammar/json_schema.h"

enum { MAX_AHEAD = 256 }; /* bytes after a closing tag that are searched for the next tag */

static int read_parameters(struct tool_calls *t);

/* ---- values ---- */

int tool_value_kind(const struct json_t *parameters, const struct json_t *schema)
{
    unsigned kinds = json_schema_kinds(parameters, schema);
    return !(kinds & JSON_SCHEMA_TEXT) ? TOOL_VALUE_JSON
           : kinds & JSON_SCHEMA_OTHER ? TOOL_VALUE_UNION + (int)kinds
           : kinds & JSON_SCHEMA_NULL  ? TOOL_VALUE_TEXT_OR_NULL
                                       : TOOL_VALUE_TEXT;
}

/* Returns the kind of the parameter t->key by the tool's schema. */
static int kind_of(const struct tool_calls *t)
{
    const json_t *parameters = tool_parameters(t, NULL);
    return tool_value_kind(parameters, json_member(json_member(parameters, "properties"), str_text(&t->key)));
}

void tool_add_escaped(struct str *to, const char *bytes, size_t n)
{
    static const char letters[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
    for (size_t i = 0; i < n; i++) {
        const char *found = bytes[i] ? strchr(letters, bytes[i]) : NULL;
        if (found)
            str_addf(to, "\\%c", names[found - letters]);
        else if ((unsigned char)bytes[i] < 0x20)
            str_addf(to, "\\u%04x", (unsigned char)bytes[i]);
        else
            str_add(to, bytes + i, 1);
    }
}

/* Returns the JSON_SCHEMA_* bit of a JSON value. */
static unsigned bit_of(const json_t *value, const char *bytes, size_t n)
{
    bool has_point = memchr(bytes, '.', n) || memchr(bytes, 'e', n) || memchr(bytes, 'E', n);
    return json_is_object(value)    ? JSON_SCHEMA_OBJECT
           : json_is_array(value)   ? JSON_SCHEMA_LIST
           : json_is_boolean(value) ? JSON_SCHEMA_BOOLEAN
           : json_is_null(value)    ? JSON_SCHEMA_NULL
           : json_is_string(value)  ? JSON_SCHEMA_TEXT
           : has_point              ? JSON_SCHEMA_FRACTION
                                    : JSON_SCHEMA_INTEGER;
}

/* Returns the bits of what a value may be that is not taken as a string. */
static unsigned other_kinds(int kind)
{
    return kind == TOOL_VALUE_JSON           ? JSON_SCHEMA_PLAIN | JSON_SCHEMA_OTHER
           : kind == TOOL_VALUE_TEXT_OR_NULL ? JSON_SCHEMA_NULL
           : kind >= TOOL_VALUE_UNION ? (unsigned)(kind - TOOL_VALUE_UNION) & ~(unsigned)JSON_SCHEMA_TEXT
                                      : 0;
}

void tool_add_value(struct tool_calls *t, const char *bytes, size_t n)
{
    static const struct {
        const char *written, *json;
        unsigned kind;
    } words[] = {{"None", "null", JSON_SCHEMA_NULL},
                 {"null", "null", JSON_SCHEMA_NULL},
                 {"True", "true", JSON_SCHEMA_BOOLEAN},
                 {"False", "false", JSON_SCHEMA_BOOLEAN}};
    unsigned kinds = other_kinds(t->kind);
    const char *word = NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (kinds & words[i].kind && strlen(words[i].written) == n && memcmp(words[i].written, bytes, n) == 0)
            word = words[i].json;
    json_t *value = word || !(kinds & JSON_SCHEMA_OTHER) ? NULL : tool_load(bytes, n);
    if (word) {
        str_add_text(&t->arguments, word);
    } else if (value && kinds & bit_of(value, bytes, n)) {
        str_add(&t->arguments, bytes, n);
    } else {
        str_add_text(&t->arguments, "\"");
        tool_add_escaped(&t->arguments, bytes, n);
        str_add_text(&t->arguments, "\"");
    }
    json_decref(value);
}

/* ---- where a value ends ---- */

/* Returns whether the text begins here. TOOL_WAIT: it may still. */
static int match(const char *bytes, size_t n, const char *text)
{
    size_t len = strlen(text);
    if (memcmp(bytes, text, n < len ? n : len) != 0)
        return TOOL_NO_CALL;
    return n >= len ? TOOL_GO : TOOL_WAIT;
}

/* Returns whether what follows a closing tag shows that it ends the value: another parameter, or the end of
 * the call or of the answer. The closing tag may come several times. */
static int is_followed(const struct tool_calls *t, const char *bytes, size_t n)
{
    const struct tool_plain *p = t->form->plain;
    const char *const tags[] = {p->key_open, p->end ? p->end : t->form->call_close, t->form->call_close};
    size_t i = 0;
    for (;;) {
        i += strspn(bytes + i, " \t\r\n");
        int again = match(bytes + i, n - i, p->value_close);
        if (again != TOOL_GO)
            break;
        i += strlen(p->value_close);
    }
    if (i >= n)
        return t->at_end ? TOOL_GO : n > MAX_AHEAD ? TOOL_NO_CALL : TOOL_WAIT;
    int best = match(bytes + i, n - i, p->value_close);
    for (size_t k = 0; k < sizeof tags / sizeof *tags && best != TOOL_GO; k++) {
        int got = match(bytes + i, n - i, tags[k]);
        best = got == TOOL_NO_CALL ? best : got;
    }
    return i > MAX_AHEAD ? TOOL_NO_CALL : best;
}

/* Returns whether another parameter of the tool begins here, though the value has no closing tag. */
static int begins_another(const struct tool_calls *t, const char *bytes, size_t n)
{
    const struct tool_plain *p = t->form->plain;
    const json_t *properties = json_member(tool_parameters(t, NULL), "properties");
    size_t open = strlen(p->key_open);
    int got = properties ? match(bytes, n, p->key_open) : TOOL_NO_CALL;
    if (got != TOOL_GO)
        return got;
    const char *name = bytes + open, *end = memmem(name, n - open, p->key_close, strlen(p->key_close));
    size_t len = end ? (size_t)(end - name) : n - open;
    if (len > TOOL_MAX_NAME || memchr(name, '\n', len))
        return TOOL_NO_CALL;
    if (!end)
        return TOOL_WAIT;
    struct str line = {0};
    str_add_text(&line, "\n");
    str_add(&line, name, len);
    str_add_text(&line, "\n");
    bool is_new =
        str_ok(&line) && !memchr(name, '\0', len) && !(t->keys.len && strstr(str_text(&t->keys), line.data));
    if (is_new) {
        line.data[line.len - 1] = '\0';
        is_new = json_object_get(properties, line.data + 1) != NULL;
    }
    str_free(&line);
    return is_new ? TOOL_GO : TOOL_NO_CALL;
}

/* Finds the end of the value in bytes[from..n]. TOOL_GO: it has *len bytes, and *skip bytes of its
 * closing tag follow. TOOL_WAIT: the first *len bytes belong to it. All tags begin with "<". */
static int find_end(const struct tool_calls *t, const char *bytes, size_t n, size_t from, size_t *len,
                    size_t *skip)
{
    const struct tool_plain *p = t->form->plain;
    for (const char *c = bytes + from; (c = memchr(c, '<', n - (size_t)(c - bytes))); c++) {
        size_t left = n - (size_t)(c - bytes), n_close = strlen(p->value_close);
        int closed = match(c, left, p->value_close);
        *skip = closed == TOOL_GO ? n_close : 0;
        if (closed == TOOL_GO)
            closed = is_followed(t, c + n_close, left - n_close);
        else if (closed == TOOL_NO_CALL)
            closed = p->is_on_lines && c > bytes && c[-1] != '\n' ? TOOL_NO_CALL : begins_another(t, c, left);
        *len = (size_t)(c - bytes);
        if (closed != TOOL_NO_CALL)
            return closed;
    }
    *len = n;
    return TOOL_WAIT;
}

/* Reads a string, which is given out as it comes. A newline at the end is held back, because it may
 * belong to the tag that follows. */
static int read_text_value(struct tool_calls *t)
{
    size_t n, len, skip = 0;
    const char *rest = tool_rest(t, &n);
    int got = find_end(t, rest, n, 0, &len, &skip);
    bool has_newline = len > 0 && rest[len - 1] == '\n';
    if (got == TOOL_WAIT) {
        len -= has_newline;
        has_newline = false;
    }
    tool_add_escaped(&t->arguments, rest, len - (has_newline && (t->form->plain->is_on_lines || skip == 0)));
    t->at += len + (got == TOOL_GO ? skip : 0);
    if (got != TOOL_GO)
        return got;
    str_add_text(&t->arguments, "\"");
    t->phase = read_parameters;
    return TOOL_GO;
}

/* Reads a value whose type is known only once it is complete. */
static int read_other_value(struct tool_calls *t)
{
    size_t n, len, skip = 0;
    const char *rest = tool_rest(t, &n);
    int got = find_end(t, rest, n, t->n_seen, &len, &skip);
    t->n_seen = len;
    if (got != TOOL_GO)
        return got;
    bool has_newline = len > 0 && rest[len - 1] == '\n';
    tool_add_value(t, rest, len - (has_newline && (t->form->plain->is_on_lines || skip == 0)));
    t->at += len + skip;
    t->phase = read_parameters;
    return TOOL_GO;
}

/* Begins a value, after its opening tag. */
static int begin_value(struct tool_calls *t)
{
    if (t->form->plain->is_on_lines && tool_expect(t, "\n") == TOOL_WAIT)
        return TOOL_WAIT;
    if (!t->form->plain->has_kind && !t->form->plain->tag_end)
        t->kind = kind_of(t);
    str_add_text(&t->keys, t->keys.len ? "" : "\n");
    str_add(&t->keys, str_text(&t->key), t->key.len);
    str_add_text(&t->keys, "\n");
    str_add_text(&t->arguments, t->arguments.len > 1 ? ", \"" : "\"");
    tool_add_escaped(&t->arguments, str_text(&t->key), t->key.len);
    str_add_text(&t->arguments, t->kind == TOOL_VALUE_TEXT ? "\": \"" : "\": ");
    t->n_seen = 0;
    t->phase = t->kind == TOOL_VALUE_TEXT ? read_text_value : read_other_value;
    return TOOL_GO;
}

/* ---- between the values ---- */

/* Reads DSML's attribute and the end of the tag: true"> for a string, false"> for JSON. */
static int read_kind(struct tool_calls *t)
{
    int got = tool_expect(t, TOOL_IS_TEXT);
    t->kind = got == TOOL_GO ? TOOL_VALUE_TEXT : TOOL_VALUE_JSON;
    if (got == TOOL_NO_CALL)
        got = tool_expect(t, TOOL_IS_JSON);
    if (got == TOOL_GO)
        t->phase = begin_value;
    return got;
}

/* Replaces XML's escapes. */
static void unescape(struct str *name)
{
    static const char *const escapes[][2] = {{"&quot;", "\""}, {"&amp;", "&"}};
    size_t to = 0;
    for (size_t i = 0; i < name->len; to++) {
        size_t k = 0;
        while (k < 2 && strncmp(name->data + i, escapes[k][0], strlen(escapes[k][0])) != 0)
            k++;
        if (k < 2)
            name->data[to] = *escapes[k][1];
        else
            name->data[to] = name->data[i];
        i += k < 2 ? strlen(escapes[k][0]) : 1;
    }
    name->len = to;
    if (name->data)
        name->data[to] = '\0';
}

/* Reads attributes up to the end of the tag. *kind: receives what `type` says; without it, it stays. */
static int read_attributes(struct tool_calls *t, int *kind)
{
    static const char type[] = " type=\"", text[] = "string\"";
    const char *end = t->form->plain->tag_end;
    size_t n;
    const char *rest = tool_rest(t, &n), *found = memmem(rest, n, end, strlen(end));
    size_t len = found ? (size_t)(found - rest) : n;
    if (len > MAX_AHEAD || memchr(rest, '\n', len))
        return TOOL_NO_CALL;
    if (!found)
        return TOOL_WAIT;
    const char *value = memmem(rest, len, type, sizeof type - 1);
    if (value) {
        value += sizeof type - 1;
        bool is_text = (size_t)(found - value) >= sizeof text - 1 && !memcmp(value, text, sizeof text - 1);
        *kind = is_text ? TOOL_VALUE_TEXT : TOOL_VALUE_JSON;
    }
    t->at += len + strlen(end);
    return TOOL_GO;
}

/* Reads what follows a parameter's name in its tag. */
static int read_type(struct tool_calls *t)
{
    int kind = -1, got = read_attributes(t, &kind);
    if (got != TOOL_GO)
        return got;
    unescape(&t->key);
    t->kind = kind < 0 ? kind_of(t) : kind;
    t->phase = begin_value;
    return got;
}

/* Reads what follows the function's name in its tag. */
static int end_first_tag(struct tool_calls *t)
{
    int ignored = 0, got = read_attributes(t, &ignored);
    if (got != TOOL_GO)
        return got;
    unescape(&t->name);
    str_add_text(&t->arguments, "{");
    t->phase = read_parameters;
    return got;
}

static int open_value(struct tool_calls *t)
{
    tool_skip_space(t);
    int got = tool_expect(t, t->form->plain->value_open);
    if (got == TOOL_GO)
        t->phase = begin_value;
    return got;
}

/* Expects the end of the parameters. Reads it, unless it is the end of the call, which may come
 * without it. */
static int expect_end(struct tool_calls *t)
{
    const char *end = t->form->plain->end;
    size_t begin = t->at;
    int got = end ? tool_expect(t, end) : TOOL_NO_CALL;
    if (got == TOOL_GO)
        return got;
    int closed = tool_expect(t, t->form->call_close);
    t->at = begin;
    return closed == TOOL_NO_CALL ? got : closed;
}

static int read_parameters(struct tool_calls *t)
{
    const struct tool_plain *p = t->form->plain;
    tool_skip_space(t);
    size_t begin = t->at;
    int got = expect_end(t);
    if (got == TOOL_GO) {
        str_add_text(&t->arguments, "}");
        return tool_finish(t);
    }
    /* A closing tag that was written twice. */
    int again = tool_expect(t, p->value_close);
    if (again == TOOL_GO)
        return TOOL_GO;
    int opened = tool_expect(t, p->key_open);
    if (opened == TOOL_GO)
        opened = tool_read_name(t, p->key_close, &t->key);
    if (opened == TOOL_GO)
        t->phase = p->tag_end      ? read_type
                   : p->has_kind   ? read_kind
                   : p->value_open ? open_value
                                   : begin_value;
    if (opened != TOOL_WAIT && got != TOOL_WAIT && again != TOOL_WAIT)
        return opened;
    t->at = begin;
    return TOOL_WAIT;
}

/* Reads the function's name. GLM-4.5 ends its line, GLM-4.7 begins the next tag. */
static int read_name(struct tool_calls *t, const char *close)
{
    size_t n;
    const char *rest = tool_rest(t, &n);
    const char *line = memchr(rest, '\n', n), *tag = *close == '\n' ? memchr(rest, '<', n) : NULL;
    if (!tag || (line && line < tag))
        return tool_read_name(t, close, &t->name);
    int got = tool_read_name(t, "<", &t->name);
    t->at -= got == TOOL_GO;
    return got;
}

int tool_read_plain(struct tool_calls *t)
{
    const struct tool_plain *p = t->form->plain;
    tool_skip_space(t);
    size_t begin = t->at;
    bool is_known = true;
    int got = tool_expect(t, p->name_open);
    if (got == TOOL_GO)
        got = read_name(t, p->name_close);
    if (got == TOOL_WAIT)
        t->at = begin;
    /* Without the call's first tag, only the name of a tool shows that it is a call. */
    if (got == TOOL_GO && t->is_bare)
        tool_parameters(t, &is_known);
    if (got != TOOL_GO || !is_known)
        return got == TOOL_GO ? TOOL_NO_CALL : got;
    if (p->tag_end) {
        t->phase = end_first_tag;
        return got;
    }
    str_add_text(&t->arguments, "{");
    t->phase = read_parameters;
    return got;
}
