#include "cli/options/explain.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/options/options.h"
#include "cli/which_model.h"

static bool is_of_word(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("-_/", c));
}

/* Whether the text has this flag as a word of its own: "--chunk" in "--chunk 9", but not in "--chunks". */
static bool has_flag(const char *text, const char *dashes, const char *name, size_t n)
{
    char word[64];
    size_t len = (size_t)snprintf(word, sizeof word, "%s%.*s", dashes, (int)n, name);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if ((at == text || !is_of_word(at[-1]) || at[-1] == '/') && !(is_of_word(at[len]) && at[len] != '/'))
            return true;
    return false;
}

static bool names_flag(const char *text, const struct flag *f)
{
    for (const char *at = f->longs; at && *at; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");
        if (has_flag(text, "--", at, n))
            return true;
        at += n;
    }
    return f->shorts && has_flag(text, "-", f->shorts, 1);
}

/* Returns the path that the option's value is or has after its kind ("file:PATH"); NULL: none. */
static const char *path_of(const struct flag *f, const char *value)
{
    bool is_draft = f->longs && strcmp(f->longs, "draft") == 0;
    const char *colon = is_draft && value ? strchr(value, ':') : NULL;
    if (is_draft)
        return colon ? colon + 1 : NULL;
    return f->value && (strcmp(f->value, "FILE") == 0 || strcmp(f->value, "DIR") == 0) ? value : NULL;
}

/* Names the option whose path the message begins with. */
static void name_path(const struct options *o, struct moeflux_err *e)
{
    for (size_t i = 0; i < o->command->n; i++) {
        const struct flag *f = &o->command->flags[i];
        if (f->kind != FLAG_TEXT || f->at == offsetof(struct options, model))
            continue;
        const char *path = path_of(f, *(const char *const *)((const char *)o + f->at));
        size_t n = path ? strlen(path) : 0;
        struct moeflux_err first = *e;
        bool is_it = n > 0 && strncmp(first.text, path, n) == 0 &&
                     (first.text[n] == ':' || (first.text[n] == '/' && strcmp(f->value, "DIR") == 0));
        if (!is_it || names_flag(first.text, f))
            continue;
        err_set(e, first.code, "--%.*s %s", (int)strcspn(f->longs, ","), f->longs, first.text);
        return;
    }
}

static void add_place(struct str *places, const char *name, size_t n, const char *place)
{
    str_addf(places, "%s%.*s %sby %s", places->len ? ", " : "", (int)n, name, places->len ? "" : "is set ",
             place);
}

/* Says what a model is, if there is none of the name. */
static void explain_model(const struct options *o, struct moeflux_err *e)
{
    const char *rest = o->model ? str_after(e->text, o->model) : NULL;
    if (rest && strcmp(rest, ": No such file or directory") == 0)
        which_model_require(o->model, e);
}

/* Names the model whose chat template is at fault. The user's own is named where it is read. */
static void name_template(const struct options *o, struct moeflux_err *e)
{
    struct moeflux_err first = *e;
    if (o->model && !o->chat_template && str_after(first.text, "chat template"))
        err_set(e, first.code, "%s: %s", o->model, first.text);
}

void explain_failure(const struct options *o, struct moeflux_err *e)
{
    struct str places = {0};
    exit_name_flags(e);
    if (o->command)
        name_path(o, e);
    name_template(o, e);
    explain_model(o, e);
    for (uint32_t i = 0; i < o->defaults.n_used; i++) {
        char place[512];
        const struct default_value *v = &o->defaults.used[i];
        bool is_model = v->flag->at == offsetof(struct options, model);
        bool is_named = is_model ? o->model && strstr(e->text, o->model) : names_flag(e->text, v->flag);
        if (is_named)
            add_place(&places, v->flag->longs, strcspn(v->flag->longs, ","),
                      defaults_place(&o->defaults, v, place, sizeof place));
    }
    if (!o->cpu_isa && o->command && options_cpu_isa(o) && has_flag(e->text, "--", "cpu-isa", 7))
        add_place(&places, "cpu-isa", 7, "MOEFLUX_CPU_ISA");
    struct moeflux_err first = *e;
    if (places.len && str_ok(&places))
        err_set(e, first.code, "%s (%s)", first.text, str_text(&places));
    str_free(&places);
}
