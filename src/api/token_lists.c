#include "api/token_lists.h"

#include <jansson.h>

#include "generate/answer_json.h"
#include "generate/logprobs.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

static json_t *number_of(const struct tokenizer *t, const struct moeflux_logprob *l)
{
    json_t *whole = answer_json_logprob(t, l, 0);
    json_t *number = json_incref(json_object_get(whole, "logprob"));
    json_decref(whole);
    return number;
}

static json_t *text_of(const struct tokenizer *t, int32_t id)
{
    const char *bytes;
    size_t n = tokenizer_bytes(t, id, &bytes);
    return utf8_json(n ? bytes : "", n);
}

/* Returns {text: number} of the likeliest tokens and the token itself. If several have the same text (parts
 * of characters), the likeliest counts. */
static json_t *top_of(const struct tokenizer *t, const struct moeflux_logprob *of, uint32_t n_top)
{
    json_t *top = json_object();
    for (uint32_t i = 0; i <= n_top; i++) {
        /* The likeliest first, the token itself last. */
        const struct moeflux_logprob *l = &of[i < n_top ? i + 1 : 0];
        json_t *text = l->id >= 0 ? text_of(t, l->id) : NULL;
        if (text && !json_object_get(top, json_string_value(text)))
            json_object_set_new(top, json_string_value(text), number_of(t, l));
        json_decref(text);
    }
    return top;
}

/* Counts the bytes that do not continue a character: each begins one. */
static uint64_t n_chars(const struct tokenizer *t, int32_t id)
{
    const char *bytes;
    uint64_t n = 0;
    size_t len = tokenizer_bytes(t, id, &bytes);
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)bytes[i] & 0xC0) != 0x80;
    return n;
}

void token_lists_add(struct token_lists *l, const struct tokenizer *t, int32_t id,
                     const struct moeflux_logprob *of, uint32_t n_top)
{
    if (!l->object)
        l->object = json_pack("{s: [], s: [], s: [], s: []}", "tokens", "token_logprobs", "top_logprobs",
                              "text_offset");
    json_array_append_new(json_object_get(l->object, "tokens"), text_of(t, id));
    json_array_append_new(json_object_get(l->object, "token_logprobs"), of ? number_of(t, of) : json_null());
    json_array_append_new(json_object_get(l->object, "top_logprobs"),
                          of && n_top ? top_of(t, of, n_top) : json_null());
    json_array_append_new(json_object_get(l->object, "text_offset"), json_integer((json_int_t)l->n_chars));
    l->n_chars += n_chars(t, id);
}

struct json_t *token_lists_take(struct token_lists *l)
{
    json_t *object = l->object;
    l->object = NULL;
    return object;
}
