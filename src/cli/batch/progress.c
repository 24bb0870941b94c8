#include "cli/batch/progress.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "cli/say.h"
#include "cli/terminal/term.h"

#define REDRAW_NS 200000000u

void batch_progress_begin(struct batch_progress *p, const struct term *t, uint64_t total, bool to_stdout)
{
    *p = (struct batch_progress){.on = t->err_dress && !t->quiet,
                                 .is_among_results = to_stdout && t->out,
                                 .total = total,
                                 .start_ns = clock_ns()};
}

static void show_left(char *buf, size_t cap, double seconds)
{
    const double most = 99 * 3600 + 3599;
    unsigned s = (unsigned)((seconds < most ? seconds : most) + 0.5);
    snprintf(buf, cap, ", %u:%02u:%02u left", s / 3600, s / 60 % 60, s % 60);
}

void batch_progress_show(struct batch_progress *p, uint64_t answered, uint64_t failed, uint64_t there)
{
    char of[32] = "", left[32] = "", line[160];
    uint64_t now = clock_ns(), done = answered + failed;
    double seconds = (double)(now - p->start_ns) / 1e9;
    if (!p->on || (p->shown && now - p->drawn_ns < REDRAW_NS))
        return;
    if (p->total)
        snprintf(of, sizeof of, " of %" PRIu64, p->total);
    if (done && p->total >= done + there)
        show_left(left, sizeof left, seconds / (double)done * (double)(p->total - done - there));
    snprintf(line, sizeof line, "%" PRIu64 "%s lines done, %" PRIu64 " failed, %.2f/s%s", done + there, of,
             failed, seconds > 0 ? (double)done / seconds : 0, left);
    line[term_width() - 1 < (int)sizeof line ? term_width() - 1 : (int)sizeof line - 1] = '\0';
    say_escape(term_erase_line);
    say("%s", line);
    p->shown = true;
    p->drawn_ns = now;
}

void batch_progress_make_way(struct batch_progress *p)
{
    if (p->is_among_results)
        batch_progress_end(p);
}

void batch_progress_end(struct batch_progress *p)
{
    if (p->shown)
        say_escape(term_erase_line);
    p->shown = false;
}
