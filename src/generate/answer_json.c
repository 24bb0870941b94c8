#include "generate/answer_json.h"

#include <jansson.h>
#include <math.h>

#include "base/str.h"
#include "generate/answer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

#define NEVER (-9999.0)

static json_t *token_json(const struct tokenizer *t, const struct moeflux_logprob *l)
{
    const char *bytes = "";
    size_t n = t ? tokenizer_bytes(t, l->id, &bytes) : 0;
    json_t *object = json_object(), *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    json_object_set_new(object, "id", json_integer(l->id));
    json_object_set_new(object, "token", utf8_json(n ? bytes : "", n));
    json_object_set_new(object, "logprob", json_real(isfinite(l->value) ? (double)l->value : NEVER));
    json_object_set_new(object, "bytes", list);
    return object;
}

struct json_t *answer_json_logprob(const struct tokenizer *t, const struct moeflux_logprob *of,
                                   uint32_t n_top)
{
    json_t *object = token_json(t, &of[0]), *top = json_array();
    for (uint32_t i = 1; i <= n_top && of[i].id >= 0; i++)
        json_array_append_new(top, token_json(t, &of[i]));
    json_object_set_new(object, "top_logprobs", top);
    return object;
}

struct json_t *answer_json_call(const struct answer_call *c)
{
    json_t *object = json_object(), *function = json_object();
    json_object_set_new(function, "name", utf8_json(str_text(&c->name), c->name.len));
    json_object_set_new(function, "arguments", utf8_json(str_text(&c->arguments), c->arguments.len));
    json_object_set_new(object, "id", json_string(c->id));
    json_object_set_new(object, "type", json_string("function"));
    json_object_set_new(object, "function", function);
    return object;
}
