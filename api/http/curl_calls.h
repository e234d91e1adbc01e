#pragma once

/*
 * curl_calls - libcurl's functions. The library and the thirty others that it needs are opened when
 * an option needs them: linking them takes every process of weftd 13 ms.
 */

#include <curl/curl.h>

#include "base/err.h"

#define CURL_CALLS(CALL)                                                                           \
    CALL(easy_cleanup)                                                                             \
    CALL(easy_getinfo)                                                                             \
    CALL(easy_init)                                                                                \
    CALL(easy_perform)                                                                             \
    CALL(easy_setopt)                                                                              \
    CALL(free)                                                                                     \
    CALL(global_init)                                                                              \
    CALL(slist_append)                                                                             \
    CALL(slist_free_all)                                                                           \
    CALL(url)                                                                                      \
    CALL(url_cleanup)                                                                              \
    CALL(url_get)                                                                                  \
    CALL(url_set)

struct curl_calls {
#define CALL(name) __typeof__(&curl_##name) name;
    CURL_CALLS(CALL)
#undef CALL
};

/* Returns libcurl's functions, or NULL with @err about @option if the library cannot be opened; the
 * next call tries again. On any thread. */
const struct curl_calls *curl_calls(const char *option, struct err *err);
