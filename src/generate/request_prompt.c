/* The tokens of a request's prompt. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/json_sent.h"
#include "base/str.h"
#include "generate/answer.h"
#include "generate/chat_messages.h"
#include "generate/generator.h"
#include "generate/request.h"
#include "generate/request_fields.h"
#include "generate/tools.h"
#include "text/chat/tool_calls.h"

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

static int say(json_t *messages, const char *role, const char *text, struct moeflux_err *e)
{
    return chat_say(messages, role, text, strlen(text), NULL, e);
}

static int read_prompt(const struct request *r, json_t *to, const char *where, struct moeflux_err *e)
{
    const struct request_options *o = &r->options;
    if (is_blank(o->prompt))
        return err_set(e, ERR_FORMAT, "%s: the prompt is empty", where);
    int rc = o->system && *o->system ? say(to, "system", o->system, e) : 0;
    return rc ? rc : say(to, "user", o->prompt, e);
}

static int encode_raw(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    const char *prompt = r->options.prompt;
    if (!*prompt)
        return err_set(e, ERR_FORMAT, "%s: the prompt is empty", where);
    size_t len = strlen(prompt);
    if (s->most_prompt_bytes && len > s->most_prompt_bytes)
        return err_set(e, ERR_NO_FIT, "the prompt has %zu bytes, expected at most %" PRIu64, len,
                       s->most_prompt_bytes);
    return tokenizer_encode_prompt(s->tokenizer, prompt, len, SPECIALS_AS_TOKENS, &r->tokens, NULL, e);
}

/* Makes the grammar of the calls in the model's form, or of these and of the texts that fit the request's. */
static int call_grammar(struct request *r, const struct generator *s, const char *where,
                        struct moeflux_err *e)
{
    struct request_options *o = &r->options;
    /* A grammar has no numbers beyond 64 bits. */
    json_t *tools = json_sent_round(o->tools);
    const struct tool_choice choice = {
        .tools = tools, .name = o->tool, .once = o->one_call, .is_free = !o->must_call, .where = where};
    struct str grammar = {0};
    int rc = !tools         ? err_set(e, ERR_MEMORY, "out of memory for %s", where)
             : o->must_call ? tools_grammar(s, &choice, &grammar, e)
                            : tools_grammar_or(s, &choice, str_text(&r->grammar), &grammar, e);
    str_free(&r->grammar);
    r->grammar = grammar;
    o->grammar = str_text(&r->grammar);
    o->may_call = !o->must_call;
    json_decref(tools);
    return rc;
}

/* Removes a last message without text, so that the answer begins it. Sets what the answer continues
 * otherwise. */
static int begin_continuing(struct request *r, const struct generator *s, const json_t *given,
                            struct chat_prompt *p, const char *where, struct moeflux_err *e)
{
    struct request_options *o = &r->options;
    size_t n = json_array_size(p->messages);
    const json_t *last = json_array_get(p->messages, n - 1);
    const json_t *text = json_object_get(last, "content"),
                 *thought = json_object_get(last, "reasoning_content");
    bool is_answer = json_is_text(json_object_get(last, "role"), "assistant");
    o->continues = NULL;
    if (o->new_message || !is_answer)
        return 0;
    if (json_array_size(json_object_get(last, "tool_calls")))
        return err_set(e, ERR_FORMAT, "%s: messages[%zu]: a message with calls cannot be continued", where,
                       n - 1);
    if (!json_string_length(text) && !json_string_length(thought))
        return json_array_remove((json_t *)(uintptr_t)p->messages, n - 1);
    if (o->must_call)
        return err_set(e, ERR_FORMAT, "%s: tool_choice: a message that is continued cannot begin with a call",
                       where);
    p->continues = true;
    p->opens_answer = false;
    /* The converted messages do not last; the given ones do. */
    o->continues =
        json_string_value(json_object_get(json_array_get(given, json_array_size(given) - 1), "content"));
    o->continues = o->continues ? o->continues : "";
    o->continues_thinking = chat_continues_thinking(&s->chat, last);
    return 0;
}

static uint32_t *n_system_of(struct request *r)
{
    return r->counts_system ? &r->n_system : NULL;
}

/* Renders the messages with the arguments of calls in one form. */
static int render_form(struct request *r, struct generator *s, const json_t *given, enum call_arguments form,
                       bool *has_calls, const char *where, struct moeflux_err *e)
{
    json_t *messages;
    int rc = chat_messages_read(given, r->options.system, form, &messages, has_calls, where, e);
    if (rc)
        return rc;
    struct chat_prompt prompt = {.messages = messages,
                                 .tools = r->options.tools,
                                 .kwargs = r->options.kwargs,
                                 .opens_answer = true,
                                 .most_bytes = s->most_prompt_bytes};
    rc = begin_continuing(r, s, given, &prompt, where, e);
    if (!rc)
        rc = chat_prompt_tokens(&s->chat, &prompt, &r->tokens, n_system_of(r), e);
    json_decref(messages);
    return rc;
}

/* Renders the messages. A template fails if it does not take this form of the calls' arguments: then the
 * next form is tried. If all fail, the first error is reported. */
static int render_messages(struct request *r, struct generator *s, const json_t *given, const char *where,
                           struct moeflux_err *e)
{
    struct moeflux_err first = {0};
    if (json_object_get(r->fields, "system") &&
        json_is_text(json_member(json_array_get(given, 0), "role"), "system"))
        return err_set(e, ERR_FORMAT, "%s: system is given twice", where);
    for (enum call_arguments form = 0; form < N_CALL_ARGUMENTS; form++) {
        bool has_calls = false;
        int rc = render_form(r, s, given, form, &has_calls, where, e);
        if (!rc || !has_calls || rc == ERR_NO_FIT)
            return rc;
        if (form == 0)
            first = *e;
    }
    *e = first;
    return (int)first.code;
}

static int render_prompt(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    json_t *messages = json_array();
    struct chat_prompt prompt = {.messages = messages,
                                 .tools = r->options.tools,
                                 .kwargs = r->options.kwargs,
                                 .opens_answer = true,
                                 .most_bytes = s->most_prompt_bytes};
    int rc =
        messages ? read_prompt(r, messages, where, e) : err_set(e, ERR_MEMORY, "out of memory for %s", where);
    if (!rc)
        rc = chat_prompt_tokens(&s->chat, &prompt, &r->tokens, n_system_of(r), e);
    json_decref(messages);
    return rc;
}

static int encode_chat(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    const json_t *given = json_object_get(r->fields, "messages");
    /* Each request may switch thinking on or off. */
    int rc = request_use_chat(&r->options, s, "a request", e);
    if (!rc && r->options.tools)
        rc = tools_use(s, where, e);
    r->tools_are_unseen = r->options.tools && s->chat.leaves_tools_out && !s->chat.tool_list;
    if (!rc && (r->options.must_call || (r->options.tools && r->has_format)))
        rc = call_grammar(r, s, where, e);
    if (rc)
        return rc;
    return given && !json_is_null(given) ? render_messages(r, s, given, where, e)
                                         : render_prompt(r, s, where, e);
}

static int check_bias(const struct moeflux_sampler_options *o, uint32_t vocab_size, const char *where,
                      struct moeflux_err *e)
{
    for (uint32_t i = 0; i < o->n_bias; i++)
        if ((uint32_t)o->bias[i].id >= vocab_size)
            return err_set(e, ERR_FORMAT, "%s: logit_bias: token %d, expected 0 to %u", where, o->bias[i].id,
                           vocab_size - 1);
    return 0;
}

/* Makes a prompt that was not encoded for its length an error of the request, whoever reports it. */
static int refuse_length(struct request *r, const struct generator *s, const char *where,
                         struct moeflux_err *e)
{
    struct moeflux_err why = *e;
    r->is_too_long = true;
    return err_set(e, ERR_USAGE, "%s: %.200s; the context holds %u tokens", where, why.text, s->max_context);
}

int request_prompt_encode(struct request *r, struct generator *s, const char *where, struct moeflux_err *e)
{
    struct moeflux_err own = {0};
    e = e ? e : &own;
    int rc = check_bias(&r->options.sampling, s->info.vocab_size, where, e);
    if (rc)
        return rc;
    rc = r->options.raw ? encode_raw(r, s, where, e) : encode_chat(r, s, where, e);
    if (rc == ERR_NO_FIT)
        return refuse_length(r, s, where, e);
    if (!rc && r->tokens.n == 0)
        rc = err_set(e, ERR_FORMAT, "%s: the prompt is empty", where);
    return rc ? rc : generator_check_ids(s, &r->tokens, e);
}
