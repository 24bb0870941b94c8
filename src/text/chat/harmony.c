#include "text/chat/harmony.h"

#include <jansson.h>
#include <string.h>

static const char ROLE[] = "assistant", CHANNEL[] = HARMONY_CHANNEL, ANALYSIS[] = "analysis",
                  TO[] = "to=", BETWEEN[] = "\n\n";

bool harmony_find(struct harmony *h, const struct tokenizer *t, const char *chat_template)
{
    *h = (struct harmony){.start = tokenizer_added_id(t, "<|start|>"),
                          .channel = tokenizer_added_id(t, CHANNEL),
                          .message = tokenizer_added_id(t, HARMONY_MESSAGE),
                          .end = tokenizer_added_id(t, "<|end|>"),
                          .call = tokenizer_added_id(t, HARMONY_CALL_END)};
    bool writes = chat_template && strstr(chat_template, CHANNEL) && strstr(chat_template, HARMONY_MESSAGE);
    h->is_used = writes && h->start >= 0 && h->channel >= 0 && h->message >= 0 && h->end >= 0;
    return h->is_used;
}

struct json_t *harmony_messages(const struct json_t *messages)
{
    json_t *out = json_deep_copy(messages), *m;
    size_t i;
    json_array_foreach(out, i, m)
    {
        json_t *thought = json_object_get(m, "reasoning_content");
        if (json_string_length(thought) > 0 && !json_object_get(m, "thinking"))
            json_object_set(m, "thinking", thought);
        if (json_is_null(json_object_get(m, "content")))
            json_object_del(m, "content");
    }
    return out;
}

struct json_t *harmony_tools(const struct json_t *tools)
{
    json_t *out = json_deep_copy(tools), *tool;
    size_t i;
    json_array_foreach(out, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        if (function && !json_is_string(json_object_get(function, "description")))
            json_object_set_new(function, "description", json_string(""));
    }
    return out;
}

static void begin_header(struct chat_filter *f)
{
    f->in_header = true;
    f->inside_think = true; /* what follows is not the answer until its header says so */
    f->n_header = 0;
    f->header[0] = '\0';
}

static bool fits(const struct chat_filter *f, size_t n)
{
    return n < sizeof f->header - f->n_header;
}

/* Appends to the header, which has room. */
static void add_header(struct chat_filter *f, const char *bytes, size_t n)
{
    memcpy(f->header + f->n_header, bytes, n);
    f->n_header += n;
    f->header[f->n_header] = '\0';
}

/* Begins a header or its channel. Of several channels the last one counts. */
static void add_channel(struct chat_filter *f)
{
    if (!f->in_header || strstr(f->header, CHANNEL) || !fits(f, sizeof CHANNEL))
        begin_header(f);
    add_header(f, CHANNEL, sizeof CHANNEL - 1);
}

/* Returns the length of a word: up to white space or a control token. */
static size_t word_len(const char *text)
{
    return strcspn(text, " \t\r\n<");
}

static bool is_word(const char *text, size_t len, const char *const *words)
{
    while (*words && (strlen(*words) != len || memcmp(*words, text, len) != 0))
        words++;
    return *words != NULL;
}

/* Returns the function that the message is for, with *len bytes; NULL: it is for the user. *is_other:
 * it is for something else. */
static const char *function_of(const struct chat_filter *f, size_t *len, bool *is_other)
{
    static const char *const readers[] = {"assistant", "user", "all", NULL}, *const built_in[] = {
                                                                                 "python", "browser",
                                                                                 "container", NULL};
    const char *to = strstr(f->header, TO);
    *is_other = false;
    to = to ? to + strlen(TO) : "";
    *len = word_len(to);
    if (*len == 0 || is_word(to, *len, readers))
        return NULL;
    *is_other = !f->has_calls || is_word(to, strcspn(to, ". \t\r\n<"), built_in);
    return *is_other ? NULL : to;
}

/* Begins the text of a message that is this part. */
static void begin_text(struct chat_filter *f, enum chat_part part, struct str *shown)
{
    f->in_header = false;
    f->message = part;
    f->inside_think = part == CHAT_THINKING;
    if (f->has_shown[part == CHAT_THINKING])
        str_add_text(shown, BETWEEN);
}

/* Begins a message after its header. Returns the part that it is. */
static enum chat_part begin_message(struct chat_filter *f, struct str *shown)
{
    const char *channel = strstr(f->header, CHANNEL);
    bool is_analysis = channel && strncmp(channel + strlen(CHANNEL), ANALYSIS, sizeof ANALYSIS - 1) == 0;
    bool is_other;
    size_t len;
    const char *function = function_of(f, &len, &is_other);
    if (!function) {
        begin_text(f, is_analysis || is_other ? CHAT_THINKING : CHAT_ANSWER, shown);
        return shown->len ? f->message : CHAT_CONTROL;
    }
    f->in_header = false;
    f->message = CHAT_ANSWER;
    f->inside_think = false;
    str_add_text(shown, HARMONY_CALL);
    str_add(shown, function, len);
    str_add_text(shown, HARMONY_MESSAGE);
    return CHAT_ANSWER;
}

/* Shows a header that turned out to be text. Returns the part; CHAT_CONTROL: there is no text in it. */
static enum chat_part show_header(struct chat_filter *f, struct str *shown)
{
    static const char *const channels[] = {"analysis", "commentary", "final", NULL};
    const char *channel = strstr(f->header, CHANNEL), *text = channel ? channel + strlen(CHANNEL) : f->header;
    /* <|start|> precedes the role. */
    if (!channel && strncmp(text, ROLE, sizeof ROLE - 1) == 0)
        text += sizeof ROLE - 1;
    if (channel && is_word(text, word_len(text), channels))
        text += word_len(text) + strspn(text + word_len(text), " ");
    if (text[strspn(text, " \t\r\n")] == '\0' || strncmp(text, TO, strlen(TO)) == 0)
        return CHAT_CONTROL;
    begin_text(f, CHAT_ANSWER, shown);
    str_add_text(shown, text);
    f->has_shown[0] = true;
    return CHAT_ANSWER;
}

void harmony_begin(struct chat_filter *f, const char *prompt_end)
{
    size_t n = strlen(prompt_end), len = strlen(HARMONY_MESSAGE);
    struct str ignored = {0};
    begin_header(f);
    if (n < len || strcmp(prompt_end + n - len, HARMONY_MESSAGE) != 0)
        return;
    /* The prompt ends with the header. */
    add_header(f, prompt_end, n);
    begin_message(f, &ignored);
    str_free(&ignored);
}

enum chat_part harmony_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown)
{
    const struct harmony *h = &c->harmony;
    if (id == h->message && f->in_header)
        return begin_message(f, shown);
    if (id == h->channel)
        add_channel(f);
    else if (id == h->start || (id == h->call && !f->in_header) || (id == h->end && !f->in_header))
        begin_header(f);
    if (tokenizer_is_special(c->tokenizer, id))
        return CHAT_CONTROL;
    const char *bytes;
    size_t n = tokenizer_bytes(c->tokenizer, id, &bytes);
    if (f->in_header && fits(f, n)) {
        add_header(f, bytes, n);
        return CHAT_CONTROL;
    }
    if (f->in_header && show_header(f, shown) == CHAT_CONTROL)
        begin_text(f, CHAT_ANSWER, shown);
    str_add(shown, bytes, n);
    f->has_shown[f->message == CHAT_THINKING] = true;
    return f->message;
}

enum chat_part harmony_end(struct chat_filter *f, struct str *shown)
{
    return f->in_header ? show_header(f, shown) : f->message;
}
