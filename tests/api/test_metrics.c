/* Lines of /metrics while requests wait, and with names that need escapes. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "stream.h"

#define LABELS R"({model_name="tiny",engine="0"} )"

static struct world w;

static void expect_lines(const char *const *line, size_t n) {
    struct reply r;

    world_get(&w, "/metrics", &r);
    cr_assert_eq(r.status, 200);
    for (size_t i = 0; i < n; i++)
        cr_expect(strstr(r.body.data, line[i]), "%s is missing in %s", line[i], r.body.data);
    reply_deinit(&r);
}

static int ask(const char *key) {
    static const char body[] = R"({"prompt":"hello"})";
    int fd = world_connect(&w);

    world_say(&w, fd,
              "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              key, strlen(body), body);
    world_turns(&w, 3);
    return fd;
}

static void expect_answer(int fd) {
    struct reply r;

    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, fd);
}

Test(metrics, a_request_waits_in_the_front_or_in_the_worker) {
    static const char *const in_front[] = {
        "\nvllm:num_requests_running" LABELS "1\n",
        "\nvllm:num_requests_waiting" LABELS "2\n",
        "\nllamacpp:requests_processing 1\n",
        "\nllamacpp:requests_deferred 2\n",
        "\nweft_worker_report_age_seconds" LABELS "-1\n",
    };
    static const char *const in_both[] = {
        "\nvllm:num_requests_running" LABELS "0\n",
        "\nvllm:num_requests_waiting" LABELS "3\n",
    };
    struct msg_stats s = {.n_running = 0};
    int fd[3];

    world_init(&w);
    w.opts.max_running = 1;
    world_start(&w);
    for (int i = 0; i < 3; i++)
        fd[i] = ask("none");
    expect_lines(in_front, ARRAY_SIZE(in_front));
    api_on_stats(api_first_model(w.api), &s); /* no step has it yet */
    expect_lines(in_both, ARRAY_SIZE(in_both));
    w.port.script = "x";
    for (int i = 0; i < 3; i++)
        expect_answer(fd[i]);
    world_stop(&w);
}

Test(metrics, labels_have_no_character_that_ends_them) {
    static const char *const lines[] = {
        "\n"
        R"(vllm:num_requests_running{model_name="a\"b\\c d",engine="0"} 0)"
        "\n",
        R"(,tenant="x_y_z"} 1)"
        "\n",
    };
    char path[64];

    snprintf(path, sizeof(path), "/tmp/weft-test-metrics-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs(R"(x"y\z:kx)"
          "\n",
          f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    w.model.id = R"(a"b\c)"
                 "\nd";
    w.port.script = "x";
    world_start(&w);
    unlink(path);
    expect_answer(ask("kx"));
    expect_lines(lines, ARRAY_SIZE(lines));
    world_stop(&w);
}

/* After 64 tenants all further ones share a line, so that the page stays short. */
Test(metrics, many_tenants_share_a_line) {
    static const char *const lines[] = {
        "\n"
        R"(weft_tenant_requests_total{model_name="tiny",engine="0",tenant="t03"} 1)"
        "\n",
        "\nweft_tenant_requests_total{model_name=\"tiny\",engine=\"0\",tenant=\"(others)\"} 2\n",
        "\nweft_tenant_requests_waiting{model_name=\"tiny\",engine=\"0\",tenant=\"(others)\"} 0\n",
    };
    static struct api_tenant rows[70];
    char path[64], key[8];
    struct reply r;

    snprintf(path, sizeof(path), "/tmp/weft-test-metrics-%d", getpid());
    FILE *f = fopen(path, "w");
    for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
        fprintf(f, "t%02u:k%02u\n", i, i);
        rows[i].weight = 1;
        snprintf(rows[i].name, sizeof(rows[i].name), "t%02u", i);
    }
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    w.port.script = "x";
    world_start(&w);
    unlink(path);
    cr_assert_eq(api_set_tenants(w.api, rows, ARRAY_SIZE(rows)), 0);
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(key, sizeof(key), "k%02u", i == 0 ? 3 : 66 + i);
        expect_answer(ask(key));
    }
    expect_lines(lines, ARRAY_SIZE(lines));
    world_get(&w, "/metrics", &r);
    cr_expect_not(strstr(r.body.data, R"(tenant="t67")"));
    reply_deinit(&r);
    world_stop(&w);
}
