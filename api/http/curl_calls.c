#include "api/http/curl_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include "base/util.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct curl_calls calls;
static bool is_open;

static bool open_library(const char *option, struct err *err) {
    const struct {
        const char *name;
        void *at;
    } wanted[] = {
#define CALL(name) {"curl_" #name, &calls.name},
        CURL_CALLS(CALL)
#undef CALL
    };
    /* Debian has one for OpenSSL and one for GnuTLS. */
    void *lib = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);

    if (!lib) {
        err_set(err, 0, option, "%s: needs the package libcurl4: %s", option, dlerror());
        lib = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            return false;
        *err = (struct err){0};
    }
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
        void *f = dlsym(lib, wanted[i].name);

        if (!f) {
            err_set(err, 0, option, "%s: libcurl has no %s", option, wanted[i].name);
            return false;
        }
        memcpy(wanted[i].at, &f, sizeof(f));
    }
    if (calls.global_init(CURL_GLOBAL_DEFAULT) == 0)
        return true;
    err_set(err, 0, option, "%s: libcurl cannot be used", option);
    return false;
}

const struct curl_calls *curl_calls(const char *option, struct err *err) {
    pthread_mutex_lock(&mutex);
    is_open = is_open || open_library(option, err);
    const struct curl_calls *c = is_open ? &calls : NULL;
    pthread_mutex_unlock(&mutex);
    return c;
}
