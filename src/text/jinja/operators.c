/* Operators: arithmetic, concatenation, comparison, slices. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "text/jinja/run.h"

static void check_defined(struct jinja_run *r, struct jinja_value v)
{
    if (v.kind == JINJA_UNDEFINED)
        jinja_fail_undefined(&r->s, v);
}

__attribute__((noreturn)) static void fail_large(struct jinja_run *r)
{
    jinja_fail(&r->s, ERR_UNSUPPORTED, "a whole number has more than 64 bits");
}

/* --- numbers --- */

static int64_t floor_divide(struct jinja_run *r, int64_t a, int64_t b)
{
    if (a == INT64_MIN && b == -1)
        fail_large(r);
    int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t whole_power(struct jinja_run *r, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    /* Any other base overflows within 64 multiplications. */
    if (base >= -1 && base <= 1)
        return base == -1 && exponent % 2 == 0 ? 1 : exponent ? base : 1;
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(result, base, &result))
            fail_large(r);
    return result;
}

static struct jinja_value whole_binary(struct jinja_run *r, const char *sign, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    if (*sign == '+')
        overflow = __builtin_add_overflow(a, b, &result);
    else if (*sign == '-')
        overflow = __builtin_sub_overflow(a, b, &result);
    else if (*sign == '*')
        overflow = __builtin_mul_overflow(a, b, &result);
    else if (*sign == '/')
        result = floor_divide(r, a, b);
    else
        result = b == -1 ? 0 : a - b * floor_divide(r, a, b);
    if (overflow)
        fail_large(r);
    return jinja_int(result);
}

static double real_modulo(double a, double b)
{
    double rest = fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static struct jinja_value power(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    if (a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT && jinja_whole(b) >= 0)
        return jinja_int(whole_power(r, jinja_whole(a), jinja_whole(b)));
    double result = pow(jinja_real(a), jinja_real(b));
    if (!isfinite(result))
        jinja_fail(&r->s, ERR_UNSUPPORTED, "** gives no finite number");
    return jinja_float(result);
}

static struct jinja_value number_binary(struct jinja_run *r, const char *sign, struct jinja_value a,
                                        struct jinja_value b)
{
    bool whole = a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT;
    if (sign[0] == '*' && sign[1] == '*')
        return power(r, a, b);
    if ((*sign == '/' || *sign == '%') && jinja_real(b) == 0)
        jinja_fail(&r->s, ERR_FORMAT, "a division by zero");
    if (whole && !(sign[0] == '/' && sign[1] != '/'))
        return whole_binary(r, sign, jinja_whole(a), jinja_whole(b));
    double x = jinja_real(a), y = jinja_real(b);
    switch (*sign) {
    case '+':
        return jinja_float(x + y);
    case '-':
        return jinja_float(x - y);
    case '*':
        return jinja_float(x * y);
    case '/':
        return jinja_float(sign[1] == '/' ? floor(x / y) : x / y);
    default:
        return jinja_float(real_modulo(x, y));
    }
}

struct jinja_value jinja_signed(struct jinja_run *r, char sign, struct jinja_value v)
{
    check_defined(r, v);
    if (!jinja_is_number(v))
        jinja_fail(&r->s, ERR_FORMAT, "%c before a %s has no meaning", sign, jinja_type(v));
    if (v.kind == JINJA_FLOAT)
        return jinja_float(sign == '-' ? -v.real : v.real);
    if (sign == '-' && jinja_whole(v) == INT64_MIN)
        fail_large(r);
    return jinja_int(sign == '-' ? -jinja_whole(v) : jinja_whole(v));
}

/* --- texts and lists --- */

static struct jinja_value add_lists(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    struct jinja_value sum = jinja_new_list(&r->s, a.kind);
    for (size_t i = 0; i < a.list->n; i++)
        jinja_append(&r->s, sum, a.list->items[i]);
    for (size_t i = 0; i < b.list->n; i++)
        jinja_append(&r->s, sum, b.list->items[i]);
    return sum;
}

static void build_part(struct jinja_build *b, struct jinja_value v, bool safe)
{
    if (!safe || (v.kind == JINJA_TEXT && v.safe))
        jinja_build_value(b, v);
    else
        jinja_build_escaped(b, jinja_str(b->s, v));
}

/* Concatenates two texts. If only one is safe, the other is escaped. */
static struct jinja_value add_texts(struct jinja_run *r, struct jinja_value a, struct jinja_value b)
{
    struct jinja_build text = jinja_build(&r->s);
    bool safe = (a.kind == JINJA_TEXT && a.safe) || (b.kind == JINJA_TEXT && b.safe);
    build_part(&text, a, safe);
    build_part(&text, b, safe);
    struct jinja_value made = jinja_of_text(jinja_built(&text));
    made.safe = safe;
    return made;
}

static struct jinja_value repeat(struct jinja_run *r, struct jinja_value v, int64_t times)
{
    if (v.kind == JINJA_TEXT) {
        struct jinja_build b = jinja_build(&r->s);
        for (int64_t i = 0; v.text.len && i < times; i++) {
            jinja_count(&r->s, 1);
            jinja_build_text(&b, v.text);
        }
        return jinja_of_text(jinja_built(&b));
    }
    struct jinja_value list = jinja_new_list(&r->s, v.kind);
    for (int64_t i = 0; v.list->n && i < times; i++)
        for (size_t k = 0; k < v.list->n; k++)
            jinja_append(&r->s, list, v.list->items[k]);
    return list;
}

static bool is_whole(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_BOOL;
}

static bool repeats(struct jinja_value v, struct jinja_value times)
{
    return (v.kind == JINJA_TEXT || jinja_is_sequence(v)) && is_whole(times);
}

struct jinja_value jinja_binary(struct jinja_run *r, const char sign[2], struct jinja_value a,
                                struct jinja_value b)
{
    check_defined(r, a);
    check_defined(r, b);
    if (jinja_is_number(a) && jinja_is_number(b))
        return number_binary(r, sign, a, b);
    if (sign[0] == '+' && a.kind == JINJA_TEXT && b.kind == JINJA_TEXT)
        return add_texts(r, a, b);
    if (sign[0] == '+' && jinja_is_sequence(a) && a.kind == b.kind)
        return add_lists(r, a, b);
    if (sign[0] == '*' && sign[1] != '*' && repeats(a, b))
        return repeat(r, a, jinja_whole(b));
    if (sign[0] == '*' && sign[1] != '*' && repeats(b, a))
        return repeat(r, b, jinja_whole(a));
    jinja_fail(&r->s, ERR_FORMAT, "%.2s between a %s and a %s has no meaning", sign, jinja_type(a),
               jinja_type(b));
}

bool jinja_compare(struct jinja_run *r, const char sign[2], struct jinja_value a, struct jinja_value b)
{
    switch (sign[0]) {
    case '=':
        return jinja_equal(&r->s, a, b);
    case '!':
        return !jinja_equal(&r->s, a, b);
    case 'i':
        return jinja_contains(&r->s, b, a);
    case 'n':
        return !jinja_contains(&r->s, b, a);
    default:
        break;
    }
    int order = jinja_order(&r->s, a, b);
    if (sign[1] == '=' && order == 0)
        return true;
    return sign[0] == '<' ? order < 0 : order > 0;
}

/* --- slices --- */

static bool slice_bound(struct jinja_run *r, const struct jinja_value *v, int64_t *bound)
{
    if (!v || v->kind == JINJA_NONE)
        return false;
    check_defined(r, *v);
    if (!is_whole(*v))
        jinja_fail(&r->s, ERR_FORMAT, "a slice ends at a %s, expected a whole number", jinja_type(*v));
    *bound = jinja_whole(*v);
    return true;
}

/* Returns a bound as Python's slice.indices does. */
static int64_t clamp_bound(int64_t bound, int64_t n, int64_t step)
{
    if (bound < 0)
        bound += n;
    int64_t least = step < 0 ? -1 : 0, most = step < 0 ? n - 1 : n;
    return bound < least ? least : bound > most ? most : bound;
}

struct jinja_value jinja_slice(struct jinja_run *r, struct jinja_value v, const struct jinja_value *from,
                               const struct jinja_value *to, const struct jinja_value *step)
{
    int64_t by = 1, lo = 0, hi = 0;
    check_defined(r, v);
    if (v.kind != JINJA_TEXT && !jinja_is_sequence(v))
        return jinja_undefined(v.kind, jinja_text_of("[:]"));
    int64_t n = (int64_t)jinja_length(&r->s, v);
    if (slice_bound(r, step, &by) && by == 0)
        jinja_fail(&r->s, ERR_FORMAT, "a slice has step 0");
    lo = slice_bound(r, from, &lo) ? clamp_bound(lo, n, by) : by < 0 ? n - 1 : 0;
    hi = slice_bound(r, to, &hi) ? clamp_bound(hi, n, by) : by < 0 ? -1 : n;
    if (v.kind == JINJA_TEXT && by == 1) {
        size_t start = jinja_offset(v.text, (size_t)lo);
        size_t end =
            lo < hi ? start + jinja_offset(jinja_cut(v.text, start, v.text.len), (size_t)(hi - lo)) : start;
        struct jinja_value part = v;
        part.text = jinja_cut(v.text, start, end);
        return part;
    }
    const struct jinja_list *items = jinja_items(&r->s, v);
    struct jinja_value list = jinja_new_list(&r->s, v.kind == JINJA_TEXT ? JINJA_LIST : v.kind);
    for (int64_t i = lo; by > 0 ? i < hi : i > hi; i += by) {
        jinja_append(&r->s, list, items->items[i]);
        if (by > n || by < -n)
            break;
    }
    if (v.kind != JINJA_TEXT)
        return list;
    struct jinja_build b = jinja_build(&r->s);
    for (size_t i = 0; i < list.list->n; i++)
        jinja_build_text(&b, list.list->items[i].text);
    return jinja_of_text(jinja_built(&b));
}
