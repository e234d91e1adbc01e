#include "engine/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/build_id.h"

void backend_build_id(uint8_t out[20]) {
    static const uint8_t id[20] = {ENGINE_BUILD_ID};

    memcpy(out, id, sizeof(id));
}

/* Writes the directory of the running program to @out, or "". */
static void program_dir(char *out, size_t size) {
    ssize_t n = readlink("/proc/self/exe", out, size - 1);

    out[MAX(n, 0)] = 0;
    char *slash = strrchr(out, '/');
    *(slash ? slash : out) = 0;
}

/* Opens weft-cuda.so where it is installed, beside the program, or in the build tree. NULL with
 * @why: it cannot be loaded; NULL with "": it is in none of these places. */
static void *backend_open_library(char *why, size_t size) {
    char dir[256], path[320];
    const char *const places[][2] = {{WEFT_BACKEND_DIR, ""}, {dir, ""}, {dir, "/engine/cuda"}};
    void *lib = NULL;

    program_dir(dir, sizeof(dir));
    for (size_t i = 0; i < ARRAY_SIZE(places) && !lib; i++) {
        snprintf(path, sizeof(path), "%s%s/weft-cuda.so", places[i][0], places[i][1]);
        if (!places[i][0][0] || access(path, F_OK) < 0)
            continue;
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!lib)
            snprintf(why, size, "%s", dlerror());
    }
    return lib;
}

void backend_sources(const struct be_ops *ops, const struct be *be, uint8_t out[20]) {
    static const uint8_t here[20] = {ENGINE_SOURCES};
    const char *kind = "";

    if (ops->device)
        kind = ops->isa(be);
    for (size_t i = 0; i < sizeof(here); i++)
        out[i] = here[i] ^ (uint8_t)(ops->sources[i] << 1 | ops->sources[i] >> 7);
    /* Mix in the compute capability, on which the sums of mma and exponentials depend, and with
     * several devices how layers are divided. The number of devices, which follows in @kind, is
     * left out. */
    for (size_t i = 0; kind[i] && kind[i] != ' '; i++)
        out[i % sizeof(here)] ^= (uint8_t)kind[i];
}

/* Returns the library's table; the library stays open until the process ends. @optional: a missing
 * library is not an error. */
static const struct be_ops *find_cuda(bool optional, struct err *err) {
    static const struct be_ops *found;
    char why[200] = "";
    uint8_t id[20];

    if (found)
        return found;
    void *lib = backend_open_library(why, sizeof(why));
    if (!lib) {
        if (why[0] || !optional)
            err_set(err, 0, NULL, "backend 'cuda' is not available: %s",
                    why[0] ? why : "weft-cuda.so is not installed");
        return NULL;
    }
    const struct be_ops *ops = dlsym(lib, BACKEND_CUDA_SYMBOL);
    backend_build_id(id);
    if (!ops || ops->abi != BACKEND_ABI || memcmp(ops->build_id, id, sizeof(id)) != 0) {
        dlclose(lib);
        err_set(err, 0, NULL,
                "weft-cuda.so is of another build of weft; install both from the same build");
        return NULL;
    }
    found = ops;
    return found;
}

void backend_describe_cuda(char *out, size_t size) {
    struct err err = {0};
    const struct be_ops *ops = find_cuda(true, &err);
    Dl_info found;

    *out = 0;
    if (ops && dladdr(ops, &found))
        snprintf(out, size, "cuda (%s)", found.dli_fname);
    else if (*err.message)
        snprintf(out, size, "cuda (not used: %s)", err.message);
}

const struct be_ops *backend_table(const struct be_ops *ops, const struct engine_opts *o,
                                   struct err *err) {
    uint32_t number[ENGINE_DEVICES];

    if (ops->several && devices_of(o, number) > 1)
        return ops->several(o, err);
    return ops;
}

/* Returns @ops if this machine can run it, else NULL with @err. Returns NULL for NULL. */
static const struct be_ops *backend_probe(const struct be_ops *ops, const struct engine_opts *o,
                                          struct err *err) {
    if (ops && (!ops->probe || ops->probe(o, err) == 0))
        return ops;
    return NULL;
}

/* "cuda" is never replaced by another backend; "auto" may be, and engine_new() then says so. For
 * "auto" the first of several devices suffices. */
const struct be_ops *backend_find(const char *name, const struct engine_opts *o, struct err *err) {
    if (strcmp(name, "reference") == 0)
        return &backend_reference;
    if (strcmp(name, "cpu") == 0)
        return &backend_cpu;
    if (strcmp(name, "cuda") == 0)
        return backend_probe(find_cuda(false, err), o, err);
    if (strcmp(name, "auto") == 0) {
        const struct be_ops *cuda = find_cuda(true, err);
        struct engine_opts first = o ? *o : (struct engine_opts){0};

        first.n_devices = 1;
        if (backend_probe(cuda, &first, err))
            return cuda;
        return &backend_cpu;
    }
    err_set(err, 0, NULL, "unknown backend '%s'; use auto, cuda, cpu or reference", name);
    return NULL;
}
