#include "cli/talk/interactive.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/options/answer_grammar.h"
#include "cli/options/closest.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/run.h"
#include "cli/talk/adjust.h"
#include "cli/talk/saved.h"
#include "cli/say.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/report/stats.h"
#include "cli/talk/talk.h"
#include "cli/terminal/editor.h"
#include "cli/terminal/line.h"
#include "cli/terminal/term.h"
#include "moeflux_chat.h"

/* SHOWN_TURNS: last turns that are printed when a saved conversation is resumed */
enum { SHOWN_TURNS = 2 };

/* ---- commands ---- */

static int command_help(struct talk *t, const char *argument, struct moeflux_err *e);

/* Reports a command's failure, if rc is one. Returns 0: the conversation goes on. */
static int report_failure(int rc, const struct moeflux_err *e)
{
    if (rc)
        exit_report(rc, e);
    signals_clear();
    return 0;
}

static size_t n_turns(const struct talk *t)
{
    return moeflux_conversation_list(t->conversation, NULL, 0);
}

static int command_clear(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    talk_note(t, "[a new conversation]");
    char *system = talk_system(t) ? mem_text(talk_system(t), e) : NULL;
    int rc = talk_system(t) && !system ? ERR_MEMORY : talk_clear(t, system, e);
    free(system);
    return rc;
}

/* Whether the user says yes to `question`, which says what is lost. */
static bool agrees(struct talk *t, const char *question)
{
    const char *answer;
    enum line_event event = line_read(t->line, question, &answer);
    bool yes = event == LINE_TEXT && (strcasecmp(answer, "y") == 0 || strcasecmp(answer, "yes") == 0);
    if (event == LINE_END)
        say("\n");
    if (!yes)
        talk_note(t, "[nothing was changed]");
    return yes;
}

static int show_system(const struct talk *t)
{
    if (talk_system(t))
        say("%s\n", talk_system(t));
    else
        talk_note(t, "[no system text]");
    return 0;
}

/* Shows the system text, or replaces it. Asks before only if turns would be lost: a saved conversation has
 * its file. */
static int command_system(struct talk *t, const char *argument, struct moeflux_err *e)
{
    size_t n = n_turns(t);
    char question[160];
    if (!*argument)
        return show_system(t);
    snprintf(
        question, sizeof question,
        "A new system text begins a new conversation; %zu question%s and answer%s are lost. Go on? [y/N] ", n,
        n == 1 ? "" : "s", n == 1 ? "" : "s");
    if (n && !t->name && !agrees(t, question))
        return 0;
    bool none = strcmp(argument, "-") == 0;
    int rc = talk_clear(t, none ? NULL : argument, e);
    talk_note(t, none ? "[a new conversation without system text]"
                      : "[a new conversation with this system text]");
    return rc;
}

static int command_undo(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    return talk_undo(t, e);
}

static int command_retry(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    return talk_retry(t, e);
}

/* Lets the user edit the text. *start: its first word. Returns 0; 1: there is no text, which has been
 * reported. */
static int edit_text(struct talk *t, struct str *text, const char **start, struct moeflux_err *e)
{
    int rc = editor_run(text, e);
    signals_clear();
    if (rc) {
        report_failure(rc, e);
        return 1;
    }
    *start = str_text(text) + strspn(str_text(text), " \t\r\n");
    if (**start)
        return 0;
    talk_note(t, "[the text is empty: nothing is asked]");
    return 1;
}

static int command_edit(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    const char *last = talk_last(t).question;
    struct str text = {0};
    const char *start;
    int rc = 0;
    if (!last) {
        talk_note(t, "[nothing was asked yet: /write writes a question in $EDITOR]");
        return 0;
    }
    str_add_text(&text, last);
    if (edit_text(t, &text, &start, e) == 0) {
        if (strcmp(start, last) == 0) {
            talk_note(t, "[the question is the same: /retry asks it again]");
        } else {
            say("[%zu] %s\n", n_turns(t), start);
            rc = talk_ask_instead(t, start, e);
        }
    }
    str_free(&text);
    return rc;
}

static int command_write(struct talk *t, const char *argument, struct moeflux_err *e)
{
    struct str text = {0};
    const char *start;
    str_add_text(&text, argument);
    int rc = 0;
    if (edit_text(t, &text, &start, e) == 0) {
        say("[%zu] %s\n", n_turns(t) + 1, start);
        rc = talk_ask(t, start, e);
    }
    str_free(&text);
    return rc;
}

static int command_show(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    (void)e;
    if (n_turns(t) == 0)
        talk_note(t, "[nothing was asked yet]");
    talk_show(t, SIZE_MAX);
    return 0;
}

static int command_save(struct talk *t, const char *argument, struct moeflux_err *e)
{
    char text[128];
    const char *name = *argument ? argument : t->name;
    if (!name)
        return report_failure(err_set(e, ERR_USAGE, "/save NAME: under which name?"), e);
    bool is_own = t->name && strcmp(t->name, name) == 0;
    int rc = saved_check_name(name, e);
    if (!rc && !is_own && saved_exists(name))
        rc = err_set(e, ERR_USAGE,
                     "there is a session %s already (/load it, /delete it or take another name)", name);
    char *copy = rc ? NULL : mem_text(name, e);
    if (!rc && !copy)
        rc = ERR_MEMORY;
    if (rc)
        return report_failure(rc, e);
    free(t->name);
    t->name = copy;
    /* Under another name the state is written again. */
    t->is_kept = t->is_kept && is_own;
    t->seen = is_own ? t->seen : 0;
    rc = talk_keep(t, true, e);
    snprintf(text, sizeof text, "[saved as %s, and after each answer from now on]", t->name);
    if (!rc)
        talk_note(t, text);
    return report_failure(rc, e);
}

static int command_load(struct talk *t, const char *argument, struct moeflux_err *e)
{
    if (!*argument)
        return report_failure(err_set(e, ERR_USAGE, "/load NAME: which session? (/sessions lists them)"), e);
    int rc = talk_load(t, argument, e);
    if (!rc && n_turns(t) == 0)
        talk_note(t, "[nothing was asked in this session]");
    if (!rc)
        talk_show(t, SHOWN_TURNS);
    return report_failure(rc, e);
}

static int command_delete(struct talk *t, const char *argument, struct moeflux_err *e)
{
    char question[160];
    int rc = *argument ? 0 : err_set(e, ERR_USAGE, "/delete NAME: which session? (/sessions lists them)");
    if (!rc)
        rc = saved_check_name(argument, e);
    snprintf(question, sizeof question, "Delete the session %.64s? [y/N] ", argument);
    if (!rc && saved_exists(argument) && !agrees(t, question))
        return 0;
    if (!rc)
        rc = saved_delete(argument, e);
    if (!rc && t->name && strcmp(t->name, argument) == 0) {
        free(t->name);
        t->name = NULL;
    }
    if (!rc)
        talk_note(t, "[deleted]");
    return report_failure(rc, e);
}

static int command_sessions(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    struct str list = {0};
    int rc = saved_list(t->name, &list, e);
    say_text(&list);
    str_free(&list);
    return report_failure(rc, e);
}

static int command_stats(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    (void)e;
    stats_print(&t->loaded, &t->info);
    say("%-12s %8zu tokens of %u\n", "context", moeflux_conversation_get_info(t->conversation).n_tokens,
        t->loaded.max_context);
    return 0;
}

static int command_continue(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    return talk_continue(t, e);
}

/* Returns a file's path with "~/" replaced, from malloc; NULL: no memory. */
static char *home_path(const char *path, struct moeflux_err *e)
{
    struct str whole = {0};
    const char *home = getenv("HOME");
    bool is_home = strncmp(path, "~/", 2) == 0 && home;
    str_addf(&whole, "%s%s", is_home ? home : "", is_home ? path + 1 : path);
    if (str_ok(&whole))
        return whole.data;
    str_free(&whole);
    err_set(e, ERR_MEMORY, "out of memory for a path");
    return NULL;
}

/* Keeps a file's text for the next question. */
static int command_read(struct talk *t, const char *argument, struct moeflux_err *e)
{
    enum { MOST_BYTES = 1 << 26 };
    char note[192], *text = NULL;
    size_t len = 0;
    if (!*argument)
        return report_failure(err_set(e, ERR_USAGE, "/read FILE: which file?"), e);
    char *path = home_path(argument, e);
    int rc = path ? file_read_text(path, MOST_BYTES, &text, &len, e) : ERR_MEMORY;
    if (!rc && strlen(text) != len)
        rc = err_set(e, ERR_FORMAT, "%s: a NUL byte: it is no text", path);
    if (!rc) {
        while (len > 0 && text[len - 1] == '\n')
            text[--len] = '\0';
        str_addf(&t->attached, "%s\n\n", text);
        snprintf(note, sizeof note, "[%.100s: %zu bytes go with the next question]", argument, len);
        talk_note(t, note);
    }
    free(text);
    free(path);
    return report_failure(rc, e);
}

static int command_nothink(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    return adjust_think(t, "off", e);
}

static int command_image(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)t, (void)argument;
    return report_failure(err_set(e, ERR_UNSUPPORTED, "/image: images are not read; /read takes a text"), e);
}

static int command_quit(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)argument;
    (void)e;
    t->quit = true;
    return 0;
}

static const struct command {
    const char *name, *argument, *help;
    int (*run)(struct talk *t, const char *argument, struct moeflux_err *e);
} commands[] = {
    {"/help", "", "this list", command_help},
    {"/clear", "", "forget the conversation and begin a new one", command_clear},
    {"/undo", "", "back before the last question", command_undo},
    {"/retry", "", "another answer to the last question", command_retry},
    {"/continue", "", "go on with an answer that was stopped", command_continue},
    {"/edit", "", "change the last question in $EDITOR and ask it again", command_edit},
    {"/write", " [TEXT]", "write a question of several lines in $EDITOR", command_write},
    {"/read", " FILE", "put a file's text before the next question", command_read},
    {"/set", " NAME VALUE", "set an option of the sampler, as /set temp 0.5", adjust_set},
    {"/think", " HOW", "on, off, auto, low, medium, high: how much to think", adjust_think},
    {"/show", "", "print the conversation", command_show},
    {"/save", " NAME", "save the conversation, now and after each answer", command_save},
    {"/load", " NAME", "go on with a saved conversation", command_load},
    {"/sessions", "", "list the saved conversations", command_sessions},
    {"/delete", " NAME", "delete a saved conversation", command_delete},
    {"/system", " [TEXT]", "show the system text, or begin anew with another (-: none)", command_system},
    {"/stats", "", "speeds and times of the last answer", command_stats},
    {"/quit", "", "end the program (also Ctrl-D)", command_quit},
    /* Names that users of other programs type. */
    {"/exit", "", NULL, command_quit},
    {"/bye", "", NULL, command_quit},
    {"/q", "", NULL, command_quit},
    {"/regen", "", NULL, command_retry},
    {"/regenerate", "", NULL, command_retry},
    {"/?", "", NULL, command_help},
    {"/nothink", "", NULL, command_nothink},
    {"/no_think", "", NULL, command_nothink},
    {"/image", " FILE", NULL, command_image},
};

static const char keys_help[] =
    "Questions:\n"
    "  A line that ends in \\ goes on in the next; Ctrl-D there gives the question up.\n"
    "  A pasted text is one question, with all its lines.\n"
    "  // or a blank before a slash: a question that begins with a slash.\n"
    "Keys:\n"
    "  Ctrl-C            stop an answer, give up a line\n"
    "  Ctrl-D            end the program, on an empty line\n"
    "  Up, Down, Ctrl-R  earlier lines; search them\n"
    "  Home, End         to the line's ends (also Ctrl-A, Ctrl-E)\n"
    "  Ctrl-Left, -Right word by word (also Alt-B, Alt-F)\n"
    "  Ctrl-W, Alt-D     delete a word to the left, to the right (also Alt-Backspace)\n"
    "  Ctrl-U, Ctrl-K    delete the line, what is right of the cursor (Ctrl-Y: back)\n";

static int command_help(struct talk *t, const char *argument, struct moeflux_err *e)
{
    (void)t;
    (void)argument;
    (void)e;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].help)
            say("  %s%-*s %s\n", commands[i].name, 17 - (int)strlen(commands[i].name), commands[i].argument,
                commands[i].help);
    say("%s", keys_help);
    return 0;
}

/* Runs a command with its argument, without blanks at the ends of it. */
static int run_with(struct talk *t, const struct command *c, const char *text, struct moeflux_err *e)
{
    static const char blanks[] = " \t\n";
    const char *start = text + strspn(text, blanks);
    size_t n = strlen(start);
    while (n > 0 && strchr(blanks, start[n - 1]))
        n--;
    if (n && !*c->argument)
        return report_failure(
            err_set(e, ERR_USAGE, "%s takes nothing after it, found \"%.*s\"", c->name, (int)n, start), e);
    char *argument = mem_text(start, e);
    if (!argument)
        return report_failure(ERR_MEMORY, e);
    argument[n] = '\0';
    int rc = c->run(t, argument, e);
    free(argument);
    return rc;
}

static int run_command(struct talk *t, const char *text, struct moeflux_err *e)
{
    char word[40];
    size_t n = strcspn(text, " \t\n");
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
    struct closest closest = closest_begin(word);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strlen(commands[i].name) == n && strncmp(commands[i].name, text, n) == 0)
            return run_with(t, &commands[i], text + n, e);
        closest_try(&closest, commands[i].name, strlen(commands[i].name));
    }
    if (closest.best)
        say("unknown command %s: did you mean %s?\n", word, closest.best);
    else
        say("unknown command %s; /help lists them (to ask a question that begins with /, put a blank before "
            "it)\n",
            word);
    return 0;
}

/* ---- the loop ---- */

/* Reads a question; a line that ends in a backslash goes on in the next. Ctrl-D gives up a begun one. */
static enum line_event read_question(struct talk *t, struct str *question)
{
    const char *text;
    enum line_event event = line_read(t->line, "> ", &text);
    bool more = false;
    str_clear(question);
    while (event == LINE_TEXT) {
        size_t n = strlen(text);
        more = n > 0 && text[n - 1] == '\\';
        str_add(question, text, more ? n - 1 : n);
        if (!more)
            break;
        str_add_text(question, "\n");
        event = line_read(t->line, ". ", &text);
    }
    if (event == LINE_INTERRUPTED && question->len == 0 && !*text)
        talk_note(t, "[/quit or Ctrl-D ends the program]");
    if (event != LINE_END || !more)
        return event;
    say("\n");
    return LINE_INTERRUPTED;
}

static int handle_question(struct talk *t, const struct str *question, struct moeflux_err *e)
{
    const char *text = str_text(question), *start = text + strspn(text, " \t\n");
    bool is_end = strcmp(start, "exit") == 0 || strcmp(start, "quit") == 0 || strcmp(start, "bye") == 0;
    bool is_command = text[0] == '/' && text[1] != '/';
    if (!*start)
        return 0;
    /* The history keeps a blank before a slash, so that a recalled line is a question again. */
    line_remember(t->line, *start == '/' ? text : start);
    if (is_command)
        return run_command(t, text, e);
    if (is_end && text == start && !t->attached.len) {
        talk_note(t, "[/quit or Ctrl-D ends the program; a blank before the word asks it]");
        return 0;
    }
    return talk_ask(t, text[0] == '/' ? text + 1 : start, e);
}

static int loop(struct talk *t, struct moeflux_err *e)
{
    struct str question = {0};
    int rc = 0;
    while (!rc && !t->quit) {
        enum line_event event = read_question(t, &question);
        if (event == LINE_END) {
            say("\n");
            break;
        }
        if (event == LINE_TEXT)
            rc = handle_question(t, &question, e);
    }
    str_free(&question);
    return rc;
}

/* Saves the conversation at the end. If something could not be saved, the run fails; the reason has been
 * reported. */
static int end(struct talk *t, int rc, struct moeflux_err *e)
{
    bool kept = talk_keep_quietly(t, true) && !line_lost_history(t->line);
    return rc || kept ? rc : err_set(e, ERR_IO, "%s", "");
}

static void greet(const struct talk *t)
{
    if (t->options->log_level < EXIT_INFO)
        return;
    const struct moeflux_model_info *info = &t->loaded.info;
    say("moeflux " MOEFLUX_VERSION ", %s, %u layers, %u experts, on %s\n", info->architecture, info->n_layers,
        info->n_experts, info->device);
    talk_note(t, "/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the program");
}

/* Checks before the model is loaded that the conversation can be resumed. */
static int check_resume(const struct options *o, struct moeflux_err *e)
{
    struct saved s = {0};
    int rc = o->resume ? saved_read(o->resume, &s, e) : 0;
    moeflux_conversation_free(s.conversation);
    if (!rc && (o->prompt_cache || o->prompt_cache_ro))
        rc = err_set(e, ERR_USAGE, "--prompt-cache goes with a prompt only; /save NAME keeps a conversation");
    return rc;
}

static int begin(struct talk *t, struct moeflux_err *e)
{
    const char *system = t->options->system ? t->options->system : "";
    struct str clean = {0};
    run_tell_replaced(t->options, prompt_clean(&clean, system, strlen(system)));
    int rc = str_ok(&clean) ? talk_begin(t, str_text(&clean), e)
                            : err_set(e, ERR_MEMORY, "out of memory for the system text");
    str_free(&clean);
    return rc;
}

static int start(struct talk *t, struct moeflux_err *e)
{
    const struct options *o = t->options;
    int rc = check_resume(o, e);
    if (!rc)
        rc = answer_grammar_read(o, &t->grammar, e);
    if (!rc)
        rc = setup_open(&t->loaded, o, &t->bar, e);
    if (!rc)
        rc = setup_need_tokenizer(&t->loaded, o, "a conversation needs (use --tokens-in)", e);
    if (!rc)
        rc = setup_chat(&t->loaded, o, e);
    if (!rc)
        rc = setup_start(&t->loaded, o, (uint32_t)o->ctx_size, e);
    if (!rc)
        rc = begin(t, e);
    if (!rc && o->resume)
        rc = talk_load(t, o->resume, e);
    if (!rc && !t->is_script && !(t->line = line_open(t->term->pastes, e)))
        rc = (int)e->code;
    return rc;
}

int interactive_run(const struct options *o, const struct term *term, struct output *out,
                    struct moeflux_err *e)
{
    struct options own = *o;
    struct talk t = {.options = &own, .own = &own, .term = term, .out = out};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&t.bar, term);
    int rc = start(&t, e);
    if (!rc) {
        signals_set_impatient(false);
        greet(&t);
        talk_show(&t, SHOWN_TURNS);
        rc = loop(&t, e);
        rc = end(&t, rc, e);
    }
    rc = setup_save_usage(&t.loaded, o, rc, e);
    line_close(t.line);
    talk_free(&t);
    return rc;
}

/* ---- in a script ---- */

static int ask_once(struct talk *t, const struct prompt *p, struct moeflux_err *e)
{
    const char *text = str_text(&p->text);
    struct moeflux_err unkept;
    if (strlen(text) != p->text.len)
        return err_set(e, ERR_FORMAT, "the prompt has a NUL byte, which a conversation cannot keep");
    int rc = talk_ask(t, text, e);
    if (!rc && t->info.stop == MOEFLUX_STOP_INTERRUPTED)
        rc = err_set(e, ERR_INTERRUPTED, "interrupted");
    int kept = talk_keep(t, true, &unkept);
    return rc || !kept ? rc : err_set(e, kept, "%s", unkept.text);
}

int interactive_continue(const struct options *o, const struct term *term, struct output *out,
                         struct moeflux_err *e)
{
    struct options own = *o;
    struct talk t = {.options = &own, .own = &own, .term = term, .out = out, .is_script = true};
    struct prompt p = {0};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&t.bar, term);
    int rc = prompt_read(&p, o, e);
    if (!rc)
        rc = start(&t, e);
    if (!rc)
        rc = ask_once(&t, &p, e);
    rc = setup_save_usage(&t.loaded, o, rc, e);
    talk_free(&t);
    prompt_free(&p);
    return rc;
}
