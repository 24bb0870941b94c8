#include "cli/options/flags.h"

#include <argtable2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/options/closest.h"
#include "cli/options/number.h"

enum { MAX_FLAGS = FLAGS_MAX, MAX_FAULTS = 4, HELP_COLUMN = 28 };

/* The table for argtable2: an entry for each flag, then the end. */
struct parser {
    const struct flag *flags;
    size_t n;
    bool (*takes)(const struct flag *f); /* whether the flag is allowed; NULL: all are */
    void *args[MAX_FLAGS + 1];
    const struct flag *owner[MAX_FLAGS]; /* owner[i]: the flag that args[i] stands for */
    size_t n_args;
    struct arg_end *end;
};

static int parser_build(struct parser *p, int argc, struct moeflux_err *e)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct flag *f = &p->flags[i];
        void *arg = NULL;
        if (f->kind == FLAG_HEADING)
            continue;
        if (p->n_args == MAX_FLAGS)
            return err_set(e, ERR_USAGE, "more than %d flags in a table", MAX_FLAGS);
        if (f->kind == FLAG_SWITCH)
            arg = arg_litn(f->shorts, f->longs, 0, argc, "");
        else if (f->kind == FLAG_OPERAND)
            arg = arg_strn(NULL, NULL, f->value, 0, 1, "");
        else
            arg = arg_strn(f->shorts, f->longs, f->value, 0, argc, "");
        if (!arg)
            return err_set(e, ERR_MEMORY, "out of memory for the flags");
        p->owner[p->n_args] = f;
        p->args[p->n_args++] = arg;
    }
    p->end = arg_end(MAX_FAULTS);
    p->args[p->n_args] = p->end;
    return p->end ? 0 : err_set(e, ERR_MEMORY, "out of memory for the flags");
}

/* Writes the flag as messages name it: "-n/--predict", "--temp", "SRC". */
static const char *flag_name(const struct flag *f, char *buf, size_t cap)
{
    if (f->kind == FLAG_OPERAND)
        snprintf(buf, cap, "%s", f->value);
    else if (!f->longs)
        snprintf(buf, cap, "-%s", f->shorts);
    else
        snprintf(buf, cap, "%s%s%s--%.*s", f->shorts ? "-" : "", f->shorts ? f->shorts : "",
                 f->shorts ? "/" : "", (int)strcspn(f->longs, ","), f->longs);
    return buf;
}

/* getopt reports "--switch=value" like an unknown one-letter flag, so such words are looked for by name. */
static const struct flag *find_switch_with_value(const struct parser *p, int argc, char **argv)
{
    for (int a = 1; a < argc; a++) {
        const char *equals = strchr(argv[a], '=');
        if (strncmp(argv[a], "--", 2) != 0 || !equals)
            continue;
        for (size_t i = 0; i < p->n_args; i++) {
            char name[64];
            size_t len =
                (size_t)snprintf(name, sizeof name, "--%s", p->owner[i]->longs ? p->owner[i]->longs : "");
            if (p->owner[i]->kind == FLAG_SWITCH && (size_t)(equals - argv[a]) == len &&
                strncmp(argv[a], name, len) == 0)
                return p->owner[i];
        }
    }
    return NULL;
}

/* Returns the flag whose value is missing: the one that getopt names, or the word before an empty value. */
static const char *owner_of_missing(const char *word, int argc, char **argv)
{
    for (int a = 2; a < argc && !*word; a++)
        if (!*argv[a])
            return argv[a - 1];
    return word;
}

/* Lists the options that begin with `name`; "": fewer than two. */
static void list_longer(const struct parser *p, const char *name, struct str *out)
{
    uint32_t n = 0;
    for (size_t i = 0; *name && i < p->n_args; i++)
        for (const char *at = p->owner[i]->longs; at && *at; at += strspn(at, ",")) {
            size_t len = strcspn(at, ",");
            if (strncmp(at, name, strlen(name)) == 0)
                str_addf(out, "%s--%.*s", n++ ? ", " : "", (int)len, at);
            at += len;
        }
    if (n < 2)
        str_clear(out);
}

/* Reports an unknown option, "--tmep" or "--tmep=1", and suggests the one that was probably meant. */
static int unknown_option(const struct parser *p, const char *word, struct moeflux_err *e)
{
    char name[64];
    size_t n = strcspn(word, "=");
    const char *dashes = strncmp(word, "--", 2) == 0 ? "--" : "";
    snprintf(name, sizeof name, "%.*s", (int)(n - strlen(dashes)), word + strlen(dashes));
    struct str longer = {0};
    if (*dashes && strlen(name) > 1)
        list_longer(p, name, &longer);
    if (longer.len && str_ok(&longer))
        err_set(e, ERR_USAGE, "%s is short for several options: %s", word, str_text(&longer));
    bool is_short = longer.len > 0;
    str_free(&longer);
    if (is_short)
        return ERR_USAGE;
    struct closest closest = closest_begin(name);
    for (size_t i = 0; i < p->n_args; i++)
        for (const char *at = p->owner[i]->longs; at && *at; at += strspn(at, ",")) {
            size_t len = strcspn(at, ",");
            closest_try(&closest, at, len);
            at += len;
        }
    if (closest.best && n < sizeof name)
        return err_set(e, ERR_USAGE, "unknown option %s: did you mean --%.*s?", word, (int)closest.n,
                       closest.best);
    return err_set(e, ERR_USAGE, "unknown option %s (--help lists them)", word);
}

/* Reports only the first fault: the others are often its consequence. */
static int first_fault(const struct parser *p, int argc, char **argv, struct moeflux_err *e)
{
    char name[64];
    const char *word = p->end->argval[0] ? p->end->argval[0] : "";
    const struct flag *given = find_switch_with_value(p, argc, argv);
    if (given)
        return err_set(e, ERR_USAGE, "%s takes no value", flag_name(given, name, sizeof name));
    /* Error codes of arguments and of the parser overlap: an error with a parent is the argument's. */
    for (size_t i = 0; i < p->n_args; i++)
        if (p->end->parent[0] == p->args[i] && p->owner[i]->kind == FLAG_OPERAND)
            return err_set(e, ERR_USAGE, "unexpected argument \"%s\" (--help shows the usage)", word);
        else if (p->end->parent[0] == p->args[i])
            return err_set(e, ERR_USAGE, "%s is given too often", flag_name(p->owner[i], name, sizeof name));
    switch (p->end->error[0]) {
    case ARG_ELONGOPT:
        return unknown_option(p, word, e);
    case ARG_EMISSARG:
        return err_set(e, ERR_USAGE, "%s needs a value", owner_of_missing(word, argc, argv));
    case ARG_ENOMATCH:
        return err_set(e, ERR_USAGE, "unexpected argument \"%s\" (--help shows the usage)", word);
    case ARG_EMALLOC:
        return err_set(e, ERR_MEMORY, "out of memory for the flags");
    default:
        return err_set(e, ERR_USAGE, "unknown option -%c (--help lists them)", p->end->error[0]);
    }
}

static int bad_value(const struct flag *f, const char *what, const char *found, struct moeflux_err *e)
{
    char name[64];
    return err_set(e, ERR_USAGE, "%s: expected %s, found \"%s\"", flag_name(f, name, sizeof name), what,
                   found);
}

/* Returns the index of the word in "a, b or c", or -1. */
static int find_choice(const char *choices, const char *word)
{
    size_t len = strlen(word);
    for (int i = 0; *choices; i++) {
        size_t n = strcspn(choices, ", ");
        if (n == len && memcmp(choices, word, n) == 0)
            return i;
        choices += n;
        choices += strncmp(choices, " or ", 4) == 0 ? 4 : strspn(choices, ", ");
    }
    return -1;
}

static int add_texts(const struct flag *f, const struct arg_str *arg, struct texts *out,
                     struct moeflux_err *e)
{
    char name[64];
    if (arg->count > TEXTS_MAX)
        return err_set(e, ERR_USAGE, "%s is given %d times, expected at most %d",
                       flag_name(f, name, sizeof name), arg->count, TEXTS_MAX);
    for (out->n = 0; out->n < (uint32_t)arg->count; out->n++) {
        out->values[out->n] = arg->sval[out->n];
        if (!*arg->sval[out->n])
            return bad_value(f, "a value", "", e);
    }
    return 0;
}

static int set_value(const struct flag *f, const char *text, void *field, struct moeflux_err *e)
{
    char what[96];
    double real;
    int64_t whole;
    switch (f->kind) {
    case FLAG_TEXT:
    case FLAG_OPERAND:
        *(const char **)field = text;
        return *text ? 0 : bad_value(f, "a value", text, e);
    case FLAG_INT:
    case FLAG_U32:
        snprintf(what, sizeof what, "a whole number from %lld to %lld", (long long)f->lo, (long long)f->hi);
        if (!number_int(text, f->lo, f->hi, &whole))
            return bad_value(f, what, text, e);
        if (f->kind == FLAG_U32)
            *(uint32_t *)field = (uint32_t)whole;
        else
            *(int64_t *)field = whole;
        return 0;
    case FLAG_REAL:
        if (!number_real(text, &real) || real > 1e30 || real < -1e30)
            return bad_value(f, "a number", text, e);
        *(float *)field = (float)real;
        return 0;
    case FLAG_BYTES:
        return number_bytes(text, field) ? 0 : bad_value(f, "a size like 512M, 4G or 1.5GiB", text, e);
    case FLAG_LIST:
        snprintf(what, sizeof what, "up to %d whole numbers from %lld to %lld with commas", NUMBER_LIST_MAX,
                 (long long)f->lo, (long long)f->hi);
        return number_list(text, f->lo, f->hi, field) ? 0 : bad_value(f, what, text, e);
    case FLAG_SHARES:
        return number_shares(text, field) ? 0 : bad_value(f, "numbers above 0 with commas, as 3,1", text, e);
    case FLAG_SIZES:
        return number_bytes_list(text, field)
                   ? 0
                   : bad_value(f, "a size like 512M, 4G or 1.5GiB, or several with commas", text, e);
    case FLAG_PLACE:
        return number_place(text, field)
                   ? 0
                   : bad_value(f, "gpu, cpu or cpu:SHARE, a SHARE of more than 0 and less than 1", text, e);
    case FLAG_CHOICE:
        *(int *)field = find_choice(f->choices, text);
        return *(int *)field >= 0 ? 0 : bad_value(f, f->choices, text, e);
    default:
        return err_set(e, ERR_USAGE, "a flag of this kind has no value");
    }
}

static int parser_store(const struct parser *p, void *into, struct moeflux_err *e)
{
    int rc = 0;
    for (size_t i = 0; i < p->n_args && rc == 0; i++) {
        const struct flag *f = p->owner[i];
        void *field = (char *)into + f->at;
        char name[64];
        bool is_switch = f->kind == FLAG_SWITCH;
        const struct arg_str *arg = is_switch ? NULL : p->args[i];
        int count = is_switch ? ((const struct arg_lit *)p->args[i])->count : arg->count;
        if (count > 0 && p->takes && !p->takes(f))
            rc = f->kind == FLAG_OPERAND && arg
                     ? err_set(e, ERR_USAGE, "unexpected argument \"%s\"", arg->sval[0])
                     : err_set(e, ERR_USAGE, "%s does not apply here", flag_name(f, name, sizeof name));
        else if (is_switch)
            *(bool *)field |= count > 0;
        else if (f->kind == FLAG_TEXTS && count > 0)
            rc = add_texts(f, arg, field, e);
        else if (count > 0)
            rc = set_value(f, arg->sval[arg->count - 1], field, e);
        else if (f->kind == FLAG_OPERAND && f->hi == 0)
            rc = err_set(e, ERR_USAGE, "%s is missing (--help shows the usage)",
                         flag_name(f, name, sizeof name));
    }
    return rc;
}

/* help NULL: there is no such switch. */
static bool help_was_given(const struct parser *p, const void *into, const bool *help)
{
    for (size_t i = 0; i < p->n_args; i++)
        if ((const char *)into + p->owner[i]->at == (const char *)help)
            return ((const struct arg_lit *)p->args[i])->count > 0;
    return false;
}

static int parse(struct parser *p, int argc, char **argv, void *into, const bool *help, struct moeflux_err *e)
{
    int rc = parser_build(p, argc, e);
    if (rc == 0) {
        int n_faults = arg_parse(argc, argv, p->args);
        if (help_was_given(p, into, help))
            memset((char *)into + ((const char *)help - (const char *)into), true, sizeof(bool));
        else
            rc = n_faults ? first_fault(p, argc, argv, e) : parser_store(p, into, e);
    }
    arg_freetable(p->args, p->n_args + 1);
    return rc;
}

int flags_parse(const struct flag *table, size_t n, int argc, char **argv, void *into, const bool *help,
                struct moeflux_err *e)
{
    struct parser p = {.flags = table, .n = n};
    return parse(&p, argc, argv, into, help, e);
}

int flags_given(const struct flag *table, size_t n, int argc, char **argv, bool *given, struct moeflux_err *e)
{
    struct parser p = {.flags = table, .n = n};
    int rc = parser_build(&p, argc, e);
    memset(given, 0, n * sizeof *given);
    if (rc == 0)
        arg_parse(argc, argv, p.args);
    for (size_t i = 0; i < p.n_args && rc == 0; i++)
        given[p.owner[i] - table] = p.owner[i]->kind == FLAG_SWITCH
                                        ? ((const struct arg_lit *)p.args[i])->count > 0
                                        : ((const struct arg_str *)p.args[i])->count > 0;
    arg_freetable(p.args, p.n_args + 1);
    return rc;
}

/* Whether `name` is one of "predict,n-predict". */
static bool has_name(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (; names; names = strchr(names, ',') ? strchr(names, ',') + 1 : NULL)
        if (strcspn(names, ",") == len && memcmp(names, name, len) == 0)
            return true;
    return false;
}

const struct flag *flags_find(const struct flag *table, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].kind != FLAG_HEADING && *name && has_name(table[i].longs, name))
            return &table[i];
    return NULL;
}

int flags_set(const struct flag *f, const char *text, void *into, struct moeflux_err *e)
{
    void *field = (char *)into + f->at;
    bool is_true = strcmp(text, "true") == 0;
    if (f->kind == FLAG_TEXTS) {
        *(struct texts *)field = (struct texts){1, {text}};
        return *text ? 0 : bad_value(f, "a value", text, e);
    }
    if (f->kind != FLAG_SWITCH)
        return set_value(f, text, field, e);
    if (!is_true && strcmp(text, "false") != 0)
        return bad_value(f, "true or false", text, e);
    *(bool *)field = is_true;
    return 0;
}

const char *flags_choice(const struct flag *f, uint32_t i, char word[FLAG_CHOICE_TEXT])
{
    const char *at = f->choices ? f->choices : "";
    for (; *at; i--) {
        size_t n = strcspn(at, ", ");
        if (i == 0 && n < FLAG_CHOICE_TEXT) {
            snprintf(word, FLAG_CHOICE_TEXT, "%.*s", (int)n, at);
            return word;
        }
        at += n;
        at += strncmp(at, " or ", 4) == 0 ? 4 : strspn(at, ", ");
    }
    return NULL;
}

int flags_parse_part(const struct flag *table, size_t n, bool (*takes)(const struct flag *f), int argc,
                     char **argv, void *into, struct moeflux_err *e)
{
    struct parser p = {.flags = table, .n = n, .takes = takes};
    return parse(&p, argc, argv, into, NULL, e);
}

void flags_help(const struct flag *table, size_t n, struct str *out)
{
    for (size_t i = 0; i < n; i++) {
        const struct flag *f = &table[i];
        char left[64];
        if (!f->help)
            continue;
        if (f->kind == FLAG_HEADING) {
            str_addf(out, "\n%s\n", f->help);
            continue;
        }
        int at = f->kind == FLAG_OPERAND ? snprintf(left, sizeof left, "  ")
                 : f->shorts             ? snprintf(left, sizeof left, "  -%s", f->shorts)
                                         : snprintf(left, sizeof left, "    ");
        if (f->kind != FLAG_OPERAND && f->longs)
            at += snprintf(left + at, sizeof left - (size_t)at, "%s--%.*s", f->shorts ? ", " : "  ",
                           (int)strcspn(f->longs, ","), f->longs);
        if (f->value)
            snprintf(left + at, sizeof left - (size_t)at, "%s%s", f->kind == FLAG_OPERAND ? "" : " ",
                     f->value);
        str_addf(out, "%-*s%s%s\n", HELP_COLUMN, left, strlen(left) < HELP_COLUMN ? "" : "  ", f->help);
    }
}
