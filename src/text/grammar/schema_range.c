/* A grammar of the numbers between two bounds, digit by digit. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/schema_writer.h"

#define LARGEST ((int64_t)9999999999999999) /* the largest number of SCHEMA_MAX_DIGITS digits */

static void add_digits(unsigned n, struct str *body)
{
    if (n)
        str_addf(body, " [0-9]{%u}", n);
}

static bool is_all(const char *digits, char digit)
{
    return digits[strspn(digits, (const char[]){digit, '\0'})] == '\0';
}

/* Adds the numbers from lo to hi, which have the same number of digits. */
static void add_same_length(const char *lo, const char *hi, struct str *body)
{
    unsigned n = (unsigned)strlen(lo);
    while (*lo && *lo == *hi) {
        str_addf(body, " \"%c\"", *lo);
        lo++;
        hi++;
        n--;
    }
    if (n == 0)
        return;
    if (is_all(lo, '0') && is_all(hi, '9')) {
        add_digits(n, body);
        return;
    }
    char from = *lo, to = *hi, nines[SCHEMA_MAX_DIGITS + 1], zeros[SCHEMA_MAX_DIGITS + 1];
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    nines[n - 1] = zeros[n - 1] = '\0';
    str_add_text(body, " (");
    /* A first digit with which not all continuations are allowed is written separately. */
    if (!is_all(lo + 1, '0')) {
        str_addf(body, "\"%c\"", from++);
        add_same_length(lo + 1, nines, body);
        str_add_text(body, " | ");
    }
    bool full_end = is_all(hi + 1, '9');
    char last = (char)(full_end ? to : to - 1);
    if (from <= last) {
        str_addf(body, "[%c-%c]", from, last);
        add_digits(n - 1, body);
    }
    if (!full_end) {
        str_addf(body, "%s\"%c\"", from <= last ? " | " : "", to);
        add_same_length(zeros, hi + 1, body);
    }
    str_add_text(body, ")");
}

/* Adds the whole numbers from lo to hi; 0 <= lo <= hi. */
static void add_whole(int64_t lo, int64_t hi, struct str *body)
{
    const char *between = "";
    str_add_text(body, "(");
    for (int64_t first = 0, last = 9; first <= hi; first = last + 1, last = last * 10 + 9) {
        char from[24], to[24];
        if (last < lo)
            continue;
        snprintf(from, sizeof from, "%" PRId64, first > lo ? first : lo);
        snprintf(to, sizeof to, "%" PRId64, last < hi ? last : hi);
        str_add_text(body, between);
        add_same_length(from, to, body);
        between = " | ";
    }
    str_add_text(body, ")");
}

/* Adds the magnitudes from lo to hi. A fraction is written after the whole number below it. Returns false if
 * there are none. */
static bool add_magnitudes(int64_t lo, int64_t hi, bool without_lo, bool without_hi, bool fractions,
                           const char *sign, struct str *body)
{
    const char *between = "";
    if (!fractions) {
        lo += without_lo;
        hi -= without_hi;
        if (lo > hi)
            return false;
        str_add_text(body, sign);
        add_whole(lo, hi, body);
        return true;
    }
    if (lo > hi || (lo == hi && (without_lo || without_hi)))
        return false;
    str_addf(body, "%s(", sign);
    if (without_lo) {
        str_addf(body, "\"%" PRId64 "\" \".\" \"0\"{0,7} [1-9] [0-9]{0,8}", lo++);
        between = " | ";
    }
    if (lo < hi) {
        str_add_text(body, between);
        add_whole(lo, hi - 1, body);
        str_add_text(body, " (\".\" [0-9]{1,16})?");
        between = " | ";
    }
    if (!without_hi && lo <= hi)
        str_addf(body, "%s\"%" PRId64 "\" (\".\" \"0\"{1,16})?", between, hi);
    str_add_text(body, ")");
    return true;
}

void schema_add_range(struct schema_writer *w, const struct schema_range *r, bool fractions, struct str *body)
{
    int64_t lo = r->has_lo ? r->lo : -LARGEST, hi = r->has_hi ? r->hi : LARGEST;
    bool any = false;
    if (lo < -LARGEST || hi > LARGEST || lo > LARGEST || hi < -LARGEST) {
        schema_fail(w, ERR_UNSUPPORTED, NULL, "a bound of more than 16 digits");
        return;
    }
    struct str below = {0};
    str_add_text(body, "(");
    if (hi >= 0)
        any =
            add_magnitudes(lo > 0 ? lo : 0, hi, r->without_lo && lo >= 0, r->without_hi, fractions, "", body);
    /* -0 is 0, which belongs to the half above. */
    if (lo < 0 && add_magnitudes(hi < 0 ? -hi : 0, -lo, hi < 0 ? r->without_hi : true, r->without_lo,
                                 fractions, "\"-\" ", &below)) {
        str_addf(body, "%s%s", any ? " | " : "", str_text(&below));
        any = true;
    }
    str_add_text(body, ")");
    if (!any || !str_ok(&below))
        schema_fail(w, any ? ERR_MEMORY : ERR_FORMAT, NULL,
                    any ? "out of memory" : "no number lies between the bounds");
    str_free(&below);
}
