#include "cli/options/answer_grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "cli/options/options.h"
#include "moeflux_chat.h"

/* A fault in what the user wrote is a usage error, not one of the model's files. */
static int make(enum moeflux_grammar_kind kind, const char *text, size_t len, const char *name, char **out,
                struct moeflux_err *e)
{
    struct moeflux_err why;
    int rc = moeflux_grammar_rules(out, kind, text, len, name, &why);
    if (rc == ERR_FORMAT || rc == ERR_UNSUPPORTED)
        rc = ERR_USAGE;
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

static int read_file(enum moeflux_grammar_kind kind, const char *path, char **out, struct moeflux_err *e)
{
    char *text;
    size_t len;
    struct moeflux_err why;
    int rc = file_read_text(path, MOEFLUX_MAX_GRAMMAR, &text, &len, &why);
    if (rc)
        return err_set(e, rc == ERR_IO || rc == ERR_MEMORY ? rc : ERR_USAGE, "%s", why.text);
    rc = make(kind, text, len, path, out, e);
    free(text);
    return rc;
}

int answer_grammar_read(const struct options *o, char **out, struct moeflux_err *e)
{
    *out = NULL;
    if (o->grammar)
        return read_file(MOEFLUX_GRAMMAR_RULES, o->grammar, out, e);
    if (o->json_object)
        return make(MOEFLUX_GRAMMAR_JSON_OBJECT, NULL, 0, "--json-object", out, e);
    if (!o->json_schema)
        return 0;
    /* A text that begins with a brace is a schema: no file's name begins so. */
    if (o->json_schema[strspn(o->json_schema, " \t\r\n")] == '{')
        return make(MOEFLUX_GRAMMAR_JSON_SCHEMA, o->json_schema, strlen(o->json_schema), "--json-schema", out,
                    e);
    return read_file(MOEFLUX_GRAMMAR_JSON_SCHEMA, o->json_schema, out, e);
}
