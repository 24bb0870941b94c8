/* Gemma 4's tool calls: call:f{key:value,...}. Keys are bare, strings are between TOOL_GEMMA_QUOTE, and a
 * value may be a number, true, false, null, a list or an object of the same form. Names and strings in JSON's
 * quotes are read, too. */
#include <jansson.h>
#include <string.h>

#include "text/chat/tool_forms.h"

/* The open objects and lists are t->key, one character each. What comes next is t->n_seen. */
enum { NEXT_KEY, NEXT_COLON, NEXT_VALUE, NEXT_FIRST_VALUE, NEXT_COMMA };
enum { MAX_SCALAR = 4096 }; /* bytes of a number or a word */

static int read_items(struct tool_calls *t);

static char innermost(const struct tool_calls *t)
{
    if (t->key.len == 0)
        return '\0';
    return t->key.data[t->key.len - 1];
}

static void open_container(struct tool_calls *t, char c)
{
    str_add(&t->key, &c, 1);
    str_add(&t->arguments, &c, 1);
    t->n_seen = c == '{' ? NEXT_KEY : NEXT_FIRST_VALUE;
    t->at++;
}

/* Closes the innermost object or list. */
static int close_container(struct tool_calls *t, char c)
{
    if (innermost(t) != (c == '}' ? '{' : '['))
        return TOOL_NO_CALL;
    t->key.data[--t->key.len] = '\0';
    str_add(&t->arguments, &c, 1);
    t->at++;
    t->n_seen = NEXT_COMMA;
    return t->key.len ? TOOL_GO : tool_finish(t);
}

static void end_string(struct tool_calls *t)
{
    str_add_text(&t->arguments, "\"");
    t->phase = read_items;
}

/* Reads a string up to the closing quote. It is given out as it comes. */
static int read_string(struct tool_calls *t)
{
    size_t n;
    const char *rest = tool_rest(t, &n);
    const char *end = memmem(rest, n, TOOL_GEMMA_QUOTE, strlen(TOOL_GEMMA_QUOTE));
    size_t len = end ? (size_t)(end - rest) : n - tool_held(rest, n, TOOL_GEMMA_QUOTE);
    tool_add_escaped(&t->arguments, rest, len);
    t->at += len;
    if (!end)
        return TOOL_WAIT;
    t->at += strlen(TOOL_GEMMA_QUOTE);
    end_string(t);
    return TOOL_GO;
}

/* Reads a string in JSON's quotes, whose escapes stay as they are. */
static int read_json_string(struct tool_calls *t)
{
    size_t n, i = 0;
    const char *rest = tool_rest(t, &n);
    while (i < n && (rest[i] != '"' || t->json.escaped)) {
        t->json.escaped = rest[i] == '\\' && !t->json.escaped;
        i++;
    }
    str_add(&t->arguments, rest, i);
    t->at += i;
    if (i == n)
        return TOOL_WAIT;
    t->at++;
    end_string(t);
    return TOOL_GO;
}

/* Reads the quote at the beginning of a string. TOOL_NO_CALL: there is none. */
static int open_string(struct tool_calls *t)
{
    int got = tool_expect(t, TOOL_GEMMA_QUOTE), json = got == TOOL_NO_CALL ? tool_expect(t, "\"") : got;
    if (json != TOOL_GO)
        return json;
    str_add_text(&t->arguments, "\"");
    t->phase = got == TOOL_GO ? read_string : read_json_string;
    t->json.escaped = false;
    return TOOL_GO;
}

/* Returns the length without white space at the end; at least 1 byte stays. */
static size_t trimmed(const char *text, size_t len)
{
    while (len > 1 && strchr(" \t\r\n", text[len - 1]))
        len--;
    return len;
}

/* Reads a key without quotes. */
static int read_bare_key(struct tool_calls *t)
{
    size_t n;
    const char *rest = tool_rest(t, &n);
    size_t len = strcspn(rest, ":{}[],\"<>\n");
    if (len > TOOL_MAX_NAME || len == 0)
        return TOOL_NO_CALL;
    if (len >= n)
        return TOOL_WAIT;
    if (rest[len] != ':')
        return TOOL_NO_CALL;
    t->at += len;
    t->n_seen = NEXT_COLON;
    len = trimmed(rest, len);
    str_add_text(&t->arguments, "\"");
    tool_add_escaped(&t->arguments, rest, len);
    str_add_text(&t->arguments, "\"");
    return TOOL_GO;
}

/* Reads a number or a word, which the next sign ends. */
static int read_scalar(struct tool_calls *t)
{
    size_t n;
    const char *rest = tool_rest(t, &n);
    size_t len = strcspn(rest, ",}]");
    if (len > MAX_SCALAR || len == 0)
        return TOOL_NO_CALL;
    if (len >= n)
        return TOOL_WAIT;
    t->at += len;
    t->kind = TOOL_VALUE_JSON;
    tool_add_value(t, rest, trimmed(rest, len));
    t->n_seen = NEXT_COMMA;
    return TOOL_GO;
}

static int read_value(struct tool_calls *t, char c)
{
    if (c == '{' || c == '[') {
        open_container(t, c);
        return TOOL_GO;
    }
    int got = open_string(t);
    if (got == TOOL_GO)
        t->n_seen = NEXT_COMMA;
    return got == TOOL_NO_CALL ? read_scalar(t) : got;
}

static int read_key(struct tool_calls *t)
{
    int got = open_string(t);
    if (got == TOOL_GO)
        t->n_seen = NEXT_COLON;
    return got == TOOL_NO_CALL ? read_bare_key(t) : got;
}

/* Reads the sign after a key or a value. */
static int read_sign(struct tool_calls *t, char c)
{
    bool is_key = t->n_seen == NEXT_COLON;
    if (c != (is_key ? ':' : ','))
        return TOOL_NO_CALL;
    t->at++;
    str_add_text(&t->arguments, is_key ? ": " : ", ");
    t->n_seen = !is_key && innermost(t) == '{' ? NEXT_KEY : NEXT_VALUE;
    return TOOL_GO;
}

static int read_items(struct tool_calls *t)
{
    size_t n;
    tool_skip_space(t);
    char c = *tool_rest(t, &n);
    if (n == 0)
        return TOOL_WAIT;
    if ((c == '}' || c == ']') && t->n_seen != NEXT_VALUE && t->n_seen != NEXT_COLON)
        return close_container(t, c);
    if (t->n_seen == NEXT_COMMA || t->n_seen == NEXT_COLON)
        return read_sign(t, c);
    return t->n_seen == NEXT_KEY ? read_key(t) : read_value(t, c);
}

int tool_read_gemma(struct tool_calls *t)
{
    size_t begin = t->at;
    int got = tool_expect(t, "call:");
    if (got == TOOL_GO)
        got = tool_read_name(t, "{", &t->name);
    if (got == TOOL_WAIT)
        t->at = begin;
    if (got != TOOL_GO)
        return got;
    t->at--;
    open_container(t, '{');
    t->phase = read_items;
    return TOOL_GO;
}
