/* text.h - strings ("texts") of a running template: building, cutting, searching, and str() of values. A part
 * of jinja. Lengths and positions are in bytes unless they are called characters. */
#ifndef MOEFLUX_TEXT_JINJA_TEXT_H
#define MOEFLUX_TEXT_JINJA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/jinja/value.h"

/* A text under construction. */
struct jinja_build {
    struct jinja_state *s;
    char *bytes, *authors;
    size_t len, cap;
    bool has_template, has_context;
};
struct jinja_build jinja_build(struct jinja_state *s);
void jinja_build_text(struct jinja_build *b, struct jinja_text text);
/* Appends bytes with the author of text.bytes[i] (len 0: the template). */
void jinja_build_as(struct jinja_build *b, struct jinja_text text, size_t i, const char *bytes, size_t n);
/* Append bytes whose author is the template. */
void jinja_build_bytes(struct jinja_build *b, const char *bytes, size_t n);
void jinja_build_literal(struct jinja_build *b, const char *text);
/* Appends a text with & < > " ' escaped for HTML. */
void jinja_build_escaped(struct jinja_build *b, struct jinja_text text);
/* Appends str(v). */
void jinja_build_value(struct jinja_build *b, struct jinja_value v);
/* Appends repr(v). */
void jinja_build_repr(struct jinja_build *b, struct jinja_value v);
/* Appends a character with the author of text.bytes[i]. */
void jinja_build_character(struct jinja_build *b, struct jinja_text text, size_t i, int32_t character);
/* Returns the text so far; valid until the builder grows. */
struct jinja_text jinja_built(const struct jinja_build *b);

/* Writes the shortest text that reads as the same double, like Python's repr. */
enum { JINJA_FLOAT_TEXT = 40 };
void jinja_float_text(double x, char text[JINJA_FLOAT_TEXT]);

/* Returns str(v): v itself if it is a text. */
struct jinja_text jinja_str(struct jinja_state *s, struct jinja_value v);
/* Makes a text of a literal, which must outlive the rendering. */
struct jinja_text jinja_text_of(const char *text);
bool jinja_text_is(struct jinja_text a, const char *b);
bool jinja_text_equal(struct jinja_text a, struct jinja_text b);
/* Returns the bytes from..to. */
struct jinja_text jinja_cut(struct jinja_text t, size_t from, size_t to);

size_t jinja_characters(struct jinja_text t);
/* Returns the number of bytes of the character at i; 1 if no valid character begins there. */
size_t jinja_width(struct jinja_text t, size_t i);
/* Returns the byte at which a character begins; t.len past the end. */
size_t jinja_offset(struct jinja_text t, size_t character);
int32_t jinja_character(struct jinja_text t, size_t i);
/* Returns what Python's str.isspace does. */
bool jinja_is_space(int32_t character);
/* Return the first place from `from` on, or the last place; t.len + 1: none. */
size_t jinja_search(struct jinja_text t, struct jinja_text what, size_t from);
size_t jinja_search_last(struct jinja_text t, struct jinja_text what);

enum { JINJA_LEFT = 1, JINJA_RIGHT = 2 };
/* Removes the characters of `set` (NULL: white space) from the sides. */
struct jinja_text jinja_strip(struct jinja_text t, const struct jinja_text *set, int sides);
bool jinja_starts(struct jinja_text t, struct jinja_text with);
bool jinja_ends(struct jinja_text t, struct jinja_text with);

enum jinja_case { JINJA_LOWER, JINJA_UPPER, JINJA_CAPITALIZE, JINJA_TITLE };
struct jinja_text jinja_to_case(struct jinja_state *s, struct jinja_text t, enum jinja_case how);
/* Replaces the first `most` places; most < 0: all. */
struct jinja_text jinja_replace(struct jinja_state *s, struct jinja_text t, struct jinja_text from,
                                struct jinja_text to, int64_t most);
/* Splits at line ends, like str.splitlines. */
struct jinja_value jinja_lines(struct jinja_state *s, struct jinja_text t, bool keep_ends);

#endif
