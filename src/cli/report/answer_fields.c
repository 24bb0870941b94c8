#include "cli/report/answer_fields.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "cli/output.h"
#include "text/utf8.h"

/* Stands for the logarithm of 0, which JSON does not have. */
#define NEVER (-9999.0)

json_t *answer_fields_call(const struct moeflux_call *c)
{
    return json_pack("{s: s, s: s, s: {s: o, s: o}}", "id", c->id, "type", "function", "function", "name",
                     utf8_json(c->name, strlen(c->name)), "arguments",
                     utf8_json(c->arguments, strlen(c->arguments)));
}

static json_t *token_json(const struct moeflux_tokenizer *t, const struct moeflux_logprob *l)
{
    const char *bytes = "";
    size_t n = t ? moeflux_tokenizer_bytes(t, l->id, &bytes) : 0;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return json_pack("{s: i, s: o, s: f, s: o}", "id", (int)l->id, "token", utf8_json(n ? bytes : "", n),
                     "logprob", isfinite(l->value) ? (double)l->value : NEVER, "bytes", list);
}

static json_t *logprobs_json(const struct moeflux_tokenizer *t, const struct moeflux_answer_info *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->n_tokens; i++) {
        const struct moeflux_logprob *of = a->logprobs + i * (1 + a->n_logprobs);
        json_t *token = token_json(t, of), *top = json_array();
        for (uint32_t k = 1; k <= a->n_logprobs && of[k].id >= 0; k++)
            json_array_append_new(top, token_json(t, &of[k]));
        json_object_set_new(token, "top_logprobs", top);
        json_array_append_new(list, token);
    }
    return list;
}

static json_t *calls_json(const struct moeflux_answer_info *a)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < a->n_calls; i++)
        json_array_append_new(list, answer_fields_call(&a->calls[i]));
    return list;
}

static json_t *rate_json(const struct moeflux_answer_info *a)
{
    double n = (double)a->n_evaluations;
    return a->n_evaluations ? json_real((n + (double)a->n_accepted) / n) : json_null();
}

void answer_fields_add(json_t *object, const struct moeflux_tokenizer *t, const struct moeflux_answer_info *a)
{
    json_t *ids = json_array();
    for (uint32_t i = 0; i < a->n_tokens; i++)
        json_array_append_new(ids, json_integer(a->tokens[i]));
    json_object_set_new(object, "text", t ? output_json_text(a->text, a->text_len) : json_null());
    if (a->thinking_len)
        json_object_set_new(object, "thinking", output_json_text(a->thinking, a->thinking_len));
    if (a->n_calls)
        json_object_set_new(object, "tool_calls", calls_json(a));
    json_object_set_new(object, "tokens", ids);
    json_object_set_new(object, "prompt_tokens", json_integer(a->n_prompt));
    json_object_set_new(object, "reused_tokens", json_integer(a->n_reused));
    json_object_set_new(object, "drafted_tokens", json_integer((json_int_t)a->n_drafted));
    json_object_set_new(object, "accepted_tokens", json_integer((json_int_t)a->n_accepted));
    json_object_set_new(object, "tokens_per_evaluation", rate_json(a));
    json_object_set_new(object, "stop_reason", json_string(moeflux_stop_name(a->stop)));
    if (a->stop_text)
        json_object_set_new(object, "stop_text", json_string(a->stop_text));
    if (a->logprobs)
        json_object_set_new(object, "logprobs", logprobs_json(t, a));
}
