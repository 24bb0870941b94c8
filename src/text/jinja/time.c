/* strftime_now: formats a time like Python's strftime, in English. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "text/jinja/run.h"

static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};

/* Appends a number padded to `width` places with `fill`. flag: '-' no padding, '0' zeros, '_' spaces. */
static void build_number(struct jinja_build *b, int number, int width, char fill, char flag)
{
    char text[24];
    if (flag == '-')
        width = 1;
    if (flag == '0' || (fill == '0' && flag != '_'))
        snprintf(text, sizeof text, "%0*d", width, number);
    else
        snprintf(text, sizeof text, "%*d", width, number);
    jinja_build_literal(b, text);
}

static void build_cut(struct jinja_build *b, const char *name, size_t n)
{
    jinja_build_bytes(b, name, n < strlen(name) ? n : strlen(name));
}

/* Returns the format that a conversion is short for; NULL: none. */
static const char *composed(char conversion)
{
    switch (conversion) {
    case 'c':
        return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
        return "%m/%d/%y";
    case 'F':
        return "%Y-%m-%d";
    case 'R':
        return "%H:%M";
    case 'T':
    case 'X':
        return "%H:%M:%S";
    default:
        return NULL;
    }
}

static bool build_numbered(struct jinja_build *b, const struct tm *t, char conversion, char flag)
{
    int hour = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    const struct {
        char conversion, fill;
        int width, number;
    } numbers[] = {
        {'Y', '0', 1, t->tm_year + 1900},
        {'C', '0', 2, (t->tm_year + 1900) / 100},
        {'y', '0', 2, (t->tm_year + 1900) % 100},
        {'m', '0', 2, t->tm_mon + 1},
        {'d', '0', 2, t->tm_mday},
        {'e', ' ', 2, t->tm_mday},
        {'H', '0', 2, t->tm_hour},
        {'k', ' ', 2, t->tm_hour},
        {'I', '0', 2, hour},
        {'l', ' ', 2, hour},
        {'M', '0', 2, t->tm_min},
        {'S', '0', 2, t->tm_sec},
        {'j', '0', 3, t->tm_yday + 1},
        {'w', '0', 1, t->tm_wday},
        {'u', '0', 1, t->tm_wday ? t->tm_wday : 7},
        /* Microseconds, which `now` does not have. */
        {'f', '0', 6, 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].conversion != conversion)
            continue;
        build_number(b, numbers[i].number, numbers[i].width, numbers[i].fill, flag);
        return true;
    }
    return false;
}

static void build_conversion(struct jinja_build *b, const struct tm *t, char conversion, char flag)
{
    if (build_numbered(b, t, conversion, flag))
        return;
    switch (conversion) {
    case 'A':
        jinja_build_literal(b, days[t->tm_wday]);
        return;
    case 'a':
        build_cut(b, days[t->tm_wday], 3);
        return;
    case 'B':
        jinja_build_literal(b, months[t->tm_mon]);
        return;
    case 'b':
    case 'h':
        build_cut(b, months[t->tm_mon], 3);
        return;
    case 'p':
        jinja_build_literal(b, t->tm_hour < 12 ? "AM" : "PM");
        return;
    case '%':
        jinja_build_literal(b, "%");
        return;
    /* The time has no zone, like Python's datetime.now(). */
    case 'z':
    case 'Z':
        return;
    default:
        jinja_fail(b->s, ERR_UNSUPPORTED, "strftime_now: %%%c is not known", conversion);
    }
}

static void build_time(struct jinja_build *b, const struct tm *t, const char *format, size_t len, bool nested)
{
    for (size_t i = 0; i < len; i++) {
        if (format[i] != '%' || i + 1 == len) {
            jinja_build_bytes(b, &format[i], 1);
            continue;
        }
        char flag = '\0';
        if (i + 2 < len && memchr("-_0", format[i + 1], 3))
            flag = format[++i];
        const char *parts = nested ? NULL : composed(format[i + 1]);
        i++;
        if (parts)
            build_time(b, t, parts, strlen(parts), true);
        else
            build_conversion(b, t, format[i], flag);
    }
}

struct jinja_text jinja_time(struct jinja_state *s, time_t when, struct jinja_text format)
{
    struct jinja_build b = jinja_build(s);
    struct tm t;
    if (!localtime_r(&when, &t))
        jinja_fail(s, ERR_UNSUPPORTED, "strftime_now: the time is out of range");
    build_time(&b, &t, format.bytes, format.len, false);
    return jinja_built(&b);
}
