/* Manifests of Ollama's store, as in its files: a model is listed if a manifest names an existing
 * blob, and no other model is. */

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/model_dir.h"
#include "tests/fuzz/fuzz.h"

#define BLOB "/blobs/sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static char root[] = "/tmp/weft_fuzz_manifest_XXXXXX";
static const char *const folders[] = {"/blobs", "/manifests", "/manifests/registry.ollama.ai",
                                      "/manifests/registry.ollama.ai/library",
                                      "/manifests/registry.ollama.ai/library/m"};
static const char manifest[] = "/manifests/registry.ollama.ai/library/m/t";

static const char *below(const char *path) {
    static char out[256];

    snprintf(out, sizeof(out), "%s%s", root, path);
    return out;
}

static void remove_store(void) {
    unlink(below(manifest));
    unlink(below(BLOB));
    for (size_t i = ARRAY_SIZE(folders); i-- > 0;)
        rmdir(below(folders[i]));
    rmdir(root);
}

/* Makes a store with one blob and one manifest, which is the file in memory. */
static void make_store(const char *file) {
    FUZZ_ASSERT(mkdtemp(root) && atexit(remove_store) == 0);
    for (size_t i = 0; i < ARRAY_SIZE(folders); i++)
        FUZZ_ASSERT(mkdir(below(folders[i]), 0700) == 0);
    FUZZ_ASSERT(symlink(file, below(manifest)) == 0 && symlink(file, below(BLOB)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static bool made;
    struct model_dirs dirs = {.root = {[MODEL_OLLAMA] = root}};
    struct model_list list;
    const char *file = fuzz_file(data, len);

    if (!made)
        make_store(file);
    made = true;
    FUZZ_ASSERT(model_list_read(&list, &dirs) == 0 && list.n <= 1);
    if (list.n == 1) {
        const struct model_file *f = &list.file[0];

        FUZZ_ASSERT(strcmp(f->name, "m:t") == 0 && strcmp(f->path, below(BLOB)) == 0);
        FUZZ_ASSERT(f->store == MODEL_OLLAMA && f->bytes == len && f->n_missing == 0);
    }
    model_list_deinit(&list);
    return 0;
}
