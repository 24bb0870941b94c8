#include "chats.h"

#include <jansson.h>
#include <string.h>

#include "check.h"
#include "tokens.h"

void chats_open(struct chat *c, const struct tokenizer *t, const char *family, enum chat_thinking thinking)
{
    struct moeflux_err e = {0};
    check_ok(chat_open(c, t, family, thinking, 1763874123, &e), &e);
}

struct moeflux_err chats_refused(const struct tokenizer *t, const char *family, enum chat_thinking thinking)
{
    struct chat c;
    struct moeflux_err e = {0};
    int rc = chat_open(&c, t, family, thinking, 1763874123, &e);
    assert_true(rc < 0);
    assert_int_equal(e.code, rc);
    return e;
}

json_t *chats_make(const char *const *pairs)
{
    json_t *messages = json_array();
    struct moeflux_err e = {0};
    for (; *pairs; pairs += 2)
        check_ok(chat_say(messages, pairs[0], pairs[1], strlen(pairs[1]), NULL, &e), &e);
    return messages;
}

void chats_prompt(const struct chat *c, json_t *messages, struct token_list *out, uint32_t *n_system)
{
    struct moeflux_err e = {0};
    struct chat_prompt prompt = {.messages = messages, .opens_answer = true};
    out->n = 0;
    check_ok(chat_prompt_tokens(c, &prompt, out, n_system, &e), &e);
    json_decref(messages);
}

void chats_expect(const struct chat *c, json_t *messages, const char *text)
{
    struct token_list got = {0};
    chats_prompt(c, messages, &got, NULL);
    tokens_expect(c->tokenizer, text, &got);
}
