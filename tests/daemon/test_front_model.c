#include "daemon/models/front_model.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/util.h"
#include "tests/support/tiny_model.h"

/* What a vector is made of where the request does not say: llama.cpp's numbers in the file. */
Test(front_model, vectors_are_pooled_as_the_file_says) {
    static const struct {
        const char *arch;
        uint32_t in_file, pool;
        const char *option;
    } cases[] = {
        {"bert", 1, SUBMIT_POOL_MEAN, "model"},       {"bert", 2, SUBMIT_POOL_CLS, "model"},
        {"bert", 3, SUBMIT_POOL_LAST, "model"},       {"bert", 0, SUBMIT_POOL_CLS, "model"},
        {"nomic-bert", 1, SUBMIT_POOL_MEAN, "model"}, {"bert", 1, SUBMIT_POOL_MEAN, "mean"},
        {"bert", 1, SUBMIT_POOL_CLS, "cls"},          {"bert", 1, SUBMIT_POOL_LAST, "last"},
        {"bert", 1, SUBMIT_POOL_NONE, "none"},
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
        cr_assert_eq(config_set(&c, "pooling", cases[i].option, &err), 0, "%s", err.message);
        cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
        cr_expect_eq(m.api.pool, cases[i].pool, "%s %u: %u", cases[i].arch, cases[i].in_file,
                     m.api.pool);
        front_model_deinit(&m);
        config_deinit(&c);
        unlink(path);
    }
}

/* Clients ask before a worker is ready. */
Test(front_model, the_header_is_told_at_once) {
    struct tiny_model t = {.arch = "bert"};
    struct front_model m = {0};
    struct model_header h;
    struct msg_open room = {0};
    struct config c;
    struct err err = {0};
    char path[64];

    tiny_model_temp(&t, path);
    cr_assert_eq(config_init(&c), 0);
    free(c.model);
    c.model = strdup(path);
    c.engine.max_context = 100;
    cr_assert_eq(front_model_open(&m, &c, &room, &err), 0, "%s", err.message);
    cr_expect_eq(m.api.max_context, 100);
    cr_expect_gt(m.api.n_ctx_train, 100);
    cr_expect_eq(m.api.vocab_type, VOCAB_WPM);
    cr_expect_eq(model_header_open(&h, path), 0);
    cr_expect_eq(h.n_ctx_train, m.api.n_ctx_train);
    cr_expect_eq(h.n_vocab, m.api.n_vocab);
    cr_expect_eq(h.n_params, m.api.n_params);
    cr_expect(h.n_embd > 0 && h.n_embd == m.api.n_embd);
    cr_expect(h.tensor_bytes > h.n_params && h.tensor_bytes < m.api.n_bytes);
    cr_expect_eq(model_header_context(&h, &c), 100);
    c.engine.max_context = 0;
    cr_expect_eq(model_header_context(&h, &c), h.n_ctx_train);
    front_model_deinit(&m);
    config_deinit(&c);
    unlink(path);
    cr_expect_lt(model_header_open(&h, path), 0);
    cr_expect_eq(model_header_context(&h, &c), 0);
}

/* Opens the model with the chat template at @template. Returns what front_model_open() returns. */
static int open_with(const char *model, const char *template, struct err *err) {
    struct front_model m = {0};
    struct msg_open room = {0};
    struct config c;

    *err = (struct err){0};
    cr_assert_eq(config_init(&c), 0);
    cr_assert_eq(config_set(&c, "model", model, err), 0);
    cr_assert_eq(config_set(&c, "chat-template", template, err), 0);
    int r = front_model_open(&m, &c, &room, err);
    front_model_deinit(&m);
    config_deinit(&c);
    return r;
}

/* Shortages that may pass are told apart from a wrong configuration, after which systemd does not
 * try again. */
Test(front_model, a_template_that_cannot_be_opened_now_is_no_wrong_one) {
    struct rlimit files, few;
    char path[256], template[] = "/tmp/weft-test-template-XXXXXX";
    struct err err;

    cr_assert(getenv("WEFT_DATA"));
    snprintf(path, sizeof(path), "%s/models/stories260K-f32.gguf", getenv("WEFT_DATA"));
    int fd = mkstemp(template);
    cr_assert_eq(write(fd, "{{ 1 }}", 7), 7);
    close(fd);
    cr_expect_eq(open_with(path, template, &err), 0, "%s", err.message);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    few = files;
    few.rlim_cur = (rlim_t)fd + 1; /* room for the model */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = open_with(path, template, &err);
    setrlimit(RLIMIT_NOFILE, &files);
    cr_expect_eq(r, -EMFILE, "%d %s", r, err.message);
    cr_expect(strstr(err.message, "chat-template: /tmp/weft-test"), "%s", err.message);
    unlink(template);
    cr_expect_eq(open_with(path, template, &err), -EINVAL); /* neither a file nor a name */
    cr_assert_eq(mkfifo(template, 0600), 0);
    cr_expect_eq(open_with(path, template, &err), -EAGAIN, "a FIFO without a writer");
    unlink(template);
    cr_expect_eq(open_with(path, "/dev/zero", &err), -EINVAL);
    cr_expect(strstr(err.message, "larger than 1 MiB"), "%s", err.message);
}
