#include "cli/options/answer_grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "cli/options/options.h"
#include "generate/constrain.h"
#include "text/grammar/grammar.h"

/* A fault in what the user wrote is a usage error, not one of the model's files. */
static int add(enum constrain_kind kind, const char *text, size_t len, const char *name, struct str *out,
               struct moeflux_err *e)
{
    struct moeflux_err why;
    int rc = constrain_grammar(kind, text, len, name, out, &why);
    if (rc == ERR_FORMAT || rc == ERR_UNSUPPORTED)
        rc = ERR_USAGE;
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

static int add_file(enum constrain_kind kind, const char *path, struct str *out, struct moeflux_err *e)
{
    char *text;
    size_t len;
    struct moeflux_err why;
    int rc = file_read_text(path, GRAMMAR_MAX_BYTES, &text, &len, &why);
    if (rc)
        return err_set(e, rc == ERR_MEMORY ? rc : ERR_USAGE, "%s", why.text);
    rc = add(kind, text, len, path, out, e);
    free(text);
    return rc;
}

int answer_grammar_read(const struct options *o, struct str *out, struct moeflux_err *e)
{
    if (o->grammar)
        return add_file(CONSTRAIN_GRAMMAR, o->grammar, out, e);
    if (o->json_object)
        return add(CONSTRAIN_JSON_OBJECT, NULL, 0, "--json-object", out, e);
    if (!o->json_schema)
        return 0;
    /* A text that begins with a brace is a schema: no file's name begins so. */
    if (o->json_schema[strspn(o->json_schema, " \t\r\n")] == '{')
        return add(CONSTRAIN_JSON_SCHEMA, o->json_schema, strlen(o->json_schema), "--json-schema", out, e);
    return add_file(CONSTRAIN_JSON_SCHEMA, o->json_schema, out, e);
}
