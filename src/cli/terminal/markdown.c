#include "cli/terminal/markdown.h"

#include <ctype.h>
#include <string.h>

#include "cli/terminal/table_lines.h"
#include "cli/terminal/wrap.h"

static const char bold_on[] = "\033[1m", bold_off[] = "\033[22m", code_on[] = "\033[36m",
                  code_off[] = "\033[39m";

enum { FENCE_MARKS = 3, MOST_BLANKS = 3, MOST_HASHES = 6 };

/* Whether the character next to marks is a blank, a line's end, or none. */
static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\0';
}

static void put_held(struct markdown *m, struct wrap *w)
{
    for (; m->n_held > 0; m->n_held--)
        wrap_text(w, " ", 1);
}

static void put_run(struct markdown *m, struct wrap *w)
{
    put_held(m, w);
    for (uint32_t i = 0; i < m->n_run; i++)
        wrap_text(w, &m->run, 1);
    m->before = m->run;
}

static void end_styles(struct markdown *m, struct wrap *w)
{
    if (m->code)
        wrap_escape(w, code_off);
    if (m->bold || m->heading)
        wrap_escape(w, bold_off);
    m->code = 0;
    m->bold = m->heading = false;
}

/* A fence's own line is hidden with the blanks before it. */
static void end_fence_line(struct markdown *m, bool opens, struct wrap *w)
{
    wrap_escape(w, opens ? code_on : code_off);
    w->verbatim = opens;
    m->fence = opens ? m->n_run : 0;
    m->n_held = 0;
    m->hides_line = true;
}

static void end_backticks(struct markdown *m, char next, struct wrap *w)
{
    bool begins = m->run_begins && m->n_run >= FENCE_MARKS;
    if (m->fence && begins && m->n_run >= m->fence && (next == '\n' || next == '\0')) {
        end_fence_line(m, false, w);
    } else if (m->fence || (m->code && m->code != m->n_run)) {
        put_run(m, w);
    } else if (m->code) {
        wrap_escape(w, code_off);
        m->code = 0;
    } else if (begins && !m->is_cell) {
        end_fence_line(m, true, w);
    } else {
        put_held(m, w);
        wrap_escape(w, code_on);
        m->code = m->n_run;
    }
}

/* Marks open after anything but a letter or a digit, so that x**2 stays. */
static void end_stars(struct markdown *m, char next, struct wrap *w)
{
    bool marks = m->n_run >= 2 && m->n_run <= 3 && !m->code && !m->fence;
    bool opens = marks && !m->bold && !is_blank(next) && !isalnum((unsigned char)m->before);
    bool closes = marks && m->bold && !is_blank(m->before);
    put_held(m, w);
    if ((opens || closes) && !m->heading)
        wrap_escape(w, opens ? bold_on : bold_off);
    if (!opens && !closes)
        put_run(m, w);
    m->bold = opens || (m->bold && !closes);
}

static void end_hashes(struct markdown *m, char next, struct wrap *w)
{
    m->heading = m->n_run <= MOST_HASHES && is_blank(next);
    m->hides_blanks = m->heading;
    if (!m->heading) {
        put_run(m, w);
        return;
    }
    m->n_held = 0;
    wrap_escape(w, bold_on);
}

/* next: the character after the marks; 0: none */
static void end_run(struct markdown *m, char next, struct wrap *w)
{
    if (m->run == '`')
        end_backticks(m, next, w);
    else if (m->run == '*')
        end_stars(m, next, w);
    else if (m->run == '#')
        end_hashes(m, next, w);
    m->run = '\0';
    m->n_run = 0;
}

/* Whether the character is a mark where it stands. */
static bool is_mark(const struct markdown *m, char c)
{
    if (m->hides_line)
        return false;
    if (m->fence)
        return c == '`' && !m->in_line;
    if (c == '`')
        return !m->escaped || m->code;
    return !m->escaped && ((c == '*' && !m->code) || (c == '#' && !m->in_line && !m->is_cell));
}

static void end_line(struct markdown *m, struct wrap *w)
{
    bool hidden = m->hides_line;
    if (!m->fence)
        end_styles(m, w);
    put_held(m, w);
    if (!hidden)
        wrap_text(w, "\n", 1);
    m->n_blanks = 0;
    m->in_line = m->hides_line = m->hides_blanks = m->escaped = false;
    m->before = '\n';
}

static void put_char(struct markdown *m, char c, struct wrap *w)
{
    if (c == '\n') {
        end_line(m, w);
        return;
    }
    if (m->hides_line || (m->hides_blanks && c == ' '))
        return;
    m->hides_blanks = false;
    m->n_blanks += c == ' ';
    bool indents = c == ' ' && !m->in_line && m->n_blanks <= MOST_BLANKS;
    m->escaped = c == '\\' && !m->escaped && !m->code && !m->fence;
    m->before = c;
    m->in_line = !indents;
    m->n_held += indents;
    if (indents)
        return;
    put_held(m, w);
    wrap_text(w, &c, 1);
}

static void push_char(struct markdown *m, char c, struct wrap *w)
{
    if (m->run && c == m->run) {
        m->n_run++;
        return;
    }
    if (m->run)
        end_run(m, c, w);
    if (!is_mark(m, c)) {
        put_char(m, c, w);
        return;
    }
    m->run = c;
    m->n_run = 1;
    m->run_begins = !m->in_line;
    m->in_line = true;
}

/* ---- tables ---- */

/* Prints the lines that are held back: a table, or text that only looked like one. */
static void end_table(struct markdown *m, struct wrap *w)
{
    struct str lines = m->table;
    bool is_table = m->n_rows >= 2 && !m->in_table && str_ok(&lines) && table_lines_draw(str_text(&lines), w);
    m->table = (struct str){0};
    m->n_rows = 0;
    m->in_table = false;
    for (size_t i = 0; !is_table && i < lines.len; i++)
        push_char(m, lines.data[i], w);
    if (is_table)
        m->before = '\n';
    str_free(&lines);
}

/* Takes a character that may belong to a table. Returns whether it does. */
static bool take_for_table(struct markdown *m, char c, struct wrap *w)
{
    bool begins =
        c == '|' && !m->in_line && !m->n_held && !m->run && !m->fence && !m->hides_line && !m->is_cell;
    if (m->in_table) {
        str_add(&m->table, &c, 1);
        m->in_table = c != '\n';
        m->n_rows += c == '\n';
        if (m->n_rows == 2 && !m->in_table && !table_lines_begin(str_text(&m->table)))
            end_table(m, w);
        return true;
    }
    if (!begins && m->n_rows)
        end_table(m, w);
    if (!begins)
        return false;
    m->in_table = true;
    str_add(&m->table, &c, 1);
    return true;
}

void markdown_push(struct markdown *m, const char *text, size_t n, struct wrap *w)
{
    for (size_t i = 0; i < n; i++)
        if (!take_for_table(m, text[i], w))
            push_char(m, text[i], w);
}

void markdown_end(struct markdown *m, struct wrap *w)
{
    /* A last row may lack its line end. */
    if (m->in_table && m->n_rows >= 2)
        take_for_table(m, '\n', w);
    if (m->in_table || m->n_rows)
        end_table(m, w);
    if (m->run)
        end_run(m, '\0', w);
    put_held(m, w);
    end_styles(m, w);
    if (m->fence)
        wrap_escape(w, code_off);
    w->verbatim = false;
    *m = (struct markdown){0};
}
