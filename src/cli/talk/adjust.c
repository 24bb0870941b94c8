#include "cli/talk/adjust.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/options/escapes.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "cli/say.h"
#include "cli/talk/talk.h"
#include "moeflux_chat.h"

/* ---- /set ---- */

static bool may_set(const struct flag *f)
{
    return options_sampler_field(f) || f->at == offsetof(struct options, predict) ||
           f->at == offsetof(struct options, seed) || f->at == offsetof(struct options, think_budget);
}

/* Finds "temp", "--temp", "top_k" and "n". */
static const struct flag *find(const char *word)
{
    char name[48];
    const struct defaults_command *run = &options_commands[0];
    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    for (char *at = name; *at; at++)
        if (*at == '_')
            *at = '-';
    const struct flag *f = flags_find(run->flags, run->n, strcmp(name, "n") == 0 ? "predict" : name);
    return f && may_set(f) ? f : NULL;
}

static void show_texts(const char *name, int n, const struct texts *t)
{
    struct str line = {0};
    str_addf(&line, "  %-24.*s ", n, name);
    for (uint32_t i = 0; i < t->n; i++) {
        str_add_text(&line, i ? ", \"" : "\"");
        escapes_add(&line, t->values[i]);
        str_add_text(&line, "\"");
    }
    str_add_text(&line, t->n ? "\n" : "none\n");
    say_text(&line);
    str_free(&line);
}

static void show_one(const struct options *o, const struct flag *f)
{
    const struct moeflux_sampler_field *field = options_sampler_field(f);
    const void *at = (const char *)o + f->at;
    const char *name = f->longs;
    int n = (int)strcspn(name, ",");
    if (field && field->kind == MOEFLUX_SAMPLER_LIST)
        show_texts(name, n, &o->dry_breakers);
    else if (field)
        say(field->kind == MOEFLUX_SAMPLER_REAL ? "  %-24.*s %.6g\n" : "  %-24.*s %.0f\n", n, name,
            moeflux_sampler_get(&o->sampling, field));
    else
        say("  %-24.*s %lld\n", n, name,
            *(const int64_t *)at == OPTIONS_NOT_GIVEN ? -1LL : (long long)*(const int64_t *)at);
}

static int show_all(const struct talk *t)
{
    const struct defaults_command *run = &options_commands[0];
    for (size_t i = 0; i < run->n; i++)
        if (run->flags[i].kind != FLAG_HEADING && may_set(&run->flags[i]))
            show_one(t->options, &run->flags[i]);
    return 0;
}

/* Sets the option in `next`. *text: the copy of a text that `next` borrows. */
static int set_one(struct options *next, const struct flag *f, const char *value, char **text,
                   struct moeflux_err *e)
{
    if (f->kind == FLAG_TEXTS && !(*text = mem_text(value, e)))
        return ERR_MEMORY;
    if (*text)
        escapes_replace(*text);
    int rc = flags_set(f, *text ? *text : value, next, e);
    if (!rc && *text && strcmp(value, "none") == 0)
        next->dry_breakers.n = 0;
    options_take_all(next);
    return rc ? rc : options_check_sampling(next, e);
}

/* Says what to do for Ollama's words after /set. Returns whether it was one of them. */
static bool refuse_ollamas(const char *word, struct moeflux_err *e)
{
    const struct {
        const char *word, *instead;
    } others[] = {{"system", "/system TEXT"},
                  {"history", "lines are kept: moeflux(1), FILES"},
                  {"verbose", "each answer has a line about its speed; /stats says more"},
                  {"format", "--json-object and --json-schema, before the conversation"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(word, others[i].word) == 0) {
            exit_report(err_set(e, ERR_USAGE, "/set %s: %s", word, others[i].instead), e);
            return true;
        }
    return false;
}

int adjust_set(struct talk *t, const char *argument, struct moeflux_err *e)
{
    char word[48], text_of[128];
    static const char prefix[] = "parameter ";
    if (strncmp(argument, prefix, sizeof prefix - 1) == 0)
        argument += sizeof prefix - 1;
    size_t n = strcspn(argument, " \t=");
    const char *value = argument + n + strspn(argument + n, " \t=");
    if (!*argument)
        return show_all(t);
    snprintf(word, sizeof word, "%.*s", (int)n, argument);
    bool thinks = strcmp(word, "think") == 0;
    if (thinks || strcmp(word, "nothink") == 0)
        return adjust_think(t, thinks ? "on" : "off", e);
    if (refuse_ollamas(word, e))
        return 0;
    const struct flag *f = find(word);
    struct options next = *t->own;
    char *text = NULL;
    int rc = 0;
    if (!f)
        rc = err_set(e, ERR_USAGE, "/set: there is no option %s; /set lists them", word);
    else if (!*value)
        rc = err_set(e, ERR_USAGE, "/set %s VALUE: which value?", word);
    if (!rc)
        rc = set_one(&next, f, value, &text, e);
    if (rc) {
        free(text);
        exit_report(rc, e);
        return 0;
    }
    const struct options before = *t->own;
    *t->own = next;
    if ((rc = talk_use_options(t, e))) {
        *t->own = before;
        free(text);
        exit_report(rc, e);
        return 0;
    }
    if (text) {
        free(t->set_text);
        t->set_text = text;
    }
    snprintf(text_of, sizeof text_of, "[%.40s is %.40s from now on]", word, value);
    talk_note(t, text_of);
    return 0;
}

/* ---- /think ---- */

/* Copies a word of --effort; NULL: there are no more. */
static const char *effort_word(uint32_t i, char word[FLAG_CHOICE_TEXT])
{
    const struct defaults_command *run = &options_commands[0];
    return flags_choice(flags_find(run->flags, run->n, "effort"), i, word);
}

static const char *name_of(const struct options *o, char *buf, size_t cap)
{
    char word[FLAG_CHOICE_TEXT];
    if (o->effort != OPTIONS_NOT_GIVEN)
        snprintf(buf, cap, "%s", o->effort ? effort_word((uint32_t)o->effort, word) : "off");
    else
        snprintf(buf, cap, "%s", o->think ? "on" : o->no_think ? "off" : "auto");
    return buf;
}

static int take(struct options *o, const char *word, struct moeflux_err *e)
{
    char name[FLAG_CHOICE_TEXT];
    int effort = 0;
    o->think = strcmp(word, "on") == 0;
    o->no_think = strcmp(word, "off") == 0;
    o->effort = OPTIONS_NOT_GIVEN;
    if (o->think || o->no_think || strcmp(word, "auto") == 0)
        return 0;
    while (effort_word((uint32_t)effort, name) && strcmp(name, word) != 0)
        effort++;
    if (!effort_word((uint32_t)effort, name))
        return err_set(
            e, ERR_USAGE,
            "/think: expected on, off, auto, minimal, low, medium, high, xhigh or max, found \"%.40s\"",
            word);
    o->effort = effort;
    return 0;
}

int adjust_think(struct talk *t, const char *argument, struct moeflux_err *e)
{
    char name[16], text[64];
    struct options before = *t->own;
    if (*argument) {
        int rc = take(t->own, argument, e);
        if (!rc)
            rc = talk_use_options(t, e);
        if (rc) {
            exit_report(rc, e);
            *t->own = before;
            return 0;
        }
    }
    snprintf(text, sizeof text, "[thinking: %s]", name_of(t->options, name, sizeof name));
    talk_note(t, text);
    return 0;
}
