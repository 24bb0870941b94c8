/* Sorts an answer's tokens into thinking, answer and control. */
#include <string.h>

#include "base/str.h"
#include "text/chat/chat.h"
#include "text/chat/harmony.h"
#include "text/chat/sections.h"
#include "text/tokenizer/tokenizer.h"

const struct chat_tags chat_tags[CHAT_N_TAGS] = {
    {"<think>", "</think>", ""},
    {"<|channel>", "<channel|>", "thought\n"},
    {"<mm:think>", "</mm:think>", ""},
    [CHAT_TAGS_OF_SECTIONS] = {SECTIONS_OPEN "think" SECTIONS_SEP, SECTIONS_CLOSE "think" SECTIONS_SEP, ""},
};

void chat_filter_init(struct chat_filter *f, const struct chat *c)
{
    /* If thinking is off, the prompt itself closes the block, so the answer starts here. If the prompt
     * opened the block, it has the tag's newline too. */
    *f = (struct chat_filter){.inside_think = c->opens_inside, .at_start = !c->opens_inside};
    if (c->harmony.is_used)
        harmony_begin(f, c->prompt_end);
    if (c->sections.is_used)
        sections_begin(f, c->opens_inside);
}

void chat_filter_continue(struct chat_filter *f, const struct chat *c, bool in_thinking)
{
    *f = (struct chat_filter){.inside_think = in_thinking};
    if (c->sections.is_used)
        sections_begin(f, in_thinking);
    if (!c->harmony.is_used)
        return;
    f->message = in_thinking ? CHAT_THINKING : CHAT_ANSWER;
    f->has_shown[in_thinking] = true;
}

bool chat_filter_is_thinking(const struct chat_filter *f, const struct chat *c)
{
    return c->harmony.is_used ? !f->in_header && f->message == CHAT_THINKING : f->inside_think;
}

static size_t n_newlines(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] == '\n')
        n++;
    return n;
}

/* Shows bytes of the answer. */
static enum chat_part show_answer(struct chat_filter *f, const char *bytes, size_t len, struct str *shown)
{
    if (f->at_start && len > 0 && n_newlines(bytes, len) == len)
        return CHAT_CONTROL;
    f->at_start = false;
    str_add(shown, bytes, len);
    return CHAT_ANSWER;
}

/* Shows thinking that ends with the letters of the closing tag. Only the number of letters that have
 * come is kept. After a mismatch the search starts anew, since '<' occurs only at the tag's beginning. */
static enum chat_part show_thinking(struct chat_filter *f, const char *close, const char *bytes, size_t len,
                                    struct str *shown)
{
    size_t before = shown->len;
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != close[f->n_held]) {
            str_add(shown, close, f->n_held);
            f->n_held = 0;
        }
        if (bytes[i] != close[f->n_held]) {
            str_add(shown, bytes + i, 1);
        } else if (close[++f->n_held] == '\0') {
            f->n_held = 0;
            f->inside_think = false;
            f->at_start = true;
            /* A token with thinking before the tag counts as thinking. The newlines after the tag are not
             * part of the answer. */
            size_t rest = i + 1 + n_newlines(bytes + i + 1, len - i - 1);
            if (shown->len == before && rest < len)
                return show_answer(f, bytes + rest, len - rest, shown);
            str_add(shown, bytes + rest, len - rest);
            break;
        }
    }
    return shown->len > before ? CHAT_THINKING : CHAT_CONTROL;
}

/* Shows thinking that begins with the label or, if it does not, all of it. */
static enum chat_part show_labelled(struct chat_filter *f, const char *label, const char *bytes, size_t len,
                                    struct str *shown)
{
    size_t i = 0, before = shown->len;
    while (i < len && label[f->n_label] && bytes[i] == label[f->n_label]) {
        f->n_label++;
        i++;
    }
    if (label[f->n_label] && i == len)
        return CHAT_CONTROL;
    if (label[f->n_label])
        str_add(shown, label, f->n_label);
    f->in_label = false;
    str_add(shown, bytes + i, len - i);
    f->at_start = shown->len == before;
    return shown->len > before ? CHAT_THINKING : CHAT_CONTROL;
}

void chat_filter_show(struct chat_filter *f, const char *bytes, size_t n, struct str *shown)
{
    for (; f->n_newlines > 0; f->n_newlines--)
        str_add_text(shown, "\n");
    str_add(shown, bytes, n);
}

/* Holds back the newlines at the end of the thinking in `shown`, after giving out those from before. */
static enum chat_part hold_newlines(struct chat_filter *f, struct str *shown)
{
    struct str all = {0};
    size_t n = shown->len;
    while (n > 0 && shown->data[n - 1] == '\n')
        n--;
    if (n > 0)
        chat_filter_show(f, shown->data, n, &all);
    f->n_newlines += shown->len - n;
    all.failed |= shown->failed;
    str_free(shown);
    *shown = all;
    return n > 0 ? CHAT_THINKING : CHAT_CONTROL;
}

static enum chat_part push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown)
{
    if (id >= 0 && (id == c->think_open || id == c->think_close)) {
        /* The part of a label that came alone is thinking, unless only the newline is missing. */
        const char *left = c->tags->label + f->n_label;
        bool is_part = f->in_label && f->n_label > 0 && strcmp(left, "\n") != 0;
        if (is_part)
            str_add(shown, c->tags->label, f->n_label);
        f->inside_think = id == c->think_open;
        f->in_label = f->inside_think && *c->tags->label;
        f->n_label = 0;
        f->at_start = true;
        return is_part ? CHAT_THINKING : CHAT_CONTROL;
    }
    if (tokenizer_is_special(c->tokenizer, id))
        return CHAT_CONTROL;
    const char *bytes;
    size_t len = tokenizer_bytes(c->tokenizer, id, &bytes);
    if (!f->inside_think)
        return show_answer(f, bytes, len, shown);
    if (c->think_close < 0)
        return show_thinking(f, c->tags->close, bytes, len, shown);
    if (f->in_label)
        return show_labelled(f, c->tags->label, bytes, len, shown);
    if (f->at_start && len > 0 && n_newlines(bytes, len) == len)
        return CHAT_CONTROL;
    f->at_start = false;
    str_add(shown, bytes, len);
    return CHAT_THINKING;
}

enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown)
{
    if (c->harmony.is_used)
        return harmony_push(f, c, id, shown);
    if (c->sections.is_used)
        return sections_push(f, c, id, shown);
    enum chat_part part = push(f, c, id, shown);
    if (part == CHAT_THINKING)
        return hold_newlines(f, shown);
    if (!f->inside_think)
        f->n_newlines = 0;
    return part;
}

enum chat_part chat_filter_end(struct chat_filter *f, const struct chat *c, struct str *shown)
{
    if (c->harmony.is_used)
        return harmony_end(f, shown);
    if (c->sections.is_used)
        return sections_end(f, shown);
    str_add(shown, c->tags->close, f->n_held);
    if (f->in_label)
        str_add(shown, c->tags->label, f->n_label);
    f->in_label = false;
    f->n_held = 0;
    return CHAT_THINKING;
}
