/*
 * What an operator sets for a model, which requests that do not say it get, and for a tenant: the
 * models that it may use.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/generation/gen_request.h"
#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

static struct world w;

/* A template that writes its variables and messages. */
static const char dump[] = "{{ style | default('-') }}|{{ enable_thinking | default('-') }}|"
                           "{{ reasoning_effort | default('-') }}|"
                           "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}";

static void prepare(void) {
    world_init(&w);
    world_use_template(&w, dump, sizeof(dump) - 1);
    w.port.script = "ok";
}

/* Sends a chat and returns the request that the worker got. */
static const struct fake_request *chat(const char *fields) {
    char body[600];
    struct reply r;

    snprintf(body, sizeof(body), "{%s}", fields);
    world_ask(&w, CHAT, body, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    return &w.port.r[w.port.n - 1];
}

static void expect_prompt(const char *fields, const char *want) {
    cr_expect_str_eq(fake_prompt(chat(fields)), want, "%s", fields);
}

Test(settings, a_model_has_its_own_system_message) {
    prepare();
    w.model.system = "Be brief.";
    world_start(&w);
    expect_prompt(HI, "-|-|-|system:Be brief.|user:hi|");
    expect_prompt(R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}])",
                  "-|-|-|system:s|user:hi|");
    expect_prompt(
        R"("messages":[{"role":"developer","content":"s"},{"role":"user","content":"hi"}])",
        "-|-|-|system:s|user:hi|");
    world_stop(&w);
}

Test(settings, variables_of_the_template_have_defaults) {
    struct err err;
    yyjson_doc *doc;

    prepare();
    cr_assert_eq(api_read_kwargs(R"({"style":"plain","enable_thinking":false,)"
                                 R"("reasoning_effort":"low"})",
                                 &doc, &err),
                 0);
    w.model.template_kwargs = yyjson_doc_get_root(doc);
    world_start(&w);
    expect_prompt(HI, "plain|False|low|user:hi|");
    expect_prompt(HI R"(,"chat_template_kwargs":{"style":"own"})", "own|False|low|user:hi|");
    expect_prompt(HI R"(,"chat_template_kwargs":{"enable_thinking":true})",
                  "plain|True|low|user:hi|");
    expect_prompt(HI R"(,"reasoning_effort":"high")", "plain|True|high|user:hi|");
    world_stop(&w);
    yyjson_doc_free(doc);
}

Test(settings, sampling_has_defaults) {
    struct sampling own;
    uint64_t seed = 7;
    struct reply r;

    prepare();
    params_init(&own);
    own.temperature = 0.25;
    own.top_k = 11;
    own.top_p = 0.5;
    own.min_p = 0.125;
    own.repetition_penalty = 1.5;
    w.model.sampling = &own;
    w.model.sampling_source = "preset";
    w.model.seed = &seed;
    world_start(&w);
    const struct fake_request *q = chat(HI);
    cr_expect_eq(q->m.sampling.temperature, 0.25);
    cr_expect_eq(q->m.sampling.top_k, 11);
    cr_expect_eq(q->m.seed, 7);
    q = chat(HI R"(,"temperature":0.75,"seed":9)");
    cr_expect_eq(q->m.sampling.temperature, 0.75);
    cr_expect_eq(q->m.sampling.top_k, 11);
    cr_expect_eq(q->m.seed, 9);
    world_get(&w, "/v1/models", &r);
    cr_expect(strstr(r.body.data, R"("sampling":{"temperature":0.25,"top_k":11,"top_p":0.5,)"
                                  R"("min_p":0.125,"repetition_penalty":1.5,"source":"preset"})"),
              "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/props", &r);
    cr_expect(strstr(r.body.data, R"("seed":7,"temperature":0.25,"top_k":11,"top_p":0.5)"), "%s",
              r.body.data);
    cr_expect(strstr(r.body.data, R"("sampling_source":"preset")"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

static char salted[64];
static uint8_t salted_key[16];

static void on_salt(void *ctx, const uint8_t isolation_key[16], struct str salt) {
    cr_expect_eq(ctx, &w);
    memcpy(salted_key, isolation_key, 16);
    snprintf(salted, sizeof(salted), "%.*s", (int)salt.len, salt.data);
}

Test(settings, salts_are_told_with_their_keys) {
    prepare();
    w.opts.on_salt = on_salt;
    w.opts.salt_ctx = &w;
    world_start(&w);
    *salted = 0;
    chat(HI);
    cr_expect_str_eq(salted, "", "a request without a salt");
    const struct fake_request *q = chat(HI R"(,"cache_salt":"pepper")");
    cr_expect_str_eq(salted, "pepper");
    cr_expect_eq(memcmp(salted_key, q->m.isolation_key, 16), 0);
    world_stop(&w);
}

/* ---- models of tenants ---- */

/* Sends @request with the key of a tenant. Returns the status; *body is valid until the next. */
static int send_as(const char *key, const char *request, const char *path, const char *body,
                   const char **out) {
    static char text[8192];
    int fd = world_connect(&w);
    struct reply r;

    world_say(&w, fd,
              "%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
              request, path, key, strlen(body), body);
    world_receive(&w, fd, &r);
    int status = r.status;
    snprintf(text, sizeof(text), "%.*s", (int)r.body.len, r.body.data);
    *out = text;
    reply_deinit(&r);
    world_drop(&w, fd);
    return status;
}

static void expect_get(const char *key, const char *path, int status, const char *needle) {
    const char *body;

    cr_expect_eq(send_as(key, "GET", path, "", &body), status, "%s %s: %s", key, path, body);
    cr_expect(strstr(body, needle), "%s %s: %s", key, path, body);
}

static void expect_chat(const char *key, const char *model, int status, const char *needle) {
    const char *body;
    char fields[200];

    snprintf(fields, sizeof(fields), R"({%s)" HI "}", model);
    cr_expect_eq(send_as(key, "POST", CHAT, fields, &body), status, "%s %s: %s", key, model, body);
    cr_expect(strstr(body, needle), "%s %s: %s", key, model, body);
}

#define HIDDEN(name) "The model `" name "` does not exist or this API key may not use it."
#define HIDDEN_DEFAULT                                                                             \
    "This API key may not use the default model. Send the name of one of those that GET "          \
    "/v1/models lists."

Test(settings, a_tenant_uses_its_models_alone) {
    struct api_tenant rows[] = {
        {.name = "alice", .weight = 1, .n_models = 1, .models = {"ti*"}},
        {.name = "bob", .weight = 1, .n_models = 2, .models = {"other", "tin"}},
        {.name = "carol", .weight = 1, .n_models = 2, .models = {"other", "alias"}},
    };
    char path[64];
    const char *body;

    snprintf(path, sizeof(path), "/tmp/weft-test-settings-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("alice:ka\nbob:kb\ncarol:kc\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    w.port.script = "ok";
    world_start(&w);
    unlink(path);
    cr_assert_eq(api_set_tenants(w.api, rows, 3), 0);
    static const char *const may[] = {"ka", "kc"};
    for (size_t i = 0; i < ARRAY_SIZE(may); i++) {
        expect_chat(may[i], "", 200, R"("content":"ok")");
        expect_chat(may[i], R"("model":"tiny",)", 200, R"("content":"ok")");
        expect_get(may[i], "/v1/models", 200, R"("id":"tiny")");
        expect_get(may[i], "/v1/models/tiny", 200, R"("id":"tiny")");
        expect_get(may[i], "/api/tags", 200, R"("name":"tiny)");
        expect_get(may[i], "/props?model=tiny", 200, R"("model_alias":"tiny")");
        expect_get(may[i], "/props", 200, R"("model_alias":"tiny")");
    }
    expect_chat("kb", "", 404, HIDDEN_DEFAULT);
    expect_chat("kb", R"("model":"tiny",)", 404, HIDDEN("tiny"));
    expect_chat("kb", R"("model":"alias",)", 404, HIDDEN("alias"));
    expect_chat("kb", R"("model":"none",)", 404, HIDDEN("none"));
    expect_get("kb", "/v1/models", 200, R"("data":[])");
    expect_get("kb", "/v1/models/tiny", 404, HIDDEN("tiny"));
    expect_get("kb", "/api/tags", 200, R"({"models":[]})");
    expect_get("kb", "/props?model=tiny", 404, HIDDEN("tiny"));
    expect_get("kb", "/props", 404, HIDDEN_DEFAULT);
    expect_get("kb", "/props?model=none", 404, HIDDEN("none"));
    expect_get("kb", "/v1/models/none", 404, HIDDEN("none"));
    cr_expect_eq(send_as("kb", "POST", "/api/show", R"({"model":"tiny"})", &body), 404);
    cr_expect(strstr(body, "model 'tiny' not found"), "%s", body);
    cr_expect_eq(w.port.n, 4);
    world_stop(&w);
}

Test(settings, a_preset_that_was_not_read_is_no_unknown_model) {
    static const char *const bad[] = {"fine", "broken", NULL};

    world_init(&w);
    world_start(&w);
    api_set_bad_presets(w.api, bad);
    expect_chat("k", R"("model":"broken",)", 404,
                "The preset of the model `broken` cannot be read; the server's log has the "
                "reason.");
    expect_chat("k", R"("model":"broke",)", 404, "The model `broke` does not exist.");
    expect_chat("k", R"("model":"brokem",)", 404, "The model `brokem` does not exist.");
    api_set_bad_presets(w.api, NULL);
    world_stop(&w);
}

/* ---- what a client sees of running requests ---- */

Test(settings, slots_show_the_progress_of_requests) {
    char want[400];
    struct reply r;

    world_init(&w);
    w.opts.max_running = 2;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"max_tokens":10})");
    world_turns(&w, 3);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "abc");
    world_turns(&w, 3);
    world_get(&w, "/slots", &r);
    snprintf(want, sizeof(want),
             R"([{"id":0,"n_ctx":512,"is_processing":true,"id_task":%llu,"next_token":[{)"
             R"("has_next_token":true,"n_remain":7,"n_decoded":3}]},)"
             R"({"id":1,"n_ctx":512,"is_processing":false,"next_token":[{)"
             R"("has_next_token":false,"n_remain":-1,"n_decoded":0}]}])",
             (unsigned long long)w.port.r[0].id);
    cr_expect_str_eq(r.body.data, want);
    reply_deinit(&r);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}
