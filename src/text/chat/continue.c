/* Prompts that end with an unfinished message of the assistant, which the answer continues. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "text/chat/continue.h"

/* Stands after the message's text while it is rendered. Templates trim white space at the end of a text,
 * but not in front of this. */
static const char MARK[] = "\x1a";

/* Returns the last place of `what`; NULL: there is none. */
static const char *find_last(const char *text, const char *what)
{
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, what)); at++)
        last = at;
    return last;
}

bool chat_continues_thinking(const struct chat *c, const struct json_t *message)
{
    const char *text = json_string_value(json_object_get(message, "content"));
    if (!text || !*text)
        return json_string_length(json_object_get(message, "reasoning_content")) > 0;
    const char *open = find_last(text, c->tags->open), *close = find_last(text, c->tags->close);
    return open && (!close || close < open);
}

static int add_mark(json_t *message, const char *field)
{
    const json_t *text = json_object_get(message, field);
    return json_object_set_new(message, field, json_sprintf("%s%s", json_string_value(text), MARK));
}

/* Returns the messages with the mark after the last one's text; NULL: no memory. */
static json_t *marked_messages(const struct chat *c, const json_t *messages)
{
    size_t n = json_array_size(messages);
    json_t *out = json_copy((json_t *)(uintptr_t)messages), *last = json_copy(json_array_get(out, n - 1));
    bool thinking =
        chat_continues_thinking(c, last) && json_string_length(json_object_get(last, "content")) == 0;
    bool ok = last && add_mark(last, thinking ? "reasoning_content" : "content") == 0;
    /* Some templates call it `thinking`. */
    if (ok && thinking && json_is_string(json_object_get(last, "thinking")))
        ok = add_mark(last, "thinking") == 0;
    ok = ok && json_array_set(out, n - 1, last) == 0;
    json_decref(last);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

int continue_render(const struct chat *c, const struct chat_prompt *p, struct chat_text *out,
                    struct moeflux_err *e)
{
    struct chat_prompt whole = *p;
    json_t *messages = marked_messages(c, p->messages);
    whole.messages = messages;
    whole.continues = whole.opens_answer = false;
    int rc = messages ? chat_render(c, &whole, out, e) : err_set(e, ERR_MEMORY, "out of memory for a prompt");
    json_decref(messages);
    const char *mark = rc == 0 ? find_last(str_text(&out->text), MARK) : NULL;
    if (rc)
        return rc;
    if (!mark)
        return err_set(
            e, ERR_UNSUPPORTED,
            "chat template: it does not repeat the text of the last message, which cannot be continued");
    out->text.len = out->authors.len = (size_t)(mark - out->text.data);
    out->text.data[out->text.len] = '\0';
    return 0;
}
