#include "cli/report/table.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"

static const struct table_cell *cell_at(const struct table *t, size_t row, size_t column)
{
    return &t->cells[row * t->n_columns + column];
}

/* Returns the cell's text. unknown: text for NaN, "-" in a table and "" in CSV. */
static const char *cell_text(const struct table *t, size_t row, size_t column, const char *unknown, char *buf,
                             size_t cap)
{
    const struct table_cell *cell = cell_at(t, row, column);
    if (t->columns[column].digits < 0)
        return cell->text;
    if (!isfinite(cell->number))
        return unknown;
    snprintf(buf, cap, "%.*f", t->columns[column].digits, cell->number);
    return buf;
}

static int column_width(const struct table *t, size_t column)
{
    char buf[64];
    size_t width = strlen(t->columns[column].title);
    for (size_t r = 0; r < t->n_rows; r++) {
        size_t n = strlen(cell_text(t, r, column, "-", buf, sizeof buf));
        width = n > width ? n : width;
    }
    return (int)width;
}

static void add_cell(struct output *out, const char *text, int width, bool left, bool last)
{
    int pad = width - (int)strlen(text);
    for (int i = 0; !left && i < pad; i++)
        output_add(out, " ", 1);
    output_text(out, text);
    for (int i = 0; left && !last && i < pad; i++)
        output_add(out, " ", 1);
    output_text(out, last ? "\n" : "  ");
}

static void print_plain(const struct table *t, struct output *out)
{
    size_t last = t->n_columns - 1;
    while (last > 0 && !t->columns[last].title)
        last--;
    /* Row -1 is the line of titles. */
    for (long row = -1; row < (long)t->n_rows; row++)
        for (size_t c = 0; c < t->n_columns; c++) {
            char buf[64];
            const struct table_column *column = &t->columns[c];
            if (!column->title)
                continue;
            const char *text = row < 0 ? column->title : cell_text(t, (size_t)row, c, "-", buf, sizeof buf);
            add_cell(out, text, column_width(t, c), column->digits < 0, c == last);
        }
}

/* A field with a comma, quote or line end is quoted, its quotes doubled (RFC 4180). */
static void add_csv_field(struct output *out, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        output_text(out, text);
        return;
    }
    output_add(out, "\"", 1);
    for (const char *c = text; *c; c++)
        output_add(out, *c == '"' ? "\"\"" : c, *c == '"' ? 2 : 1);
    output_add(out, "\"", 1);
}

static void print_csv(const struct table *t, struct output *out)
{
    for (long row = -1; row < (long)t->n_rows; row++) {
        const char *comma = "";
        for (size_t c = 0; c < t->n_columns; c++) {
            char buf[64];
            const char *key = t->columns[c].key;
            if (!key)
                continue;
            output_text(out, comma);
            add_csv_field(out, row < 0 ? key : cell_text(t, (size_t)row, c, "", buf, sizeof buf));
            comma = ",";
        }
        output_text(out, "\n");
    }
}

void table_print(const struct table *t, enum table_format format, struct output *out)
{
    if (format == TABLE_CSV)
        print_csv(t, out);
    else
        print_plain(t, out);
}

static json_t *cell_json(const struct table *t, size_t row, size_t column)
{
    const struct table_cell *cell = cell_at(t, row, column);
    if (t->columns[column].digits < 0)
        return output_json_text(cell->text, strlen(cell->text));
    if (!isfinite(cell->number))
        return json_null();
    return t->columns[column].digits == 0 ? json_integer((json_int_t)cell->number) : json_real(cell->number);
}

struct json_t *table_json(const struct table *t)
{
    json_t *rows = json_array();
    for (size_t r = 0; r < t->n_rows; r++) {
        json_t *object = json_object();
        for (size_t c = 0; c < t->n_columns; c++)
            if (t->columns[c].key)
                json_object_set_new(object, t->columns[c].key, cell_json(t, r, c));
        json_array_append_new(rows, object);
    }
    return rows;
}
