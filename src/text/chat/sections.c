#include "text/chat/sections.h"

#include <string.h>

bool sections_find(struct sections *s, const struct tokenizer *t, const char *chat_template)
{
    *s = (struct sections){.open = tokenizer_added_id(t, SECTIONS_OPEN),
                           .close = tokenizer_added_id(t, SECTIONS_CLOSE),
                           .sep = tokenizer_added_id(t, SECTIONS_SEP),
                           .end = tokenizer_added_id(t, SECTIONS_END)};
    bool writes =
        chat_template && strstr(chat_template, SECTIONS_OPEN) && strstr(chat_template, SECTIONS_END);
    s->is_used = writes && s->open >= 0 && s->close >= 0 && s->sep >= 0 && s->end >= 0;
    return s->is_used;
}

/* Begins or continues a part. */
static void set_part(struct chat_filter *f, enum chat_part part)
{
    f->message = part;
    f->inside_think = part == CHAT_THINKING;
}

void sections_begin(struct chat_filter *f, bool in_thinking)
{
    set_part(f, in_thinking ? CHAT_THINKING : CHAT_ANSWER);
    f->is_between = false;
}

static bool fits(const struct chat_filter *f, size_t n)
{
    return n < sizeof f->header - f->n_header;
}

static void add_header(struct chat_filter *f, const char *bytes, size_t n)
{
    memcpy(f->header + f->n_header, bytes, n);
    f->n_header += n;
    f->header[f->n_header] = '\0';
}

/* Begins a tag with its first control token. */
static void begin_tag(struct chat_filter *f, const char *token)
{
    f->in_header = true;
    f->n_header = 0;
    add_header(f, token, strlen(token));
}

/* Shows the bytes of the tag so far, which belong to the answer. */
static enum chat_part show_tag(struct chat_filter *f, struct str *shown)
{
    f->in_header = false;
    set_part(f, CHAT_ANSWER);
    f->is_between = false;
    str_add(shown, f->header, f->n_header);
    return CHAT_ANSWER;
}

static bool is_name(const char *text, const char *name)
{
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && (text[n] == '\0' || text[n] == ' ');
}

/* Ends a tag. */
static enum chat_part end_tag(struct chat_filter *f, struct str *shown)
{
    static const char *const calls[] = {"tools", "call", "argument"};
    bool opens = strncmp(f->header, SECTIONS_OPEN, sizeof SECTIONS_OPEN - 1) == 0;
    const char *name = f->header + (opens ? sizeof SECTIONS_OPEN : sizeof SECTIONS_CLOSE) - 1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (f->has_calls && is_name(name, calls[i]) && fits(f, sizeof SECTIONS_SEP)) {
            add_header(f, SECTIONS_SEP, sizeof SECTIONS_SEP - 1);
            return show_tag(f, shown);
        }
    f->in_header = false;
    if (opens && is_name(name, "think"))
        set_part(f, CHAT_THINKING);
    else if (opens || is_name(name, "think") || is_name(name, "response"))
        set_part(f, CHAT_ANSWER);
    f->is_between = !opens;
    return CHAT_CONTROL;
}

enum chat_part sections_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown)
{
    const struct sections *s = &c->sections;
    if (id == s->sep && f->in_header)
        return end_tag(f, shown);
    if (id == s->open || id == s->close) {
        begin_tag(f, id == s->open ? SECTIONS_OPEN : SECTIONS_CLOSE);
        return CHAT_CONTROL;
    }
    if (tokenizer_is_special(c->tokenizer, id))
        return CHAT_CONTROL;
    const char *bytes;
    size_t n = tokenizer_bytes(c->tokenizer, id, &bytes);
    if (f->in_header && fits(f, n)) {
        add_header(f, bytes, n);
        return CHAT_CONTROL;
    }
    if (f->in_header) /* too long for a tag */
        show_tag(f, shown);
    if (f->is_between && strspn(bytes, " \t\r\n") >= n)
        return CHAT_CONTROL;
    f->is_between = false;
    str_add(shown, bytes, n);
    return f->message;
}

enum chat_part sections_end(struct chat_filter *f, struct str *shown)
{
    /* A tag of a call that breaks off belongs to the call. */
    if (f->in_header && f->has_calls && f->message == CHAT_ANSWER)
        str_add(shown, f->header, f->n_header);
    f->in_header = false;
    return f->message;
}
