#include "cli/report/answer_fields.h"

#include <jansson.h>

#include "cli/output.h"
#include "generate/answer.h"
#include "generate/answer_json.h"

static json_t *rate_json(const struct draft_counts *c)
{
    return c->n_runs ? json_real(draft_rate(c)) : json_null();
}

void answer_fields_add(json_t *object, const struct tokenizer *t, const struct answer *a, size_t n_prompt,
                       uint32_t n_reused, bool logprobs)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < a->tokens.n; i++)
        json_array_append_new(ids, json_integer(a->tokens.ids[i]));
    json_object_set_new(object, "text", t ? output_json_text(str_text(&a->text), a->text.len) : json_null());
    if (a->thinking.len)
        json_object_set_new(object, "thinking", output_json_text(str_text(&a->thinking), a->thinking.len));
    if (a->n_calls)
        json_object_set_new(object, "tool_calls", answer_json_calls(a));
    json_object_set_new(object, "tokens", ids);
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)n_prompt));
    json_object_set_new(object, "reused_tokens", json_integer((json_int_t)n_reused));
    json_object_set_new(object, "drafted_tokens", json_integer((json_int_t)a->drafts.n_drafted));
    json_object_set_new(object, "accepted_tokens", json_integer((json_int_t)a->drafts.n_accepted));
    json_object_set_new(object, "tokens_per_evaluation", rate_json(&a->drafts));
    json_object_set_new(object, "stop_reason", json_string(answer_stop_name(a->stop)));
    if (a->stop_text)
        json_object_set_new(object, "stop_text", json_string(a->stop_text));
    if (logprobs)
        json_object_set_new(object, "logprobs", answer_json_logprobs(t, a));
}
