#include "cli/options/completion.h"

#include <string.h>

#include "base/err.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "cli/output.h"

/* `help` and its operand, the commands that have help texts of their own. */
static const struct flag help_flags[] = {{FLAG_OPERAND, NULL, NULL, "COMMAND", "a command", 0, 0, 1,
                                          "serve, convert, inspect, get, doctor or completion"}};
static const struct defaults_command help_command = {"help", "the options of a command", help_flags, 1};

enum { N_COMMANDS = OPTIONS_COMMANDS + 2 };

/* Returns a command; the first has no name. */
static const struct defaults_command *command_at(size_t i)
{
    return i < OPTIONS_COMMANDS    ? &options_commands[i]
           : i == OPTIONS_COMMANDS ? &options_completion
                                   : &help_command;
}

/* Names of the first command, which may be followed by a model without -m. */
static const char *const runs[][2] = {{"run", "an answer or a conversation"},
                                      {"chat", "an answer or a conversation"},
                                      {"bench", "the speed of prefill and decode"}};
enum { N_RUNS = sizeof runs / sizeof *runs };

/* What may follow a flag. */
enum value {
    VALUE_NONE,
    VALUE_WORDS, /* the flag's choices */
    VALUE_DIR,
    VALUE_FILE, /* or a directory */
    VALUE_OTHER,
};

static enum value value_of(const struct flag *f)
{
    if (f->kind == FLAG_SWITCH)
        return VALUE_NONE;
    if (f->choices)
        return VALUE_WORDS;
    if (strcmp(f->value, "FILE") == 0 || strcmp(f->value, "MODEL") == 0)
        return VALUE_FILE;
    /* "DIR,..": the last item of a list is completed like a single directory. */
    return strncmp(f->value, "DIR", 3) == 0 || f->kind == FLAG_OPERAND ? VALUE_DIR : VALUE_OTHER;
}

static void put_words(const struct flag *f, struct output *out)
{
    char word[FLAG_CHOICE_TEXT];
    for (uint32_t i = 0; flags_choice(f, i, word); i++)
        output_addf(out, "%s%s", i ? " " : "", word);
}

/* Prints each of a flag's names with its dashes, and `between` between them. */
static void put_names(const struct flag *f, const char *between, struct output *out)
{
    const char *gap = "";
    if (f->shorts) {
        output_addf(out, "-%s", f->shorts);
        gap = between;
    }
    for (const char *at = f->longs; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        output_addf(out, "%s--%.*s", gap, (int)strcspn(at, ","), at);
        gap = between;
    }
}

static bool is_flag(const struct flag *f)
{
    return f->kind != FLAG_HEADING && f->kind != FLAG_OPERAND;
}

/* An operand that the help text leaves out is not completed. */
static bool is_operand(const struct flag *f)
{
    return f->kind == FLAG_OPERAND && f->help;
}

/* Prints text that stands between single quotes, with a backslash before each character of `special`. */
static void put_quoted(const char *text, const char *special, struct output *out)
{
    for (; *text; text++) {
        if (*text == '\'')
            output_text(out, "'\\''");
        else
            output_addf(out, "%s%c", strchr(special, *text) ? "\\" : "", *text);
    }
}

/* --- bash --- */

static const char bash_head[] = "# bash completion for moeflux, made by `moeflux completion bash`\n"
                                "\n"
                                "_moeflux() {\n"
                                "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
                                "flags='' values='' operands=''\n"
                                "    # --flag=value is three words.\n"
                                "    if [[ $cur == = ]]; then\n"
                                "        cur=''\n"
                                "    elif [[ $prev == = ]]; then\n"
                                "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
                                "    fi\n"
                                "    COMPREPLY=()\n";

static const char bash_tail[] =
    "    if [[ $values == - ]]; then\n"
    "        return\n"
    "    elif [[ -n $values ]]; then\n"
    "        operands=$values\n"
    "    elif [[ $cur == -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$cur\")\n"
    "        return\n"
    "    fi\n"
    "    case $operands in\n"
    "    /) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -d -- \"$cur\") ;;\n"
    "    .) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
    "    *) mapfile -t COMPREPLY < <(compgen -W \"$operands\" -- \"$cur\") ;;\n"
    "    esac\n"
    "}\n"
    "complete -F _moeflux moeflux\n";

static void put_bash_value(const struct flag *f, struct output *out)
{
    switch (value_of(f)) {
    case VALUE_NONE:
        return;
    case VALUE_WORDS:
        output_text(out, "'");
        put_words(f, out);
        output_text(out, "'");
        return;
    case VALUE_DIR:
        output_text(out, "/");
        return;
    case VALUE_FILE:
        output_text(out, ".");
        return;
    default:
        output_text(out, "-");
    }
}

/* Prints what a word without dashes may be: for run the other commands, if it is the first word; else the
 * command's operand. */
static void put_bash_operands(const struct defaults_command *c, struct output *out)
{
    output_text(out, "        operands=''");
    if (c == options_commands) {
        output_text(out, "\n        ((COMP_CWORD > 1)) || operands='");
        for (size_t i = 1; i < N_COMMANDS; i++)
            output_addf(out, "%s ", command_at(i)->section);
        output_text(out, "run chat bench'\n"
                         "        [[ $COMP_CWORD == 1 || ${COMP_WORDS[1]} != @(run|chat|bench) ]] || "
                         "operands=.\n");
        return;
    }
    for (size_t i = 0; i < c->n; i++)
        if (is_operand(&c->flags[i])) {
            put_bash_value(&c->flags[i], out);
            break;
        }
    output_text(out, "\n");
}

static void put_bash_command(const struct defaults_command *c, struct output *out)
{
    output_addf(out, "    %s)\n        case $prev in\n", c == options_commands ? "*" : c->section);
    for (size_t i = 0; i < c->n; i++) {
        if (!is_flag(&c->flags[i]) || value_of(&c->flags[i]) == VALUE_NONE)
            continue;
        output_text(out, "        ");
        put_names(&c->flags[i], " | ", out);
        output_text(out, ") values=");
        put_bash_value(&c->flags[i], out);
        output_text(out, " ;;\n");
    }
    output_text(out, "        esac\n        flags='");
    for (size_t i = 0, n = 0; i < c->n; i++)
        if (is_flag(&c->flags[i])) {
            output_text(out, n++ ? " " : "");
            put_names(&c->flags[i], " ", out);
        }
    output_text(out, "'\n");
    put_bash_operands(c, out);
    output_text(out, "        ;;\n");
}

static void put_bash(struct output *out)
{
    output_text(out, bash_head);
    output_text(out, "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = N_COMMANDS; i > 0; i--)
        put_bash_command(command_at(i - 1), out);
    output_text(out, "    esac\n");
    output_text(out, bash_tail);
}

/* --- zsh --- */

static void put_zsh_value(const struct flag *f, struct output *out)
{
    if (value_of(f) == VALUE_NONE)
        return;
    output_text(out, ":");
    put_quoted(f->value, ":", out);
    output_text(out, ":");
    if (value_of(f) == VALUE_WORDS) {
        output_text(out, "(");
        put_words(f, out);
        output_text(out, ")");
    } else if (value_of(f) == VALUE_DIR) {
        output_text(out, "_path_files -/");
    } else if (value_of(f) == VALUE_FILE) {
        output_text(out, "_files");
    }
}

static void put_zsh_spec(const struct flag *f, const char *name, size_t len, struct output *out)
{
    output_text(out, "            '");
    if (f->kind == FLAG_TEXTS) {
        output_text(out, "*");
    } else {
        output_text(out, "(");
        put_names(f, " ", out);
        output_text(out, ")");
    }
    bool is_long = len > 1;
    output_addf(out, "%s%.*s%s[", is_long ? "--" : "-", (int)len, name,
                value_of(f) == VALUE_NONE ? ""
                : is_long                 ? "="
                                          : "+");
    put_quoted(f->help, "[]:", out);
    output_text(out, "]");
    put_zsh_value(f, out);
    output_text(out, "'\n");
}

static void put_zsh_command(const struct defaults_command *c, struct output *out)
{
    uint32_t n_operands = 0;
    output_addf(out, "    %s)\n        specs=(\n", c == options_commands ? "*" : c->section);
    for (size_t i = 0; i < c->n; i++) {
        const struct flag *f = &c->flags[i];
        if (is_operand(f)) {
            output_addf(out, "            '%u", ++n_operands);
            put_zsh_value(f, out);
            output_text(out, "'\n");
        }
        if (!is_flag(f))
            continue;
        if (f->shorts)
            put_zsh_spec(f, f->shorts, 1, out);
        for (const char *at = f->longs; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
            put_zsh_spec(f, at, strcspn(at, ","), out);
    }
    if (c == options_commands) {
        output_text(out, "            '1:command:((");
        for (size_t i = 1; i < N_COMMANDS + N_RUNS; i++) {
            const char *const *as_run = i < N_COMMANDS ? NULL : runs[i - N_COMMANDS];
            output_addf(out, "%s%s\\:\"", i > 1 ? " " : "", as_run ? as_run[0] : command_at(i)->section);
            put_quoted(as_run ? as_run[1] : command_at(i)->help, ":\"", out);
            output_text(out, "\"");
        }
        output_text(out, "))'\n");
    }
    output_text(out, "        )\n        ;;\n");
}

static void put_zsh(struct output *out)
{
    output_text(out, "#compdef moeflux\n"
                     "# zsh completion for moeflux, made by `moeflux completion zsh`\n"
                     "\n"
                     "_moeflux() {\n"
                     "    local -a specs\n"
                     "    local command=\n"
                     "    ((CURRENT < 3)) || command=$words[2]\n"
                     "    case $command in\n");
    for (size_t i = N_COMMANDS; i > 0; i--)
        put_zsh_command(command_at(i - 1), out);
    output_text(out, "    esac\n"
                     "    [[ $command != (run|chat|bench) ]] || "
                     "specs=(${specs:#1:command:*} '1:model:_files')\n"
                     "    # What follows a command is completed as if the command were the program.\n"
                     "    case $command in\n    ");
    for (size_t i = 1; i < N_COMMANDS; i++)
        output_addf(out, "%s|", command_at(i)->section);
    output_text(out, "run|chat|bench) shift words; ((CURRENT--)) ;;\n"
                     "    esac\n"
                     "    _arguments -s $specs\n"
                     "}\n"
                     "\n"
                     /* If the file is loaded by name it is the function itself; if it is sourced it registers
                      * the function. */
                     "if [ \"$funcstack[1]\" = _moeflux ]; then\n"
                     "    _moeflux \"$@\"\n"
                     "else\n"
                     "    compdef _moeflux moeflux\n"
                     "fi\n");
}

/* --- fish --- */

static void put_fish_value(const struct flag *f, struct output *out)
{
    switch (value_of(f)) {
    case VALUE_NONE:
        return;
    case VALUE_WORDS:
        output_text(out, " -x -a '");
        put_words(f, out);
        output_text(out, "'");
        return;
    case VALUE_DIR:
        output_text(out, " -x -a '(__fish_complete_directories)'");
        return;
    case VALUE_FILE:
        output_text(out, " -r -F");
        return;
    default:
        output_text(out, " -x");
    }
}

static void put_fish_start(const struct defaults_command *c, struct output *out)
{
    output_addf(out, "complete -c moeflux -n '__moeflux_is %s'", c->section);
}

static void put_fish_flag(const struct defaults_command *c, const struct flag *f, struct output *out)
{
    put_fish_start(c, out);
    if (f->kind == FLAG_OPERAND) {
        if (value_of(f) == VALUE_WORDS) {
            output_text(out, " -a '");
            put_words(f, out);
            output_text(out, "'\n");
            return;
        }
        output_text(out, value_of(f) == VALUE_FILE ? " -F\n" : " -a '(__fish_complete_directories)'\n");
        return;
    }
    if (f->shorts)
        output_addf(out, " -s %s", f->shorts);
    for (const char *at = f->longs; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        output_addf(out, " -l %.*s", (int)strcspn(at, ","), at);
    put_fish_value(f, out);
    output_text(out, " -d '");
    put_quoted(f->help, "\\", out);
    output_text(out, "'\n");
}

static void put_fish(struct output *out)
{
    output_text(out, "# fish completion for moeflux, made by `moeflux completion fish`\n"
                     "\n"
                     "function __moeflux_is\n"
                     "    set -l words (commandline -opc)\n"
                     "    set -l command run\n"
                     "    if test (count $words) -ge 2; and contains -- $words[2]");
    for (size_t i = 1; i < N_COMMANDS; i++)
        output_addf(out, " %s", command_at(i)->section);
    output_text(out, "\n"
                     "        set command $words[2]\n"
                     "    end\n"
                     "    test $command = $argv[1]\n"
                     "end\n"
                     "\n"
                     "complete -c moeflux -f\n");
    for (size_t i = 1; i < N_COMMANDS + N_RUNS; i++) {
        const char *const *as_run = i < N_COMMANDS ? NULL : runs[i - N_COMMANDS];
        output_addf(out, "complete -c moeflux -n 'test (count (commandline -opc)) -eq 1' -a %s -d '",
                    as_run ? as_run[0] : command_at(i)->section);
        put_quoted(as_run ? as_run[1] : command_at(i)->help, "\\", out);
        output_text(out, "'\n");
    }
    output_text(out, "complete -c moeflux -n 'contains -- (commandline -opc)[2] run chat bench' -F\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        for (size_t k = 0; k < command_at(i)->n; k++)
            if (is_flag(&command_at(i)->flags[k]) || is_operand(&command_at(i)->flags[k]))
                put_fish_flag(command_at(i), &command_at(i)->flags[k], out);
}

int completion_run(const struct options *o, struct output *out, struct moeflux_err *e)
{
    if (strcmp(o->shell, "bash") == 0)
        put_bash(out);
    else if (strcmp(o->shell, "zsh") == 0)
        put_zsh(out);
    else if (strcmp(o->shell, "fish") == 0)
        put_fish(out);
    else
        return err_set(e, ERR_USAGE, "completion: expected bash, zsh or fish, found \"%.64s\"", o->shell);
    return output_flush(out, e);
}
