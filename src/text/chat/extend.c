/* Finds which tokens of a conversation stay when it continues, by walking them along the new text. */
#include <string.h>

#include "base/err.h"
#include "text/chat/chat.h"
#include "text/utf8.h"

struct walk {
    const struct chat *c;
    const struct chat_text *text;
    const struct token_list *tokens;
    size_t i, at;         /* the next token, and its place in the text */
    size_t kept, kept_at; /* the last place next to a control token, where both can be cut: token and byte */
    int32_t control;      /* the first control token from `at` on; start, end: its place */
    size_t start, end;
    struct moeflux_err *e;
};

static int find_control(struct walk *w)
{
    return chat_next_control(w->c, w->text, w->at, &w->control, &w->start, &w->end, w->e);
}

static void keep(struct walk *w)
{
    w->kept = w->i;
    w->kept_at = w->at;
}

/* Walks one token of what the template wrote. Returns 1 if it is next in the text, else 0. */
static int walk_token(struct walk *w)
{
    int32_t id = w->tokens->ids[w->i];
    const char *bytes;
    size_t n = tokenizer_bytes(w->c->tokenizer, id, &bytes);
    if (w->start == w->at) {
        keep(w);
        if (w->at == w->text->text.len || id != w->control)
            return 0;
        w->i++;
        w->at = w->end;
        keep(w);
        int rc = find_control(w);
        return rc < 0 ? rc : 1;
    }
    if (n == 0 || n > w->start - w->at || tokenizer_is_added(w->c->tokenizer, id) ||
        memcmp(bytes, str_text(&w->text->text) + w->at, n) != 0)
        return 0;
    w->i++;
    w->at += n;
    return 1;
}

/* Skips white space and the tags of thinking, in which templates and models differ. */
static size_t skip_loose(const struct chat_tags *t, const char *text, size_t len, size_t i)
{
    const char *const tags[] = {t->open, t->close};
    for (;;) {
        size_t before = i;
        while (i < len && strchr(" \n\t\r", text[i]) && text[i])
            i++;
        for (size_t k = 0; k < 2; k++) {
            size_t n = strlen(tags[k]);
            if (n <= len - i && memcmp(text + i, tags[k], n) == 0)
                i += n;
        }
        if (i == before)
            return i;
    }
}

/* Returns where the answer's text ends in the rendered text; SIZE_MAX: it is not there. */
static size_t match_answer(const struct walk *w, const struct str *answer)
{
    const char *text = str_text(&w->text->text), *own = str_text(answer);
    size_t len = w->text->text.len, i = 0, at = w->at;
    for (;;) {
        i = skip_loose(w->c->tags, own, answer->len, i);
        at = skip_loose(w->c->tags, text, len, at);
        if (i == answer->len)
            return at;
        if (at == len || text[at] != own[i])
            return SIZE_MAX;
        i++;
        at++;
    }
}

/* Walks an answer up to its end-of-turn token. Returns 1 if the text has it, followed by the same token. */
static int walk_answer(struct walk *w, const struct chat_span *span)
{
    struct str bytes = {0}, answer = {0};
    size_t to = span->to, at;
    for (size_t i = span->to; i-- > span->from;) {
        if (w->tokens->ids[i] == w->c->turn_close) {
            to = i;
            break;
        }
    }
    for (size_t i = span->from; i < to; i++) {
        const char *part;
        size_t n = tokenizer_bytes(w->c->tokenizer, w->tokens->ids[i], &part);
        /* Control tokens are not part of the answer's text. */
        if (!tokenizer_is_special(w->c->tokenizer, w->tokens->ids[i]))
            str_add(&bytes, part, n);
    }
    utf8_clean(str_text(&bytes), bytes.len, &answer);
    int rc = str_ok(&bytes) && str_ok(&answer) ? 0 : err_set(w->e, ERR_MEMORY, "out of memory for an answer");
    at = rc ? SIZE_MAX : match_answer(w, &answer);
    str_free(&bytes);
    str_free(&answer);
    if (rc || at == SIZE_MAX)
        return rc;
    w->at = at;
    rc = find_control(w);
    if (rc < 0 || w->start != at || (rc > 0 && w->c->turn_close >= 0 && w->control != w->c->turn_close))
        return rc < 0 ? rc : 0;
    w->i = to;
    keep(w);
    return 1;
}

static int walk_all(struct walk *w, const struct chat_span *spans, size_t n_spans)
{
    size_t k = 0;
    int rc = find_control(w);
    rc = rc < 0 ? rc : 1;
    while (rc == 1 && w->i < w->tokens->n) {
        while (k < n_spans && spans[k].from < w->i)
            k++;
        /* Sections have all that the template writes: their tokens are walked one by one. */
        if (k < n_spans && spans[k].from == w->i && spans[k].to > w->i && !w->c->sections.is_used)
            rc = walk_answer(w, &spans[k++]);
        else
            rc = walk_token(w);
    }
    if (rc == 1 && w->start == w->at)
        keep(w);
    return rc < 0 ? rc : 0;
}

int chat_extend(const struct chat *c, const struct chat_text *text, const struct chat_span *spans,
                size_t n_spans, struct token_list *tokens, uint32_t *n_kept, struct moeflux_err *e)
{
    struct walk w = {.c = c, .text = text, .tokens = tokens, .control = -1, .e = e};
    struct token_list rest = {0};
    int rc = walk_all(&w, spans, n_spans);
    size_t n_before = tokens->n;
    if (rc == 0)
        rc = chat_encode(c, text, w.kept_at, &rest, e);
    /* Room is made first, so that a failure changes nothing. */
    for (size_t i = 0; rc == 0 && i < rest.n; i++)
        rc = token_list_add(tokens, rest.ids[i], e);
    tokens->n = n_before;
    if (rc == 0) {
        if (rest.n)
            memcpy(tokens->ids + w.kept, rest.ids, rest.n * sizeof *rest.ids);
        tokens->n = w.kept + rest.n;
        *n_kept = (uint32_t)w.kept;
    }
    token_list_free(&rest);
    return rc;
}
