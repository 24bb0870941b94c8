#include "text/chat.h"

#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer.h"

#define TURN_OPEN   "<|im_start|>"
#define TURN_CLOSE  "<|im_end|>"
#define THINK_OPEN  "<think>"
#define THINK_CLOSE "</think>"

/* Full-width bars (U+FF5C) and lower blocks (U+2581). */
#define BEGIN                                                                                                \
    "<\xef\xbd\x9c"                                                                                          \
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define END                                                                                                  \
    "<\xef\xbd\x9c"                                                                                          \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"
#define USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define ASSISTANT                                                                                            \
    "<\xef\xbd\x9c"                                                                                          \
    "Assistant\xef\xbd\x9c>"

#define COGITO_SWITCH "Enable deep thinking subroutine."
#define COGITO_SELF                                                                                          \
    "You are Cogito, an AI assistant created by Deep Cogito, which is an AI research lab based in San "      \
    "Francisco."

/* What the templates with such turns share. */
#define CHATML                                                                                               \
    .system = "system\n", .begin = "", .user_before = TURN_OPEN, .role = "user\n",                           \
    .user_after = TURN_CLOSE "\n", .past = TURN_OPEN, .past_role = "assistant\n", .turn_close = TURN_CLOSE,  \
    .turn_after = "\n"

enum { MAX_NEEDED = 6 };

static const struct form {
    const char *needed[MAX_NEEDED]; /* control tokens */
    const char *needed_thinking[2]; /* and these with thinking on */
    bool has_thinking, thinks_by_itself, always_thinks;
    bool trims;
    const char *system; /* the role of a turn for the system text; NULL: the text stands alone */
    const char *begin;  /* of a conversation */
    const char *user_before, *user_after; /* around a message */
    const char *role;                     /* text in front of it, one stretch with it */
    const char *answer, *answer_thinking; /* openings */
    const char *past, *past_role;         /* in front of an answer that was given: tags, then text */
    const char *turn_close, *turn_after;  /* the token that ends an answer, what follows it */
} forms[] = {
    [CHAT_QWEN35] = {.needed = {TURN_OPEN, TURN_CLOSE},
                     /* Without thinking the think tags are only a few words of the prompt. */
                     .needed_thinking = {THINK_OPEN, THINK_CLOSE},
                     .has_thinking = true,
                     .thinks_by_itself = true,
                     .trims = true,
                     CHATML,
                     .answer = TURN_OPEN "assistant\n" THINK_OPEN "\n\n" THINK_CLOSE "\n\n",
                     .answer_thinking = TURN_OPEN "assistant\n" THINK_OPEN "\n"},
    [CHAT_QWEN3] = {.needed = {TURN_OPEN, TURN_CLOSE},
                    .needed_thinking = {THINK_OPEN, THINK_CLOSE},
                    .has_thinking = true,
                    .thinks_by_itself = true,
                    CHATML,
                    .answer = TURN_OPEN "assistant\n" THINK_OPEN "\n\n" THINK_CLOSE "\n\n",
                    .answer_thinking = TURN_OPEN "assistant\n"},
    [CHAT_QWEN3_THINKING] = {.needed = {TURN_OPEN, TURN_CLOSE, THINK_OPEN, THINK_CLOSE},
                             .has_thinking = true,
                             .thinks_by_itself = true,
                             .always_thinks = true,
                             CHATML,
                             .answer_thinking = TURN_OPEN "assistant\n" THINK_OPEN "\n"},
    [CHAT_CHATML] = {.needed = {TURN_OPEN, TURN_CLOSE}, CHATML, .answer = TURN_OPEN "assistant\n"},
    [CHAT_DEEPSEEK3] = {.needed = {BEGIN, END, USER, ASSISTANT},
                        .begin = BEGIN,
                        .user_before = USER,
                        .role = "",
                        .user_after = "",
                        .answer = ASSISTANT,
                        .past = ASSISTANT,
                        .past_role = "",
                        .turn_close = END,
                        .turn_after = ""},
    [CHAT_DEEPSEEK31] = {.needed = {BEGIN, END, USER, ASSISTANT, THINK_OPEN, THINK_CLOSE},
                         .has_thinking = true,
                         .begin = BEGIN,
                         .user_before = USER,
                         .role = "",
                         .user_after = "",
                         .answer = ASSISTANT THINK_CLOSE,
                         .answer_thinking = ASSISTANT THINK_OPEN,
                         .past = ASSISTANT THINK_CLOSE,
                         .past_role = "",
                         .turn_close = END,
                         .turn_after = ""},
    [CHAT_COGITO2] = {.needed = {BEGIN, END, USER, ASSISTANT},
                      .has_thinking = true,
                      .begin = BEGIN,
                      .user_before = USER,
                      .role = "",
                      .user_after = "",
                      .answer = ASSISTANT,
                      .answer_thinking = ASSISTANT THINK_OPEN "\n",
                      .past = ASSISTANT,
                      .past_role = "",
                      .turn_close = END,
                      .turn_after = ""},
};

static int fail_unknown(struct moeflux_err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "chat template: the model's is not one of Qwen3.5, Qwen3, DeepSeek-V3, DeepSeek-V3.1 and "
                   "Cogito-V2 (--raw needs none)");
}

static int fail_missing(const char *tag, struct moeflux_err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "chat template: beside tokenizer.json there is neither chat_template.jinja nor a "
                   "chat_template in tokenizer_config.json, and several are written with %s "
                   "(--raw needs none)",
                   tag);
}

/* Whether what follows a template's <think> closes the block at once: newlines, as they are or as jinja writes them. */
static bool is_closed_at_once(const char *after)
{
    while (*after == '\n' || (after[0] == '\\' && after[1] == 'n'))
        after += *after == '\n' ? 1 : 2;
    return strncmp(after, THINK_CLOSE, strlen(THINK_CLOSE)) == 0;
}

/* By what stands before an answer: templates name the think block elsewhere too, to cut it out of past answers. */
static int find_chatml(const char *template, enum chat_kind *kind, struct moeflux_err *e)
{
    static const char prompt[] = "add_generation_prompt";
    const char *tail = NULL;
    bool opens = false, closes = false;
    for (const char *p = template; (p = strstr(p, prompt)); p += strlen(prompt))
        tail = p;
    if (!tail)
        return fail_unknown(e);
    for (const char *p = tail; (p = strstr(p, THINK_OPEN)); p += strlen(THINK_OPEN)) {
        bool closed = is_closed_at_once(p + strlen(THINK_OPEN));
        closes |= closed;
        opens |= !closed;
    }
    if (opens)
        *kind = closes || strstr(tail, "enable_thinking") ? CHAT_QWEN35 : CHAT_QWEN3_THINKING;
    else
        *kind = closes ? CHAT_QWEN3 : CHAT_CHATML;
    return 0;
}

static int find_family(const char *family, enum chat_kind *kind, struct moeflux_err *e)
{
    if (!family || (strcmp(family, "qwen3.5") != 0 && strcmp(family, "qwen3") != 0))
        return fail_missing(TURN_OPEN, e);
    *kind = strcmp(family, "qwen3") == 0 ? CHAT_QWEN3 : CHAT_QWEN35;
    return 0;
}

int chat_find_kind(const struct tokenizer *t, const char *family, enum chat_kind *kind, struct moeflux_err *e)
{
    const char *template = tokenizer_chat_template(t);
    if (tokenizer_added_id(t, TURN_OPEN) >= 0)
        return template ? find_chatml(template, kind, e) : find_family(family, kind, e);
    if (tokenizer_added_id(t, USER) < 0 || tokenizer_added_id(t, ASSISTANT) < 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "chat template: the tokenizer has neither " TURN_OPEN " nor " USER " and " ASSISTANT
                       " (--raw needs no template)");
    if (!template)
        return fail_missing(USER, e);
    if (strstr(template, COGITO_SWITCH))
        *kind = CHAT_COGITO2;
    else if (strstr(template, ASSISTANT THINK_CLOSE))
        *kind = CHAT_DEEPSEEK31;
    else if (strstr(template, ASSISTANT) && !strstr(template, ASSISTANT THINK_OPEN))
        *kind = CHAT_DEEPSEEK3;
    else
        return fail_unknown(e);
    return 0;
}

static int need(const struct tokenizer *t, const char *token, struct moeflux_err *e)
{
    if (!token || tokenizer_added_id(t, token) >= 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "chat template: the tokenizer has no token %s", token);
}

int chat_init(struct chat *c, const struct tokenizer *t, enum chat_kind kind, enum chat_thinking thinking,
              struct moeflux_err *e)
{
    const struct form *f = &forms[kind];
    bool thinks = thinking == CHAT_THINKING_AUTO ? f->thinks_by_itself : thinking == CHAT_THINKING_ON;
    int rc = 0;
    if (thinks && !f->has_thinking)
        return err_set(e, ERR_UNSUPPORTED, "chat template: the model's has no thinking (leave --think out)");
    if (!thinks && f->always_thinks)
        return err_set(e, ERR_UNSUPPORTED, "chat template: the model's always thinks (leave --no-think out)");
    for (int i = 0; i < MAX_NEEDED && rc == 0; i++)
        rc = need(t, f->needed[i], e);
    for (int i = 0; i < 2 && rc == 0 && thinks; i++)
        rc = need(t, f->needed_thinking[i], e);
    if (rc < 0)
        return rc;
    *c = (struct chat){.tokenizer = t, .kind = kind, .thinking = thinks};
    c->opens_inside = thinks && strstr(f->answer_thinking, THINK_OPEN);
    c->think_open = tokenizer_added_id(t, THINK_OPEN);
    c->think_close = tokenizer_added_id(t, THINK_CLOSE);
    c->turn_close = tokenizer_added_id(t, f->turn_close);
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
static int add_template(const struct chat *c, const char *text, struct token_list *out, struct moeflux_err *e)
{
    return tokenizer_encode(c->tokenizer, text, strlen(text), SPECIALS_AS_TOKENS, out, NULL, e);
}

/* Text between template text: `before` and `after` may be what the template itself puts in, without tags. The three are
 * encoded as one stretch, as the published encoder sees them. */
static int add_text(const struct chat *c, const char *before, const char *text, size_t len, const char *after,
                    struct token_list *out, size_t *n_replaced, struct moeflux_err *e)
{
    struct str body = {0};
    if (forms[c->kind].trims)
        trim(&text, &len);
    str_add_text(&body, before);
    str_add(&body, text, len);
    str_add_text(&body, after);
    int rc = str_ok(&body) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a message of %zu bytes", len);
    if (rc == 0)
        rc = tokenizer_encode(c->tokenizer, str_text(&body), body.len, SPECIALS_AS_TEXT, out, n_replaced, e);
    str_free(&body);
    return rc;
}

/* One whole turn. */
static int add_turn(const struct chat *c, const char *role, const char *text, size_t len,
                    struct token_list *out, size_t *n_replaced, struct moeflux_err *e)
{
    const struct form *f = &forms[c->kind];
    size_t n_before = out->n;
    int rc = add_template(c, f->user_before, out, e);
    if (rc == 0)
        rc = add_text(c, role, text, len, "", out, n_replaced, e);
    if (rc == 0)
        rc = add_template(c, f->user_after, out, e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

/* The published template puts an empty line after the system text too, but only with thinking on. */
static int add_cogito_system(const struct chat *c, const char *system, size_t len, struct token_list *out,
                             size_t *n_replaced, struct moeflux_err *e)
{
    if (len == 0)
        return add_text(c, c->thinking ? COGITO_SWITCH "\n\n" COGITO_SELF : COGITO_SELF, "", 0, "", out,
                        n_replaced, e);
    return add_text(c, c->thinking ? COGITO_SWITCH "\n\n" COGITO_SELF "\n\n" : COGITO_SELF "\n\n", system,
                    len, c->thinking ? "\n\n" : "", out, n_replaced, e);
}

int chat_begin(const struct chat *c, const char *system, size_t len, struct token_list *out,
               size_t *n_replaced, struct moeflux_err *e)
{
    const struct form *f = &forms[c->kind];
    size_t n_before = out->n;
    int rc = add_template(c, f->begin, out, e);
    if (rc == 0 && c->kind == CHAT_COGITO2)
        rc = add_cogito_system(c, system, len, out, n_replaced, e);
    else if (rc == 0 && len > 0)
        rc = f->system ? add_turn(c, f->system, system, len, out, n_replaced, e)
                       : add_text(c, "", system, len, "", out, n_replaced, e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

int chat_user(const struct chat *c, const char *text, size_t len, struct token_list *out, size_t *n_replaced,
              struct moeflux_err *e)
{
    const struct form *f = &forms[c->kind];
    size_t n_before = out->n;
    int rc = add_turn(c, f->role, text, len, out, n_replaced, e);
    if (rc == 0)
        rc = add_template(c, c->thinking ? f->answer_thinking : f->answer, out, e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

int chat_end_answer(const struct chat *c, bool ended, struct token_list *out, struct moeflux_err *e)
{
    const struct form *f = &forms[c->kind];
    size_t n_before = out->n;
    int rc = ended ? 0 : add_template(c, f->turn_close, out, e);
    if (rc == 0)
        rc = add_template(c, f->turn_after, out, e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

int chat_exchange(const struct chat *c, const char *question, size_t question_len, const char *answer,
                  size_t answer_len, struct token_list *out, size_t *n_replaced, struct moeflux_err *e)
{
    const struct form *f = &forms[c->kind];
    size_t n_before = out->n;
    int rc = add_turn(c, f->role, question, question_len, out, n_replaced, e);
    if (rc == 0)
        rc = add_template(c, f->past, out, e);
    if (rc == 0)
        rc = add_text(c, f->past_role, answer, answer_len, "", out, n_replaced, e);
    if (rc == 0)
        rc = chat_end_answer(c, false, out, e);
    if (rc < 0)
        out->n = n_before;
    return rc;
}

/* --- answers --- */

void chat_filter_init(struct chat_filter *f, const struct chat *c)
{
    /* With thinking off the prompt itself closes the block, so the answer starts here. What the prompt opened has its
     * newline. */
    *f = (struct chat_filter){.inside_think = c->opens_inside, .at_start = !c->opens_inside};
}

static size_t n_newlines(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] == '\n')
        n++;
    return n;
}

/* Bytes of the answer. */
static enum chat_part show_answer(struct chat_filter *f, const char *bytes, size_t len, struct str *shown)
{
    if (f->at_start && len > 0 && n_newlines(bytes, len) == len)
        return CHAT_CONTROL;
    f->at_start = false;
    str_add(shown, bytes, len);
    return CHAT_ANSWER;
}

/* Thinking that ends with the letters of </think>. What has come of them is known without keeping it; a character that
 * does not go on with them starts anew, as '<' stands only at their beginning. */
static enum chat_part show_thinking(struct chat_filter *f, const char *bytes, size_t len, struct str *shown)
{
    static const char close[] = THINK_CLOSE;
    size_t before = shown->len;
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != close[f->n_held]) {
            str_add(shown, close, f->n_held);
            f->n_held = 0;
        }
        if (bytes[i] != close[f->n_held]) {
            str_add(shown, bytes + i, 1);
        } else if (++f->n_held == sizeof close - 1) {
            f->n_held = 0;
            f->inside_think = false;
            f->at_start = true;
            /* A token that has thinking before the tag is thinking, and the newlines behind it are none of the answer. */
            size_t rest = i + 1 + n_newlines(bytes + i + 1, len - i - 1);
            if (shown->len == before && rest < len)
                return show_answer(f, bytes + rest, len - rest, shown);
            str_add(shown, bytes + rest, len - rest);
            break;
        }
    }
    return shown->len > before ? CHAT_THINKING : CHAT_CONTROL;
}

enum chat_part chat_filter_push(struct chat_filter *f, const struct chat *c, int32_t id, struct str *shown)
{
    if (id >= 0 && (id == c->think_open || id == c->think_close)) {
        f->inside_think = id == c->think_open;
        f->at_start = true;
        return CHAT_CONTROL;
    }
    if (tokenizer_is_special(c->tokenizer, id))
        return CHAT_CONTROL;
    const char *bytes;
    size_t len = tokenizer_bytes(c->tokenizer, id, &bytes);
    if (!f->inside_think)
        return show_answer(f, bytes, len, shown);
    if (c->think_close < 0)
        return show_thinking(f, bytes, len, shown);
    if (f->at_start && len > 0 && n_newlines(bytes, len) == len)
        return CHAT_CONTROL;
    f->at_start = false;
    str_add(shown, bytes, len);
    return CHAT_THINKING;
}

void chat_filter_end(struct chat_filter *f, struct str *shown)
{
    str_add(shown, THINK_CLOSE, f->n_held);
    f->n_held = 0;
}
