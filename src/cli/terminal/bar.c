#include "cli/terminal/bar.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/options/number.h"
#include "cli/say.h"
#include "cli/signals.h"

#define SHOW_AFTER_NS 1000000000u
#define REDRAW_NS     100000000u

void bar_init(struct bar *b, const struct term *t)
{
    *b = (struct bar){.on = t->err_dress && !t->quiet};
}

static void show_amount(char *buf, size_t cap, const char *unit, double amount)
{
    if (strcmp(unit, "B") == 0)
        number_show_bytes(buf, cap, amount);
    else
        snprintf(buf, cap, amount < 100 ? "%.1f %s" : "%.0f %s", amount, unit);
}

static void show_time(char *buf, size_t cap, double seconds)
{
    if (seconds > 359999)
        seconds = 359999;
    unsigned s = (unsigned)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, cap, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, cap, "%u:%02u", s / 60, s % 60);
}

static void draw(struct bar *b, const char *unit, uint64_t done, uint64_t total, uint64_t now)
{
    enum { MIN_CELLS = 4, MAX_CELLS = 40 };
    char speed[40], left[24], tail[96], cells[MAX_CELLS + 1];
    double seconds = (double)(now - b->start_ns) / 1e9;
    double rate = (double)(done - b->start_done) / seconds;
    show_amount(speed, sizeof speed, unit, rate);
    show_time(left, sizeof left, rate > 0 ? (double)(total - done) / rate : 0);
    int n_tail = snprintf(tail, sizeof tail, "%3u%%", (unsigned)(100.0 * (double)done / (double)total));
    if (rate > 0) /* else the speed is not known yet */
        snprintf(tail + n_tail, sizeof tail - (size_t)n_tail, "  %s/s  %s left", speed, left);
    int room = term_width() - 1 - (int)strlen(b->what) - (int)strlen(tail) - 6;
    int n = room < MIN_CELLS ? MIN_CELLS : room > MAX_CELLS ? MAX_CELLS : room;
    int full = (int)((double)n * (double)done / (double)total);
    memset(cells, '-', (size_t)n);
    memset(cells, '#', (size_t)full);
    cells[n] = '\0';
    say_escape(term_erase_line);
    say("%s  [%s]  %s", b->what, cells, tail);
    b->shown = true;
    b->drawn_ns = now;
}

static bool report(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct bar *b = ctx;
    if (signals_interrupted())
        return false;
    if (!b->on || b->held || total == 0 || done > total)
        return true;
    uint64_t now = clock_ns();
    if (strncmp(b->what, what, sizeof b->what - 1) != 0 || b->start_ns == 0 || done < b->start_done) {
        bar_end(b);
        snprintf(b->what, sizeof b->what, "%s", what);
        b->start_ns = now;
        b->start_done = done;
    }
    if (done == total)
        bar_end(b);
    else if (now - b->start_ns > SHOW_AFTER_NS && now - b->drawn_ns > REDRAW_NS)
        draw(b, unit, done, total, now);
    return true;
}

struct moeflux_progress bar_progress(struct bar *b)
{
    return (struct moeflux_progress){.report = report, .ctx = b};
}

void bar_hide(struct bar *b)
{
    if (b->shown)
        say_escape(term_erase_line);
    b->shown = false;
}

void bar_end(struct bar *b)
{
    bar_hide(b);
    b->start_ns = 0;
    b->held = false;
}

void bar_hold(struct bar *b)
{
    bar_end(b);
    b->held = true;
}
