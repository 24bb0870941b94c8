#include "ops/weights.h"

#include "base/err.h"
#include "base/format.h"

struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n)
{
    const struct format *f = format_of(w->format);
    uint64_t before = (uint64_t)first * w->cols;
    struct weights rows = *w;
    rows.weight += format_code_bytes(f, before);
    rows.scales += w->scales ? format_scale_bytes(f, before) : 0;
    rows.biases += w->biases && f->has_bias ? format_scale_bytes(f, before) : 0;
    rows.rows = n;
    return rows;
}

bool weights_are_plain(const struct weights *w)
{
    return format_of(w->format)->scheme == SCHEME_PLAIN;
}

bool weights_are_uneven(const struct weights *w)
{
    return w->cols % PRODUCT_COLS != 0;
}

int weights_check(const struct weights *w, const char *what, struct moeflux_err *e)
{
    const struct format *f = format_of(w->format);
    uint32_t of = f->group > PRODUCT_COLS ? f->group : PRODUCT_COLS;
    if (w->rows == 0 || w->cols == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: a matrix is [%u][%u]", what, w->rows, w->cols);
    if (weights_are_plain(w) || w->cols % of == 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: a matrix of quantised numbers (%s) has %u columns, expected a multiple of %u", what,
                   f->name, w->cols, of);
}
