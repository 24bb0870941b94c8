#include "cli/options/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* strtoll and strtod skip leading blanks, which a flag's value must not have. */
static bool starts_well(const char *text)
{
    return isdigit((unsigned char)text[0]) || text[0] == '-' || text[0] == '+' || text[0] == '.';
}

bool number_int(const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    char *end;
    errno = 0;
    if (!starts_well(text))
        return false;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < lo || value > hi)
        return false;
    *out = value;
    return true;
}

bool number_real(const char *text, double *out)
{
    char *end;
    errno = 0;
    if (!starts_well(text) || strpbrk(text, "xXpP"))
        return false;
    double value = strtod(text, &end);
    if ((errno && value != 0) || end == text || *end || !isfinite(value))
        return false;
    *out = value;
    return true;
}

/* Returns the factor of a size's suffix; 0: an unknown one. */
static double suffix_factor(const char *suffix)
{
    static const char letters[] = "KMGT";
    if (!*suffix || strcasecmp(suffix, "B") == 0)
        return 1;
    const char *letter = strchr(letters, toupper((unsigned char)*suffix));
    if (!letter)
        return 0;
    double power = (double)(letter - letters + 1);
    if (!suffix[1] || strcasecmp(suffix + 1, "iB") == 0)
        return pow(1024, power);
    return strcasecmp(suffix + 1, "B") == 0 ? pow(1000, power) : 0;
}

bool number_bytes(const char *text, uint64_t *out)
{
    char digits[32];
    size_t n = strspn(text, "0123456789.");
    if (n == 0 || n >= sizeof digits)
        return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    double value, factor = suffix_factor(text + n);
    if (!number_real(digits, &value) || factor == 0)
        return false;
    value *= factor;
    /* Byte counts below 2^53 are exact as doubles. */
    if (value < 1 || value > 9007199254740992.0)
        return false;
    *out = (uint64_t)value;
    return true;
}

/* Copies the next item of a list into `item` and moves *at past it, to NULL after the last. False: it is too
 * long. */
static bool next_item(const char **at, char *item, size_t cap)
{
    size_t n = strcspn(*at, ",");
    if (n >= cap)
        return false;
    memcpy(item, *at, n);
    item[n] = '\0';
    *at = (*at)[n] ? *at + n + 1 : NULL;
    return true;
}

bool number_list(const char *text, int64_t lo, int64_t hi, struct number_list *out)
{
    struct number_list list = {0};
    char item[24];
    int64_t value;
    for (const char *at = text; at;) {
        if (list.n == NUMBER_LIST_MAX || !next_item(&at, item, sizeof item) ||
            !number_int(item, lo, hi, &value))
            return false;
        list.values[list.n++] = (uint32_t)value;
    }
    *out = list;
    return true;
}

bool number_shares(const char *text, struct share_list *out)
{
    struct share_list list = {0};
    char item[48];
    double value;
    for (const char *at = text; at;) {
        if (list.n == NUMBER_LIST_MAX || !next_item(&at, item, sizeof item) || !number_real(item, &value) ||
            !(value >= 1e-6) || value > 1e15)
            return false;
        list.values[list.n++] = (float)value;
    }
    *out = list;
    return true;
}

bool number_bytes_list(const char *text, struct bytes_list *out)
{
    struct bytes_list list = {0};
    char item[48];
    for (const char *at = text; at; list.n++)
        if (list.n == NUMBER_LIST_MAX || !next_item(&at, item, sizeof item) ||
            !number_bytes(item, &list.values[list.n]))
            return false;
    *out = list;
    return true;
}

bool number_place(const char *text, struct expert_place *out)
{
    static const char cpu[] = "cpu:";
    double share = 0;
    bool has_share = strncmp(text, cpu, sizeof cpu - 1) == 0;
    if (has_share && !number_real(text + sizeof cpu - 1, &share))
        return false;
    *out = (struct expert_place){true, has_share || strcmp(text, "cpu") == 0, (float)share};
    return has_share ? out->share > 0 && out->share < 1 : out->is_cpu || strcmp(text, "gpu") == 0;
}

char *number_show_bytes(char *buf, size_t cap, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (unit < 4 && bytes >= 1000) {
        bytes /= 1000;
        unit++;
    }
    snprintf(buf, cap, unit == 0 ? "%.0f %s" : bytes < 10 ? "%.2f %s" : "%.1f %s", bytes, units[unit]);
    return buf;
}
