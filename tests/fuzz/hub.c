/* Answers of the hub: a listing, and the models in it. The line before it is the user's
 * specification. */

#include <stdio.h>
#include <string.h>

#include "cmd/ctl_hub.h"
#include "cmd/ctl_progress.h"
#include "daemon/models/pull_lines.h"
#include "tests/fuzz/fuzz.h"

/* Checks that no file of a listing leads out of the folder or is hidden. */
static void check(const struct hub_listing *l) {
    char path[4096];
    struct hub_spec spec = {.repo = "a/b", .revision = "main"};

    for (size_t i = 0; i < l->n; i++) {
        const char *p = l->file[i].path;

        FUZZ_ASSERT(p[0] != '/' && p[0] != '.' && !strstr(p, "/.") && !strstr(p, "//"));
        for (; *p; p++)
            FUZZ_ASSERT((uint8_t)*p >= 0x20 && *p != 0x7f);
        FUZZ_ASSERT(strlen(l->file[i].sha256) < 65);
        hub_file_path(&spec, l->commit, l->file[i].path, path, sizeof(path));
    }
}

/* Compares the paths, since a hub may list one twice. */
static bool is_same(const struct hub_listing *l, uint32_t a, uint32_t b) {
    return strcmp(l->file[a].path, l->file[b].path) == 0;
}

static void count(void *ctx, const char *text, size_t len) {
    ++*(size_t *)ctx;
}

/* Checks that the daemon understands each line that `weftctl pull --json` prints. */
static void check_lines(const struct hub_listing *l, const struct hub_choice *choice) {
    CLEANUP(freep) char *text = NULL;
    size_t size = 0, n = 0, n_understood = 0;
    struct pull_lines lines = {.report = count, .ctx = &n_understood};
    struct progress p;

    progress_init(&p, true);
    p.out = open_memstream(&text, &size);
    FUZZ_ASSERT(p.out);
    progress_model(&p, choice->stem, choice->bytes);
    for (uint32_t k = 0; k < choice->n; k++) {
        const struct hub_file *f = &l->file[choice->file[k]];

        progress_print(&p, "warning", "the hub has no checksum of %.200s", f->path);
        progress_file(&p, f->path, f->sha256, f->size);
        progress_at(&p, k % 2 ? "checking" : "downloading", f->size);
    }
    fclose(p.out);
    FUZZ_ASSERT(pull_lines_add(&lines, text, size) == 0 && !*lines.error);
    for (size_t i = 0; i < size; i++)
        n += text[i] == '\n';
    FUZZ_ASSERT(n == n_understood && n == 2 * choice->n);
    pull_lines_deinit(&lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static struct hub_choice choice;
    const uint8_t *end = len ? memchr(data, '\n', len) : NULL;
    size_t n = end ? (size_t)(end - data) : 0;
    CLEANUP(freep) char *text = fuzz_text(data, n);
    struct hub_listing l = {0};
    struct hub_spec spec = {0};
    struct err err = {0};
    bool asked = hub_spec_parse(&spec, text, &err) == 0;

    FUZZ_ASSERT(asked || err.message[0]);
    n += end != NULL;
    if (hub_listing_read(&l, (const char *)data + n, len - n, &err) == 0) {
        check(&l);
        for (uint32_t i = 0; i < l.n; i++)
            if (hub_model_at(&l, i, &choice))
                FUZZ_ASSERT(choice.n > 0 && is_same(&l, choice.file[0], i));
        uint64_t memory = l.n ? l.file[0].size : 0;
        if (asked && hub_choose(&l, &spec, memory, &choice, &err) == 0) {
            FUZZ_ASSERT(choice.n > 0 && choice.n <= ARRAY_SIZE(choice.file) && choice.stem[0]);
            check_lines(&l, &choice);
        }
    }
    hub_listing_deinit(&l);
    return 0;
}
