#include "cli/options/secret.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/options/options.h"

int secret_take(struct options *o, struct moeflux_err *e)
{
    const char *set = getenv("MOEFLUX_API_KEY");
    if (!o->api_key && !o->api_key_file && set && !*set)
        return err_set(e, ERR_USAGE,
                       "MOEFLUX_API_KEY is empty: expected a key (unset it for a server without one)");
    if (!o->api_key) {
        o->api_key = o->api_key_file ? NULL : set;
        return 0;
    }
    o->secret_key = strdup(o->api_key);
    if (!o->secret_key)
        return err_set(e, ERR_MEMORY, "out of memory for the flags");
    /* The text is the caller's, whose command line may be written to (argv of main). */
    char *shown;
    memcpy(&shown, &o->api_key, sizeof shown);
    memset(shown, '*', strlen(shown));
    o->api_key = o->secret_key;
    return 0;
}
