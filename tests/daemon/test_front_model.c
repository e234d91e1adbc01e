#include "daemon/models/front_model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/util.h"
#include "tests/support/tiny_model.h"

/* What a vector is made of where the request does not say: llama.cpp's numbers in the file. */
Test(front_model, vectors_are_pooled_as_the_file_says) {
    static const struct {
        const char *arch;
        uint32_t in_file, pool;
    } cases[] = {
        {"bert", 1, SUBMIT_POOL_MEAN},       {"bert", 2, SUBMIT_POOL_CLS},
        {"bert", 3, SUBMIT_POOL_LAST},       {"bert", 0, SUBMIT_POOL_CLS},
        {"nomic-bert", 1, SUBMIT_POOL_MEAN},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tiny_model t = {.arch = cases[i].arch, .pooling = cases[i].in_file};
        struct front_model m = {0};
        struct msg_open room = {0};
        struct config c;
        struct err err = {0};
        char path[64];

        tiny_model_temp(&t, path);
        cr_assert_eq(config_init(&c), 0);
        free(c.model);
        c.model = strdup(path);
        cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
        cr_expect_eq(m.api.pool, cases[i].pool, "%s %u: %u", cases[i].arch, cases[i].in_file,
                     m.api.pool);
        front_model_deinit(&m);
        config_deinit(&c);
        unlink(path);
    }
}
