#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

void *library_open(const char *const *file, size_t n_files, const struct library_call *call,
                   size_t n_calls, const char *param, const char *what, struct err *err) {
    struct err ignored;
    void *lib = NULL;

    for (size_t i = 0; i < n_files && !lib; i++) {
        lib = dlopen(file[i], RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            err_set(i == 0 ? err : &ignored, 0, param, "%s: %s", what, dlerror());
    }
    for (size_t i = 0; i < n_calls && lib; i++) {
        void *f = dlsym(lib, call[i].name);

        memcpy(call[i].at, &f, sizeof(f));
        if (!f && !call[i].optional) {
            err_set(err, 0, param, "%s: the library has no %s", what, call[i].name);
            dlclose(lib);
            return NULL;
        }
    }
    return lib;
}
