#include "cli/report/facts.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/options/number.h"
#include "cli/output.h"

void facts_value(const struct facts *f, const char *key, json_t *value)
{
    if (f->object)
        json_object_set_new(f->object, key, value);
    else
        json_decref(value);
}

void facts_count(const struct facts *f, const char *key, uint64_t count)
{
    facts_value(f, key, count <= INT64_MAX ? json_integer((json_int_t)count) : json_null());
}

void facts_seconds(const struct facts *f, const char *key, uint64_t ns)
{
    facts_value(f, key, json_real((double)ns / 1e9));
}

void facts_flag(const struct facts *f, const char *key, bool flag)
{
    facts_value(f, key, json_boolean(flag));
}

void facts_line(const struct facts *f, const char *title, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (f->out)
        output_addf(f->out, "%-22s %s\n", title, line);
}

void facts_heading(const struct facts *f, const char *text)
{
    if (f->out)
        output_addf(f->out, "%s\n", text);
}

void facts_bytes(const struct facts *f, const char *key, const char *title, uint64_t bytes, const char *note)
{
    char amount[32] = "unknown";
    if (bytes != UINT64_MAX)
        number_show_bytes(amount, sizeof amount, (double)bytes);
    if (title)
        facts_line(f, title, "%12s%s%s", amount, note[0] ? "  " : "", note);
    if (key)
        facts_count(f, key, bytes);
}

void facts_text(const struct facts *f, const char *key, const char *title, const char *text)
{
    if (title)
        facts_line(f, title, "%s", text);
    if (key)
        facts_value(f, key, output_json_text(text, strlen(text)));
}
