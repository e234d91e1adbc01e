#include "api/http/curl_calls.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/library.h"
#include "base/util.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct curl_calls calls;
static bool is_open;

static bool curl_open_library(const char *option, struct err *err) {
    /* Debian has one for OpenSSL and one for GnuTLS. */
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    const struct library_call wanted[] = {
#define CALL(name) {"curl_" #name, &calls.name, false},
        CURL_CALLS(CALL)
#undef CALL
    };
    char what[100];

    snprintf(what, sizeof(what), "%s: needs the package libcurl4", option);
    if (!library_open(names, ARRAY_SIZE(names), wanted, ARRAY_SIZE(wanted), option, what, err))
        return false;
    if (calls.global_init(CURL_GLOBAL_DEFAULT) == 0)
        return true;
    err_set(err, 0, option, "%s: libcurl cannot be used", option);
    return false;
}

const struct curl_calls *curl_calls(const char *option, struct err *err) {
    pthread_mutex_lock(&mutex);
    is_open = is_open || curl_open_library(option, err);
    const struct curl_calls *c = is_open ? &calls : NULL;
    pthread_mutex_unlock(&mutex);
    return c;
}
