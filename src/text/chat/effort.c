/* How much an answer thinks: by the template, or by a limit of tokens. */
#include <string.h>

#include "base/err.h"
#include "text/chat/chat.h"
#include "text/chat/harmony.h"
#include "text/chat/probe.h"

enum { MAX_WORDS = 4 };

static const struct {
    const char *name;
    /* what templates call it, the nearest first; a name of its own comes before those of others */
    const char *words[MAX_WORDS];
    const char *harmony; /* gpt-oss has three efforts, and writes any word into its prompt */
    int64_t budget;      /* tokens; -1: no limit */
} efforts[CHAT_N_EFFORTS] = {
    [CHAT_EFFORT_AUTO] = {"", {NULL}, NULL, -1},
    [CHAT_EFFORT_NONE] = {"none", {"none"}, "low", -1},
    [CHAT_EFFORT_MINIMAL] = {"minimal", {"minimal", "low"}, "low", 512},
    [CHAT_EFFORT_LOW] = {"low", {"low"}, "low", 2048},
    [CHAT_EFFORT_MEDIUM] = {"medium", {"medium"}, "medium", 8192},
    [CHAT_EFFORT_HIGH] = {"high", {"high", "xhigh"}, "high", -1},
    [CHAT_EFFORT_XHIGH] = {"xhigh", {"xhigh", "max", "high"}, "high", -1},
};

enum chat_effort chat_effort_find(const char *name)
{
    enum chat_effort effort = CHAT_EFFORT_NONE;
    if (strcmp(name, "max") == 0)
        return CHAT_EFFORT_XHIGH;
    while (effort < CHAT_N_EFFORTS && strcmp(efforts[effort].name, name) != 0)
        effort++;
    return effort;
}

int chat_use_effort(struct chat *c, enum chat_effort effort, struct moeflux_err *e)
{
    int rc = 0;
    if (effort == c->effort)
        return 0;
    c->effort = effort;
    c->effort_word = NULL;
    if (c->harmony.is_used)
        c->effort_word = efforts[effort].harmony;
    else if (effort != CHAT_EFFORT_AUTO)
        rc = probe_effort(c, efforts[effort].words, e);
    return rc ? rc : probe_thinking(c, e);
}

int64_t chat_effort_budget(const struct chat *c)
{
    return c->effort_word ? -1 : efforts[c->effort].budget;
}

static int add_tag(const struct chat *c, struct token_list *out, struct moeflux_err *e)
{
    const char *tag = c->harmony.is_used ? HARMONY_ANSWER : c->tags->close;
    return tokenizer_encode(c->tokenizer, tag, strlen(tag), SPECIALS_AS_TOKENS, out, NULL, e);
}

/* Returns how many of the tokens come up to the end of the closing tag; 0: they have none. */
static size_t find_tag(const struct chat *c, const struct token_list *ids)
{
    struct str text = {0};
    size_t i = 0;
    bool found = false;
    for (; !found && i < ids->n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(c->tokenizer, ids->ids[i], &bytes);
        str_add(&text, n ? bytes : "", n);
        found = strstr(str_text(&text), c->tags->close) != NULL;
    }
    str_free(&text);
    return found ? i : 0;
}

int chat_close_thinking(const struct chat *c, struct token_list *out, size_t *n_tag, struct moeflux_err *e)
{
    struct chat_text between = {0};
    bool found = false;
    int rc = c->harmony.is_used ? 0 : probe_between(c, &between, &found, e);
    if (rc == 0 && found)
        rc = chat_encode(c, &between, 0, out, e);
    *n_tag = rc == 0 ? find_tag(c, out) : 0;
    if (rc == 0 && *n_tag == 0) {
        out->n = 0;
        rc = add_tag(c, out, e);
        *n_tag = c->harmony.is_used ? 1 : out->n;
    }
    chat_text_free(&between);
    return rc;
}
