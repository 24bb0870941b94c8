#include "cli/batch/settings.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "cli/output.h"

#define MAX_FILE_BYTES ((size_t)1 << 24)

/* FNV-1a: it tells texts apart that a user has confused; it is no defence. */
static uint64_t hash_of(const char *text, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h;
}

static void add_text(json_t *to, const char *name, const char *text, size_t len)
{
    enum { SHORT = 64 };
    char hash[64];
    snprintf(hash, sizeof hash, "%zu bytes, %016" PRIx64, len, hash_of(text, len));
    json_object_set_new(to, name, len <= SHORT ? output_json_text(text, len) : json_string(hash));
}

/* Adds what a file has in it, or the text itself if there is no such file. */
static void add_file(json_t *to, const char *name, const char *path)
{
    struct moeflux_err ignored;
    char *text;
    size_t len;
    if (!path)
        return;
    if (file_read_text(path, MAX_FILE_BYTES, &text, &len, &ignored)) {
        add_text(to, name, path, strlen(path));
        return;
    }
    add_text(to, name, text, len);
    free(text);
}

static void add_texts(json_t *to, const char *name, const struct texts *t)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < t->n; i++)
        json_array_append_new(list, output_json_text(t->values[i], strlen(t->values[i])));
    json_object_set_new(to, name, list);
}

static bool is_same(const struct texts *a, const struct texts *b)
{
    uint32_t i = 0;
    while (i < a->n && i < b->n && strcmp(a->values[i], b->values[i]) == 0)
        i++;
    return i == a->n && i == b->n;
}

/* A decimal number, not the nearest double of a float: 0.7, not 0.699999988. */
static json_t *real_of(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", x);
    return json_real(strtod(text, NULL));
}

static void add_sampling(json_t *to, const struct options *o, const struct options *usual)
{
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &moeflux_sampler_fields()[i];
        double x = moeflux_sampler_get(&o->sampling, f);
        bool is_list = f->kind == MOEFLUX_SAMPLER_LIST;
        if (is_list && !is_same(&o->dry_breakers, &usual->dry_breakers))
            add_texts(to, f->name, &o->dry_breakers);
        if (!is_list && x != moeflux_sampler_get(&usual->sampling, f))
            json_object_set_new(to, f->name,
                                f->kind == MOEFLUX_SAMPLER_WHOLE ? json_integer((json_int_t)x) : real_of(x));
    }
}

static void add_whole(json_t *to, const char *name, int64_t n, int64_t usual)
{
    if (n != usual)
        json_object_set_new(to, name, json_integer((json_int_t)n));
}

/* Adds the word of a flag's choice. */
static void add_choice(json_t *to, const char *name, const char *flag, int choice, int usual)
{
    char word[FLAG_CHOICE_TEXT];
    const struct defaults_command *run = &options_commands[0];
    const struct flag *f = flags_find(run->flags, run->n, flag);
    if (choice != usual && flags_choice(f, (uint32_t)choice, word))
        json_object_set_new(to, name, json_string(word));
}

static void add_switch(json_t *to, const char *name, bool on)
{
    if (on)
        json_object_set_new(to, name, json_true());
}

json_t *settings_of(const struct options *o)
{
    struct options usual;
    const char *model = options_model_name(o);
    json_t *all = json_object();
    options_defaults(&usual);
    json_object_set_new(all, "model", output_json_text(model, strlen(model)));
    add_sampling(all, o, &usual);
    int64_t limit = o->predict == OPTIONS_NOT_GIVEN ? OPTIONS_NO_LIMIT : o->predict;
    add_whole(all, "max_tokens", limit, OPTIONS_NO_LIMIT);
    add_whole(all, "seed", o->seed, usual.seed);
    add_choice(all, "effort", "effort", o->effort, usual.effort);
    add_whole(all, "think_budget", o->think_budget, usual.think_budget);
    add_whole(all, "logprobs", o->logprobs, usual.logprobs);
    add_whole(all, "active_experts", o->active_experts, usual.active_experts);
    add_choice(all, "kv_type", "kv-type", o->kv_type, usual.kv_type);
    add_choice(all, "prompt_type", "prompt-type", o->prompt_type, usual.prompt_type);
    if (o->expert_share != usual.expert_share)
        json_object_set_new(all, "expert_share", real_of((double)o->expert_share));
    if (o->prefer_resident != usual.prefer_resident)
        json_object_set_new(all, "prefer_resident", real_of((double)o->prefer_resident));
    add_switch(all, "think", o->think);
    add_switch(all, "no_think", o->no_think);
    add_switch(all, "raw", o->raw);
    add_switch(all, "ignore_eos", o->ignore_eos);
    add_switch(all, "json_object", o->json_object);
    if (o->stop.n)
        add_texts(all, "stop", &o->stop);
    if (o->system)
        add_text(all, "system", o->system, strlen(o->system));
    add_file(all, "tools", o->tools);
    add_file(all, "json_schema", o->json_schema);
    add_file(all, "grammar", o->grammar);
    add_file(all, "chat_template", o->chat_template);
    if (o->chat_template_kwargs)
        add_text(all, "chat_template_kwargs", o->chat_template_kwargs, strlen(o->chat_template_kwargs));
    return all;
}

void settings_add_model(json_t *settings, uint64_t fingerprint)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, fingerprint);
    json_object_set_new(settings, "fingerprint", json_string(text));
}

static void show(const json_t *value, char *buf, size_t cap)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(7)) : NULL;
    snprintf(buf, cap, "%.60s", text ? text : "not given");
    free(text);
}

/* Two numbers may be an integer and a real: a result was read from text. */
static bool is_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return a && b ? json_equal(a, b) : a == b;
}

const char *settings_difference(const json_t *there, const json_t *here, char *buf, size_t cap)
{
    const json_t *both[] = {there, here};
    const char *name;
    json_t *value;
    for (int i = 0; i < 2; i++)
        json_object_foreach((json_t *)(uintptr_t)both[i], name, value)
        {
            char old[80], new[80];
            const json_t *a = json_object_get(there, name), *b = json_object_get(here, name);
            /* Results of an older version have no fingerprint, and a run has none before it opens its
             * model. */
            if (is_equal(a, b) || (strcmp(name, "fingerprint") == 0 && !(a && b)))
                continue;
            show(a, old, sizeof old);
            show(b, new, sizeof new);
            snprintf(buf, cap, "%.40s is %s there, %s here", name, old, new);
            return buf;
        }
    return NULL;
}
