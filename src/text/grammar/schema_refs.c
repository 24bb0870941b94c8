/* References of a schema to places in its root. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/grammar/schema_writer.h"

/* Decodes a part of a JSON pointer: ~0 and ~1 are ~ and /, %XX is the URI's escape. */
static bool unescape(const char *from, size_t len, struct str *out)
{
    for (size_t i = 0; i < len; i++) {
        unsigned code;
        if (from[i] == '~' && i + 1 < len && (from[i + 1] == '0' || from[i + 1] == '1')) {
            str_add_text(out, from[++i] == '0' ? "~" : "/");
        } else if (from[i] == '%' && i + 2 < len && sscanf(from + i + 1, "%2x", &code) == 1) {
            str_add(out, (const char[]){(char)code}, 1);
            i += 2;
        } else {
            str_add(out, from + i, 1);
        }
    }
    return str_ok(out);
}

const json_t *schema_find(const json_t *root, const char *text)
{
    const json_t *at = text[0] == '#' && (!text[1] || text[1] == '/') ? root : NULL;
    for (const char *part = text + 1; at && *part;) {
        struct str key = {0};
        size_t len = strcspn(++part, "/");
        bool is_index;
        if (!unescape(part, len, &key))
            at = NULL;
        is_index = key.len && key.len < 6 && strspn(str_text(&key), "0123456789") == key.len;
        if (json_is_array(at) && is_index)
            at = json_array_get(at, (size_t)atoi(str_text(&key)));
        else
            at = json_object_get(at, str_text(&key));
        str_free(&key);
        part += len;
    }
    return at;
}

/* Returns whether a schema inside the root has an address of its own, which references in it would be
 * relative to. */
static bool has_inner_base(const json_t *value, bool is_root)
{
    const char *key, *id = json_string_value(json_object_get(value, "$id"));
    json_t *one;
    size_t i;
    if (!is_root && id && id[0] != '#')
        return true;
    json_object_foreach((json_t *)(uintptr_t)value, key, one) if (has_inner_base(one, false)) return true;
    json_array_foreach(value, i, one) if (has_inner_base(one, false)) return true;
    return false;
}

const json_t *schema_resolve(struct schema_writer *w, const json_t *ref)
{
    const char *text = json_string_value(ref);
    if (!text || text[0] != '#' || (text[1] && text[1] != '/')) {
        schema_fail(w, ERR_UNSUPPORTED, "$ref", "expected a place in this schema, as #/$defs/name");
        return NULL;
    }
    if (!w->has_one_base && has_inner_base(w->root, true)) {
        schema_fail(w, ERR_UNSUPPORTED, "$ref", "together with an $id in a schema inside this one");
        return NULL;
    }
    w->has_one_base = true;
    const json_t *at = schema_find(w->root, text);
    if (!at)
        schema_fail(w, ERR_FORMAT, "$ref", "nothing is there");
    return at;
}
