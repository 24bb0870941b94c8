#include "text/chat/harmony.h"

#include <jansson.h>
#include <string.h>

static const char CHANNEL[] = HARMONY_CHANNEL, ANALYSIS[] = "analysis", TO[] = "to=", BETWEEN[] = "\n\n";

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

static void begin_header(struct chat_filter *f)
{
    f->in_header = true;
    f->inside_think = true; /* what follows is not the answer until its header says so */
    f->n_header = 0;
    f->header[0] = '\0';
}

/* Appends to the header. Drops what does not fit: no recipient is so long. */
static void add_header(struct chat_filter *f, const char *bytes, size_t n)
{
    size_t room = sizeof f->header - 1 - f->n_header;
    n = n < room ? n : room;
    memcpy(f->header + f->n_header, bytes, n);
    f->n_header += n;
    f->header[f->n_header] = '\0';
}

/* Appends the channel's tag, for which there must always be room. */
static void add_channel(struct chat_filter *f)
{
    if (f->n_header > sizeof f->header / 2)
        begin_header(f);
    add_header(f, CHANNEL, sizeof CHANNEL - 1);
}

/* Returns the length of a word: up to white space or a control token. */
static size_t word_len(const char *text)
{
    return strcspn(text, " \t\r\n<");
}

/* Begins a message after its header. Returns the part that it is. */
static enum chat_part begin_message(struct chat_filter *f, struct str *shown)
{
    const char *channel = strstr(f->header, CHANNEL), *to = strstr(f->header, TO);
    bool is_analysis = channel && strncmp(channel + strlen(CHANNEL), ANALYSIS, sizeof ANALYSIS - 1) == 0;
    f->in_header = false;
    f->message = CHAT_ANSWER;
    if (to) {
        str_add_text(shown, HARMONY_CALL);
        str_add(shown, to + strlen(TO), word_len(to + strlen(TO)));
        str_add_text(shown, HARMONY_MESSAGE);
    } else {
        f->message = is_analysis ? CHAT_THINKING : CHAT_ANSWER;
        if (f->has_shown[f->message == CHAT_THINKING])
            str_add_text(shown, BETWEEN);
    }
    f->inside_think = f->message == CHAT_THINKING;
    return shown->len ? f->message : CHAT_CONTROL;
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
    if (id == h->channel && f->in_header)
        add_channel(f);
    else if (id == h->start || id == h->end || id == h->call)
        begin_header(f);
    if (tokenizer_is_special(c->tokenizer, id))
        return CHAT_CONTROL;
    const char *bytes;
    size_t n = tokenizer_bytes(c->tokenizer, id, &bytes);
    if (f->in_header) {
        add_header(f, bytes, n);
        return CHAT_CONTROL;
    }
    str_add(shown, bytes, n);
    f->has_shown[f->message == CHAT_THINKING] = true;
    return f->message;
}
