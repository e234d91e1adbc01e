/* The command line, one word per line, and the same lines as variables of the environment. The
 * result has only weftd's own options. */

#include "daemon/front/args.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/front/environment.h"
#include "tests/fuzz/fuzz.h"

#define WORDS 64

static void translate(struct args_pairs *pairs, int argc, char **argv) {
    CLEANUP(args_deinit) struct args a = {0};

    FUZZ_ASSERT(args_translate(&a, pairs, argc, argv) == 0);
    FUZZ_ASSERT(a.n >= 1 && a.v[a.n] == NULL && (a.n_refused == 0) == (a.refused.len == 0));
    FUZZ_ASSERT(a.n <= 2 * argc + 3); /* -a adds a word, and three more are added at the end */
    for (int i = 1; i < a.n; i++) {
        const char *equals = strchr(a.v[i], '=');

        FUZZ_ASSERT(strncmp(a.v[i], "--", 2) == 0 &&
                    config_has(a.v[i] + 2, strcspn(a.v[i] + 2, "=")));
        i += !equals; /* skips its value */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(freep) char *text = fuzz_text(data, len);
    CLEANUP(environment_deinit) struct environment e = {0};
    char program[] = "weftd", *argv[WORDS + 1] = {program}, *rest = NULL;
    struct args_pairs pairs = {0};
    int argc = 1;

    for (char *word = strtok_r(text, "\n", &rest); word && argc < WORDS;
         word = strtok_r(NULL, "\n", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    FUZZ_ASSERT(environment_read(&e, argv + 1) == 0);
    FUZZ_ASSERT(e.n <= argc);
    translate(&pairs, e.n, e.v);
    translate(&pairs, argc, argv);
    return 0;
}
