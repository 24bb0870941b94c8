/* Python's methods of strings. */
#include <string.h>
#include <utf8proc.h>

#include "base/err.h"
#include "base/quote.h"
#include "text/jinja/run.h"

/* --- texts: parts --- */

static struct jinja_value strip_sides(struct jinja_run *r, struct jinja_value self, struct jinja_args *args,
                                      int sides)
{
    const struct jinja_value *set = jinja_take(args, "chars");
    if (set && set->kind != JINJA_TEXT && set->kind != JINJA_NONE)
        jinja_fail(&r->s, ERR_FORMAT, "strip with a %s, expected a text", jinja_type(*set));
    return jinja_of_text(jinja_strip(self.text, set && set->kind == JINJA_TEXT ? &set->text : NULL, sides));
}

static struct jinja_value text_strip(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    return strip_sides(r, self, args, JINJA_LEFT | JINJA_RIGHT);
}

static struct jinja_value text_lstrip(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    return strip_sides(r, self, args, JINJA_LEFT);
}

static struct jinja_value text_rstrip(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    return strip_sides(r, self, args, JINJA_RIGHT);
}

/* Splits at white space, at most `most` times; the rest is one part. */
static struct jinja_value split_spaces(struct jinja_run *r, struct jinja_text t, int64_t most)
{
    struct jinja_value parts = jinja_new_list(&r->s, JINJA_LIST);
    for (;;) {
        t = jinja_strip(t, NULL, JINJA_LEFT);
        if (t.len == 0)
            return parts;
        size_t end = 0;
        while (end < t.len && !jinja_is_space(jinja_character(t, end)))
            end += jinja_width(t, end);
        if (most >= 0 && (int64_t)parts.list->n == most) {
            jinja_append(&r->s, parts, jinja_of_text(t));
            return parts;
        }
        jinja_append(&r->s, parts, jinja_of_text(jinja_cut(t, 0, end)));
        t = jinja_cut(t, end, t.len);
    }
}

static struct jinja_value text_split(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    const struct jinja_value *at = jinja_take(args, "sep");
    int64_t most = jinja_take_int(r, args, "maxsplit", -1);
    if (!at || at->kind == JINJA_NONE)
        return split_spaces(r, self.text, most);
    if (at->kind != JINJA_TEXT || at->text.len == 0)
        jinja_fail(&r->s, ERR_FORMAT, "split at %s, expected a text",
                   at->kind == JINJA_TEXT ? "nothing" : jinja_type(*at));
    struct jinja_value parts = jinja_new_list(&r->s, JINJA_LIST);
    size_t from = 0, end;
    while ((most < 0 || (int64_t)parts.list->n < most) &&
           (end = jinja_search(self.text, at->text, from)) <= self.text.len) {
        jinja_append(&r->s, parts, jinja_of_text(jinja_cut(self.text, from, end)));
        from = end + at->text.len;
    }
    jinja_append(&r->s, parts, jinja_of_text(jinja_cut(self.text, from, self.text.len)));
    return parts;
}

static struct jinja_value text_rsplit(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_text at = jinja_take_text(r, args, "sep", NULL), t = self.text;
    int64_t most = jinja_take_int(r, args, "maxsplit", -1);
    struct jinja_value turned = jinja_new_list(&r->s, JINJA_LIST), parts = jinja_new_list(&r->s, JINJA_LIST);
    size_t start;
    if (at.len == 0)
        jinja_fail(&r->s, ERR_FORMAT, "rsplit at nothing");
    while ((most < 0 || (int64_t)turned.list->n < most) && (start = jinja_search_last(t, at)) <= t.len) {
        jinja_count(&r->s, t.len / 64);
        jinja_append(&r->s, turned, jinja_of_text(jinja_cut(t, start + at.len, t.len)));
        t = jinja_cut(t, 0, start);
    }
    jinja_append(&r->s, parts, jinja_of_text(t));
    for (size_t i = turned.list->n; i-- > 0;)
        jinja_append(&r->s, parts, turned.list->items[i]);
    return parts;
}

static struct jinja_value text_splitlines(struct jinja_run *r, struct jinja_value self,
                                          struct jinja_args *args)
{
    return jinja_lines(&r->s, self.text, jinja_take_bool(args, "keepends", false));
}

/* Returns the parts before the separator, the separator, and after it. at > t.len: it was not found. */
static struct jinja_value three_parts(struct jinja_run *r, struct jinja_text t, size_t at, size_t len,
                                      bool last)
{
    struct jinja_value parts = jinja_new_list(&r->s, JINJA_TUPLE), nothing = jinja_literal("");
    bool found = at <= t.len;
    jinja_append(&r->s, parts,
                 found  ? jinja_of_text(jinja_cut(t, 0, at))
                 : last ? nothing
                        : jinja_of_text(t));
    jinja_append(&r->s, parts, found ? jinja_of_text(jinja_cut(t, at, at + len)) : nothing);
    jinja_append(&r->s, parts,
                 found  ? jinja_of_text(jinja_cut(t, at + len, t.len))
                 : last ? jinja_of_text(t)
                        : nothing);
    return parts;
}

static struct jinja_value text_partition(struct jinja_run *r, struct jinja_value self,
                                         struct jinja_args *args)
{
    struct jinja_text at = jinja_take_text(r, args, "sep", NULL);
    return three_parts(r, self.text, jinja_search(self.text, at, 0), at.len, false);
}

static struct jinja_value text_rpartition(struct jinja_run *r, struct jinja_value self,
                                          struct jinja_args *args)
{
    struct jinja_text at = jinja_take_text(r, args, "sep", NULL);
    return three_parts(r, self.text, jinja_search_last(self.text, at), at.len, true);
}

static struct jinja_value text_removeprefix(struct jinja_run *r, struct jinja_value self,
                                            struct jinja_args *args)
{
    struct jinja_text prefix = jinja_take_text(r, args, "prefix", NULL);
    bool there = jinja_starts(self.text, prefix);
    return jinja_of_text(jinja_cut(self.text, there ? prefix.len : 0, self.text.len));
}

static struct jinja_value text_removesuffix(struct jinja_run *r, struct jinja_value self,
                                            struct jinja_args *args)
{
    struct jinja_text suffix = jinja_take_text(r, args, "suffix", NULL);
    bool there = jinja_ends(self.text, suffix);
    return jinja_of_text(jinja_cut(self.text, 0, self.text.len - (there ? suffix.len : 0)));
}

/* --- texts: questions --- */

/* Returns whether `holds` is true for the argument, or for one of its items. */
static struct jinja_value any_of(struct jinja_run *r, struct jinja_value self, struct jinja_args *args,
                                 bool (*holds)(struct jinja_text t, struct jinja_text with))
{
    struct jinja_value with = jinja_need(r, args, "prefix");
    bool any = false;
    if (with.kind != JINJA_TEXT && with.kind != JINJA_TUPLE)
        jinja_fail(&r->s, ERR_FORMAT, "startswith or endswith a %s, expected a text or a tuple",
                   jinja_type(with));
    if (with.kind == JINJA_TEXT)
        return jinja_bool(holds(self.text, with.text));
    for (size_t i = 0; i < with.list->n; i++) {
        if (with.list->items[i].kind != JINJA_TEXT)
            jinja_fail(&r->s, ERR_FORMAT, "startswith or endswith a tuple of other things than texts");
        any |= holds(self.text, with.list->items[i].text);
    }
    return jinja_bool(any);
}

static struct jinja_value text_startswith(struct jinja_run *r, struct jinja_value self,
                                          struct jinja_args *args)
{
    return any_of(r, self, args, jinja_starts);
}

static struct jinja_value text_endswith(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    return any_of(r, self, args, jinja_ends);
}

static struct jinja_value position(struct jinja_text t, size_t at)
{
    return jinja_int(at > t.len ? -1 : (int64_t)jinja_characters(jinja_cut(t, 0, at)));
}

static struct jinja_value text_find(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_text what = jinja_take_text(r, args, "sub", NULL);
    int64_t from = jinja_take_int(r, args, "start", 0);
    if (from < 0)
        from += (int64_t)jinja_characters(self.text);
    if (from > (int64_t)jinja_characters(self.text))
        return jinja_int(-1);
    return position(self.text,
                    jinja_search(self.text, what, jinja_offset(self.text, from < 0 ? 0 : (size_t)from)));
}

static struct jinja_value text_rfind(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    return position(self.text, jinja_search_last(self.text, jinja_take_text(r, args, "sub", NULL)));
}

static struct jinja_value text_index(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_value at = text_find(r, self, args);
    if (at.number < 0)
        jinja_fail(&r->s, ERR_FORMAT, "index: the text is not found");
    return at;
}

static struct jinja_value text_count(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_text what = jinja_take_text(r, args, "sub", NULL);
    int64_t n = 0;
    if (what.len == 0)
        return jinja_int((int64_t)jinja_characters(self.text) + 1);
    for (size_t at = 0; (at = jinja_search(self.text, what, at)) <= self.text.len; at += what.len)
        n++;
    return jinja_int(n);
}

/* Returns whether the text is not empty and `is` is true for all of its characters. */
static struct jinja_value all_are(struct jinja_value self, bool (*is)(int32_t c))
{
    bool all = self.text.len > 0;
    for (size_t i = 0; i < self.text.len && all; i += jinja_width(self.text, i))
        all = is(jinja_character(self.text, i));
    return jinja_bool(all);
}

static bool is_letter(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_digit(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

static bool is_letter_or_digit(int32_t c)
{
    return is_letter(c) || is_digit(c);
}

static struct jinja_value text_isdigit(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return all_are(self, is_digit);
}

static struct jinja_value text_isalpha(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return all_are(self, is_letter);
}

static struct jinja_value text_isalnum(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return all_are(self, is_letter_or_digit);
}

static struct jinja_value text_isspace(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)r;
    (void)args;
    return all_are(self, jinja_is_space);
}

/* --- texts: others --- */

static struct jinja_value text_upper(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    return jinja_of_text(jinja_to_case(&r->s, self.text, JINJA_UPPER));
}

static struct jinja_value text_lower(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    return jinja_of_text(jinja_to_case(&r->s, self.text, JINJA_LOWER));
}

static struct jinja_value text_title(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    (void)args;
    return jinja_of_text(jinja_to_case(&r->s, self.text, JINJA_TITLE));
}

static struct jinja_value text_capitalize(struct jinja_run *r, struct jinja_value self,
                                          struct jinja_args *args)
{
    (void)args;
    return jinja_of_text(jinja_to_case(&r->s, self.text, JINJA_CAPITALIZE));
}

static struct jinja_value text_replace(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_text from = jinja_take_text(r, args, "old", NULL),
                      to = jinja_take_text(r, args, "new", NULL);
    return jinja_of_text(jinja_replace(&r->s, self.text, from, to, jinja_take_int(r, args, "count", -1)));
}

static struct jinja_value text_join(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    const struct jinja_list *items = jinja_items(&r->s, jinja_need(r, args, "iterable"));
    struct jinja_build b = jinja_build(&r->s);
    for (size_t i = 0; i < items->n; i++) {
        if (items->items[i].kind != JINJA_TEXT)
            jinja_fail(&r->s, ERR_FORMAT, "join of a %s, expected a text", jinja_type(items->items[i]));
        if (i)
            jinja_build_text(&b, self.text);
        jinja_build_text(&b, items->items[i].text);
    }
    return jinja_of_text(jinja_built(&b));
}

/* Returns the value of a field of format: "" is the next argument, else a position or a name. */
static struct jinja_value format_field(struct jinja_run *r, struct jinja_text field, struct jinja_args *args,
                                       size_t *next)
{
    size_t index = 0;
    bool digits = field.len > 0 && field.len < 6;
    for (size_t i = 0; i < field.len && digits; i++) {
        digits = field.bytes[i] >= '0' && field.bytes[i] <= '9';
        index = index * 10 + (size_t)(field.bytes[i] - '0');
    }
    if (field.len == 0)
        index = (*next)++;
    for (size_t i = 0; !digits && field.len && i < args->n_named; i++)
        if (jinja_text_equal(args->named[i].name, field))
            return args->named[i].value;
    if ((field.len && !digits) || index >= args->n)
        jinja_fail(&r->s, ERR_UNSUPPORTED,
                   "format: the field {%.*s} is not among the arguments, or not known",
                   field.len < 40 ? (int)field.len : 40, field.bytes);
    return args->items[index];
}

static struct jinja_value text_format(struct jinja_run *r, struct jinja_value self, struct jinja_args *args)
{
    struct jinja_text t = self.text;
    struct jinja_build b = jinja_build(&r->s);
    size_t next = 0;
    for (size_t i = 0; i < t.len; i++) {
        char c = t.bytes[i];
        if (c != '{' && c != '}') {
            jinja_build_text(&b, jinja_cut(t, i, i + 1));
            continue;
        }
        if (i + 1 < t.len && t.bytes[i + 1] == c) {
            jinja_build_text(&b, jinja_cut(t, i, i + 1));
            i++;
            continue;
        }
        size_t end = jinja_search(t, jinja_text_of("}"), i);
        if (c == '}' || end > t.len)
            jinja_fail(&r->s, ERR_FORMAT, "format: a single %c", c);
        jinja_build_value(&b, format_field(r, jinja_cut(t, i + 1, end), args, &next));
        i = end;
    }
    args->n_taken = args->n;
    for (size_t i = 0; i < args->n_named; i++)
        args->named[i].taken = true;
    return jinja_of_text(jinja_built(&b));
}

static const struct jinja_method text_methods[] = {
    {"capitalize", text_capitalize},
    {"count", text_count},
    {"endswith", text_endswith},
    {"find", text_find},
    {"format", text_format},
    {"index", text_index},
    {"isalnum", text_isalnum},
    {"isalpha", text_isalpha},
    {"isdigit", text_isdigit},
    {"isspace", text_isspace},
    {"join", text_join},
    {"lower", text_lower},
    {"lstrip", text_lstrip},
    {"partition", text_partition},
    {"removeprefix", text_removeprefix},
    {"removesuffix", text_removesuffix},
    {"replace", text_replace},
    {"rfind", text_rfind},
    {"rpartition", text_rpartition},
    {"rsplit", text_rsplit},
    {"rstrip", text_rstrip},
    {"split", text_split},
    {"splitlines", text_splitlines},
    {"startswith", text_startswith},
    {"strip", text_strip},
    {"title", text_title},
    {"upper", text_upper},
    {NULL, NULL},
};

const struct jinja_method *jinja_method_find(enum jinja_kind kind, struct jinja_text name)
{
    const struct jinja_method *m = kind == JINJA_TEXT ? text_methods : jinja_container_methods(kind);
    for (; m && m->name; m++)
        if (jinja_text_is(name, m->name))
            return m;
    return NULL;
}
