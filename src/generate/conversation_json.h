/* conversation_json.h - a conversation as a JSON text, with the model that it was held with. A part of
 * conversation. moeflux-formats(5) describes it. */
#ifndef MOEFLUX_GENERATE_CONVERSATION_JSON_H
#define MOEFLUX_GENERATE_CONVERSATION_JSON_H

#include <stddef.h>
#include <stdint.h>

struct conversation;
struct moeflux_err;

struct conversation_model { /* zeroed at first; freed with conversation_model_free */
    char *dir;              /* the model's directory; NULL: not known */
    uint64_t fingerprint;   /* moeflux_model_fingerprint */
};
void conversation_model_free(struct conversation_model *m);

/* Returns the text, from malloc; NULL: no memory. dir: of the model; its real path is written, because the
 * current directory may be another one when the text is read. */
char *conversation_json_write(const struct conversation *c, const char *dir, uint64_t fingerprint);

/* Reads a text of `len` bytes into zeroed structs, which the caller frees, after a failure too. name: begins
 * the errors. ERR_FORMAT, ERR_MEMORY. */
int conversation_json_read(struct conversation *c, struct conversation_model *m, const char *text, size_t len,
                           const char *name, struct moeflux_err *e);

#endif
