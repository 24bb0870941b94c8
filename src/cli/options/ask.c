#include "cli/options/ask.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/texts.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "moeflux_chat.h"

/* Names of the efforts, in the order of --effort. */
static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

static json_t *texts_json(const struct texts *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n; i++)
        json_array_append_new(list, output_json_text(t->values[i], strlen(t->values[i])));
    return list;
}

static void add_sampling(json_t *to, const struct options *o)
{
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &moeflux_sampler_fields()[i];
        double x = moeflux_sampler_get(&o->sampling, f);
        json_object_set_new(to, f->name,
                            f->kind == MOEFLUX_SAMPLER_LIST    ? texts_json(&o->dry_breakers)
                            : f->kind == MOEFLUX_SAMPLER_WHOLE ? json_integer((json_int_t)x)
                                                               : json_real(x));
    }
}

static void add_switch(json_t *to, const char *field, bool on)
{
    if (on)
        json_object_set_new(to, field, json_true());
}

static void add_whole(json_t *to, const char *field, int64_t value, int64_t none)
{
    if (value != none)
        json_object_set_new(to, field, json_integer((json_int_t)value));
}

static json_t *fields_of(const struct options *o)
{
    json_t *all = json_object();
    add_sampling(all, o);
    add_whole(all, "max_tokens", o->predict, OPTIONS_NOT_GIVEN);
    add_whole(all, "seed", o->seed, -1);
    add_whole(all, "logprobs", o->logprobs, OPTIONS_NO_LOGPROBS);
    add_whole(all, "draft_max", o->draft_max, 0);
    add_whole(all, "think_budget", o->think_budget, OPTIONS_NOT_GIVEN);
    add_switch(all, "ignore_eos", o->ignore_eos);
    add_switch(all, "raw", o->raw);
    add_switch(all, "think", o->think);
    add_switch(all, "no_think", o->no_think);
    json_object_set_new(all, "stop", texts_json(&o->stop));
    if (o->draft)
        json_object_set_new(all, "draft", output_json_text(o->draft, strlen(o->draft)));
    if (o->effort != OPTIONS_NOT_GIVEN)
        json_object_set_new(all, "reasoning_effort", json_string(efforts[o->effort]));
    return all;
}

static int set(struct moeflux_request *r, const char *field, const json_t *value, struct moeflux_err *e)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    int rc = text ? moeflux_request_set(r, field, text, e)
                  : err_set(e, ERR_MEMORY, "out of memory for the field %s", field);
    free(text);
    return rc;
}

int ask_whole(struct moeflux_request *r, const char *field, long long value, struct moeflux_err *e)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    return moeflux_request_set(r, field, text, e);
}

int ask_new(struct moeflux_request **out, const struct options *o, struct moeflux_err *e)
{
    json_t *fields = fields_of(o), *value;
    const char *field;
    int rc = moeflux_request_new(out, e);
    if (!rc && !fields)
        rc = err_set(e, ERR_MEMORY, "out of memory for the request");
    json_object_foreach(fields, field, value)
    {
        if (!rc)
            rc = set(*out, field, value, e);
    }
    json_decref(fields);
    if (rc) {
        moeflux_request_free(*out);
        *out = NULL;
    }
    return rc;
}

int ask_defaults(struct moeflux_request **out, const struct options *o, struct moeflux_err *e)
{
    int rc = ask_new(out, o, e);
    if (!rc && o->system)
        rc = moeflux_request_set_text(*out, "system", o->system, e);
    if (rc) {
        moeflux_request_free(*out);
        *out = NULL;
    }
    return rc;
}
