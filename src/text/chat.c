#include "text/chat.h"

#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer.h"

#define TURN_OPEN   "<|im_start|>"
#define TURN_CLOSE  "<|im_end|>"
#define THINK_OPEN  "<think>"
#define THINK_CLOSE "</think>"

int chat_init(struct chat *c, const struct tokenizer *t, enum chat_kind kind, bool thinking, struct err *e)
{
    static const char *const needed[] = {TURN_OPEN, TURN_CLOSE, THINK_OPEN, THINK_CLOSE};
    /* Without thinking the think tags are only a few words of the prompt. */
    size_t n = thinking ? 4 : 2;
    for (size_t i = 0; i < n; i++)
        if (tokenizer_added_id(t, needed[i]) < 0)
            return err_set(e, ERR_UNSUPPORTED, "chat template: the tokenizer has no token %s", needed[i]);
    *c = (struct chat){.tokenizer = t, .kind = kind, .thinking = thinking};
    c->think_open = tokenizer_added_id(t, THINK_OPEN);
    c->think_close = tokenizer_added_id(t, THINK_CLOSE);
    return 0;
}

/* The length of the white-space character that text[0..len) ends (at_end) or starts with, or 0. What Python's
 * str.strip takes, as the templates' "trim" does: White_Space and U+001C..1F. */
static size_t space_at(const char *text, size_t len, bool at_end)
{
    static const char *const wide[] = {
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
        "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80",
    };
    if (len == 0)
        return 0;
    char c = text[at_end ? len - 1 : 0];
    if (c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f))
        return 1;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        size_t n = strlen(wide[i]);
        if (n <= len && memcmp(at_end ? text + len - n : text, wide[i], n) == 0)
            return n;
    }
    return 0;
}

static void trim(const char **text, size_t *len)
{
    size_t n;
    while ((n = space_at(*text, *len, false)) > 0) {
        *text += n;
        *len -= n;
    }
    while ((n = space_at(*text, *len, true)) > 0)
        *len -= n;
}

/* Template text: its tags are control tokens. */
static int add_template(const struct chat *c, const char *text, struct token_list *out, struct err *e)
{
    return tokenizer_encode(c->tokenizer, text, strlen(text), SPECIALS_AS_TOKENS, out, NULL, e);
}

/* One whole turn. Role and text are encoded as one stretch, as the published encoder sees them. */
static int add_turn(const struct chat *c, const char *role, const char *text, size_t len,
                    struct token_list *out, size_t *n_replaced, struct err *e)
{
    struct str body = {0};
    size_t n_before = out->n;
    trim(&text, &len);
    str_add_text(&body, role);
    str_add_text(&body, "\n");
    str_add(&body, text, len);
    int rc = str_ok(&body) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a message of %zu bytes", len);
    if (rc == 0)
        rc = add_template(c, TURN_OPEN, out, e);
    if (rc == 0)
        rc = tokenizer_encode(c->tokenizer, body.data, body.len, SPECIALS_AS_TEXT, out, n_replaced, e);
    if (rc == 0)
        rc = add_template(c, TURN_CLOSE "\n", out, e);
    if (rc < 0)
        out->n = n_before;
    str_free(&body);
    return rc;
}

int chat_system(const struct chat *c, const char *text, size_t len, struct token_list *out,
                size_t *n_replaced, struct err *e)
{
    return add_turn(c, "system", text, len, out, n_replaced, e);
}

int chat_user(const struct chat *c, const char *text, size_t len, struct token_list *out, size_t *n_replaced,
              struct err *e)
{
    const char *opening = c->thinking ? TURN_OPEN "assistant\n" THINK_OPEN "\n"
                                      : TURN_OPEN "assistant\n" THINK_OPEN "\n\n" THINK_CLOSE "\n\n";
    size_t n_before = out->n;
    int rc = add_turn(c, "user", text, len, out, n_replaced, e);
    if (rc == 0)
        rc = add_template(c, opening, out, e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct err *e)
{
    return add_template(c, ended ? "\n" : TURN_CLOSE "\n", out, e);
}

void chat_filter_init(struct chat_filter *f, const struct chat *c)
{
    /* With thinking off the prompt itself closes the block, so the answer starts here. */
    *f = (struct chat_filter){.inside_think = c->thinking, .at_start = true};
}

static bool only_newlines(const struct chat *c, int32_t id)
{
    const char *bytes;
    size_t len = tokenizer_bytes(c->tokenizer, id, &bytes);
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != '\n')
            return false;
    return len > 0;
}

enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id)
{
    if (id >= 0 && (id == c->think_open || id == c->think_close)) {
        f->inside_think = id == c->think_open;
        f->at_start = true;
        return CHAT_CONTROL;
    }
    if (tokenizer_is_special(c->tokenizer, id))
        return CHAT_CONTROL;
    if (f->inside_think)
        return CHAT_THINKING;
    if (f->at_start && only_newlines(c, id))
        return CHAT_CONTROL;
    f->at_start = false;
    return CHAT_ANSWER;
}
