#include "cli/terminal/table_lines.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/wrap.h"

enum { MAX_COLUMNS = 32 };

struct cell {
    const char *text;
    size_t len;
};

struct row {
    struct cell cells[MAX_COLUMNS];
    uint32_t n;
};

enum side { LEFT, MIDDLE, RIGHT };

static struct cell trimmed(const char *text, size_t len)
{
    while (len > 0 && (*text == ' ' || *text == '\t')) {
        text++;
        len--;
    }
    while (len > 0 && strchr(" \t\r", text[len - 1]))
        len--;
    return (struct cell){text, len};
}

/* Cuts a line, which begins with "|", into cells. A bar within code or after a backslash cuts nothing.
 * Returns the next line. */
static const char *cut(const char *line, struct row *r)
{
    const char *end = line + strcspn(line, "\n"), *from = line + 1;
    bool in_code = false;
    *r = (struct row){.n = 0};
    for (const char *at = from; at < end; at++) {
        in_code ^= *at == '`';
        if (*at != '|' || in_code || at[-1] == '\\')
            continue;
        if (r->n < MAX_COLUMNS)
            r->cells[r->n++] = trimmed(from, (size_t)(at - from));
        from = at + 1;
    }
    struct cell last = trimmed(from, (size_t)(end - from));
    if (last.len && r->n < MAX_COLUMNS)
        r->cells[r->n++] = last;
    return *end ? end + 1 : end;
}

static bool is_rule(const struct row *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct cell *c = &r->cells[i];
        size_t dashes = 0;
        for (size_t k = 0; k < c->len; k++) {
            if (!strchr("-:", c->text[k]))
                return false;
            dashes += c->text[k] == '-';
        }
        if (!dashes)
            return false;
    }
    return r->n > 0;
}

bool table_lines_begin(const char *lines)
{
    struct row title, rule;
    cut(cut(lines, &title), &rule);
    return title.n > 0 && title.n < MAX_COLUMNS && rule.n == title.n && is_rule(&rule);
}

static enum side side_of(const struct cell *c)
{
    bool left = c->len && c->text[0] == ':', right = c->len && c->text[c->len - 1] == ':';
    return right ? left ? MIDDLE : RIGHT : LEFT;
}

/* Returns the columns that the cell takes without its marks. */
static uint32_t width_of(const struct cell *c)
{
    struct output to;
    struct markdown m = {.is_cell = true};
    output_init(&to, -1);
    struct wrap w = {.out = &to};
    markdown_push(&m, c->text, c->len, &w);
    markdown_end(&m, &w);
    wrap_end(&w);
    uint32_t columns = 0;
    for (const char *at = str_text(&to.held); *at;) {
        size_t n = strcspn(at, "\033");
        columns += wrap_text_columns(at, n);
        at += n;
        at += *at ? strcspn(at, "m") + 1 : 0;
    }
    str_free(&to.held);
    return columns;
}

static void put(struct wrap *w, const char *text, uint32_t times)
{
    while (times-- > 0)
        wrap_text(w, text, strlen(text));
}

static void put_row(const struct row *r, const uint32_t *widths, const enum side *sides, uint32_t n,
                    bool bold, struct wrap *w)
{
    for (uint32_t i = 0; i < n; i++) {
        struct markdown m = {.is_cell = true};
        struct cell none = {"", 0};
        const struct cell *c = i < r->n ? &r->cells[i] : &none;
        uint32_t gap = widths[i] - width_of(c);
        uint32_t before = sides[i] == RIGHT ? gap : sides[i] == MIDDLE ? gap / 2 : 0;
        put(w, i ? " │ " : " ", 1);
        put(w, " ", before);
        if (bold)
            wrap_escape(w, "\033[1m");
        markdown_push(&m, c->text, c->len, w);
        markdown_end(&m, w);
        w->verbatim = true;
        if (bold)
            wrap_escape(w, "\033[22m");
        put(w, " ", i + 1 < n ? gap - before : 0);
    }
    put(w, "\n", 1);
}

static void draw(const char *lines, const uint32_t *widths, uint32_t n, struct wrap *w)
{
    struct row title, rule, row;
    enum side sides[MAX_COLUMNS] = {LEFT};
    const char *at = cut(cut(lines, &title), &rule);
    for (uint32_t i = 0; i < n; i++)
        sides[i] = side_of(&rule.cells[i]);
    w->verbatim = true;
    put_row(&title, widths, sides, n, true, w);
    for (uint32_t i = 0; i < n; i++) {
        put(w, i ? "┼" : "", 1);
        put(w, "─", widths[i] + 2);
    }
    put(w, "\n", 1);
    while (*at) {
        at = cut(at, &row);
        put_row(&row, widths, sides, n, false, w);
    }
    w->verbatim = false;
}

bool table_lines_draw(const char *lines, struct wrap *w)
{
    struct row title, row;
    uint32_t widths[MAX_COLUMNS] = {0}, total = 0;
    if (!table_lines_begin(lines))
        return false;
    const char *rule = cut(lines, &title), *at = cut(rule, &row);
    for (uint32_t i = 0; i < title.n; i++)
        widths[i] = width_of(&title.cells[i]);
    while (*at) {
        at = cut(at, &row);
        if (row.n > title.n)
            return false;
        for (uint32_t i = 0; i < title.n && i < row.n; i++) {
            uint32_t own = width_of(&row.cells[i]);
            widths[i] = own > widths[i] ? own : widths[i];
        }
    }
    for (uint32_t i = 0; i < title.n; i++)
        total += widths[i] + 3;
    if (w->width && total - 1 > w->width)
        return false;
    draw(lines, widths, title.n, w);
    return true;
}
