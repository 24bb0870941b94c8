#include "cli/options/defaults.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/options/flags.h"
#include "cli/output.h"

#define MAX_FILE ((uint64_t)1 << 20)

/* A file that is being read for one command. */
struct reading {
    struct defaults *d;
    const struct defaults_rules *rules;
    const struct defaults_command *command; /* the one that runs */
    const struct defaults_command *section; /* the one that the current lines are for; NULL: all */
    uint32_t line;
    struct default_value found[2][DEFAULTS_MAX]; /* [0]: for all commands, [1]: for this one */
    uint32_t n_found[2];
    void *scratch;
    struct moeflux_err *e;
};

static int fail_at(const struct reading *r, const char *text)
{
    return err_set(r->e, ERR_USAGE, "%s:%" PRIu32 ": %s", r->d->path, r->line, text);
}

static char *trim(char *text)
{
    static const char blanks[] = " \t\r";
    text += strspn(text, blanks);
    size_t n = strlen(text);
    while (n > 0 && strchr(blanks, text[n - 1]))
        n--;
    text[n] = '\0';
    return text;
}

/* Removes the quotation marks of "x y", which keep blanks at the ends. */
static char *unquote(char *text)
{
    size_t n = strlen(text);
    if (n < 2 || text[0] != '"' || text[n - 1] != '"')
        return text;
    text[n - 1] = '\0';
    return text + 1;
}

/* Expands "~/" at the beginning of a path as a shell does. */
static int expand(struct reading *r, const struct flag *f, const char **value)
{
    const char *home = getenv("HOME");
    struct defaults *d = r->d;
    if ((f->kind != FLAG_TEXT && f->kind != FLAG_OPERAND) || strncmp(*value, "~/", 2) != 0 || !home ||
        d->n_home == DEFAULTS_MAX)
        return 0;
    d->home[d->n_home] = file_join(home, *value + 2, r->e);
    if (!d->home[d->n_home])
        return ERR_MEMORY;
    *value = d->home[d->n_home++];
    return 0;
}

/* Keeps a value. A later line for the same flag replaces an earlier one. */
static int keep(struct reading *r, const struct flag *f, const char *value)
{
    int own = r->section != NULL;
    struct default_value *to = r->found[own];
    uint32_t i = 0;
    while (i < r->n_found[own] && to[i].flag != f)
        i++;
    if (i == DEFAULTS_MAX)
        return fail_at(r, "more settings than there are flags");
    r->n_found[own] += i == r->n_found[own];
    to[i] = (struct default_value){f, value, r->line};
    return 0;
}

/* Returns the flag of this name in command `c`, if a file may set it. *known: set if there is such a flag. */
static const struct flag *find(const struct reading *r, const struct defaults_command *c, const char *name,
                               bool *known)
{
    const struct flag *f = flags_find(c->flags, c->n, name);
    *known |= f != NULL;
    return f && r->rules->may_set(c, f) ? f : NULL;
}

static int refuse_name(const struct reading *r, const char *name, bool known)
{
    char text[200];
    char where[48] = "";
    if (r->section)
        snprintf(where, sizeof where, " for [%s]", r->section->section);
    snprintf(text, sizeof text,
             known ? "%.64s%s is for the command line, not for this file"
                   : "unknown setting %.64s%s, expected a flag's name without dashes",
             name, where);
    return fail_at(r, text);
}

static int take_value(struct reading *r, const char *name, const char *value)
{
    bool known = false;
    const struct flag *any = NULL;
    for (size_t i = 0; i < r->rules->n_commands; i++) {
        const struct defaults_command *c = &r->rules->commands[i];
        const struct flag *f = r->section && r->section != c ? NULL : find(r, c, name, &known);
        any = any ? any : f;
        if (f && c == r->command) {
            int rc = expand(r, f, &value);
            if (rc == 0)
                rc = keep(r, f, value);
            if (rc < 0)
                return rc;
        }
    }
    if (!any)
        return refuse_name(r, name, known);
    /* Values for other commands are checked, too: a mistake is reported before that command needs them. */
    struct moeflux_err why;
    int rc = flags_set(any, value, r->scratch, &why);
    return rc < 0 ? fail_at(r, why.text) : 0;
}

static int take_section(struct reading *r, char *line)
{
    char text[200];
    size_t n = strlen(line);
    if (line[n - 1] == ']') {
        line[n - 1] = '\0';
        const char *name = trim(line + 1);
        for (size_t i = 0; i < r->rules->n_commands; i++)
            if (strcmp(name, r->rules->commands[i].section) == 0) {
                r->section = &r->rules->commands[i];
                return 0;
            }
        line[n - 1] = ']';
    }
    snprintf(text, sizeof text,
             "expected [run], [serve], [inspect], [convert], [get] or [doctor], found %.64s", line);
    return fail_at(r, text);
}

static int take_line(struct reading *r, char *text)
{
    char *line = trim(text), *equals = strchr(line, '=');
    if (!*line || *line == '#')
        return 0;
    if (*line == '[')
        return take_section(r, line);
    if (!equals)
        return fail_at(r, "expected NAME = VALUE, [COMMAND] or a comment");
    *equals = '\0';
    return take_value(r, trim(line), unquote(trim(equals + 1)));
}

static int take_lines(struct reading *r)
{
    int rc = 0;
    for (char *line = r->d->text; line && rc == 0;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        r->line++;
        rc = take_line(r, line);
        line = end ? end + 1 : NULL;
    }
    return rc;
}

/* Finds the file. d->path stays NULL without a home directory or without the file. */
static int find_file(struct defaults *d, struct moeflux_err *e)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    struct str path = {0};
    /* The XDG specification says that a relative path is ignored. */
    if (config && config[0] == '/')
        str_addf(&path, "%s/moeflux/config", config);
    else if (home && home[0])
        str_addf(&path, "%s/.config/moeflux/config", home);
    int rc = str_ok(&path) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the configuration file");
    if (rc == 0 && path.len && file_exists(str_text(&path)) && !(d->path = mem_text(str_text(&path), e)))
        rc = ERR_MEMORY;
    str_free(&path);
    return rc;
}

static int read_file(struct reading *r)
{
    struct defaults *d = r->d;
    size_t len;
    int rc = find_file(d, r->e);
    if (rc < 0 || !d->path)
        return rc;
    rc = file_read_text(d->path, MAX_FILE, &d->text, &len, r->e);
    if (rc == 0 && strlen(d->text) != len)
        rc = err_set(r->e, ERR_USAGE, "%s: expected text, found a zero byte", d->path);
    return rc < 0 ? rc : take_lines(r);
}

static int use(struct reading *r, const struct default_value *v, const bool *given, void *into)
{
    const struct defaults_command *c = r->command;
    struct defaults *d = r->d;
    if (given[v->flag - c->flags] || !r->rules->is_used(c, v->flag, given, into))
        return 0;
    d->used[d->n_used++] = *v;
    return flags_set(v->flag, v->text, into, r->e);
}

static bool has_flag(const struct default_value *v, uint32_t n, const struct flag *f)
{
    while (n > 0 && v[n - 1].flag != f)
        n--;
    return n > 0;
}

/* MOEFLUX_MODEL wins over the file: it is kept last. */
static int take_model(struct reading *r)
{
    const char *model = getenv("MOEFLUX_MODEL");
    for (size_t i = 0; model && *model && i < r->command->n; i++) {
        const struct flag *f = &r->command->flags[i];
        bool is_model = f->longs && strcmp(f->longs, "model") == 0;
        if (!is_model)
            continue;
        r->section = r->command;
        r->line = 0;
        return keep(r, f, model);
    }
    return 0;
}

int defaults_apply(struct defaults *d, const struct defaults_rules *rules, const struct defaults_command *c,
                   const bool *given, void *into, void *scratch, struct moeflux_err *e)
{
    struct reading *r = mem_new(1, sizeof *r, e);
    *d = (struct defaults){0};
    if (!r)
        return ERR_MEMORY;
    *r = (struct reading){.d = d, .rules = rules, .command = c, .scratch = scratch, .e = e};
    int rc = read_file(r);
    if (rc == 0)
        rc = take_model(r);
    for (uint32_t i = 0; i < r->n_found[1] && rc == 0; i++)
        rc = use(r, &r->found[1][i], given, into);
    for (uint32_t i = 0; i < r->n_found[0] && rc == 0; i++)
        if (!has_flag(r->found[1], r->n_found[1], r->found[0][i].flag))
            rc = use(r, &r->found[0][i], given, into);
    free(r);
    return rc;
}

void defaults_free(struct defaults *d)
{
    while (d->n_home > 0)
        free(d->home[--d->n_home]);
    free(d->path);
    free(d->text);
    *d = (struct defaults){0};
}

const char *defaults_place(const struct defaults *d, const struct default_value *v, char *buf, size_t cap)
{
    if (v->line)
        snprintf(buf, cap, "%s:%" PRIu32, d->path, v->line);
    else
        snprintf(buf, cap, "MOEFLUX_MODEL");
    return buf;
}

static int name_length(const struct flag *f)
{
    return (int)strcspn(f->longs, ",");
}

void defaults_print(const struct defaults *d, struct output *out)
{
    char place[512];
    if (d->n_used)
        output_text(out, "\nSet by the environment and the configuration file\n");
    for (uint32_t i = 0; i < d->n_used; i++)
        output_addf(out, "  %-20.*s %s  %s\n", name_length(d->used[i].flag), d->used[i].flag->longs,
                    d->used[i].text, defaults_place(d, &d->used[i], place, sizeof place));
}

struct json_t *defaults_json(const struct defaults *d)
{
    json_t *object = json_object();
    for (uint32_t i = 0; i < d->n_used; i++) {
        char name[64], place[512];
        const struct default_value *v = &d->used[i];
        json_t *one = json_object();
        snprintf(name, sizeof name, "%.*s", name_length(v->flag), v->flag->longs);
        defaults_place(d, v, place, sizeof place);
        json_object_set_new(one, "value", output_json_text(v->text, strlen(v->text)));
        json_object_set_new(one, "from", output_json_text(place, strlen(place)));
        json_object_set_new(object, name, one);
    }
    return object;
}
