#include "hub/libcurl.h"

#include <dlfcn.h>

#include "base/err.h"

int libcurl_open(struct libcurl *c, const char *const *names, struct moeflux_err *e)
{
    /* Distributions name it by the TLS library that it is built with. */
    static const char *const usual[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    *c = (struct libcurl){0};
    for (const char *const *name = names ? names : usual; *name && !c->library; name++)
        c->library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    if (!c->library)
        return err_set(e, ERR_UNSUPPORTED,
                       "get needs libcurl, which cannot be loaded (Debian: apt install "
                       "libcurl4 ca-certificates; others: curl): %s",
                       dlerror());
        /* ISO C has no conversion from an object pointer to a function pointer. */
#define FIND(name)                                                                                           \
    *(void **)&c->name = dlsym(c->library, "curl_" #name);                                                   \
    if (!c->name)                                                                                            \
        return err_set(e, ERR_UNSUPPORTED, "libcurl is too old: it has no curl_%s", #name);
    LIBCURL_FUNCTIONS(FIND)
#undef FIND
    if (c->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(e, ERR_UNSUPPORTED, "libcurl cannot be initialised");
    return 0;
}
