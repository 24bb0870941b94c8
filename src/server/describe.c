#include "server/describe.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

#include "server/endpoints.h"
#include "server/http_request.h"
#include "server/state.h"
#include "text/utf8.h"

static json_t *text_json(const char *text)
{
    return text ? utf8_json(text, strlen(text)) : json_null();
}

/* Returns the model with the fields of OpenAI's list, Anthropic's (display_name, created_at, type) and those
 * of llama.cpp and vLLM (meta, max_model_len). */
static json_t *model_json(const struct server *s)
{
    char created[40] = "";
    time_t at = (time_t)s->created;
    struct tm utc;
    if (gmtime_r(&at, &utc))
        strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *meta =
        json_pack("{s: s, s: I, s: I, s: I, s: s, s: s}", "architecture", s->reader.info.architecture,
                  "n_vocab", (json_int_t)s->reader.info.vocab_size, "n_ctx",
                  (json_int_t)s->reader.max_context, "n_ctx_train", (json_int_t)s->reader.info.max_context,
                  "expert_format", s->expert_format, "dense_format", s->dense_format);
    return json_pack("{s: o, s: s, s: I, s: s, s: s, s: o, s: s, s: I, s: I, s: I, s: o}", "id",
                     text_json(s->options.name), "object", "model", "created", (json_int_t)s->created,
                     "owned_by", "moeflux", "type", "model", "display_name", text_json(s->options.name),
                     "created_at", created, "max_model_len", (json_int_t)s->reader.max_context,
                     "max_input_tokens", (json_int_t)s->reader.max_context, "context_length",
                     (json_int_t)s->reader.max_context, "meta", meta);
}

int describe_models(struct http_request *req)
{
    const char *name = req->server->options.name;
    return http_request_reply_json(req, json_pack("{s: s, s: [o], s: b, s: o, s: o}", "object", "list",
                                                  "data", model_json(req->server), "has_more", 0, "first_id",
                                                  text_json(name), "last_id", text_json(name)));
}

int describe_model(struct http_request *req)
{
    const char *name = endpoints_rest(req), *own = req->server->options.name;
    if (*name == '\0')
        return describe_models(req);
    if (strcmp(name, own) == 0)
        return http_request_reply_json(req, model_json(req->server));
    refusal_set(&req->refusal, 404, "model", "model_not_found",
                "there is no model %.100s; the server has %.100s", name, own);
    return http_request_refuse(req);
}

static json_t *breakers_json(const struct moeflux_sampler_options *o)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < o->n_dry_sequence_breakers; i++)
        json_array_append_new(list, text_json(o->dry_sequence_breakers[i]));
    return list;
}

/* Returns a float as the shortest number that is equal to it: 0.7, not 0.699999988. */
static json_t *float_json(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", x);
    double rounded = strtod(text, NULL);
    return json_real((float)rounded == (float)x ? rounded : x);
}

/* Returns the values of sampling options that a request does not have. */
static json_t *params_json(const struct request_options *o)
{
    json_t *params = json_object();
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &moeflux_sampler_fields()[i];
        double x = moeflux_sampler_get(&o->sampling, f);
        json_t *value = f->kind == MOEFLUX_SAMPLER_LIST    ? breakers_json(&o->sampling)
                        : f->kind == MOEFLUX_SAMPLER_WHOLE ? json_integer((json_int_t)x)
                                                           : float_json(x);
        json_object_set_new(params, f->name, value);
    }
    json_object_set_new(params, "n_predict", json_integer((json_int_t)o->predict));
    return params;
}

int describe_props(struct http_request *req)
{
    const struct server *s = req->server;
    const json_t *texts = api_reader_special_texts(&s->reader);
    json_t *settings = json_pack("{s: I, s: o}", "n_ctx", (json_int_t)s->reader.max_context, "params",
                                 params_json(&s->reader.defaults.options));
    return http_request_reply_json(
        req, json_pack("{s: o, s: I, s: o, s: o, s: O?, s: O?, s: {s: b, s: b}, s: s}",
                       "default_generation_settings", settings, "total_slots",
                       (json_int_t)s->options.parallel, "model_alias", text_json(s->options.name),
                       "chat_template", text_json(moeflux_tokenizer_chat_template(s->tokenizer)), "bos_token",
                       json_object_get(texts, "bos_token"), "eos_token", json_object_get(texts, "eos_token"),
                       "modalities", "vision", 0, "audio", 0, "build_info", "moeflux-" MOEFLUX_VERSION));
}
