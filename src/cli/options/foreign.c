#include "cli/options/foreign.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "cli/options/defaults.h"
#include "cli/options/flags.h"

/* One pass over the words of a command line. */
struct walk {
    struct foreign *out;
    const struct defaults_command *command, *commands;
    size_t n_commands;
    int argc;
    char **argv;
    struct moeflux_err *e;
};

/* ---- names and patterns ---- */

/* Whether the word matches a pattern of a list with the separator `sep`. */
static bool matches(const char *patterns, char sep, const char *word)
{
    char one[96];
    for (const char *at = patterns; *at;) {
        const char *end = strchr(at, sep);
        size_t n = end ? (size_t)(end - at) : strlen(at);
        snprintf(one, sizeof one, "%.*s", (int)n, at);
        if (fnmatch(one, word, FNM_NOESCAPE) == 0)
            return true;
        at += n + (end != NULL);
    }
    return false;
}

/* Whether `names` ("predict,n-predict") has the name [n], or one that begins with it. */
static bool has_name(const char *names, const char *name, size_t n, bool whole)
{
    for (; names; names = strchr(names, ',') ? strchr(names, ',') + 1 : NULL) {
        size_t len = strcspn(names, ",");
        if ((len == n || (!whole && len > n)) && memcmp(names, name, n) == 0)
            return true;
    }
    return false;
}

/* Returns the flag that a word names: "-m", "--model", "--model=DIR"; not whole: "--mod", too. */
static const struct flag *own_flag(const struct defaults_command *c, const char *word, bool whole)
{
    bool is_long = word[0] == '-' && word[1] == '-';
    size_t n = is_long ? strcspn(word + 2, "=") : 1;
    if (word[0] != '-' || n == 0 || (!is_long && (!word[1] || word[2])))
        return NULL;
    for (size_t i = 0; i < c->n; i++) {
        const struct flag *f = &c->flags[i];
        if (f->kind == FLAG_HEADING || f->kind == FLAG_OPERAND)
            continue;
        if (is_long ? has_name(f->longs, word + 2, n, whole) : f->shorts && strchr(f->shorts, word[1]))
            return f;
    }
    return NULL;
}

static bool is_help(const char *word)
{
    return strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0;
}

/* -h counts wherever it stands, as in -m -h, except where any text may stand. */
static bool asks_for_help(const struct defaults_command *c, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const struct flag *own = own_flag(c, argv[i], true);
        bool is_text =
            own && own->value && (strcmp(own->value, "TEXT") == 0 || strcmp(own->value, "SETTING") == 0);
        if (is_help(argv[i]))
            return true;
        i += is_text && !(argv[i][1] == '-' && strchr(argv[i], '='));
    }
    return false;
}

/* ---- the new command line ---- */

/* The borrowed texts are not written to, as main's are not. */
static void push(struct foreign *x, const char *word)
{
    memcpy(&x->argv[x->argc++], &word, sizeof word);
}

/* A note is shown once, for the first flag that has it. */
static void note(struct foreign *x, const char *name, size_t n, const char *text)
{
    if (!x->notes.len || !strstr(str_text(&x->notes), text))
        str_addf(&x->notes, "%.*s: %s\n", (int)n, name, text);
}

/* Flags with one counterpart must agree: -ctk f16 -ctv q8_0 means something else. */
static int add_alias(struct walk *w, const char *name, size_t n, const char *flag, const char *value)
{
    struct foreign *x = w->out;
    if (!own_flag(w->command, flag, true))
        return err_set(w->e, ERR_USAGE, "%.*s, here %s, is no flag of moeflux %s", (int)n, name, flag,
                       w->command->section);
    bool repeats = own_flag(w->command, flag, true)->kind == FLAG_TEXTS;
    for (int i = 1; i + 1 < x->argc; i++)
        if (value && !repeats && strcmp(x->argv[i], flag) == 0 && strcmp(x->argv[i + 1], value) != 0)
            return err_set(w->e, ERR_USAGE, "%.*s %s: %s is %s already, and there is one for all", (int)n,
                           name, value, flag, x->argv[i + 1]);
    push(x, flag);
    push(x, value);
    return 0;
}

static int add_word(struct walk *w, const char *name, size_t n, const char *word)
{
    if (!own_flag(w->command, word, true))
        return err_set(w->e, ERR_USAGE, "%.*s, here %s, is no flag of moeflux %s", (int)n, name, word,
                       w->command->section);
    push(w->out, word);
    return 0;
}

/* Whether the command has the flags that an advice names outside of quoted command lines. -m stands for the
 * model everywhere. */
static bool has_flags_of(const struct defaults_command *c, const char *advice)
{
    char word[32];
    bool is_quoted = false;
    for (size_t n = 0; *advice; advice += n) {
        n = strcspn(advice, " ,;:()\"");
        snprintf(word, sizeof word, "%.*s", (int)n, advice);
        if (!is_quoted && word[0] == '-' && word[1] && strcmp(word, "-m") != 0 && !own_flag(c, word, true))
            return false;
        is_quoted ^= n == 0 && *advice == '"';
        n += n == 0;
    }
    return true;
}

/* Says what to do instead. An advice for `run` may be none for another command. */
static int refuse(const struct walk *w, const struct foreign_flag *f, const char *name, size_t n,
                  const char *value)
{
    if (w->command != w->commands && !has_flags_of(w->command, f->text))
        return err_set(w->e, ERR_USAGE, "%.*s: moeflux %s has nothing like it: leave it out", (int)n, name,
                       w->command->section);
    return f->value ? err_set(w->e, ERR_USAGE, "%.*s %s: %s", (int)n, name, value, f->text)
                    : err_set(w->e, ERR_USAGE, "%.*s: %s", (int)n, name, f->text);
}

static int apply(struct walk *w, const struct foreign_flag *f, const char *name, size_t n, const char *value)
{
    switch (f->kind) {
    case FOREIGN_ALIAS:
        return add_alias(w, name, n, f->text, value);
    case FOREIGN_WORD:
        return add_word(w, name, n, f->text);
    case FOREIGN_ALWAYS:
        note(w->out, name, n, f->text);
        return 0;
    default:
        return refuse(w, f, name, n, value);
    }
}

/* Looks for argv[*at] in a table. Returns 1 if it is there, with *at on the last word used; 0 if not. */
static int take(struct walk *w, const struct foreign_flag *table, int *at)
{
    const char *word = w->argv[*at], *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    const char *value = equals ? equals + 1 : *at + 1 < w->argc ? w->argv[*at + 1] : NULL;
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    char name[96];
    bool known = false;
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    for (const struct foreign_flag *f = table; f->names && n < sizeof name; f++) {
        if (!matches(f->names, ',', name))
            continue;
        known = true;
        if (f->value && !(value && matches(f->value, '|', value)))
            continue;
        int rc = apply(w, f, word, n, value);
        *at += f->value && !equals;
        return rc < 0 ? rc : 1;
    }
    if (known && !value)
        return err_set(w->e, ERR_USAGE, "%s needs a value", name);
    return known ? err_set(w->e, ERR_USAGE, "%s: the value \"%s\" means nothing here", name, value) : 0;
}

static bool is_among(const struct walk *w, const char *word)
{
    int i = 1;
    while (i < w->argc && strcmp(w->argv[i], word) != 0)
        i++;
    return i < w->argc;
}

/* A flag of another command says whose it is. Its value may be a key, and is not shown. */
static int refuse_others(const struct walk *w, const char *word)
{
    char own[32];
    snprintf(own, sizeof own, " %s", w->command->section);
    for (size_t i = 0; i < w->n_commands; i++)
        if (own_flag(&w->commands[i], word, true))
            return err_set(w->e, ERR_USAGE, "%.*s belongs to moeflux%s%s%s%s", (int)strcspn(word, "="), word,
                           i ? " " : "", i ? w->commands[i].section : "",
                           is_among(w, w->commands[i].section) ? ": the command goes first"
                                                               : "; --help lists the flags of moeflux",
                           is_among(w, w->commands[i].section) || w->command == w->commands ? "" : own);
    return 0;
}

/* Replaces a switch with a value by a switch: --json=full, and --think=VALUE, which is Ollama's. */
static int use_switch_value(const struct walk *w, const char **word)
{
    static const char *const values[][2] = {
        {"--json=full", "--json-full"},        {"--think=true", "--think"},
        {"--think=false", "--no-think"},       {"--think=low", "--effort=low"},
        {"--think=medium", "--effort=medium"}, {"--think=high", "--effort=high"}};
    bool is_json = strncmp(*word, "--json=", 7) == 0 && own_flag(w->command, "--json-full", true);
    bool is_think = strncmp(*word, "--think=", 8) == 0 && own_flag(w->command, "--think", true);
    if (!is_json && !is_think)
        return 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(*word, values[i][0]) == 0) {
            *word = values[i][1];
            return 0;
        }
    return is_json
               ? err_set(w->e, ERR_USAGE, "--json: expected --json or --json=full, found \"%s\"", *word)
               : err_set(w->e, ERR_USAGE,
                         "--think: expected no value, true, false, low, medium or high, found \"%s\"", *word);
}

/* Refuses "-embd", which getopt would read as -e with the value "mbd". A number may follow a letter: -n5. */
static int refuse_letters(const struct walk *w, const char *word)
{
    char first[3];
    snprintf(first, sizeof first, "%s", word);
    if (word[0] != '-' || !isalpha((unsigned char)word[1]) || !isalpha((unsigned char)word[2]))
        return 0;
    return own_flag(w->command, first, true)
               ? err_set(w->e, ERR_USAGE, "unknown option %s (--help lists them; a blank follows %s)", word,
                         first)
               : err_set(w->e, ERR_USAGE, "unknown option %s (--help lists them)", word);
}

/* Takes -m MODEL of a command whose model is a word without a flag. */
static bool takes_model_as_word(struct walk *w, int *at)
{
    const char *word = w->argv[*at], *value = str_after(word, "--model=");
    const struct flag *f = flags_find(w->command->flags, w->command->n, "model");
    if (!f || f->kind != FLAG_OPERAND)
        return false;
    if (!value && *at + 1 < w->argc && (strcmp(word, "-m") == 0 || strcmp(word, "--model") == 0))
        value = w->argv[++*at];
    if (value)
        push(w->out, value);
    return value != NULL;
}

/* Translates argv[*at]. */
static int walk_word(struct walk *w, int *at)
{
    const char *word = w->argv[*at];
    if (use_switch_value(w, &word))
        return ERR_USAGE;
    const struct flag *own = own_flag(w->command, word, true);
    int taken = w->out->is_bench ? take(w, foreign_bench_flags, at) : 0;
    if (!taken && !own)
        taken = take(w, foreign_flags, at);
    if (taken)
        return taken < 0 ? taken : 0;
    if (!own && takes_model_as_word(w, at))
        return 0;
    if (!own && (refuse_others(w, word) || refuse_letters(w, word)))
        return ERR_USAGE;
    if (!own)
        own = own_flag(w->command, word, false);
    if (own && strcmp(own->longs ? own->longs : "", "model") == 0)
        w->out->n_operands = w->out->n_operands ? w->out->n_operands : 1;
    if (!own && word[0] != '-' && w->out->takes_operands && w->out->n_operands < 2)
        push(w->out, w->out->n_operands++ ? "--prompt" : "--model");
    push(w->out, word);
    bool has_value = own && own->kind != FLAG_SWITCH && !(word[1] == '-' && strchr(word, '='));
    if (has_value && *at + 1 < w->argc)
        push(w->out, w->argv[++*at]);
    return 0;
}

int foreign_translate(struct foreign *x, const struct defaults_command *c,
                      const struct defaults_command *commands, size_t n, int argc, char **argv,
                      struct moeflux_err *e)
{
    struct walk w = {x, c, commands, n, argc, argv, e};
    int at = 1, rc = 0;
    x->help |= asks_for_help(c, argc, argv);
    /* A word becomes two at most; --bench is one more. */
    x->argv = mem_new(2 * (size_t)argc + 2, sizeof *x->argv, e);
    if (!x->argv)
        return ERR_MEMORY;
    push(x, argv[0]);
    if (x->is_bench)
        push(x, "--bench");
    for (; at < argc && rc == 0 && !x->help && strcmp(argv[at], "--") != 0; at++)
        rc = walk_word(&w, &at);
    for (; at < argc && rc == 0 && !x->help; at++)
        push(x, argv[at]);
    if (!str_ok(&x->notes))
        rc = err_set(e, ERR_MEMORY, "out of memory for the flags");
    return rc;
}

/* ---- commands ---- */

/* The words that stand for the command without a name. */
static bool is_run(const char *word)
{
    return strcmp(word, "run") == 0 || strcmp(word, "chat") == 0 || strcmp(word, "bench") == 0;
}

bool foreign_has_help(const char *word)
{
    return is_run(word) || *word == '-';
}

int foreign_command(struct foreign *x, int *argc, char ***argv, struct moeflux_err *e)
{
    static const struct {
        const char *names, *instead;
    } none[] = {
        {"list,ls", "\"hf cache ls\" lists what is downloaded, and a model is a directory"},
        {"create", "man moeflux-config says how settings are kept for a model"},
        {"pull,download", "\"moeflux get USER/MODEL\" fetches a model, then moeflux -m USER/MODEL"},
        {"rm,cp,push,ps,stop", "a model is a directory, and a server a process: rm, cp, ps and kill"},
        {"show", "moeflux inspect MODEL"},
        {"quantize", "moeflux convert SRC DST --bits 4"},
        {"server", "moeflux serve -m MODEL"},
        {"cli,generate", "moeflux -m MODEL -p TEXT"},
        {"perplexity", "moeflux -m MODEL --perplexity FILE"},
        {"version", "moeflux --version"},
    };
    const char *word = *argc > 1 ? (*argv)[1] : "";
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (*word && matches(none[i].names, ',', word))
            return err_set(e, ERR_USAGE, "\"%s\" is no command: %s", word, none[i].instead);
    x->is_bench = strcmp(word, "bench") == 0;
    x->takes_operands = is_run(word);
    x->help = strcmp(word, "help") == 0 || (is_help(word) && *argc == 3 && (*argv)[2][0] != '-');
    *argc -= x->takes_operands || x->help;
    *argv += x->takes_operands || x->help;
    return 0;
}

void foreign_free(struct foreign *x)
{
    free(x->argv);
    str_free(&x->notes);
    *x = (struct foreign){0};
}
