#include "ops/weights.h"

#include "args.h"

struct weights weights_rows(const struct weights *w, uint32_t first, uint32_t n)
{
    static const uint32_t bits[] = {[FORMAT_Q4] = 4, [FORMAT_Q8] = 8, [FORMAT_BF16] = 16, [FORMAT_F32] = 32};
    uint64_t before = (uint64_t)first * w->cols, groups = before / 64 * sizeof(uint16_t);
    struct weights rows = *w;
    rows.weight += before * bits[w->format] / 8;
    rows.scales += w->scales ? groups : 0;
    rows.biases += w->biases ? groups : 0;
    rows.rows = n;
    return rows;
}

bool weights_are_plain(const struct weights *w)
{
    return w->format == FORMAT_BF16 || w->format == FORMAT_F32;
}
