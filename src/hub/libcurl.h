/* libcurl.h - loads libcurl's functions at run time: a machine without it runs everything except
 * `moeflux get`. */
#ifndef MOEFLUX_HUB_LIBCURL_H
#define MOEFLUX_HUB_LIBCURL_H

/* Options that newer versions replace are used: the oldest supported version is 7.64. */
#define CURL_DISABLE_DEPRECATION
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

struct moeflux_err;

/* each(NAME) for every function curl_NAME. */
#define LIBCURL_FUNCTIONS(each)                                                                              \
    each(global_init) each(easy_init) each(easy_setopt) each(easy_perform) each(easy_getinfo)                \
        each(easy_reset) each(easy_cleanup) each(easy_strerror) each(slist_append) each(slist_free_all)      \
            each(url) each(url_set) each(url_get) each(url_cleanup) each(free) each(getdate)

struct libcurl {
    void *library;
#define LIBCURL_MEMBER(name) __typeof__ (&(curl_##name))(name);
    LIBCURL_FUNCTIONS(LIBCURL_MEMBER)
#undef LIBCURL_MEMBER
};

/* Loads the first library of a list that ends with NULL; names NULL: the system's libcurl. It stays loaded:
 * what it has linked in keeps state until the program ends. ERR_UNSUPPORTED: there is none; the message says
 * what to install. */
int libcurl_open(struct libcurl *c, const char *const *names, struct moeflux_err *e);

#endif
