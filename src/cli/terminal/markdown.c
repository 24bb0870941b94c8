#include "cli/terminal/markdown.h"

#include <ctype.h>
#include <string.h>

#include "cli/terminal/table_lines.h"
#include "cli/terminal/wrap.h"

static const char bold_on[] = "\033[1m", bold_off[] = "\033[22m", code_on[] = "\033[36m",
                  code_off[] = "\033[39m";

/* MOST_HELD: bytes. Marks whose partner does not come within so many are printed as they are: an answer that
 * is held back longer would seem to have stopped. */
enum { FENCE_MARKS = 3, MOST_FENCE_BLANKS = 12, CODE_BLANKS = 4, MOST_HASHES = 6, MOST_HELD = 512 };

/* Text whose meaning is to be found. */
struct span {
    const char *text;
    size_t n;
    bool ends; /* nothing comes after it in its line */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0';
}

/* Returns how often `c` stands at text[at] and after it. */
static size_t run_of(const struct span *s, size_t at, char c)
{
    size_t n = 0;
    while (at + n < s->n && s->text[at + n] == c)
        n++;
    return n;
}

/* Returns whether text[at] is the end of what there is, although more may come. */
static bool is_open(const struct span *s, size_t at)
{
    return at >= s->n && !s->ends;
}

static char char_at(const struct span *s, size_t at)
{
    if (at < s->n)
        return s->text[at];
    return '\0';
}

/* Whether a backslash takes the next character's meaning. */
static bool is_escape(const struct span *s, size_t at)
{
    return s->text[at] == '\\' && ispunct((unsigned char)char_at(s, at + 1));
}

static void put(struct markdown *m, const char *text, size_t n, struct wrap *w)
{
    if (n == 0)
        return;
    wrap_text(w, text, n);
    m->before = text[n - 1];
}

static void style(const struct markdown *m, const char *code, struct wrap *w)
{
    if (!m->plain)
        wrap_escape(w, code);
}

/* ---- within a line. The functions return the bytes that are done; 0: more must come ---- */

/* Finds the backticks that end the code that begins with `marks` of them. Returns their place; n: there are
 * none, and *more says whether they may still come. */
static size_t code_end(const struct span *s, size_t from, size_t marks, bool *more)
{
    *more = false;
    for (size_t at = from + marks; at < s->n && s->text[at] != '\n';) {
        size_t run = run_of(s, at, '`');
        *more = run && is_open(s, at + run);
        if (*more)
            return s->n;
        if (run == marks)
            return at;
        at += run ? run : 1;
    }
    *more = !s->ends && !memchr(s->text + from, '\n', s->n - from);
    return s->n;
}

static size_t take_backticks(struct markdown *m, const struct span *s, struct wrap *w)
{
    bool more;
    size_t marks = run_of(s, 0, '`');
    if (is_open(s, marks))
        return 0;
    size_t end = code_end(s, 0, marks, &more);
    if (end == s->n && more)
        return 0;
    if (end == s->n) {
        put(m, s->text, marks, w);
        return marks;
    }
    size_t hidden = m->plain ? 0 : marks;
    style(m, code_on, w);
    w->joined = true;
    put(m, s->text + hidden, end + marks - 2 * hidden, w);
    w->joined = false;
    style(m, code_off, w);
    m->before = '`';
    return end + marks;
}

/* Finds the stars that end what `marks` of them begin: as many or more, up to three, after no blank. Code and
 * escaped stars are passed over. */
static size_t bold_end(const struct span *s, size_t marks, bool *more)
{
    *more = false;
    for (size_t at = marks; at < s->n && s->text[at] != '\n';) {
        size_t ticks = run_of(s, at, '`'), stars = run_of(s, at, '*');
        *more = (ticks || stars || s->text[at] == '\\') && is_open(s, at + (ticks   ? ticks
                                                                            : stars ? stars
                                                                                    : 1));
        if (*more)
            return s->n;
        if (ticks) {
            size_t end = code_end(s, at, ticks, more);
            if (end == s->n && *more)
                return s->n;
            at = end == s->n ? at + ticks : end + ticks;
        } else if (stars >= marks && stars <= 3 && !is_blank(s->text[at - 1])) {
            return at;
        } else {
            at += stars ? stars : is_escape(s, at) ? 2 : 1;
        }
    }
    *more = !s->ends && !memchr(s->text, '\n', s->n);
    return s->n;
}

static size_t take_some(struct markdown *m, const struct span *s, struct wrap *w);

/* Stars open after anything but a letter or a digit, so that x**2 stays. */
static size_t take_stars(struct markdown *m, const struct span *s, struct wrap *w)
{
    bool more;
    size_t marks = run_of(s, 0, '*');
    if (is_open(s, marks))
        return 0;
    bool opens = marks >= 2 && marks <= 3 && !m->bold && !m->plain && !is_blank(char_at(s, marks)) &&
                 !isalnum((unsigned char)m->before);
    size_t end = opens ? bold_end(s, marks, &more) : s->n;
    if (opens && end == s->n && more)
        return 0;
    if (end >= s->n) {
        put(m, s->text, marks, w);
        return marks;
    }
    size_t closing = run_of(s, end, '*');
    /* Stars of the end that have no partner belong to the text. */
    struct span inner = {s->text + marks, end - marks + (closing - marks), true};
    if (!m->heading)
        wrap_escape(w, bold_on);
    m->bold = true;
    m->before = '*';
    while (inner.n) {
        size_t done = take_some(m, &inner, w);
        inner.text += done;
        inner.n -= done;
    }
    m->bold = false;
    if (!m->heading)
        wrap_escape(w, bold_off);
    m->before = '*';
    return end + closing;
}

static size_t take_some(struct markdown *m, const struct span *s, struct wrap *w)
{
    if (*s->text == '`')
        return take_backticks(m, s, w);
    if (*s->text == '*')
        return take_stars(m, s, w);
    if (*s->text == '\\' && is_open(s, 1))
        return 0;
    size_t n = is_escape(s, 0) ? 2 : 1;
    put(m, s->text, n, w);
    return n;
}

/* ---- the beginning of a line ---- */

/* A fence's line is hidden. A plain one is printed. */
static size_t take_fence(struct markdown *m, const struct span *s, size_t marks, size_t end, struct wrap *w)
{
    bool opens = !m->fence;
    m->fence = opens ? (uint32_t)marks : 0;
    if (opens)
        style(m, code_on, w);
    w->verbatim = true;
    if (m->plain)
        put(m, s->text, end, w);
    if (!opens)
        style(m, code_off, w);
    w->verbatim = opens;
    return end;
}

/* Backticks that begin a line. Those of a fence have no backtick after them in the line, those that end a
 * code block nothing but blanks. Returns 0 with *more set, or 0: they are no fence. */
static size_t try_fence(struct markdown *m, const struct span *s, size_t at, bool *more, struct wrap *w)
{
    size_t marks = run_of(s, at, '`'), end = at + marks;
    if (is_open(s, end)) {
        *more = true;
        return 0;
    }
    if (marks < FENCE_MARKS || (m->fence && marks < m->fence))
        return 0;
    while (end < s->n && s->text[end] != '\n' && s->text[end] != '`' && (!m->fence || is_blank(s->text[end])))
        end++;
    *more = is_open(s, end);
    bool is_whole = char_at(s, end) == '\n';
    /* What ends with its fence has one; what begins with it as its last line has no code. */
    if (*more || !(is_whole || (end == s->n && m->fence)))
        return 0;
    return take_fence(m, s, marks, end + is_whole, w);
}

static size_t try_heading(struct markdown *m, const struct span *s, size_t at, bool *more, struct wrap *w)
{
    size_t marks = run_of(s, at, '#'), text = at + marks + run_of(s, at + marks, ' ');
    *more = is_open(s, text);
    if (*more || marks > MOST_HASHES || text == at + marks || is_blank(char_at(s, text)))
        return 0;
    m->heading = true;
    wrap_escape(w, bold_on);
    return text;
}

/* Whether a line that begins with blanks is code, not an item of a list. */
static bool is_code(const struct span *s, size_t blanks)
{
    return (blanks >= CODE_BLANKS || char_at(s, 0) == '\t') &&
           !(blanks < s->n && (strchr("-*+", s->text[blanks]) || isdigit((unsigned char)s->text[blanks])));
}

/* Finds out what the line is. Returns the bytes that are done; 0: more must come, or in_line is set. */
static size_t begin_line(struct markdown *m, const struct span *s, struct wrap *w)
{
    size_t blanks = run_of(s, 0, ' '), done = 0;
    char c = char_at(s, blanks);
    bool more = is_open(s, blanks) && blanks <= MOST_FENCE_BLANKS;
    if (!more && c == '`' && blanks <= MOST_FENCE_BLANKS && !m->is_cell)
        done = try_fence(m, s, blanks, &more, w);
    else if (!more && c == '#' && blanks < CODE_BLANKS && !m->is_cell && !m->fence && !m->plain)
        done = try_heading(m, s, blanks, &more, w);
    if (more || (done && !m->heading))
        return done;
    m->in_line = true;
    m->before = '\n';
    if (!m->is_cell)
        w->verbatim = m->fence || m->keeps || is_code(s, blanks);
    return done;
}

static void end_line(struct markdown *m, struct wrap *w)
{
    if (m->heading)
        wrap_escape(w, bold_off);
    m->heading = m->in_line = false;
    if (!m->is_cell)
        w->verbatim = m->fence;
}

/* Takes what is known of the text that is held. */
static void settle(struct markdown *m, bool ends, struct wrap *w)
{
    struct span s = {str_text(&m->held), m->held.len, ends || m->held.len >= MOST_HELD};
    size_t done = 1;
    while (s.n && done) {
        done = 0;
        if (!m->in_line)
            done = begin_line(m, &s, w);
        if (!done && m->in_line && *s.text == '\n')
            end_line(m, w);
        if (!done && (m->in_line || *s.text == '\n')) {
            done = m->fence || *s.text == '\n' ? 1 : take_some(m, &s, w);
            if (m->fence || *s.text == '\n')
                put(m, s.text, 1, w);
        }
        s.text += done;
        s.n -= done;
    }
    if (s.n == m->held.len)
        return;
    memmove(m->held.data, s.text, s.n);
    m->held.len = s.n;
    m->held.data[s.n] = '\0';
}

static void push_char(struct markdown *m, char c, struct wrap *w)
{
    str_add(&m->held, &c, 1);
    if (str_ok(&m->held))
        settle(m, false, w);
    else
        wrap_text(w, &c, 1);
}

/* ---- tables ---- */

/* Prints the lines that are held back: a table, or text that only looked like one. The lines of a table that
 * is not drawn stay as they are. lacks_end: the last line's end is not the text's. */
static void end_table(struct markdown *m, bool lacks_end, struct wrap *w)
{
    struct str lines = m->table;
    bool is_table = m->n_rows >= 2 && !m->in_table && str_ok(&lines);
    bool is_drawn = is_table && !m->plain && !memchr(lines.data, '\0', lines.len) &&
                    table_lines_draw(str_text(&lines), w);
    m->table = (struct str){0};
    m->n_rows = 0;
    m->in_table = false;
    m->keeps = is_table;
    for (size_t i = 0; !is_drawn && i + lacks_end < lines.len; i++)
        push_char(m, lines.data[i], w);
    if (lacks_end)
        settle(m, true, w);
    m->keeps = false;
    if (is_drawn)
        m->before = '\n';
    str_free(&lines);
}

/* Takes a character that may belong to a table. Returns whether it does. */
static bool take_for_table(struct markdown *m, char c, struct wrap *w)
{
    bool begins = c == '|' && !m->in_line && !m->held.len && !m->fence && !m->is_cell;
    if (m->in_table) {
        str_add(&m->table, &c, 1);
        m->in_table = c != '\n';
        m->n_rows += c == '\n';
        if (m->n_rows == 2 && !m->in_table && !table_lines_begin(str_text(&m->table)))
            end_table(m, false, w);
        return true;
    }
    if (!begins && m->n_rows)
        end_table(m, false, w);
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
    bool lacks_end = m->in_table && m->n_rows >= 2;
    if (lacks_end)
        take_for_table(m, '\n', w);
    if (m->in_table || m->n_rows)
        end_table(m, lacks_end, w);
    settle(m, true, w);
    if (m->heading)
        wrap_escape(w, bold_off);
    if (m->fence)
        style(m, code_off, w);
    if (!m->is_cell)
        w->verbatim = false;
    str_free(&m->held);
    *m = (struct markdown){.plain = m->plain, .is_cell = m->is_cell};
}
