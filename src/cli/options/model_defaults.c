#include "cli/options/model_defaults.h"

#include <math.h>
#include <stdio.h>

#include "base/err.h"
#include "base/gguf.h"
#include "cli/options/options.h"
#include "sample/sampler.h"

/* A key of the file and the option that it sets. */
struct setting {
    const char *key, *flag; /* without "general.sampling." and "--" */
    int field;              /* index in sampler_fields */
    /* what a negative number means: the first one -1, the second one others; NULL: they are refused */
    const int32_t *negative;
};

static int fail(const struct gguf *g, const struct setting *s, const char *what, struct moeflux_err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key general.sampling.%s: %s; --%s replaces it", g->files[0].path,
                   s->key, what, s->flag);
}

static int take_one(struct options *o, const struct gguf *g, const struct setting *s, struct moeflux_err *e)
{
    char key[64];
    double x = 0;
    struct moeflux_err why = {0};
    snprintf(key, sizeof key, "general.sampling.%s", s->key);
    const struct gguf_value *v = gguf_find(g, key);
    const struct sampler_field *f = &sampler_fields[s->field];
    char *field = (char *)&o->sampling + f->at;
    if (!v || o->given[s->field])
        return 0;
    if (!gguf_real(v, &x) || !isfinite(x))
        return fail(g, s, "expected a finite number", e);
    if (f->kind == SAMPLER_WHOLE && (x != floor(x) || fabs(x) > INT32_MAX))
        return fail(g, s, "expected a whole number", e);
    if (s->negative && x < 0)
        x = s->negative[x != -1];
    if (f->kind == SAMPLER_WHOLE)
        *(uint32_t *)(void *)field = (uint32_t)x;
    else
        *(float *)(void *)field = (float)x;
    return sampler_check(&o->sampling, &why) < 0 ? fail(g, s, why.text, e) : 0;
}

static int take(struct options *o, const struct gguf *g, struct moeflux_err *e)
{
    static const int32_t none[] = {0, 0}, whole_context[] = {SAMPLER_MAX_REPEAT_LAST, 0};
    static const struct setting settings[] = {
        {"temp", "temp", SAMPLER_FIELD_temperature, none},
        {"top_p", "top-p", SAMPLER_FIELD_top_p, NULL},
        {"min_p", "min-p", SAMPLER_FIELD_min_p, NULL},
        {"xtc_probability", "xtc-probability", SAMPLER_FIELD_xtc_probability, NULL},
        {"xtc_threshold", "xtc-threshold", SAMPLER_FIELD_xtc_threshold, NULL},
        {"penalty_repeat", "repeat-penalty", SAMPLER_FIELD_repeat_penalty, NULL},
        {"top_k", "top-k", SAMPLER_FIELD_top_k, none},
        {"penalty_last_n", "repeat-last-n", SAMPLER_FIELD_repeat_last, whole_context},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && rc == 0; i++)
        rc = take_one(o, g, &settings[i], e);
    return rc;
}

int model_defaults_take(struct options *o, struct moeflux_err *e)
{
    struct gguf g;
    bool samples = o->verb == VERB_RUN || o->verb == VERB_BATCH || o->verb == VERB_SERVE;
    if (!samples || !o->model || !gguf_is_file(o->model) || gguf_open(&g, o->model, NULL) < 0)
        return 0;
    int rc = take(o, &g, e);
    gguf_close(&g);
    return rc;
}
