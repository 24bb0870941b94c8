/* Grammars of numbers between two bounds and of multiples, digit by digit.
 *
 * A number without bounds has the digits of the rules `integer` and `number`. With bounds, a number with a
 * fraction has at most MAX_PRECISION digits: different decimals of that length are different doubles, so a
 * reader that compares doubles finds the same order. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/grammar/schema_writer.h"

enum {
    MAX_DIGITS = 16,
    MAX_PRECISION = 15,
    MAX_STEP_DIGITS = 9,
    MAX_STEP_RULES = 1024,
    MAX_STEP = 1000000000
};

#define LARGEST       9999999999999999 /* the largest number of MAX_DIGITS digits */
#define LARGEST_EXACT 9007199254740992.0

struct limit { /* a bound of magnitudes: whole.fraction */
    uint64_t whole;
    char fraction[MAX_PRECISION + 2]; /* digits without zeros at the end */
    bool without;                     /* the bound itself is excluded */
};

struct bound { /* a number */
    bool is_there, is_negative;
    struct limit size;
};

/* ---- bounds ---- */

/* Adds one unit at the last digit of a decimal whose first digit is no 9, or subtracts it. */
static void move_last_digit(char *text, bool up)
{
    for (size_t i = strlen(text); i-- > 0;) {
        if (text[i] == '.')
            continue;
        if (text[i] != (up ? '9' : '0')) {
            text[i] = (char)(text[i] + (up ? 1 : -1));
            return;
        }
        text[i] = up ? '0' : '9';
    }
}

static void split(const char *text, struct limit *out)
{
    char *point;
    out->whole = strtoull(text, &point, 10);
    if (*point == '.')
        snprintf(out->fraction, sizeof out->fraction, "%s", point + 1);
    for (size_t n = strlen(out->fraction); n > 0 && out->fraction[n - 1] == '0'; n--)
        out->fraction[n - 1] = '\0';
}

/* Writes a double as a decimal of MAX_PRECISION digits, which is the bound or lies inside. */
static void read_real(double value, bool is_lower, struct bound *b)
{
    char text[64] = "0";
    double size = fabs(value);
    int n_whole = snprintf(NULL, 0, "%.0f", floor(size)), places = MAX_PRECISION - (size < 1 ? 0 : n_whole);
    snprintf(text + 1, sizeof text - 1, "%.*f", places > 0 ? places : 0, size);
    double written = strtod(text, NULL) * (value < 0 ? -1 : 1);
    if (is_lower ? written < value : written > value)
        move_last_digit(text, is_lower == (value >= 0));
    split(text, &b->size);
    b->is_negative = value < 0;
}

/* Reads a bound. One that no number of MAX_DIGITS digits reaches becomes the largest of these. */
static void read_bound(struct schema_writer *w, const json_t *schema, const char *key, struct bound *b)
{
    const json_t *value = json_object_get(schema, key);
    bool is_lower = strstr(key, "inimum") != NULL;
    double real = json_number_value(value);
    json_int_t whole = json_integer_value(value);
    bool is_large = json_is_integer(value) ? whole > LARGEST || whole < -LARGEST : fabs(real) > LARGEST;
    *b = (struct bound){.size.without = key[0] == 'e'};
    if (!value)
        return;
    b->is_there = true;
    if (is_large) {
        if ((real < 0) != is_lower)
            schema_fail(w, ERR_UNSUPPORTED, key, "a bound of more than 16 digits");
        *b = (struct bound){true, real < 0, {.whole = LARGEST}};
    } else if (json_is_integer(value)) {
        b->is_negative = whole < 0;
        b->size.whole = (uint64_t)llabs(whole);
    } else if (fabs(real) >= LARGEST_EXACT) {
        schema_fail(w, ERR_UNSUPPORTED, key, "expected a whole number of 16 digits without a point");
    } else {
        read_real(real, is_lower, b);
    }
}

static int compare(const struct limit *a, const struct limit *b)
{
    return a->whole != b->whole ? (a->whole > b->whole) - (a->whole < b->whole)
                                : strcmp(a->fraction, b->fraction);
}

/* Returns the one of two bounds that allows less; upper: of two upper bounds. */
static struct bound tighter(struct bound a, struct bound b, bool upper)
{
    if (!a.is_there || !b.is_there)
        return a.is_there ? a : b;
    if (a.is_negative != b.is_negative)
        return a.is_negative == upper ? a : b;
    int order = compare(&a.size, &b.size) * (a.is_negative ? -1 : 1);
    if (order == 0)
        return a.size.without ? a : b;
    return (order < 0) == upper ? a : b;
}

/* ---- multiples ---- */

struct step_rule { /* the rule for n more digits after digits that leave the remainder */
    unsigned n, rule;
    uint64_t remainder;
};

struct steps { /* zeroed, except w, step and point */
    struct schema_writer *w;
    uint64_t step;  /* numbers are multiples, without regard to the point */
    unsigned point; /* digits after the decimal point */
    struct step_rule *rules;
    size_t n_rules, cap_rules;
};

/* Returns the remainder after another digit that n digits follow. */
static uint64_t remainder_of(const struct steps *s, uint64_t before, char digit, unsigned n)
{
    uint64_t part = (uint64_t)(digit - '0');
    for (unsigned i = 0; i < n; i++)
        part *= 10;
    return (before + part) % s->step;
}

/* Returns whether n more digits can make a multiple. */
static bool can_end(const struct steps *s, uint64_t remainder, unsigned n)
{
    uint64_t missing = (s->step - remainder) % s->step, limit = 1;
    for (unsigned i = 0; i < n; i++)
        limit *= 10;
    return missing < limit;
}

static void add_rest(struct steps *s, uint64_t remainder, unsigned n, struct str *body);

static unsigned step_rule(struct steps *s, uint64_t remainder, unsigned n)
{
    struct schema_writer *w = s->w;
    for (size_t i = 0; i < s->n_rules; i++)
        if (s->rules[i].n == n && s->rules[i].remainder == remainder)
            return s->rules[i].rule;
    if (s->n_rules == MAX_STEP_RULES)
        schema_fail(w, ERR_UNSUPPORTED, "multipleOf", "its multiples have too many forms");
    if (w->rc)
        return 0;
    if (mem_grow((void **)&s->rules, &s->cap_rules, s->n_rules + 1, sizeof *s->rules, w->e)) {
        w->rc = ERR_MEMORY;
        return 0;
    }
    struct str body = {0};
    unsigned rule = schema_new_rule(w);
    const char *between = "";
    s->rules[s->n_rules++] = (struct step_rule){n, rule, remainder};
    if (n == s->point)
        str_add_text(&body, "\".\" (");
    for (int digit = '0'; digit <= '9'; digit++) {
        uint64_t next = remainder_of(s, remainder, (char)digit, n - 1);
        if (!can_end(s, next, n - 1))
            continue;
        str_addf(&body, "%s\"%c\"", between, digit);
        add_rest(s, next, n - 1, &body);
        between = " | ";
    }
    if (n == s->point)
        str_add_text(&body, ")");
    schema_write_rule(w, rule, &body);
    str_free(&body);
    return rule;
}

/* Adds n more digits, so that the whole is a multiple. */
static void add_rest(struct steps *s, uint64_t remainder, unsigned n, struct str *body)
{
    if (!can_end(s, remainder, n))
        str_add_text(body, " " SCHEMA_NEVER);
    else if (n > 0 && s->step > 1)
        str_addf(body, " r%u", step_rule(s, remainder, n));
    else if (s->point > 0 && n >= s->point)
        str_addf(body, " [0-9]{%u} \".\" [0-9]{%u}", n - s->point, s->point);
    else if (n > 0)
        str_addf(body, " [0-9]{%u}", n);
}

static bool is_all(const char *digits, char digit)
{
    return digits[strspn(digits, (const char[]){digit, '\0'})] == '\0';
}

/* Adds a digit from..to with any digits after it. */
static void add_digit_range(struct steps *s, char from, char to, uint64_t remainder, unsigned n,
                            const char **between, struct str *body)
{
    if (from > to)
        return;
    if (s->step == 1) {
        str_addf(body, "%s[%c-%c]", *between, from, to);
        add_rest(s, 0, n, body);
        *between = " | ";
        return;
    }
    for (; from <= to; from++) {
        str_addf(body, "%s\"%c\"", *between, from);
        add_rest(s, remainder_of(s, remainder, from, n), n, body);
        *between = " | ";
    }
}

/* Adds the numbers from lo to hi, which have the same number of digits. */
static void add_same_length(struct steps *s, const char *lo, const char *hi, uint64_t remainder,
                            struct str *body)
{
    unsigned n = (unsigned)strlen(lo);
    if (n == 0 || (is_all(lo, '0') && is_all(hi, '9'))) {
        add_rest(s, remainder, n, body);
        return;
    }
    char from = *lo, to = *hi, nines[MAX_DIGITS + 1], zeros[MAX_DIGITS + 1];
    const char *between = "";
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    n--;
    nines[n] = zeros[n] = '\0';
    str_add_text(body, n + 1 == s->point ? " \".\" (" : " (");
    if (from == to) {
        str_addf(body, "\"%c\"", from);
        add_same_length(s, lo + 1, hi + 1, remainder_of(s, remainder, from, n), body);
        str_add_text(body, ")");
        return;
    }
    /* A first digit with which not all continuations are allowed is written separately. */
    bool full_end = is_all(hi + 1, '9');
    if (!is_all(lo + 1, '0')) {
        str_addf(body, "\"%c\"", from);
        add_same_length(s, lo + 1, nines, remainder_of(s, remainder, from, n), body);
        between = " | ";
        from++;
    }
    add_digit_range(s, from, (char)(full_end ? to : to - 1), remainder, n, &between, body);
    if (!full_end) {
        str_addf(body, "%s\"%c\"", between, to);
        add_same_length(s, zeros, hi + 1, remainder_of(s, remainder, to, n), body);
    }
    str_add_text(body, ")");
}

/* Adds the numbers from lo to hi, which are counted in units of the last digit after the point; room:
 * numbers may have further digits after it, up to that many in all. */
static void add_counted(struct steps *s, uint64_t lo, uint64_t hi, unsigned room, struct str *body)
{
    const char *between = "";
    uint64_t first = 0, last = 9;
    unsigned n = 1;
    for (; n <= s->point; n++)
        last = last * 10 + 9;
    str_add_text(body, "(");
    for (; first <= hi && n <= MAX_DIGITS; first = last + 1, last = last * 10 + 9, n++) {
        char from[24], to[24];
        if (last < lo)
            continue;
        snprintf(from, sizeof from, "%0*" PRIu64, (int)n, first > lo ? first : lo);
        snprintf(to, sizeof to, "%0*" PRIu64, (int)n, last < hi ? last : hi);
        str_add_text(body, between);
        add_same_length(s, from, to, 0, body);
        if (room > n)
            str_addf(body, " (\".\" [0-9]{1,%u})?", room - n);
        between = " | ";
    }
    str_add_text(body, *between ? ")" : SCHEMA_NEVER ")");
}

/* ---- fractions ---- */

struct ends { /* limits of the digits after a point; NULL: none */
    const char *lo, *hi;
    bool without_lo, without_hi;
};

/* Adds digits, at most `room`, within the ends. may_end: none are allowed, too. */
static void add_fraction(struct ends f, unsigned room, bool may_end, struct str *body)
{
    const char *between = " (";
    if (f.lo && !*f.lo && !f.without_lo)
        f.lo = NULL;
    if ((f.hi && !*f.hi && (f.without_hi || f.lo)) || (room == 0 && !may_end)) {
        str_add_text(body, " " SCHEMA_NEVER);
        return;
    }
    if (!f.lo && (!f.hi || !*f.hi)) {
        str_addf(body, " [0-%c]{%d,%u}", f.hi ? '0' : '9', may_end ? 0 : 1, room);
        return;
    }
    int low = f.lo ? (*f.lo ? *f.lo : '0') : '0' - 1, high = f.hi ? *f.hi : '9' + 1;
    struct ends after = {f.lo && *f.lo ? f.lo + 1 : f.lo, f.hi ? f.hi + 1 : NULL, f.without_lo, f.without_hi};
    if (may_end && !f.lo) {
        str_addf(body, "%s\"\"", between);
        between = " | ";
    }
    if (room > 0 && low + 1 <= high - 1) {
        str_addf(body, "%s[%c-%c] [0-9]{0,%u}", between, low + 1, high - 1, room - 1);
        between = " | ";
    }
    if (room > 0 && f.lo && low <= high) {
        str_addf(body, "%s\"%c\"", between, low);
        add_fraction(low == high ? after : (struct ends){after.lo, NULL, f.without_lo, false}, room - 1, true,
                     body);
        between = " | ";
    }
    if (room > 0 && f.hi && low < high) {
        str_addf(body, "%s\"%c\"", between, high);
        add_fraction((struct ends){NULL, after.hi, false, f.without_hi}, room - 1, true, body);
        between = " | ";
    }
    str_add_text(body, *between == ' ' && between[1] == '(' ? " " SCHEMA_NEVER : ")");
}

/* Adds a whole number with a fraction within the ends. */
static void add_with_fraction(uint64_t whole, struct ends f, struct str *body)
{
    char text[24];
    unsigned n = (unsigned)snprintf(text, sizeof text, "%" PRIu64, whole);
    n = whole ? n : 0;
    bool above = !f.lo || (!*f.lo && !f.without_lo), below = !f.hi || *f.hi || !f.without_hi;
    str_addf(body, "\"%s\" (\".\"", text);
    add_fraction(f, n < MAX_PRECISION ? MAX_PRECISION - n : 0, false, body);
    str_addf(body, ")%s", above && below ? "?" : "");
}

/* Adds the magnitudes from lo to hi with any fraction. */
static void add_decimals(struct schema_writer *w, const struct limit *lo, const struct limit *hi,
                         struct str *body)
{
    struct steps all = {.w = w, .step = 1};
    if (lo->whole > hi->whole) {
        str_add_text(body, SCHEMA_NEVER);
    } else if (lo->whole == hi->whole) {
        add_with_fraction(lo->whole, (struct ends){lo->fraction, hi->fraction, lo->without, hi->without},
                          body);
    } else {
        add_with_fraction(lo->whole, (struct ends){lo->fraction, NULL, lo->without, false}, body);
        if (lo->whole + 1 < hi->whole) {
            str_add_text(body, " | ");
            add_counted(&all, lo->whole + 1, hi->whole - 1, MAX_PRECISION, body);
        }
        str_add_text(body, " | ");
        add_with_fraction(hi->whole, (struct ends){NULL, hi->fraction, false, hi->without}, body);
    }
}

/* ---- magnitudes in units ---- */

/* Returns the limit in units of 10^-places, rounded inwards; over LARGEST: none is so large. */
static uint64_t in_units(const struct limit *l, unsigned places, bool upper)
{
    uint64_t n = l->whole;
    size_t len = strlen(l->fraction);
    for (unsigned i = 0; i < places && n <= LARGEST; i++)
        n = n * 10 + (i < len ? (uint64_t)(l->fraction[i] - '0') : 0);
    if (n > LARGEST)
        return upper ? LARGEST : n;
    if (len > places)
        return upper ? n : n + 1;
    return !l->without ? n : upper ? n - 1 : n + 1;
}

static uint64_t power_of_ten(unsigned n)
{
    uint64_t power = 1;
    while (n-- > 0)
        power *= 10;
    return power;
}

/* Returns the smallest multiple of both. */
static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    uint64_t x = a, y = b;
    while (y) {
        uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

struct number_form {
    uint64_t step;   /* units of 10^-places; 0: none */
    unsigned places; /* digits after the point */
    bool fractions;
};

/* Reads multipleOf. */
static void read_step(struct schema_writer *w, const json_t *value, struct number_form *f)
{
    char text[64];
    double size = json_number_value(value);
    f->step = 0;
    if (!value)
        return;
    snprintf(text, sizeof text, "%.*f", MAX_STEP_DIGITS, size);
    while (strchr(text, '.') && (text[strlen(text) - 1] == '0' || text[strlen(text) - 1] == '.')) {
        bool was_point = text[strlen(text) - 1] == '.';
        text[strlen(text) - 1] = '\0';
        if (was_point)
            break;
    }
    const char *point = strchr(text, '.');
    f->places = point ? (unsigned)strlen(point + 1) : 0;
    if (size >= 1e9 || strtod(text, NULL) != size) {
        schema_fail(w, ERR_UNSUPPORTED, "multipleOf",
                    "expected a number below 1e9 of at most 9 decimal places");
        return;
    }
    f->step = (uint64_t)llround(size * (double)power_of_ten(f->places));
    if (f->step > MAX_STEP)
        schema_fail(w, ERR_UNSUPPORTED, "multipleOf", "expected a number of at most 9 digits");
}

/* Adds the multiples from lo to hi, with any number of places up to those of the step. */
static void add_multiples(struct schema_writer *w, const struct number_form *f, const struct limit *lo,
                          const struct limit *hi, struct str *body)
{
    unsigned most = f->fractions ? f->places : 0;
    uint64_t step = f->step ? f->step : 1;
    for (unsigned places = 0; places <= most && !w->rc; places++) {
        uint64_t unit = power_of_ten(f->places - places);
        uint64_t from = in_units(lo, places, false), to = in_units(hi, places, true);
        struct steps s = {.w = w, .step = common_multiple(step, unit) / unit, .point = places};
        str_add_text(body, places ? " | " : "");
        /* An upper limit of 0 without 0 wraps around. */
        if (from > to || to > LARGEST)
            str_add_text(body, SCHEMA_NEVER);
        else
            add_counted(&s, from, to, 0, body);
        free(s.rules);
    }
}

/* ---- a number ---- */

static void add_magnitudes(struct schema_writer *w, const struct number_form *f, const struct limit *lo,
                           const struct limit *hi, struct str *body)
{
    str_add_text(body, "(");
    if (f->fractions && !f->step)
        add_decimals(w, lo, hi, body);
    else
        add_multiples(w, f, lo, hi, body);
    str_add_text(body, ")");
}

void schema_add_number(struct schema_writer *w, const json_t *schema, bool fractions, struct str *body)
{
    struct number_form f = {.fractions = fractions};
    struct bound lo, hi, other;
    read_bound(w, schema, "minimum", &lo);
    read_bound(w, schema, "exclusiveMinimum", &other);
    lo = tighter(lo, other, false);
    read_bound(w, schema, "maximum", &hi);
    read_bound(w, schema, "exclusiveMaximum", &other);
    hi = tighter(hi, other, true);
    read_step(w, json_object_get(schema, "multipleOf"), &f);
    if (w->rc)
        return;
    if (!lo.is_there && !hi.is_there && !f.step) {
        str_add_text(body, fractions ? "number" : "integer");
        return;
    }
    const struct limit zero = {0}, no_zero = {.without = true}, largest = {.whole = LARGEST};
    const char *between = "(";
    if (!hi.is_there || !hi.is_negative) {
        str_add_text(body, between);
        add_magnitudes(w, &f, lo.is_there && !lo.is_negative ? &lo.size : &zero,
                       hi.is_there ? &hi.size : &largest, body);
        between = " | ";
    }
    /* -0 is 0, which belongs to the half above. */
    if (!lo.is_there || lo.is_negative) {
        str_addf(body, "%s\"-\" ", between);
        add_magnitudes(w, &f, hi.is_there && hi.is_negative ? &hi.size : &no_zero,
                       lo.is_there ? &lo.size : &largest, body);
        between = " | ";
    }
    str_add_text(body, *between == '(' ? SCHEMA_NEVER : ")");
}
