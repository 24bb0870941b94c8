#include "cli/terminal/line.h"

#include <assert.h>
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/side_file.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/place.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/terminal/keyboard.h"
#include "cli/terminal/term.h"
#include "text/printable.h"

enum { HISTORY_LINES = 1000 };

struct line {
    EditLine *edit;
    History *history;
    char *history_path; /* NULL: the history is not saved */
    bool lost_history;
    const char *prompt;
    struct str text;
    bool pastes;       /* the terminal marks where pasted text begins and ends */
    mbstate_t partial; /* state of a character that arrives in pieces */
    struct keyboard keyboard;
    bool is_held;
};

/* The terminal's modes between two lines: as it was, and quiet. For handlers of signals, so they are no
 * members. */
static struct termios plain_mode, quiet_mode;
static const int ends[] = {SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
enum { N_ENDS = sizeof ends / sizeof *ends };
static struct sigaction before_hold[N_ENDS];

/* Keys are passed to libedit as characters that nobody types: those of the C1 set, from 0x80 on. */
enum { CODES = 0x80, END_OF_CODES = 0xA0 };
static const char *const bindings[][2] = {
    {"\\200", "ed-prev-char"},        {"\\201", "ed-next-char"},        {"\\202", "ed-prev-history"},
    {"\\203", "ed-next-history"},     {"\\204", "ed-move-to-beg"},      {"\\205", "ed-move-to-end"},
    {"\\206", "ed-delete-next-char"}, {"\\207", "ed-prev-word"},        {"\\210", "em-next-word"},
    {"\\211", "ed-delete-prev-word"}, {"\\212", "em-delete-next-word"},
};
static_assert(sizeof bindings / sizeof *bindings == KEY_PASTED - KEY_LEFT, "one for each key");

static char *show_prompt(EditLine *edit)
{
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    return (char *)(uintptr_t)l->prompt;
}

static void set_paste_marks(EditLine *edit, bool on)
{
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    if (l->pastes)
        say_escape(on ? term_paste_on : term_paste_off);
}

/* Inserts the pasted text into the line, line ends included. Other characters that could move the cursor are
 * made visible. */
static unsigned char insert_pasted(EditLine *edit, wint_t c)
{
    struct line *l = NULL;
    struct printable filter = {0};
    struct str text = {0};
    (void)c;
    el_get(edit, EL_CLIENTDATA, &l);
    struct str *pasted = &l->keyboard.pasted;
    /* Terminals send a carriage return for each line end. */
    for (size_t i = 0; i < pasted->len; i++)
        if (pasted->data[i] == '\r' && !(i + 1 < pasted->len && pasted->data[i + 1] == '\n'))
            pasted->data[i] = '\n';
    printable_push(&filter, str_text(pasted), pasted->len, &text);
    printable_end(&filter, &text);
    int rc = str_ok(pasted) && str_ok(&text) && text.len ? el_insertstr(edit, text.data) : -1;
    str_free(&text);
    str_free(pasted);
    return rc < 0 ? CC_ERROR : CC_REFRESH;
}

/* Sets the terminal's mode and draws the line again: after Ctrl-Z the shell has changed the mode, and libedit
 * does not notice. */
static void draw_again(EditLine *edit)
{
    el_set(edit, EL_PREP_TERM, 0);
    el_set(edit, EL_PREP_TERM, 1);
    el_resize(edit);
    set_paste_marks(edit, true);
    say_escape(term_erase_line);
    el_set(edit, EL_REFRESH);
}

/* Makes reads return at once; signals_wait does the waiting. At Ctrl-C the terminal drops the keys before it,
 * even if poll has reported them, and a blocking read for them would not notice the signal. libedit sets
 * blocking reads again with each line. */
static void read_without_waiting(void)
{
    struct termios terminal;
    if (tcgetattr(STDIN_FILENO, &terminal) < 0 || terminal.c_cc[VMIN] == 0)
        return;
    terminal.c_cc[VMIN] = terminal.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
}

static bool has_hung_up(void)
{
    struct pollfd terminal = {.fd = STDIN_FILENO};
    return poll(&terminal, 1, 0) != 0;
}

/* Whether the rest of a sequence comes soon. A signal counts as yes: the next read handles it. */
static bool comes_soon(void)
{
    struct pollfd terminal = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&terminal, 1, KEYBOARD_WAIT_MS) != 0;
}

/* Reads a byte of the terminal into the keyboard. Returns 1; 0: the terminal's end; -1: the line must end. */
static int read_byte(EditLine *edit, struct line *l)
{
    for (;;) {
        char byte;
        if (keyboard_waits(&l->keyboard) && !comes_soon()) {
            keyboard_give_up(&l->keyboard);
            return 1;
        }
        read_without_waiting();
        enum signals_event wake = signals_wait(STDIN_FILENO);
        if (wake == SIGNALS_INTERRUPT || wake == SIGNALS_END)
            return -1;
        if (wake == SIGNALS_REDRAW) {
            draw_again(edit);
            continue;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n == 0 && !has_hung_up())
            continue;
        if (n > 0)
            keyboard_push(&l->keyboard, byte);
        return (int)n;
    }
}

/* Decodes a key. Returns 1: *out is a character; 0: more bytes are needed. */
static int decode(struct line *l, int key, wchar_t *out)
{
    char byte = (char)key;
    if (key >= KEY_LEFT) {
        *out = (wchar_t)(CODES + key - KEY_LEFT);
        return 1;
    }
    size_t used = mbrtowc(out, &byte, 1, &l->partial);
    if (used == (size_t)-2)
        return 0;
    if (used == (size_t)-1) {
        memset(&l->partial, 0, sizeof l->partial);
        *out = L'?';
    }
    return *out < CODES || *out >= END_OF_CODES;
}

/* Reads a character for libedit. Its own reader goes on waiting after Ctrl-C; this one ends the line. */
static int read_char(EditLine *edit, wchar_t *out)
{
    struct line *l = NULL;
    el_get(edit, EL_CLIENTDATA, &l);
    for (;;) {
        int key = keyboard_next(&l->keyboard);
        if (key >= 0 && decode(l, key, out))
            return 1;
        int rc = key >= 0 ? 1 : read_byte(edit, l);
        if (rc <= 0)
            return rc;
    }
}

static void load_history(struct line *l)
{
    HistEvent event;
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    l->history_path = place_of_state("history");
    /* A link to /dev/null means that no history is wanted. */
    if (l->history_path && file_exists(l->history_path) && !file_is_regular(l->history_path)) {
        free(l->history_path);
        l->history_path = NULL;
    }
    if (l->history_path)
        history(l->history, &event, H_LOAD, l->history_path);
}

/* Chooses a UTF-8 locale, which editing of non-ASCII characters needs. Numbers keep the C locale. */
static void choose_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* Binds keys. The user's .editrc is read after the ordinary bindings and may change them. */
static void bind_keys(struct line *l)
{
    el_set(l->edit, EL_EDITOR, "emacs");
    /* The function for narrow strings keeps copies that it never frees. */
    el_wset(l->edit, EL_ADDFN, L"moeflux-insert-pasted", L"insert a pasted text", insert_pasted);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->edit, EL_BIND, "^W", "ed-delete-prev-word", NULL);
    /* ixon: Ctrl-S would stop all output, as if the program hung. inlcr, icrnl: CR LF in pasted text would
     * become two equal characters. */
    el_set(l->edit, EL_SETTY, "-d", "-ixon", "-inlcr", "-icrnl", NULL);
    l->keyboard.as_is = el_source(l->edit, NULL) == 0;
    for (size_t i = 0; i < sizeof bindings / sizeof *bindings; i++)
        el_set(l->edit, EL_BIND, bindings[i][0], bindings[i][1], NULL);
    el_set(l->edit, EL_BIND, "\\213", "moeflux-insert-pasted", NULL);
}

/* Gives the terminal back for as long as the program is stopped, or for good. */
static void on_end(int number)
{
    int saved = errno;
    tcsetattr(STDIN_FILENO, TCSANOW, &plain_mode);
    if (number == SIGTSTP) {
        raise(SIGSTOP);
        if (tcgetpgrp(STDIN_FILENO) == getpgrp())
            tcsetattr(STDIN_FILENO, TCSANOW, &quiet_mode);
        errno = saved;
        return;
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* Ends the quiet mode without changing the terminal's. */
static void let_go(struct line *l)
{
    for (int i = 0; l->is_held && i < N_ENDS; i++)
        sigaction(ends[i], &before_hold[i], NULL);
    l->is_held = false;
}

void line_hold(struct line *l)
{
    struct sigaction action = {.sa_handler = on_end, .sa_flags = SA_RESTART};
    if (l->is_held || tcgetattr(STDIN_FILENO, &plain_mode) < 0)
        return;
    sigemptyset(&action.sa_mask);
    quiet_mode = plain_mode;
    quiet_mode.c_lflag &= ~(tcflag_t)ECHO;
    quiet_mode.c_lflag |= NOFLSH;
    for (int i = 0; i < N_ENDS; i++) {
        sigaction(ends[i], NULL, &before_hold[i]);
        if (before_hold[i].sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    }
    l->is_held = true;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet_mode);
}

struct line *line_open(bool pastes, struct moeflux_err *e)
{
    struct line *l = mem_new(1, sizeof *l, e);
    if (!l)
        return NULL;
    choose_locale();
    l->history = history_init();
    l->edit = el_init("moeflux", stdin, stderr, stderr);
    if (!l->history || !l->edit) {
        line_close(l);
        err_set(e, ERR_IO, "the terminal cannot be edited on (libedit)");
        return NULL;
    }
    load_history(l);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, show_prompt);
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_GETCFN, read_char);
    bind_keys(l);
    l->pastes = pastes;
    return l;
}

void line_close(struct line *l)
{
    if (!l)
        return;
    if (l->is_held)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &plain_mode);
    let_go(l);
    if (l->edit)
        el_end(l->edit);
    if (l->history)
        history_end(l->history);
    free(l->history_path);
    str_free(&l->text);
    keyboard_free(&l->keyboard);
    free(l);
}

enum line_event line_read(struct line *l, const char *prompt, const char **text)
{
    int n = 0;
    l->prompt = prompt;
    memset(&l->partial, 0, sizeof l->partial);
    str_clear(&l->text);
    keyboard_reset(&l->keyboard);
    signals_catch_editing(true);
    set_paste_marks(l->edit, true);
    const char *got = el_gets(l->edit, &n);
    set_paste_marks(l->edit, false);
    signals_catch_editing(false);
    let_go(l);
    bool interrupted = signals_interrupted();
    signals_clear();
    if (interrupted) {
        const LineInfo *info = el_line(l->edit);
        str_add(&l->text, info->buffer, (size_t)(info->lastchar - info->buffer));
        el_reset(l->edit);
        say("\n");
    } else if (got && n > 0) {
        while (n > 0 && (got[n - 1] == '\n' || got[n - 1] == '\r'))
            n--;
        str_add(&l->text, got, (size_t)n);
    }
    *text = str_text(&l->text);
    return interrupted ? LINE_INTERRUPTED : got && str_ok(&l->text) ? LINE_TEXT : LINE_END;
}

/* Saves the history, readable by the user only. libedit needs a stream. Its older versions set the mode
 * themselves, for which they need a file; newer ones do not. */
static int save_history(const struct line *l, struct moeflux_err *e)
{
    HistEvent event;
    struct side_file f;
    int rc = side_file_create(&f, l->history_path, 0, e);
    if (rc)
        return rc;
    int fd = dup(f.fd);
    FILE *to = fd < 0 ? NULL : fdopen(fd, "w");
    bool ok = to && fchmod(fd, S_IRUSR | S_IWUSR) == 0 && history(l->history, &event, H_SAVE_FP, to) >= 0 &&
              fflush(to) == 0 && !ferror(to);
    int fault = ok ? 0 : errno;
    if ((to ? fclose(to) != 0 : fd >= 0 && close(fd) != 0) && ok) {
        fault = errno;
        ok = false;
    }
    errno = fault;
    rc = ok ? side_file_commit(&f, e) : err_errno(e, ERR_IO, "%s", l->history_path);
    side_file_free(&f);
    return rc;
}

void line_remember(struct line *l, const char *text)
{
    HistEvent event;
    history(l->history, &event, H_ENTER, text);
    if (!l->history_path)
        return;
    struct moeflux_err e;
    if (save_history(l, &e) < 0) {
        char warning[600];
        snprintf(warning, sizeof warning, "%s; the history is kept for this run only", e.text);
        exit_warn(warning);
        free(l->history_path);
        l->history_path = NULL;
        l->lost_history = true;
    }
}

bool line_lost_history(const struct line *l)
{
    return l->lost_history;
}
