#include "cli/report/convert.h"

#include <math.h>

#include "cli/output.h"
#include "cli/report/table.h"

static const struct table_column columns[] = {
    {NULL, "tensors", -1},           {NULL, "million weights", 3}, {NULL, "bits a weight", 2},
    {NULL, "error with min/max", 5}, {NULL, "error as stored", 5}, {NULL, "change in %", 1},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

/* Returns the relative root mean square error. */
static double relative(double error, double squares)
{
    return squares > 0 ? sqrt(error / squares) : 0;
}

static void fill_row(struct table_cell *row, const char *name, const struct convert_error *x)
{
    double minmax = relative(x->minmax, x->squares), stored = relative(x->stored, x->squares);
    row[0].text = name;
    row[1].number = (double)x->weights / 1e6;
    row[2].number = (double)x->bits / (double)x->weights;
    row[3].number = minmax;
    row[4].number = stored;
    row[5].number = minmax > 0 ? 100 * (stored / minmax - 1) : 0;
}

int convert_report_print(const struct convert_errors *x, bool searched, struct output *out,
                         struct moeflux_err *e)
{
    struct table_cell cells[(CONVERT_N_CLASSES + 1) * N_COLUMNS];
    struct convert_error all = {0};
    size_t n = 0;
    for (enum convert_class c = 0; c < CONVERT_N_CLASSES; c++) {
        if (!x->of[c].weights)
            continue;
        fill_row(&cells[n++ * N_COLUMNS], convert_class_name(c), &x->of[c]);
        convert_error_add(&all, &x->of[c]);
    }
    if (n == 0)
        return 0;
    fill_row(&cells[n++ * N_COLUMNS], "all", &all);
    const struct table table = {columns, N_COLUMNS, n, cells};
    output_text(out, searched
                         ? "relative root mean square error, scales searched:\n"
                         : "relative root mean square error, scales of the smallest and largest value:\n");
    table_print(&table, TABLE_PLAIN, out);
    return output_flush(out, e);
}
