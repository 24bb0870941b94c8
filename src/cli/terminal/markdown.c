#include "cli/terminal/markdown.h"

#include "cli/output.h"

static const char bold_on[] = "\033[1m", bold_off[] = "\033[22m", code_on[] = "\033[36m",
                  code_off[] = "\033[39m";

enum { FENCE_MARKS = 3, MOST_BLANKS = 3, MOST_HASHES = 6 };

/* Whether the character next to marks is a blank, a line's end, or none. */
static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\0';
}

static void put_run(struct markdown *m, struct output *out)
{
    for (uint32_t i = 0; i < m->n_run; i++)
        output_add(out, &m->run, 1);
    m->before = m->run;
}

static void end_styles(struct markdown *m, struct output *out)
{
    if (m->code)
        output_escape(out, code_off);
    if (m->bold || m->heading)
        output_escape(out, bold_off);
    m->code = 0;
    m->bold = m->heading = false;
}

static void end_backticks(struct markdown *m, char next, struct output *out)
{
    bool begins = m->run_begins && m->n_run >= FENCE_MARKS;
    if (m->fence) {
        put_run(m, out);
        if (begins && m->n_run >= m->fence && (next == '\n' || next == '\0')) {
            output_escape(out, code_off);
            m->fence = 0;
        }
    } else if (m->code) {
        put_run(m, out);
        if (m->code == m->n_run) {
            output_escape(out, code_off);
            m->code = 0;
        }
    } else {
        output_escape(out, code_on);
        put_run(m, out);
        *(begins ? &m->fence : &m->code) = m->n_run;
    }
}

static void end_stars(struct markdown *m, char next, struct output *out)
{
    bool marks = m->n_run >= 2 && m->n_run <= 3 && !m->code && !m->fence;
    bool opens = marks && !m->bold && !is_blank(next), closes = marks && m->bold && !is_blank(m->before);
    if (opens && !m->heading)
        output_escape(out, bold_on);
    put_run(m, out);
    if (closes && !m->heading)
        output_escape(out, bold_off);
    m->bold = opens || (m->bold && !closes);
}

static void end_hashes(struct markdown *m, char next, struct output *out)
{
    m->heading = m->n_run <= MOST_HASHES && is_blank(next);
    if (m->heading)
        output_escape(out, bold_on);
    put_run(m, out);
}

/* next: the character after the marks; 0: none */
static void end_run(struct markdown *m, char next, struct output *out)
{
    if (m->run == '`')
        end_backticks(m, next, out);
    else if (m->run == '*')
        end_stars(m, next, out);
    else if (m->run == '#')
        end_hashes(m, next, out);
    m->run = '\0';
    m->n_run = 0;
}

/* Whether the character is a mark where it stands. */
static bool is_mark(const struct markdown *m, char c)
{
    if (m->fence)
        return c == '`' && !m->in_line;
    if (c == '`')
        return !m->escaped || m->code;
    return !m->escaped && ((c == '*' && !m->code) || (c == '#' && !m->in_line));
}

static void put_char(struct markdown *m, char c, struct output *out)
{
    if (c == '\n' && !m->fence)
        end_styles(m, out);
    output_add(out, &c, 1);
    m->escaped = c == '\\' && !m->escaped && !m->code && !m->fence;
    m->before = c;
    if (c == '\n')
        m->n_blanks = 0;
    m->n_blanks += c == ' ';
    m->in_line = c != '\n' && (m->in_line || c != ' ' || m->n_blanks > MOST_BLANKS);
}

void markdown_push(struct markdown *m, const char *text, size_t n, struct output *out)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (m->run && c == m->run) {
            m->n_run++;
            continue;
        }
        if (m->run)
            end_run(m, c, out);
        if (is_mark(m, c)) {
            m->run = c;
            m->n_run = 1;
            m->run_begins = !m->in_line;
            m->in_line = true;
        } else {
            put_char(m, c, out);
        }
    }
}

void markdown_end(struct markdown *m, struct output *out)
{
    if (m->run)
        end_run(m, '\0', out);
    end_styles(m, out);
    if (m->fence)
        output_escape(out, code_off);
    *m = (struct markdown){0};
}
