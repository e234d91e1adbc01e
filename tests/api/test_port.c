/*
 * What the daemon asks of the api: files that it checks at the start, the reasons why a request
 * waits, requests that have ended, models that replace others, and times on the device.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/generation/model.h"
#include "api/parts.h"
#include "proto/flight.h"
#include "stream.h"
#include "tiny.h"

static struct world w;

/* ---- checks at the start ---- */

Test(port, variables_of_templates_are_plain_values) {
    static const char *const bad[] = {
        "", "1", "[]", "{", R"({"a":[]})", R"({"a":{}})", R"({"messages":1})", R"({"tools":1})",
    };
    yyjson_doc *doc = NULL;
    struct err err = {0};

    cr_assert_eq(api_read_kwargs(R"({"enable_thinking":false,"a":"b"})", &doc, &err), 0);
    cr_expect_eq(yyjson_obj_size(yyjson_doc_get_root(doc)), 2);
    yyjson_doc_free(doc);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char want[200];

        doc = NULL;
        snprintf(want, sizeof(want),
                 "chat-template-kwargs: must be a JSON object of plain values, such as "
                 R"({"enable_thinking": false}, not %s)",
                 bad[i]);
        cr_expect_lt(api_read_kwargs(bad[i], &doc, &err), 0, "%s", bad[i]);
        cr_expect_str_eq(err.message, want);
        cr_expect_str_eq(err.param, "chat-template-kwargs");
        cr_expect_null(doc);
    }
}

Test(port, files_of_keys_are_checked) {
    struct err err = {0};
    char path[64], want[120];

    snprintf(path, sizeof(path), "/tmp/weft-test-port-%d", getpid());
    cr_expect_eq(api_check_keys("", &err), 0);
    cr_expect_eq(api_check_keys(path, &err), -ENOENT);
    snprintf(want, sizeof(want), "%s: cannot be read: No such file or directory", path);
    cr_expect_str_eq(err.message, want);
    FILE *f = fopen(path, "w");
    fputs("alice:ka\n", f);
    fclose(f);
    cr_expect_eq(api_check_keys(path, &err), 0);
    unlink(path);
    cr_expect_eq(api_check_otlp("", &err), 0);
}

/* ---- requests ---- */

static struct flight_record story[8];
static uint32_t n_story;

static uint32_t tell(struct api_port *p, uint64_t id, struct flight_record *out, uint32_t max) {
    uint32_t n = MIN(n_story, max);

    for (uint32_t i = 0; i < n; i++) {
        out[i] = story[i];
        out[i].id = id;
    }
    return n;
}

static void note(enum why why, uint32_t n_rows, uint32_t detail, int64_t from_ns) {
    story[n_story++] = (struct flight_record){.from_ns = from_ns,
                                              .until_ns = from_ns,
                                              .n_steps = 1,
                                              .n_rows = n_rows,
                                              .detail = detail,
                                              .why = (uint8_t)why};
}

static int ask(void) {
    int fd = world_connect(&w);

    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 3);
    return fd;
}

static void expect_wait(uint64_t id, const char *want) {
    char text[200] = "";

    cr_expect(api_wait_text(w.api, id, text, sizeof(text)));
    cr_expect_str_eq(text, want);
}

Test(port, the_reason_of_a_wait_is_told) {
    struct reply r;
    char text[200];

    n_story = 0;
    world_init(&w);
    w.opts.max_running = 1;
    w.port.port.story = tell;
    world_start(&w);
    int first = ask(), second = ask();
    cr_assert_eq(w.port.n, 1);
    uint64_t id = w.port.r[0].id;
    expect_wait(id, "worker: waited for the worker");
    note(WHY_QUEUED, 0, 0, 0);
    expect_wait(id, "queued: waited behind other requests");
    note(WHY_ADMITTED, 0, 1, clock_now(w.clock) - INT64_C(9500000000));
    note(WHY_PROMPT, 10, 0, 0);
    expect_wait(id, "prompt: computed its prompt; 11 of 21 prompt tokens; about 10 s");
    note(WHY_ENDED, 0, 0, 0); /* the front has no event about it yet */
    expect_wait(id, "prompt: computed its prompt; 11 of 21 prompt tokens; about 10 s");
    n_story--;
    note(WHY_PREEMPTED, 0, 0, 0);
    expect_wait(id, "preempted: was preempted for its pages");
    note(WHY_ADMITTED, 0, 20, 0);
    note(WHY_PROMPT, 10, 0, 0); /* more than it has */
    struct api_request_info info[2];
    cr_assert_eq(api_requests(w.api, info, 2), 2);
    cr_expect_eq(info[0].n_done, HI_TOKENS);
    cr_expect_str_eq(info[0].waits_for, "prompt");
    cr_expect_str_eq(info[1].waits_for, "place");
    cr_expect_str_eq(info[1].state, "queued");
    cr_expect_eq(api_requests(w.api, info, 1), 1);
    cr_assert(api_wait_text(w.api, info[1].id, text, sizeof(text)));
    cr_expect(strncmp(text, "place: waited in the queue (max-running)", 40) == 0, "%s", text);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    world_turns(&w, 3);
    cr_expect_not(api_wait_text(w.api, id, text, sizeof(text)), "it has tokens");
    cr_expect_not(api_wait_text(w.api, id + 99, text, sizeof(text)));
    w.port.script = "x";
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, first, &r);
    reply_deinit(&r);
    world_receive(&w, second, &r);
    reply_deinit(&r);
    world_drop(&w, first);
    world_drop(&w, second);
    world_stop(&w);
}

Test(port, ended_requests_are_told_last_first) {
    struct api_ended_filter all = {.oldest_s = 3600}, other = {.tenant = "x", .oldest_s = 3600};
    struct api_ended_filter old = {.oldest_s = 3600, .newest_s = 60};
    struct api_ended_info out[4];
    struct reply r;
    char id[64];

    world_init(&w);
    w.port.script = "abc";
    world_start(&w);
    world_ask(&w, TEXT, R"({"prompt":"hello","max_tokens":2})", &r);
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI "}", &r);
    reply_header(&r, "x-request-id", id, sizeof(id));
    reply_deinit(&r);
    world_ask(&w, CHAT, "{}", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    cr_assert_eq(api_ended(w.api, &all, out, 4), 3);
    cr_expect_eq(out[0].status, 400);
    cr_expect_str_eq(out[0].finish, "-");
    cr_expect_str_eq(out[1].endpoint, CHAT);
    cr_expect_str_eq(out[1].request_id, id);
    cr_expect_str_eq(out[1].finish, "stop");
    cr_expect_eq(out[1].status, 200);
    cr_expect_eq(out[1].n_prompt, HI_TOKENS);
    cr_expect_eq(out[1].n_cached, HI_TOKENS / 2);
    cr_expect_eq(out[1].n_output, 3);
    cr_expect_str_eq(out[2].endpoint, TEXT);
    cr_expect_str_eq(out[2].finish, "length");
    cr_expect_eq(out[2].n_output, 2);
    for (int i = 0; i < 3; i++) {
        cr_expect(out[i].ago_ms >= 0 && out[i].ago_ms < 60000, "%lld", (long long)out[i].ago_ms);
        cr_expect(out[i].queue_ms <= out[i].ttft_ms && out[i].ttft_ms <= out[i].total_ms);
    }
    cr_expect_eq(api_ended(w.api, &all, out, 1), 1);
    cr_expect_eq(out[0].status, 400, "the last one");
    cr_expect_eq(api_ended(w.api, &old, out, 4), 0);
    cr_expect_eq(api_ended(w.api, &other, out, 4), -ENOENT);
    world_stop(&w);
}

Test(port, a_story_has_the_waits_of_the_front) {
    struct flight_record out[3 + API_STORY_MORE];
    int64_t begin = 0;
    uint64_t id = 0;
    struct reply r;
    char name[64];

    n_story = 0;
    world_init(&w);
    w.port.script = "abc";
    world_start(&w);
    world_ask(&w, CHAT, "{" HI "}", &r);
    reply_header(&r, "x-request-id", name, sizeof(name));
    reply_deinit(&r);
    cr_assert_eq(api_find(w.api, name, &id), 0);
    cr_expect_eq(id, w.port.r[0].id);
    cr_expect_eq(api_find(w.api, "req_none", &id), -ENOENT);
    cr_expect_str_eq(api_left_out(w.api, id), "");
    cr_expect_str_eq(api_left_out(w.api, id + 99), "");
    int64_t late = clock_now(w.clock) + INT64_C(5000000000);
    note(WHY_QUEUED, 0, 0, late);
    note(WHY_QUEUED, 0, 0, late + 2000000); /* another worker */
    note(WHY_ENDED, 0, 0, late + 3000000);
    uint32_t n = api_story(w.api, id, story, 3, out, &begin);
    cr_expect(begin > 0 && begin < late);
    cr_assert_geq(n, 5);
    cr_expect_eq(out[n - 5].why, WHY_WORKER);
    cr_expect_eq(out[n - 5].until_ns, late);
    cr_expect_eq(out[n - 5].id, id);
    cr_expect_eq(out[n - 4].why, WHY_QUEUED);
    cr_expect_eq(out[n - 3].why, WHY_WORKER);
    cr_expect_eq(out[n - 3].from_ns, late);
    cr_expect_eq(out[n - 3].until_ns, late + 2000000);
    cr_expect_eq(out[n - 2].why, WHY_QUEUED);
    cr_expect_eq(out[n - 1].why, WHY_ENDED, "the front was not late");
    cr_expect_eq(api_story(w.api, id + 99, story, 1, out, &begin), 1);
    cr_expect_eq(begin, late);
    cr_expect_eq(api_story(w.api, id + 99, story, 0, out, &begin), 0);
    cr_expect_eq(begin, 0);
    world_stop(&w);
}

Test(port, time_on_the_device_belongs_to_a_tenant) {
    const struct msg_served served[] = {{.tenant = 0, .ns = 700}, {.tenant = 0, .ns = 50}};
    struct api_tenant_info t[4];

    world_init(&w);
    world_start(&w);
    api_on_served(w.port.model, served, 2);
    cr_assert_geq(api_tenants(w.api, t, 4), 1);
    cr_expect_eq(t[0].stats.device_ns, 750);
    cr_expect_eq(model_of_tenant(w.port.model, 0)->device_ns, 750);
    cr_expect_eq(api_tenants(w.api, t, 0), 0);
    world_stop(&w);
}

/* ---- models ---- */

static void want(struct api_port *p) {}

static void use(struct api_port *p, uint32_t tenant, double weight) {}

/* Requests that wait for a model wait for the one that replaces it. */
Test(port, a_model_may_replace_another) {
    struct api_model own;
    struct fake_port ports[2];
    struct model *old, *next;
    struct reply r;

    world_init(&w);
    w.opts.load_wait_ms = 10000;
    w.port.script = "first";
    world_start(&w);
    own = w.model;
    own.id = "other";
    own.aliases = NULL;
    for (int i = 0; i < 2; i++) {
        fake_init(&ports[i], w.clock);
        ports[i].port.want = want;
        ports[i].port.use = use;
    }
    ports[1].script = "next";
    cr_assert_eq(api_add_model(w.api, &own, &ports[0].port, &old), 0);
    cr_assert_eq(api_new_model(w.api, &own, &ports[1].port, &next), 0);
    ports[0].model = old;
    ports[1].model = next;
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, R"({"model":"other",)" HI "}");
    world_turns(&w, 5);
    cr_expect_eq(api_model_use(old).n_waiting, 1);
    api_replace_model(old, next);
    cr_expect_eq(api_model_use(old).n_waiting, 0);
    cr_expect_eq(api_model_use(old).n_jobs, 0);
    cr_expect_eq(api_model_use(next).n_waiting, 1);
    api_remove_model(old);
    api_worker_up(next, NULL);
    for (int i = 0; i < 50; i++) {
        world_turn(&w);
        fake_turn(&ports[1]);
    }
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"("content":"next")"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    fake_deinit(&ports[0]);
    world_stop(&w);
    fake_deinit(&ports[1]);
}

static const char *body_of(const char *path, char out[8192]) {
    struct reply r;

    world_get(&w, path, &r);
    cr_assert_eq(r.status, 200);
    snprintf(out, 8192, "%.*s", (int)r.body.len, r.body.data);
    reply_deinit(&r);
    return out;
}

Test(port, presets_that_were_not_read_are_listed) {
    static const char *const names[] = {"a.conf", "b.conf", NULL};
    char body[8192];

    world_init(&w);
    world_start(&w);
    cr_expect_null(strstr(body_of("/v1/models", body), "presets_not_read"));
    api_set_bad_presets(w.api, names);
    cr_expect(strstr(body_of("/v1/models", body), R"("presets_not_read":["a.conf","b.conf"])"),
              "%s", body);
    api_set_bad_presets(w.api, NULL);
    cr_expect_null(strstr(body_of("/v1/models", body), "presets_not_read"));
    world_stop(&w);
}

Test(port, health_is_what_was_set) {
    world_init(&w);
    world_start(&w);
    cr_expect_eq(api_health(w.api), API_SERVING);
    api_drain(w.api);
    cr_expect_eq(api_health(w.api), API_DRAINING);
    api_set_health(w.api, API_SERVING);
    cr_expect_eq(api_health(w.api), API_DRAINING, "it stays");
    world_stop(&w);
}
