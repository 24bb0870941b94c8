/* The settings of the sampler in the model's files: keys of a GGUF file's metadata, or of
 * generation_config.json, from which llama.cpp's converter makes these. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/gguf.h"
#include "base/json.h"
#include "model/layout.h"
#include "moeflux_chat.h"
#include "sample/sampler.h"
#include "sample/sampler_fields.h"

#define MAX_BYTES ((uint64_t)16 << 20)

/* A key of the files and the option that it sets. */
struct setting {
    const char *key;  /* the GGUF file's, after "general.sampling." */
    const char *json; /* that of generation_config.json */
    int field;        /* index in sampler_fields */
    /* what a negative number means: the first one -1, the second one others; NULL: they are refused */
    const int32_t *negative;
};

/* Where the settings are: the open file, or the object of generation_config.json. */
struct source {
    const struct gguf *gguf; /* NULL: `json` counts */
    const json_t *json;
    const char *path;
};

static int fail(const struct source *from, const struct setting *s, const char *what, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key %s%s: %s", from->path, from->gguf ? "general.sampling." : "",
                   from->gguf ? s->key : s->json, what);
}

/* Gives the value of a setting, NAN if it is no number. Returns whether the file has it. */
static bool find(const struct source *from, const struct setting *s, double *x)
{
    char key[64];
    *x = NAN;
    if (!from->gguf) {
        const json_t *v = json_member(from->json, s->json);
        if (json_is_number(v))
            *x = json_number_value(v);
        return v != NULL;
    }
    snprintf(key, sizeof key, "general.sampling.%s", s->key);
    const struct gguf_value *v = gguf_find(from->gguf, key);
    if (v && !gguf_real(v, x))
        *x = NAN;
    return v != NULL;
}

static int take_one(struct moeflux_sampler_options *o, const struct source *from, const struct setting *s,
                    struct moeflux_err *e)
{
    double x;
    struct moeflux_err why = {0};
    const struct moeflux_sampler_field *f = &sampler_fields[s->field];
    if (!find(from, s, &x))
        return 0;
    if (!isfinite(x))
        return fail(from, s, "expected a finite number", e);
    if (f->kind == MOEFLUX_SAMPLER_WHOLE && (x != floor(x) || fabs(x) > INT32_MAX))
        return fail(from, s, "expected a whole number", e);
    if (s->negative && x < 0)
        x = s->negative[x != -1];
    const uint32_t whole = f->kind == MOEFLUX_SAMPLER_WHOLE ? (uint32_t)x : 0;
    const float real = (float)x;
    memcpy((char *)o + f->at, f->kind == MOEFLUX_SAMPLER_WHOLE ? (const void *)&whole : &real, sizeof whole);
    return sampler_check(o, &why) < 0 ? fail(from, s, why.text, e) : 0;
}

static int take(struct moeflux_sampler_options *o, const bool *given, const struct source *from,
                size_t *failed, struct moeflux_err *e)
{
    static const int32_t none[] = {0, 0}, whole_context[] = {MOEFLUX_MAX_REPEAT_LAST, 0};
    static const struct setting settings[] = {
        {"temp", "temperature", MOEFLUX_SAMPLER_FIELD_temperature, none},
        {"top_p", "top_p", MOEFLUX_SAMPLER_FIELD_top_p, NULL},
        {"min_p", "min_p", MOEFLUX_SAMPLER_FIELD_min_p, NULL},
        {"xtc_probability", "xtc_probability", MOEFLUX_SAMPLER_FIELD_xtc_probability, NULL},
        {"xtc_threshold", "xtc_threshold", MOEFLUX_SAMPLER_FIELD_xtc_threshold, NULL},
        {"penalty_repeat", "repetition_penalty", MOEFLUX_SAMPLER_FIELD_repeat_penalty, NULL},
        {"top_k", "top_k", MOEFLUX_SAMPLER_FIELD_top_k, none},
        {"penalty_last_n", "penalty_last_n", MOEFLUX_SAMPLER_FIELD_repeat_last, whole_context},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && rc == 0; i++) {
        *failed = (size_t)settings[i].field;
        if (!given || !given[*failed])
            rc = take_one(o, from, &settings[i], e);
    }
    return rc;
}

/* Takes generation_config.json. do_sample: false is greedy decoding, in transformers, too. Without the key
 * temperatures count, as for llama.cpp's converter. */
static int take_json(struct moeflux_sampler_options *o, const bool *given, const char *path, size_t *failed,
                     struct moeflux_err *e)
{
    struct source from = {.path = path};
    json_t *root = NULL;
    if (json_read_file(path, MAX_BYTES, JSON_MAX_SMALL, &root, NULL) < 0)
        return 0;
    from.json = root;
    int rc = take(o, given, &from, failed, e);
    if (!rc && json_is_false(json_member(root, "do_sample")) &&
        !(given && given[MOEFLUX_SAMPLER_FIELD_temperature]))
        o->temperature = 0;
    json_decref(root);
    return rc;
}

int moeflux_sampler_take_model(struct moeflux_sampler_options *o, const bool *given, const char *dir,
                               size_t *failed, struct moeflux_err *e)
{
    int null = err_need(e, "description of the sampler", o, "directory", dir, "place of the index", failed);
    if (null)
        return null;
    struct gguf g;
    struct layout l = {0};
    struct moeflux_err why = {0};
    int rc = 0;
    if (!gguf_is_file(dir)) {
        if (layout_find(&l, dir, NULL) == 0 && l.generation_config)
            rc = take_json(o, given, l.generation_config, failed, &why);
        layout_free(&l);
    } else if (gguf_open(&g, dir, NULL) == 0) {
        rc = take(o, given, &(struct source){.gguf = &g, .path = g.files[0].path}, failed, &why);
        gguf_close(&g);
    }
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}
