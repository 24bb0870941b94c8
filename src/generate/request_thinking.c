/* How much an answer thinks, from the fields that servers have for it. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "generate/answer.h"
#include "generate/generator.h"
#include "generate/request.h"
#include "generate/request_fields.h"

#define MAX_TOKENS ((int64_t)1 << 30)

static void switch_thinking(struct request_options *o, bool on, enum request_switch switching)
{
    o->think = on;
    o->no_think = !on;
    o->switching = switching;
}

/* Reads an effort, which also switches thinking. key: for the errors. */
static void set_effort(struct json_view *v, const json_t *value, const char *key, struct request_options *o)
{
    enum chat_effort effort =
        json_is_string(value) ? chat_effort_find(json_string_value(value)) : CHAT_N_EFFORTS;
    if (v->rc || !value)
        return;
    if (effort == CHAT_N_EFFORTS) {
        v->rc = err_set(v->e, ERR_FORMAT,
                        "%s: %s: expected none, minimal, low, medium, high, xhigh or max, found %s", v->where,
                        key, json_quote(value).text);
        return;
    }
    o->effort = effort;
    switch_thinking(o, effort != CHAT_EFFORT_NONE, REQUEST_SWITCH_LIMIT);
}

/* Reads a limit of the thinking. -1: none. */
static void get_budget(struct json_view *v, const char *key, struct request_options *o)
{
    int64_t n = -2;
    request_fields_whole(v, key, -1, MAX_TOKENS, &n);
    if (n < -1)
        return;
    o->limit_thinking = n >= 0;
    o->think_budget = n >= 0 ? (uint32_t)n : 0;
}

/* Reads {effort, enabled, max_tokens}; other members say how the thinking is shown. */
static void get_reasoning(struct json_view *v, struct request_options *o)
{
    const json_t *object = json_view_object(v, "reasoning");
    char where[64];
    if (v->rc || !object)
        return;
    snprintf(where, sizeof where, "%.40s: reasoning", v->where);
    struct json_view own = json_view_of(object, where, v->e);
    if (json_view_get(&own, "enabled"))
        switch_thinking(o, json_view_bool(&own, "enabled"), REQUEST_SWITCH_LIMIT);
    set_effort(&own, json_view_get(&own, "effort"), "effort", o);
    get_budget(&own, "max_tokens", o);
    if (json_view_bool_or(&own, "exclude", false) && !own.rc)
        own.rc = err_set(v->e, ERR_UNSUPPORTED, "%s: exclude is not supported", where);
    v->rc = own.rc;
}

/* Reads true, false or {type, budget_tokens}. */
static void get_thinking(struct json_view *v, struct request_options *o)
{
    const json_t *value = json_view_get(v, "thinking");
    char where[64];
    if (v->rc || !value)
        return;
    if (json_is_boolean(value)) {
        switch_thinking(o, json_is_true(value), REQUEST_SWITCH_LIMIT);
        return;
    }
    const json_t *object = json_view_object(v, "thinking");
    if (v->rc)
        return;
    snprintf(where, sizeof where, "%.40s: thinking", v->where);
    struct json_view own = json_view_of(object, where, v->e);
    const char *type = json_view_text_or(&own, "type", "auto");
    bool on = strcmp(type, "enabled") == 0;
    if (on || strcmp(type, "disabled") == 0)
        switch_thinking(o, on, REQUEST_SWITCH_LIMIT);
    else if (strcmp(type, "auto") != 0 && strcmp(type, "adaptive") != 0)
        own.rc = err_set(v->e, ERR_FORMAT, "%s: type: expected enabled, disabled, adaptive or auto", where);
    get_budget(&own, "budget_tokens", o);
    v->rc = own.rc;
}

/* Reads the switches of a line, which stand for --think and --no-think. */
static void get_switches(struct json_view *v, struct request_options *o)
{
    bool think = json_view_bool_or(v, "think", false), no_think = json_view_bool_or(v, "no_think", false);
    if (!think && !no_think)
        return;
    o->think = think;
    o->no_think = no_think;
    o->switching = REQUEST_SWITCH_STRICT;
}

/* Reads further variables of the template. The answer's loop also needs to know whether there is thinking,
 * so all names of that variable are set, and the template finds the one it uses. */
static void get_kwargs(struct json_view *v, struct request *r)
{
    r->options.kwargs = json_view_object(v, "chat_template_kwargs");
    json_t *own = json_object_get(r->fields, "chat_template_kwargs");
    json_t *on = json_object_get(own, "enable_thinking"), *mode = json_object_get(own, "thinking_mode");
    if (!json_is_boolean(on))
        on = json_object_get(own, "thinking");
    if (!json_is_boolean(on) && (json_is_text(mode, "enabled") || json_is_text(mode, "disabled")))
        on = json_is_text(mode, "enabled") ? json_true() : json_false();
    if (!json_is_boolean(on))
        return;
    json_object_set(own, "enable_thinking", on);
    json_object_set(own, "thinking", on);
    json_object_set_new(own, "thinking_mode", json_string(json_is_true(on) ? "enabled" : "disabled"));
    switch_thinking(&r->options, json_is_true(on), REQUEST_SWITCH_KNOWN);
}

void request_thinking_take(struct json_view *v, struct request *r)
{
    struct request_options *o = &r->options;
    set_effort(v, json_view_get(v, "reasoning_effort"), "reasoning_effort", o);
    get_reasoning(v, o);
    get_thinking(v, o);
    if (json_view_get(v, "enable_thinking"))
        switch_thinking(o, json_view_bool(v, "enable_thinking"), REQUEST_SWITCH_LIMIT);
    get_switches(v, o);
    get_budget(v, "think_budget", o);
    get_kwargs(v, r);
}

struct chat_reasoning request_reasoning(const struct request_options *o)
{
    return (struct chat_reasoning){
        .thinking = o->think      ? CHAT_THINKING_ON
                    : o->no_think ? CHAT_THINKING_OFF
                                  : CHAT_THINKING_AUTO,
        .effort = o->effort,
    };
}

static void limit(struct request_options *o, int64_t budget)
{
    if (o->limit_thinking || budget < 0)
        return;
    o->limit_thinking = true;
    o->think_budget = (uint32_t)budget;
}

int request_use_chat(struct request_options *o, struct generator *s, const char *what, struct moeflux_err *e)
{
    int rc = generator_use_chat(s, request_reasoning(o), what, e);
    if (rc == ERR_UNSUPPORTED && o->switching != REQUEST_SWITCH_STRICT) {
        if (o->switching == REQUEST_SWITCH_LIMIT && o->no_think) {
            o->limit_thinking = true;
            o->think_budget = 0;
        }
        o->think = o->no_think = false;
        rc = generator_use_chat(s, request_reasoning(o), what, e);
    }
    if (!rc)
        limit(o, chat_effort_budget(&s->chat));
    return rc;
}
