/* Lines of /metrics while requests wait, and with names that need escapes. */

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/stats.h"
#include "stream.h"

#define LABELS R"({model_name="tiny",engine="0"} )"
#define LABELLED R"({model_name="tiny",engine="0",)"

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

/* Sets the field of @row in @stats. */
static void set_field(const struct stat_row *row, void *stats, uint32_t v) {
    char *at = (char *)stats + row->offset;
    uint64_t whole = v;
    double real = v;

    if (row->is_real)
        memcpy(at, &real, sizeof(real));
    else if (row->size == sizeof(v))
        memcpy(at, &v, sizeof(v));
    else
        memcpy(at, &whole, sizeof(whole));
}

static void expect_line(const char *page, const char *fmt, ...) PRINTF(2, 3);
static void expect_line(const char *page, const char *fmt, ...) {
    char line[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    cr_expect(strstr(page, line), "%s is missing in %s", line, page);
}

/* Each figure of a worker's report has a value of its own. */
Test(metrics, every_figure_of_a_worker_has_its_line) {
    static const char *const families[] = {
        "n_decode_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_drafts_total",
    };
    struct msg_stats s = {.n_devices = 2, .device = {{.number = 3}, {.number = 7}}};
    struct reply r;

    world_init(&w);
    world_start(&w);
    for (uint32_t k = 0; k < n_worker_rows; k++)
        set_field(&worker_rows[k], &s, k + 1);
    for (uint32_t k = 0; k < n_source_rows; k++)
        for (uint32_t i = 0; i < MSG_DRAFT_SOURCES; i++)
            ((uint64_t *)(uintptr_t)stat_by_source(&source_rows[k], &s))[i] = 100 * (k + 1) + i;
    for (uint32_t k = 0; k < n_device_rows; k++)
        for (uint32_t i = 0; i < 2; i++)
            set_field(&device_rows[k], &s.device[i], 1000 * (i + 1) + k);
    s.at_ns = clock_now(w.clock);
    api_on_stats(api_first_model(w.api), &s);
    world_get(&w, "/metrics", &r);
    cr_assert_eq(r.status, 200);
    const char *page = r.body.data;
    for (uint32_t k = 0; k < n_worker_rows; k++) {
        const struct stat_row *row = &worker_rows[k];

        if (!*row->metric)
            continue;
        expect_line(page, "\n%s" LABELS "%.17g\n", row->metric, (k + 1) / row->per);
        if (strncmp(row->metric, "vllm:prefix_cache_", 18) == 0)
            expect_line(page, "\nvllm:gpu_%s" LABELS "%.17g\n", row->metric + 5,
                        (k + 1) / row->per);
    }
    for (uint32_t k = 0; k < n_source_rows; k++)
        for (uint32_t i = 0; i < MSG_DRAFT_SOURCES; i++)
            expect_line(page,
                        "\n%s" LABELLED R"(source="%s"} %u)"
                        "\n",
                        source_rows[k].metric, msg_draft_source[i], 100 * (k + 1) + i);
    for (uint32_t k = 0; k < n_device_rows; k++)
        for (uint32_t i = 0; i < 2; i++)
            expect_line(page,
                        "\n%s" LABELLED R"(device="%u"} %.17g)"
                        "\n",
                        device_rows[k].metric, i ? 7u : 3u,
                        (1000 * (i + 1) + k) / device_rows[k].per);
    const uint64_t values[] = {s.n_steps, s.n_drafted, s.n_accepted, s.n_drafts};
    for (size_t i = 0; i < ARRAY_SIZE(families); i++)
        expect_line(page, "\nllamacpp:%s %u\n", families[i], (uint32_t)values[i]);
    expect_line(page, "\nllamacpp:n_busy_slots_per_decode %.17g\n",
                (double)s.n_output_tokens / (double)s.n_steps);
    expect_line(page, "\nllamacpp:kv_cache_usage_ratio %.17g\n", (double)s.n_used / s.n_pages);
    expect_line(page, "\nvllm:kv_cache_usage_perc" LABELS "%.17g\n", (double)s.n_used / s.n_pages);
    expect_line(page, "\nvllm:gpu_cache_usage_perc" LABELS "%.17g\n", (double)s.n_used / s.n_pages);
    expect_line(page, "\nvllm:cpu_cache_usage_perc" LABELS "%.17g\n",
                (double)s.n_host_held / s.n_host_pages);
    expect_line(page, R"(sleep_state="awake"} 1)"
                      "\n");
    expect_line(page, R"(sleep_state="weights_offloaded"} 0)"
                      "\n");
    expect_line(page, R"(sleep_state="discard_all"} 0)"
                      "\n");
    expect_line(page, "\nvllm:num_requests_running" LABELS "0\n");
    expect_line(page, "\nvllm:lora_requests_info"
                      R"({max_lora="0",running_lora_adapters="",)");
    expect_line(page, "\nweft_serving" LABELS "1\n");
    cr_expect_null(strstr(page, "weft_model_loaded"), "the model is always loaded");
    reply_deinit(&r);
    world_stop(&w);
}

/* Without a report there is nothing to divide by. */
Test(metrics, a_worker_that_has_not_reported_has_zeros) {
    static const char *const lines[] = {
        "\nvllm:kv_cache_usage_perc" LABELS "0\n",
        "\nvllm:cpu_cache_usage_perc" LABELS "0\n",
        "\nllamacpp:n_busy_slots_per_decode 0\n",
        "\nllamacpp:kv_cache_usage_ratio 0\n",
        "\nllamacpp:prompt_tokens_seconds 0\n",
        "\nllamacpp:predicted_tokens_seconds 0\n",
        "\nllamacpp:n_tokens_max 0\n",
        "\nweft_pictures_total"
        R"({result="decoded"} 0)"
        "\n",
        "\nweft_pictures_total"
        R"({result="known"} 0)"
        "\n",
        "\nvllm:request_success_total" LABELLED R"(finished_reason="stop"} 0)"
        "\n",
    };

    world_init(&w);
    world_start(&w);
    expect_lines(lines, ARRAY_SIZE(lines));
    world_stop(&w);
}
