#include "text/chat/tool_calls.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/chat/chat_families.h"
#include "text/tokenizer/tokenizer.h"
#include "text/chat/tool_forms.h"

static const char SPACE[] = " \t\r\n";

static bool is_space(char c)
{
    return c && strchr(SPACE, c);
}

/* ---- helpers for the forms ---- */

void tool_skip_space(struct tool_calls *t)
{
    while (t->at < t->input.len && is_space(t->input.data[t->at]))
        t->at++;
}

int tool_expect(struct tool_calls *t, const char *text)
{
    size_t n, len = strlen(text);
    const char *rest = tool_rest(t, &n);
    if (memcmp(rest, text, n < len ? n : len) != 0)
        return TOOL_NO_CALL;
    if (n < len)
        return TOOL_WAIT;
    t->at += len;
    return TOOL_GO;
}

int tool_read_name(struct tool_calls *t, const char *end, struct str *name)
{
    size_t n;
    const char *rest = tool_rest(t, &n);
    const char *found = memmem(rest, n, end, strlen(end));
    size_t len = found ? (size_t)(found - rest) : n;
    if (len > TOOL_MAX_NAME + strlen(end))
        return TOOL_NO_CALL;
    if (!found)
        return TOOL_WAIT;
    t->at += len + strlen(end);
    for (; len > 0 && is_space(rest[len - 1]); len--)
        ;
    for (; len > 0 && is_space(*rest); len--)
        rest++;
    str_clear(name);
    str_add(name, rest, len);
    bool good = len > 0 && !memchr(rest, '\n', len) && !memchr(rest, '<', len) && !memchr(rest, '\0', len);
    return good ? TOOL_GO : TOOL_NO_CALL;
}

size_t tool_held(const char *bytes, size_t n, const char *text)
{
    size_t most = strlen(text) - 1;
    for (size_t k = most < n ? most : n; k > 0; k--)
        if (memcmp(bytes + n - k, text, k) == 0)
            return k;
    return 0;
}

/* Reads one byte of an object. Returns false if it was the last one. */
static bool read_json_byte(struct tool_calls *t, char c)
{
    if (t->json.in_string) {
        t->json.in_string = c != '"' || t->json.escaped;
        t->json.escaped = c == '\\' && !t->json.escaped;
    } else if (c == '"') {
        t->json.in_string = true;
    } else if (c == '{' || c == '[') {
        t->json.depth++;
    } else if (c == '}' || c == ']') {
        t->json.depth--;
    }
    return t->json.depth > 0;
}

int tool_read_object(struct tool_calls *t, struct str *to)
{
    size_t n, i = 0;
    const char *rest = tool_rest(t, &n);
    bool goes_on = true;
    while (goes_on && i < n)
        goes_on = read_json_byte(t, rest[i++]);
    str_add(to, rest, i);
    t->at += i;
    return goes_on ? TOOL_WAIT : TOOL_GO;
}

const struct json_t *tool_parameters(const struct tool_calls *t, bool *is_known)
{
    for (size_t i = 0; i < json_array_size(t->tools); i++) {
        const json_t *function = json_member(json_array_get(t->tools, i), "function");
        if (!json_is_text(json_member(function, "name"), str_text(&t->name)))
            continue;
        if (is_known)
            *is_known = true;
        return json_member(function, "parameters");
    }
    if (is_known)
        *is_known = false;
    return NULL;
}

struct json_t *tool_load(const char *bytes, size_t n)
{
    /* Whole numbers may have more than 64 bits. */
    return json_count_values(bytes, n) > JSON_MAX_LARGE
               ? NULL
               : json_loadb(bytes, n, JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
}

/* ---- events ---- */

static int give(struct tool_calls *t, enum tool_event event, const char *bytes, size_t n,
                struct moeflux_err *e)
{
    /* A call in thinking is not certain yet. */
    if (t->is_thinking && event != TOOL_TEXT)
        return 0;
    return t->sink.event(t->sink.ctx, event, bytes, n, e);
}

/* Drops the first n bytes of the input, which have been given out or belong to a call. */
static void drop(struct tool_calls *t, size_t n)
{
    if (n == 0)
        return;
    memmove(t->input.data, t->input.data + n, t->input.len - n + 1);
    t->input.len -= n;
    t->at = t->at > n ? t->at - n : 0;
}

/* Gives the first n bytes of the input out as text. */
static int give_text(struct tool_calls *t, size_t n, struct moeflux_err *e)
{
    int rc = n ? give(t, TOOL_TEXT, t->input.data, n, e) : 0;
    if (n)
        t->after_call = false;
    drop(t, n);
    return rc;
}

/* Gives out what is known of the current call. */
static int give_call(struct tool_calls *t, struct moeflux_err *e)
{
    int rc = 0;
    if (!t->begun && t->arguments.len > 0) {
        t->begun = true;
        rc = give(t, TOOL_BEGINS, str_text(&t->name), t->name.len, e);
    }
    if (rc || t->n_given == t->arguments.len)
        return rc;
    rc = give(t, TOOL_ARGUMENTS, str_text(&t->arguments) + t->n_given, t->arguments.len - t->n_given, e);
    t->n_given = t->arguments.len;
    return rc;
}

/* ---- phases around a call ---- */

static void forget_call(struct tool_calls *t)
{
    str_clear(&t->name);
    str_clear(&t->arguments);
    str_clear(&t->id);
    str_clear(&t->key);
    str_clear(&t->keys);
    t->n_given = 0;
    t->begun = false;
    memset(&t->json, 0, sizeof t->json);
}

/* Returns the tag with which a call begins whose first tag is missing; NULL: none. */
static const char *bare_tag(const struct tool_form *f)
{
    return f->plain && *f->plain->name_open ? f->plain->name_open : NULL;
}

static int open_call(struct tool_calls *t)
{
    tool_skip_space(t);
    size_t begin = t->at;
    int got = tool_expect(t, t->form->call_open);
    if (got == TOOL_GO) {
        t->tag_end = t->at;
        t->phase = t->form->read;
    }
    if (got != TOOL_NO_CALL || !bare_tag(t->form))
        return got;
    int bare = tool_expect(t, bare_tag(t->form));
    if (bare == TOOL_GO) {
        t->tag_end = t->at;
        t->at = begin;
        t->is_bare = true;
        t->phase = t->form->read;
    }
    return bare;
}

/* Reads the section's tag, which may be missing. */
static int open_section(struct tool_calls *t)
{
    const char *tag = t->form->section_open;
    t->at = t->tag_end;
    if (tag && tool_expect(t, tag) == TOOL_GO)
        t->tag_end = t->at;
    t->phase = open_call;
    return TOOL_GO;
}

/* Reads what may follow a call: closing tags. */
static int close_call(struct tool_calls *t)
{
    const char *const tags[] = {t->form->fence_close, t->form->call_close, t->form->section_close};
    size_t begin = t->at;
    bool waits = false;
    tool_skip_space(t);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        int got = tags[i] ? tool_expect(t, tags[i]) : TOOL_NO_CALL;
        if (got == TOOL_GO)
            return TOOL_GO;
        waits |= got == TOOL_WAIT;
    }
    t->at = begin;
    if (waits && !t->at_end)
        return TOOL_WAIT;
    t->phase = NULL;
    return TOOL_GO;
}

int tool_finish(struct tool_calls *t)
{
    const char *text = str_text(&t->arguments);
    size_t n = t->arguments.len;
    json_t *value = tool_load(text, n);
    bool good = json_is_object(value);
    json_decref(value);
    t->phase = close_call;
    return good ? TOOL_GO : TOOL_NO_CALL;
}

/* Returns the place of the first tag with which a call may begin. *held: bytes at the end that may become
 * one. */
static size_t find_tag(const struct tool_calls *t, size_t *held)
{
    const char *const tags[] = {t->form->section_open, t->form->call_open, bare_tag(t->form)};
    const char *bytes = str_text(&t->input);
    size_t n = t->input.len, first = n;
    *held = 0;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        const char *found = tags[i] ? memmem(bytes, n, tags[i], strlen(tags[i])) : NULL;
        size_t end = tags[i] ? tool_held(bytes, n, tags[i]) : 0;
        if (found && (size_t)(found - bytes) < first)
            first = (size_t)(found - bytes);
        *held = end > *held ? end : *held;
    }
    return first;
}

/* Gives out text up to the next tag. White space before a tag is left out, so it is held back. */
static int read_text(struct tool_calls *t, struct moeflux_err *e)
{
    size_t held, first = find_tag(t, &held), n = t->input.len;
    bool found = first < n;
    size_t end = found ? first : t->at_end ? n : n - held;
    if (found || !t->at_end)
        while (end > 0 && is_space(t->input.data[end - 1]))
            end--;
    else if (t->after_call && strspn(str_text(&t->input), SPACE) == n)
        end = 0;
    int rc = give_text(t, end, e);
    if (rc < 0 || !found)
        return rc < 0 ? rc : TOOL_WAIT;
    forget_call(t);
    t->tag_end = first - end;
    t->is_bare = false;
    t->phase = open_section;
    return TOOL_GO;
}

/* ---- the loop ---- */

/* Treats a failed call as text: gives out its tag, after which text follows. The header of a message is no
 * text. */
static int fail(struct tool_calls *t, struct moeflux_err *e)
{
    const char *header = t->form->is_message ? t->form->separator : NULL, *bytes = str_text(&t->input);
    const char *end = header ? memmem(bytes, t->input.len, header, strlen(header)) : NULL;
    int rc = t->begun ? give(t, TOOL_FAILS, "", 0, e) : 0;
    forget_call(t);
    t->phase = NULL;
    t->at = 0;
    if (end)
        drop(t, (size_t)(end - bytes) + strlen(header));
    return rc || end ? rc : give_text(t, t->tag_end, e);
}

/* Ends a call within which the answer ends. All that came has been given out. */
static int break_off(struct tool_calls *t, struct moeflux_err *e)
{
    forget_call(t);
    t->phase = NULL;
    t->at = 0;
    drop(t, t->input.len);
    return give(t, TOOL_BREAKS, "", 0, e);
}

/* Runs one phase of a call. */
static int read_call(struct tool_calls *t, struct moeflux_err *e)
{
    int got = t->phase(t);
    /* tag_end is 0 once the call has ended. */
    bool ends = got == TOOL_GO && t->phase == close_call && t->tag_end > 0;
    if (!str_ok(&t->input) || !str_ok(&t->name) || !str_ok(&t->arguments) || !str_ok(&t->key) ||
        !str_ok(&t->keys) || !str_ok(&t->id))
        return err_set(e, ERR_MEMORY, "out of memory for a tool's call");
    int rc = got == TOOL_NO_CALL ? 0 : give_call(t, e);
    if (rc)
        return rc;
    if (got == TOOL_WAIT && t->at_end && t->begun && !t->is_thinking)
        return break_off(t, e);
    if (got == TOOL_NO_CALL || (got == TOOL_WAIT && t->at_end))
        return fail(t, e);
    if (!ends)
        return got;
    if (t->is_thinking) {
        t->holds = true;
        return TOOL_WAIT;
    }
    t->tag_end = 0;
    t->after_call = true;
    rc = give(t, TOOL_ENDS, "", 0, e);
    return rc ? rc : TOOL_GO;
}

static int advance(struct tool_calls *t, struct moeflux_err *e)
{
    int rc = t->holds ? TOOL_WAIT : TOOL_GO;
    while (rc == TOOL_GO) {
        if (t->phase) {
            rc = read_call(t, e);
            continue;
        }
        drop(t, t->at);
        rc = read_text(t, e);
    }
    return rc < 0 ? rc : 0;
}

/* ---- entry points ---- */

void tool_calls_init(struct tool_calls *t, const struct tool_form *form, const struct json_t *tools,
                     struct tool_sink sink)
{
    *t = (struct tool_calls){.form = form, .tools = tools, .sink = sink};
}

int tool_calls_push(struct tool_calls *t, const char *bytes, size_t n, struct moeflux_err *e)
{
    if (n == 0)
        return 0;
    /* The tags of a message do not occur in thinking. */
    if (!t->form || (t->is_thinking && t->form->is_message))
        return give(t, TOOL_TEXT, bytes, n, e);
    str_add(&t->input, bytes, n);
    if (!str_ok(&t->input))
        return err_set(e, ERR_MEMORY, "out of memory for a tool's call");
    return advance(t, e);
}

/* Goes back to the first byte that was not given out. */
static void go_back(struct tool_calls *t)
{
    t->holds = false;
    t->phase = NULL;
    t->at = 0;
    forget_call(t);
}

int tool_calls_finish(struct tool_calls *t, struct moeflux_err *e)
{
    if (t->holds) {
        go_back(t);
        t->is_thinking = false;
    }
    return tool_calls_end(t, e);
}

bool tool_calls_is_open(const struct tool_calls *t)
{
    return t->begun && t->phase && t->tag_end > 0;
}

int tool_calls_end(struct tool_calls *t, struct moeflux_err *e)
{
    if (!t->form)
        return 0;
    if (t->holds) {
        go_back(t);
        return give_text(t, t->input.len, e);
    }
    t->at_end = true;
    int rc = advance(t, e);
    t->at_end = false;
    return rc;
}

void tool_calls_free(struct tool_calls *t)
{
    str_free(&t->input);
    str_free(&t->name);
    str_free(&t->arguments);
    str_free(&t->id);
    str_free(&t->key);
    str_free(&t->keys);
    *t = (struct tool_calls){0};
}

const struct tool_form *tool_form_find(const char *chat_template)
{
    for (size_t i = 0; chat_template && i < tool_n_forms; i++) {
        const struct tool_form *f = &tool_forms[i];
        if (strstr(chat_template, f->marks[0]) && (!f->marks[1] || strstr(chat_template, f->marks[1])))
            return f->read ? f : NULL;
    }
    return NULL;
}

const struct tool_form *tool_form_of(const struct tokenizer *t, const char *family)
{
    const char *tools = tokenizer_tool_template(t), *own = tools ? tools : tokenizer_chat_template(t);
    const struct chat_family *known = own ? NULL : chat_family_find(family);
    return tool_form_find(known ? known->text : own);
}

bool tool_form_is_message(const struct tool_form *f)
{
    return f && f->is_message;
}

bool tool_form_has_tag(const struct tool_form *f, const char *text, size_t len)
{
    if (f->is_message)
        return false;
    const char *const tags[] = {f->section_open, f->section_close, f->call_open,
                                f->call_close,   f->separator,     f->quote};
    static const struct tool_plain none;
    const struct tool_plain *p = f->plain ? f->plain : &none;
    const char *const plain_tags[] = {p->key_open, p->key_close, p->value_open, p->value_close, p->end};
    size_t n_quote = f->quote ? strlen(f->quote) : 0;
    for (size_t i = 0; i < sizeof plain_tags / sizeof *plain_tags; i++)
        if (plain_tags[i] && strlen(plain_tags[i]) == len && memcmp(plain_tags[i], text, len) == 0)
            return true;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        const char *tag = tags[i];
        if (tag && strlen(tag) == len && memcmp(tag, text, len) == 0)
            return true;
        if (tag && f->is_split && len > 2 && text[0] == '<' && memmem(tag, strlen(tag), text, len))
            return true;
        /* The token in front of a tag is one of its own. */
        if (tag && n_quote && strncmp(tag, f->quote, n_quote) == 0 && strlen(tag + n_quote) == len &&
            memcmp(tag + n_quote, text, len) == 0)
            return true;
    }
    return false;
}
