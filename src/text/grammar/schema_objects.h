/* schema_objects.h - objects and arrays of a JSON Schema. A part of json_schema.
 *
 * Both append an expression to `body`; failures stick in w->rc. */
#ifndef MOEFLUX_TEXT_GRAMMAR_SCHEMA_OBJECTS_H
#define MOEFLUX_TEXT_GRAMMAR_SCHEMA_OBJECTS_H

struct json_t;
struct schema_writer;
struct str;

void schema_add_object(struct schema_writer *w, const struct json_t *schema, struct str *body);
void schema_add_array(struct schema_writer *w, const struct json_t *schema, struct str *body);

#endif
