#include "text/jinja/lex.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/err.h"
#include "text/jinja/text.h"

struct lexer {
    struct jinja_state *s;
    struct jinja_text source; /* line ends are \n */
    size_t at;
    struct jinja_place place; /* line and column of `at` */
    struct jinja_tokens out;
    bool line_start; /* the last token ended with a line end */
    char brackets[JINJA_PARSE_DEPTH];
    size_t n_brackets;
};

/* --- places --- */

static void advance_to(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++) {
        char c = l->source.bytes[l->at];
        if (c == '\n') {
            l->place.line++;
            l->place.column = 1;
        } else if (((unsigned char)c & 0xc0) != 0x80) {
            l->place.column++;
        }
    }
}

static bool looks_at(const struct lexer *l, const char *text)
{
    size_t n = strlen(text);
    return n <= l->source.len - l->at && memcmp(l->source.bytes + l->at, text, n) == 0;
}

static char byte_at(const struct lexer *l, size_t i)
{
    return (char)(i < l->source.len ? l->source.bytes[i] : '\0');
}

static size_t skip_spaces(const struct lexer *l, size_t i)
{
    while (i < l->source.len && jinja_is_space(jinja_character(l->source, i)))
        i += jinja_width(l->source, i);
    return i;
}

static struct jinja_token *push(struct lexer *l, enum jinja_token_kind kind, size_t from, size_t to)
{
    struct jinja_tokens *t = &l->out;
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        struct jinja_token *more = jinja_alloc(l->s, t->cap, sizeof *more);
        if (t->n)
            memcpy(more, t->tokens, t->n * sizeof *more);
        t->tokens = more;
    }
    t->tokens[t->n] =
        (struct jinja_token){kind, l->place, jinja_cut(l->source, from, to), {.kind = JINJA_NONE}};
    return &t->tokens[t->n++];
}

__attribute__((noreturn)) static void fail_at(struct lexer *l, const char *what)
{
    l->s->at = l->place;
    jinja_fail(l->s, ERR_FORMAT, "%s", what);
}

/* --- inside tags --- */

static bool is_name_start(int32_t c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

static bool is_digit(int32_t c)
{
    return c >= '0' && c <= '9';
}

static void lex_name(struct lexer *l)
{
    size_t i = l->at;
    while (i < l->source.len && (is_name_start(jinja_character(l->source, i)) || is_digit(byte_at(l, i))))
        i += jinja_width(l->source, i);
    push(l, JINJA_T_NAME, l->at, i);
    advance_to(l, i);
}

static size_t skip_digits(const struct lexer *l, size_t i)
{
    while (is_digit(byte_at(l, i)) || (byte_at(l, i) == '_' && is_digit(byte_at(l, i + 1))))
        i++;
    return i;
}

static void lex_number(struct lexer *l)
{
    size_t i = skip_digits(l, l->at), n = 0;
    bool real = false;
    char text[64];
    if (byte_at(l, i) == '.' && is_digit(byte_at(l, i + 1))) {
        real = true;
        i = skip_digits(l, i + 1);
    }
    size_t e = i + 1 + (byte_at(l, i + 1) == '+' || byte_at(l, i + 1) == '-');
    if ((byte_at(l, i) | 32) == 'e' && is_digit(byte_at(l, e))) {
        real = true;
        i = skip_digits(l, e);
    }
    if (is_name_start(i < l->source.len ? jinja_character(l->source, i) : 0))
        fail_at(l, "a number ends with letters");
    for (size_t k = l->at; k < i && n < sizeof text - 1; k++)
        if (byte_at(l, k) != '_')
            text[n++] = byte_at(l, k);
    text[n] = '\0';
    errno = 0;
    long long whole = real ? 0 : strtoll(text, NULL, 10);
    if (n == sizeof text - 1 || (!real && errno))
        fail_at(l, "the number is too long");
    struct jinja_token *t = push(l, JINJA_T_NUMBER, l->at, i);
    t->value = real ? jinja_float(strtod(text, NULL)) : jinja_int(whole);
    advance_to(l, i);
}

/* Reads the digits of an escape: \xHH, \uHHHH, \UHHHHHHHH, \ooo. Returns their
 * number; 0: they are not valid. */
static size_t read_digits(const struct lexer *l, size_t i, size_t most, bool hex, int32_t *c)
{
    size_t n = 0;
    uint32_t value = 0;
    for (; n < most; n++) {
        char d = byte_at(l, i + n);
        if (!(hex ? is_digit(d) || ((d | 32) >= 'a' && (d | 32) <= 'f') : d >= '0' && d <= '7'))
            break;
        value = value * (hex ? 16 : 8) + (uint32_t)(is_digit(d) ? d - '0' : (d | 32) - 'a' + 10);
    }
    if ((hex && n < most) || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    *c = (int32_t)value;
    return n;
}

/* Reads the escape after the backslash at i - 1. Returns its bytes after the backslash; 0: the backslash is
 * an ordinary character. */
static size_t lex_escape(struct lexer *l, size_t i, struct jinja_build *b)
{
    static const char from[] = "n\nt\tr\ra\ab\bf\fv\v\\\\''\"\"";
    char c = byte_at(l, i);
    int32_t code = 0;
    size_t n = 0;
    if (c == '\n')
        return 1;
    for (const char *p = from; *p; p += 2) {
        if (*p == c) {
            jinja_build_bytes(b, p + 1, 1);
            return 1;
        }
    }
    if (c >= '0' && c <= '7') {
        n = read_digits(l, i, 3, false, &code);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        n = read_digits(l, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, true, &code);
        if (n == 0)
            fail_at(l, "a string has an escape without enough digits, or of no valid character");
        n++;
    } else if (c == 'N') {
        fail_at(l, "\\N{...} in a string is not known");
    }
    if (n)
        jinja_build_character(b, (struct jinja_text){0}, 0, code);
    return n;
}

static void lex_string(struct lexer *l)
{
    struct jinja_build b = jinja_build(l->s);
    char quote = byte_at(l, l->at);
    size_t i = l->at + 1;
    while (i < l->source.len && l->source.bytes[i] != quote) {
        if (l->source.bytes[i] != '\\') {
            jinja_build_bytes(&b, &l->source.bytes[i++], 1);
            continue;
        }
        size_t n = ++i < l->source.len ? lex_escape(l, i, &b) : 0;
        if (n == 0)
            jinja_build_bytes(&b, "\\", 1);
        i += n;
    }
    if (i >= l->source.len)
        fail_at(l, "the string has no end");
    struct jinja_token *t = push(l, JINJA_T_STRING, l->at, i + 1);
    t->value = jinja_of_text(jinja_built(&b));
    advance_to(l, i + 1);
}

static char closing_of(char bracket)
{
    if (bracket == '(')
        return ')';
    return (char)(bracket == '[' ? ']' : '}');
}

static void lex_sign(struct lexer *l)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = byte_at(l, l->at);
    size_t n = 1;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (looks_at(l, pairs[i]))
            n = 2;
    if (n == 1 && (c == '\0' || !strchr("+-/*%~[](){}<>=.:|,;", c)))
        fail_at(l, "a character that cannot be in an expression");
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_brackets == sizeof l->brackets)
            fail_at(l, "brackets nested too deep");
        l->brackets[l->n_brackets++] = closing_of(c);
    }
    if ((c == ')' || c == ']' || c == '}') && (l->n_brackets == 0 || l->brackets[--l->n_brackets] != c))
        fail_at(l, "a bracket that does not match");
    push(l, JINJA_T_SIGN, l->at, l->at + n);
    advance_to(l, l->at + n);
}

/* Returns the offset after the tag's end if it is next, else 0. */
static size_t tag_end(const struct lexer *l, const char *close, bool block)
{
    size_t i = l->at;
    char sign = byte_at(l, i);
    if (sign == '-' || (block && sign == '+'))
        i++;
    else
        sign = '\0';
    if (byte_at(l, i) != close[0] || byte_at(l, i + 1) != close[1])
        return 0;
    i += 2;
    if (sign == '-')
        return skip_spaces(l, i);
    /* trim_blocks */
    return i + (block && sign == '\0' && byte_at(l, i) == '\n');
}

static void end_tag(struct lexer *l, size_t end)
{
    advance_to(l, end);
    l->line_start = l->source.bytes[end - 1] == '\n';
}

/* Reads a tag {{ ... }} or {% ... %}. */
static void lex_tag(struct lexer *l, bool block)
{
    struct jinja_place start = l->place;
    push(l, block ? JINJA_T_BLOCK : JINJA_T_PRINT, l->at, l->at + 2);
    advance_to(l, l->at + 2);
    if (looks_at(l, "-") || (block && looks_at(l, "+")))
        advance_to(l, l->at + 1);
    l->n_brackets = 0;
    for (;;) {
        advance_to(l, skip_spaces(l, l->at));
        if (l->at == l->source.len) {
            l->place = start;
            fail_at(l, block ? "{% without %}" : "{{ without }}");
        }
        size_t end = l->n_brackets ? 0 : tag_end(l, block ? "%}" : "}}", block);
        int32_t c = jinja_character(l->source, l->at);
        if (end) {
            push(l, block ? JINJA_T_BLOCK_END : JINJA_T_PRINT_END, l->at, end);
            end_tag(l, end);
            return;
        }
        if (is_digit(c))
            lex_number(l);
        else if (is_name_start(c))
            lex_name(l);
        else if (c == '"' || c == '\'')
            lex_string(l);
        else
            lex_sign(l);
    }
}

/* --- between tags --- */

/* Reads the text up to the tag at `end`, without the white space that the tag's sign or lstrip_blocks
 * removes. */
static void lex_data(struct lexer *l, size_t end, bool strips_line)
{
    struct jinja_text text = jinja_cut(l->source, l->at, end);
    char sign = byte_at(l, end + 2);
    if (end < l->source.len && sign == '-') {
        text = jinja_strip(text, NULL, JINJA_RIGHT);
    } else if (end < l->source.len && sign != '+' && strips_line) {
        const char *newline = memrchr(text.bytes, '\n', text.len);
        size_t line = newline ? (size_t)(newline - text.bytes) + 1 : 0;
        struct jinja_text rest = jinja_cut(text, line, text.len);
        if ((line > 0 || l->line_start) && jinja_strip(rest, NULL, JINJA_LEFT).len == 0)
            text.len = line;
    }
    if (text.len)
        push(l, JINJA_T_DATA, l->at, end)->value = jinja_of_text(text);
    advance_to(l, end);
}

static void lex_comment(struct lexer *l)
{
    for (size_t i = l->at + 2; i + 1 < l->source.len; i++) {
        struct lexer look = {.source = l->source, .at = i};
        size_t end = tag_end(&look, "#}", true);
        if (end) {
            end_tag(l, end);
            return;
        }
    }
    fail_at(l, "{# without #}");
}

/* Returns the offset after the name if the tag at i has this name, else 0. */
static size_t raw_name(const struct lexer *l, size_t i, const char *name)
{
    i += 2;
    if (byte_at(l, i) == '-' || byte_at(l, i) == '+')
        i++;
    i = skip_spaces(l, i);
    size_t n = strlen(name);
    if (n > l->source.len - i || memcmp(l->source.bytes + i, name, n) != 0)
        return 0;
    return skip_spaces(l, i + n);
}

/* Takes a whole raw block if one begins at this {%. */
static bool lex_raw(struct lexer *l)
{
    size_t i = raw_name(l, l->at, "raw");
    size_t end;
    if (!i || !(byte_at(l, i += byte_at(l, i) == '-') == '%' && byte_at(l, i + 1) == '}'))
        return false;
    end = byte_at(l, i - 1) == '-' ? skip_spaces(l, i + 2) : i + 2;
    struct jinja_place start = l->place;
    end_tag(l, end);
    for (i = l->at; i + 1 < l->source.len; i++) {
        struct lexer look = {.source = l->source, .at = i};
        if (!looks_at(&look, "{%") || !(look.at = raw_name(l, i, "endraw")))
            continue;
        if ((end = tag_end(&look, "%}", true))) {
            lex_data(l, i, true);
            end_tag(l, end);
            return true;
        }
    }
    l->place = start;
    fail_at(l, "{% raw %} without {% endraw %}");
}

/* Copies the source with \n as line ends, without the last one. */
static struct jinja_text with_newlines(struct jinja_state *s, const char *source, size_t len)
{
    char *copy = jinja_alloc(s, len + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        copy[n++] = (char)(source[i] == '\r' ? '\n' : source[i]);
        i += source[i] == '\r' && i + 1 < len && source[i + 1] == '\n';
    }
    n -= n > 0 && copy[n - 1] == '\n';
    return (struct jinja_text){copy, NULL, n};
}

struct jinja_tokens jinja_lex(struct jinja_state *s, const char *source, size_t len)
{
    struct lexer l = {.s = s, .place = {1, 1}, .line_start = true};
    l.source = with_newlines(s, source, len);
    while (l.at < l.source.len) {
        size_t i = l.at;
        while (i + 1 < l.source.len &&
               !(l.source.bytes[i] == '{' && strchr("{%#", l.source.bytes[i + 1]) && l.source.bytes[i + 1]))
            i++;
        if (i + 1 >= l.source.len) {
            lex_data(&l, l.source.len, false);
            break;
        }
        char kind = l.source.bytes[i + 1];
        lex_data(&l, i, kind != '{');
        if (kind == '#')
            lex_comment(&l);
        else if (kind == '{' || !lex_raw(&l))
            lex_tag(&l, kind == '%');
    }
    push(&l, JINJA_T_END, l.source.len, l.source.len);
    return l.out;
}
