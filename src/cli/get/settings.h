/* settings.h - what the environment says about Hugging Face, as its tools read it: HF_ENDPOINT, HF_TOKEN,
 * HF_TOKEN_PATH, HF_HUB_OFFLINE, HF_HUB_DISABLE_IMPLICIT_TOKEN, CURL_CA_BUNDLE, and where the cache is
 * (hub.h). */
#ifndef MOEFLUX_CLI_GET_SETTINGS_H
#define MOEFLUX_CLI_GET_SETTINGS_H

#include <stdbool.h>

struct moeflux_err;

struct settings {
    char *endpoint;      /* owned, without "/" at the end */
    char *token;         /* owned; NULL: none. It is never printed */
    char *cache;         /* owned; the directory need not exist */
    const char *ca_file; /* certificates of authorities, of the environment; NULL: the system's */
    bool offline;
};

/* ERR_USAGE names the variable; ERR_IO, ERR_MEMORY. settings_free is legal after a failure, too. */
int settings_read(struct settings *s, struct moeflux_err *e);
void settings_free(struct settings *s);

#endif
