/*
 * A world with a second model, "other", that is loaded on demand; a test plays the part of the
 * daemon.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"
#include "world.h"

#define CHAT "/v1/chat/completions"
#define HI R"("messages":[{"role":"user","content":"hi"}])"

static struct world w;
static struct fake_port other;
static struct api_model info;
static struct model *model;
static const char *aliases[] = {"second", "gpt-*", NULL};
static uint32_t n_wants, n_uses, keepalive_ms = 10000;
static bool stores;       /* responses */
static bool rescans;      /* the daemon scans for models again */
static struct list scans; /* api_rescan.link */
static const char *const *may_change;

static void use(struct api_port *p, uint32_t tenant, double weight) {
    (void)p;
    n_uses++;
    cr_expect_eq(tenant, 0);
    cr_expect_gt(weight, 0);
}

static void want(struct api_port *p) {
    cr_expect_eq(p, &other.port);
    n_wants++;
}

static bool rescan(void *ctx, struct api_rescan *r) {
    (void)ctx;
    if (rescans)
        list_push_back(&scans, &r->link);
    return rescans;
}

static void scanned(void) {
    struct list *node;

    rescans = false;
    while ((node = list_pop_front(&scans))) {
        struct api_rescan *r = LIST_ENTRY(node, struct api_rescan, link);

        r->over(r);
    }
}

static int put_to_sleep(void *ctx, const char *id, struct err *err);

/* Names of the world's own model instead of "tiny", or NULL. */
static const char *first_id, *const *first_aliases;

static void start(uint32_t load_wait_ms) {
    n_wants = n_uses = 0;
    world_init(&w);
    if (first_id) {
        w.model.id = first_id;
        w.model.aliases = first_aliases;
    }
    w.opts.load_wait_ms = load_wait_ms;
    w.opts.keepalive_ms = keepalive_ms;
    w.opts.any_model_name = !rescans;
    list_init(&scans);
    w.opts.rescan = rescans ? rescan : NULL;
    w.opts.max_stored = stores ? 10 : 0;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    w.opts.sleep = put_to_sleep;
    w.opts.models_ctx = &w;
    w.opts.managers = may_change;
    w.port.script = "first";
    world_start(&w);
    fake_init(&other, clock_monotonic());
    other.port.want = want;
    other.port.use = use;
    other.script = "other";
    info = (struct api_model){.id = "other", .aliases = aliases, .n_bytes = 7};
    cr_assert_eq(api_add_model(w.api, &info, &other.port, &model), 0);
    other.model = model;
}

static void stop(void) {
    struct api_model_use use = api_model_use(model);

    cr_expect_eq(use.n_running + use.n_jobs, 0, "%u %u", use.n_running, use.n_jobs);
    world_stop(&w);
    tokenizer_free((struct tokenizer *)(uintptr_t)info.tokenizer);
    template_free((struct template *)(uintptr_t)info.template);
    fake_deinit(&other);
}

/* Notes, as the daemon does, that the file was read. */
static void opened(void) {
    info.tokenizer = tiny_tokenizer();
    info.template = tiny_template();
    info.n_vocab = TINY_VOCAB + 1;
    api_model_opened(model);
}

/* Notes, as the daemon does, that a worker serves. */
static void loaded(void) {
    if (!info.tokenizer)
        opened();
    info.max_context = 512;
    info.page_tokens = 16;
    info.fingerprint = "b0";
    api_worker_up(model, NULL);
}

static void turns(int n) {
    while (n--) {
        world_turn(&w);
        fake_turn(&other);
    }
}

static int ask(const char *more) {
    char body[300];
    int fd = world_connect(&w);

    snprintf(body, sizeof(body), "{" HI "%s}", more);
    world_post(&w, fd, CHAT, body);
    turns(20);
    return fd;
}

static void expect(int fd, int status, const char *part) {
    char seconds[20];
    struct reply r;

    turns(100);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, status, "%d", r.status);
    cr_expect(strstr(r.body.data, part), "%s", r.body.data);
    bool again = atoi(reply_header(&r, "Retry-After", seconds, sizeof(seconds))) > 0;
    cr_expect_eq(again, status == 503, "%s", r.head);
    reply_deinit(&r);
    close(fd);
}

/* Compares the state of the model in /v1/models. */
static void expect_state(const char *state) {
    char part[60];
    struct reply r;

    snprintf(part, sizeof(part), R"("status":{"value":"%s")", state);
    world_get(&w, "/v1/models/other", &r);
    cr_expect(strstr(r.body.data, part), "%s: %s", state, r.body.data);
    reply_deinit(&r);
}

static void expect_sleeping(bool sleeping) {
    struct reply r;

    world_get(&w, "/props?model=other", &r);
    cr_expect(strstr(r.body.data, sleeping ? R"("is_sleeping":true)" : R"("is_sleeping":false)"),
              "%s", r.body.data);
    reply_deinit(&r);
}

Test(models, a_request_waits_until_its_model_is_loaded) {
    start(60000);
    expect_sleeping(true);
    int fd = ask(R"(,"model":"other")");
    cr_expect_eq(n_wants, 1);
    cr_expect_eq(api_model_use(model).n_jobs, 1);
    expect(ask(R"(,"model":"tiny")"), 200, R"("content":"first")");
    expect(ask(""), 200, R"("model":"tiny")");
    api_model_set(model, API_MODEL_LOADING, 0.5f);
    opened();
    turns(10);
    cr_expect_eq(other.n, 0);
    loaded();
    expect(fd, 200, R"("content":"other")");
    expect_sleeping(false);
    expect(ask(R"(,"model":"second")"), 200, R"("model":"other")");
    expect(ask(R"(,"model":"gpt-4o")"), 200, R"("model":"other")");
    cr_expect_eq(n_wants, 1);
    cr_expect_eq(n_uses, 3);
    stop();
}

Test(models, other_dialects_name_them_too) {
    struct reply r;

    start(60000);
    loaded();
    int fd = world_connect(&w);
    world_post(&w, fd, "/api/chat", R"({"model":"other:latest","stream":false,)" HI "}");
    expect(fd, 200, R"("model":"other")");
    fd = world_connect(&w);
    world_post(&w, fd, "/api/chat", R"({"model":"other.gguf","stream":false,)" HI "}");
    expect(fd, 200, R"("model":"other")");
    expect(ask(R"(,"model":"other-00002-of-00003")"), 200, R"("model":"other")");
    expect(ask(R"(,"model":"other-00001-of-00003.gguf")"), 200, R"("model":"other")");
    expect(ask(R"(,"model":"other-00004-of-00003.gguf")"), 404, "was not found");
    fd = world_connect(&w);
    world_post(&w, fd, "/v1/messages", R"({"model":"second","max_tokens":9,)" HI "}");
    expect(fd, 200, R"("model":"other")");
    fd = world_connect(&w);
    world_post(&w, fd, "/v1/messages", R"({"model":"claude-9","max_tokens":9,)" HI "}");
    expect(fd, 200, R"("model":"tiny")");
    world_ask(&w, "/api/show", R"({"model":"other"})", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_get(&w, "/props?model=other", &r);
    cr_expect(strstr(r.body.data, R"("model_alias":"other")"), "%s", r.body.data);
    reply_deinit(&r);
    /* Clients escape names. */
    world_get(&w, "/props?draft_model=tiny&model=%6fther%3Alatest", &r);
    cr_expect(strstr(r.body.data, R"("model_alias":"other")"), "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/props?model=a+b%zz", &r);
    cr_expect_eq(r.status, 404);
    reply_deinit(&r);
    world_get(&w, "/props?model=a+b", &r);
    cr_expect_eq(r.status, 404);
    cr_expect(strstr(r.body.data, "The model `a b` was not found"), "%s", r.body.data);
    reply_deinit(&r);
    stop();
}

static char slept[40];

/* Implements api_opts.sleep: "tiny" is pinned. */
static int put_to_sleep(void *ctx, const char *id, struct err *err) {
    size_t n = strlen(slept);

    cr_expect_eq(ctx, &w);
    snprintf(slept + n, sizeof(slept) - n, "%s ", id);
    return strcmp(id, "tiny") == 0 ? err_set(err, 400, NULL, "tiny is pinned") : 0;
}

static void expect_answer(const char *method, const char *path, int status, const char *part) {
    struct reply r;

    if (strcmp(method, "GET") == 0)
        world_get(&w, path, &r);
    else
        world_ask(&w, path, "", &r);
    cr_expect_eq(r.status, status, "%s: %d %s", path, r.status, r.body.data);
    cr_expect(strstr(r.body.data, part), "%s: %s", path, r.body.data);
    reply_deinit(&r);
}

Test(models, sleep_unloads_those_that_may_and_wake_up_loads) {
    static const char *const managers[] = {"*", NULL};

    may_change = managers;
    start(60000);
    expect_answer("GET", "/is_sleeping", 200, R"({"is_sleeping":false})"); /* tiny is loaded */
    expect_answer("GET", "/is_sleeping?model=second", 200, R"({"is_sleeping":true})");
    expect_answer("GET", "/is_sleeping?model=none", 404, "was not found");
    loaded();
    expect_answer("GET", "/is_sleeping?model=other", 200, R"({"is_sleeping":false})");
    expect_answer("POST", "/sleep?level=1", 200, "{}");
    cr_expect_str_eq(slept, "tiny other ", "%s", slept);
    *slept = 0;
    expect_answer("POST", "/sleep?model=second", 200, "{}");
    cr_expect_str_eq(slept, "other ", "%s", slept);
    expect_answer("POST", "/sleep?model=tiny", 400, "tiny is pinned");
    expect_answer("POST", "/sleep?level=1&model=none", 404, "was not found");
    api_model_set(model, API_MODEL_UNLOADING, 0);
    expect_answer("GET", "/is_sleeping?model=other", 200, R"({"is_sleeping":false})");
    api_worker_stopped(model);
    expect_answer("GET", "/is_sleeping?model=other", 200, R"({"is_sleeping":true})");
    expect_answer("POST", "/wake_up", 200, "{}"); /* the first model is always loaded */
    cr_expect_eq(n_wants, 0);
    expect_answer("POST", "/wake_up?tags=weights&model=second", 200, "{}");
    cr_expect_eq(n_wants, 1);
    stop();
    may_change = NULL;
}

Test(models, sleep_needs_the_right_to_change_models) {
    start(60000);
    loaded();
    *slept = 0;
    expect_answer("POST", "/sleep", 403, "allow-pull");
    expect_answer("POST", "/wake_up?model=other", 403, "allow-pull");
    expect_answer("GET", "/sleep", 405, "");
    cr_expect_str_eq(slept, "");
    cr_expect_eq(n_wants, 0);
    stop();
}

Test(models, an_unknown_model_is_404_with_the_list) {
    start(60000);
    expect(ask(R"(,"model":"x")"), 404,
           "The model `x` was not found. The models are: tiny, other.");
    cr_expect_eq(n_wants, 0);
    stop();
}

Test(models, models_are_looked_for_before_a_name_is_unknown) {
    static const char get[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";

    rescans = true;
    start(60000);
    int fd = ask(R"(,"model":"x")"), gone = ask(R"(,"model":"x")");
    int list = world_connect(&w), left = world_connect(&w);
    world_send(&w, list, get, sizeof(get) - 1);
    world_send(&w, left, get, sizeof(get) - 1);
    turns(20);
    close(gone);
    close(left);
    turns(20);
    cr_expect(!list_empty(&scans));
    expect(ask(R"(,"model":"tiny")"), 200, R"("content":"first")");
    scanned();
    cr_expect(list_empty(&scans));
    expect(fd, 404, "The models are: tiny, other.");
    expect(list, 200, R"("id":"other")");
    expect(ask(R"(,"model":"x")"), 404, "The models are: tiny, other.");
    rescans = true;
    fd = ask(R"(,"model":"x")");
    api_withdraw_model(model);
    scanned();
    expect(fd, 404, "`x` does not exist");
    expect(ask(R"(,"model":"other")"), 404, "`other` does not exist");
    api_remove_model(model);
    rescans = true;
    ask(R"(,"model":"x")"); /* waits until the service stops */
    world_stop(&w);
    fake_deinit(&other);
}

Test(models, a_model_is_described_when_its_header_was_read) {
    static const char get[] = "GET /v1/models/%s HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char show[] = R"({"model":"other"})";
    char text[100];

    rescans = true;
    start(60000);
    int one = world_connect(&w), shown = world_connect(&w), open = world_connect(&w);
    int n = snprintf(text, sizeof(text), get, "other");
    world_send(&w, one, text, (size_t)n);
    world_post(&w, shown, "/api/show", show);
    n = snprintf(text, sizeof(text), get, "tiny");
    world_send(&w, open, text, (size_t)n);
    turns(20);
    expect(open, 200, R"("id":"tiny")");
    info.sees = info.reasons = true;
    scanned();
    expect(one, 200, R"("multimodal")");
    expect(shown, 200, R"("vision")");
    stop();
}

Test(models, a_name_with_nul_is_refused) {
    start(60000);
    loaded();
    expect(ask(R"(,"model":"other\u0000")"), 400, "NUL");
    expect(ask(R"(,"model":"tiny\u0000x")"), 400, "NUL");
    expect(ask(R"(,"model":"\u0000")"), 400, "NUL");
    expect(ask(R"(,"model":[1,2])"), 400, "model");
    expect(ask(R"(,"model":"other")"), 200, "other");
    stop();
}

Test(models, an_id_is_found_before_an_alias_of_its_length) {
    static const char *const named[] = {"other", NULL};

    first_id = "first";
    first_aliases = named;
    start(60000);
    loaded();
    expect(ask(R"(,"model":"other")"), 200, "other");
    first_id = NULL;
    stop();
}

/* The alias "second" disappears as soon as a job has its model, and reappears after each rescan. */
static void use_and_hide(struct api_port *p, uint32_t tenant, double weight) {
    use(p, tenant, weight);
    aliases[0] = "gpt-*";
}

Test(models, a_model_that_comes_and_goes_is_looked_up_eight_times) {
    uint32_t n = 0;

    rescans = true;
    start(60000);
    loaded();
    other.port.use = use_and_hide;
    int fd = ask(R"(,"model":"second")");
    for (; !list_empty(&scans) && n < 100; n++) {
        struct api_rescan *r = LIST_ENTRY(list_pop_front(&scans), struct api_rescan, link);

        aliases[0] = "second";
        r->over(r);
        turns(20);
    }
    expect(fd, 503, "`second` was removed or replaced while the request waited");
    cr_expect_eq(n, 4, "%u", n);
    cr_expect_eq(n_uses, 4, "%u", n_uses);
    aliases[0] = "second";
    other.port.use = use;
    expect(ask(R"(,"model":"second")"), 200, "other");
    rescans = false;
    stop();
}

Test(models, what_cannot_be_loaded_says_why) {
    start(60000);
    int fd = ask(R"(,"model":"other")");
    int stream = ask(R"(,"model":"other","stream":true)");
    api_worker_failed(model, "it is cut off", 7000);
    expect(fd, 503, "The model cannot be loaded: it is cut off.");
    expect(stream, 503, "it is cut off");
    expect(ask(R"(,"model":"other")"), 503, "it is cut off"); /* is answered at once */
    api_worker_failed(model, "was it copied whole?", 7000);
    expect(ask(R"(,"model":"other")"), 503, R"(The model cannot be loaded: was it copied whole?")");
    expect(ask(""), 200, "first");
    stop();
}

Test(models, the_wait_is_bounded_in_time_and_number) {
    int fd[4];

    start(300);
    for (int i = 0; i < 4; i++)
        fd[i] = ask(R"(,"model":"other")");
    expect(ask(R"(,"model":"other")"), 503, "is being loaded"); /* max_queued is 4 */
    for (int i = 0; i < 4; i++)
        expect(fd[i], 503, "is being loaded. Try again");
    stop();
}

Test(models, a_stream_that_waits_hears_how_far_it_is) {
    keepalive_ms = 1;
    start(60000);
    int fd = ask(R"(,"model":"other","stream":true)");
    CLEANUP(buf_deinit) struct buf seen = {.max = 1 << 20};
    api_model_set(model, API_MODEL_LOADING, 0.25f);
    cr_assert(world_read_until(&w, fd, &seen, ": other is loading, 25 %"));
    cr_expect(strstr(seen.data, "HTTP/1.1 200"), "%s", seen.data);
    loaded();
    turns(100);
    cr_assert(world_read_until(&w, fd, &seen, "[DONE]"));
    cr_expect(strstr(seen.data, R"("model":"other")"), "%s", seen.data);
    close(fd);
    turns(4);
    stop();
}

/* Every message of a WebSocket is an event, which a comment is not. None asks for a stream. */
Test(models, a_websocket_that_waits_hears_pings) {
    CLEANUP(buf_deinit) struct buf seen = {.max = 1 << 20};

    keepalive_ms = 1;
    stores = true;
    start(60000);
    int fd = world_websocket(&w, "/v1/responses");
    world_message(&w, fd, R"({"type":"response.create","model":"other","input":"hi"})");
    turns(20);
    api_model_set(model, API_MODEL_LOADING, 0.25f);
    cr_assert(world_read_until(&w, fd, &seen, "\x89"));
    loaded();
    turns(100);
    cr_assert(world_read_until(&w, fd, &seen, "response.completed"));
    cr_expect_null(memmem(seen.data, seen.len, "is loading", 10), "%s", seen.data);
    world_drop(&w, fd);
    turns(20);
    stop();
}

/* Proxies end a request whose head does not arrive: nginx after 60 s. */
Test(models, an_answer_that_waits_for_long_gets_its_head) {
#define LINES "Content-Type: application/x-ndjson"
#define BLANK "\r\n\r\n1\r\n \r\n"
#define CHAT_HI R"("messages":[{"role":"user","content":"hi"}])"
    const struct {
        const char *path, *fields, *head, *end;
        bool fails;
    } table[] = {
        {"/api/chat", CHAT_HI, LINES, R"("done":true)", false},
        {"/api/chat", CHAT_HI, LINES,
         "\n"
         R"({"error":"The model cannot be loaded: cut off)",
         true},
        {"/api/chat", CHAT_HI R"(,"stream":false)", BLANK, R"("done":true)", false},
        {"/api/generate", R"("keep_alive":-1)", LINES,
         R"("done_reason":"load","done":true})"
         "\n",
         false},
        {CHAT, CHAT_HI, BLANK, R"("finish_reason":"stop")", false},
        {"/v1/responses", R"("input":"hi","background":true)", BLANK, R"("status":"queued")",
         false},
        {"/v1/embeddings", R"("input":"hi")", BLANK, "cannot be loaded: cut off", true},
    };

    keepalive_ms = 1;
    stores = true;
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        CLEANUP(buf_deinit) struct buf seen = {.max = 1 << 20};
        char body[300];

        start(60000);
        snprintf(body, sizeof(body), R"({"model":"other",%s})", table[i].fields);
        int fd = world_connect(&w);
        world_post(&w, fd, table[i].path, body);
        cr_assert(world_read_until(&w, fd, &seen, table[i].head), "%zu: %s", i, seen.data);
        if (table[i].fails)
            api_worker_failed(model, "cut off", 7000);
        else
            loaded();
        turns(20);
        cr_assert(world_read_until(&w, fd, &seen, table[i].end), "%zu: %s", i, seen.data);
        cr_assert(world_read_until(&w, fd, &seen, "\r\n0\r\n\r\n"), "%zu: %s", i, seen.data);
        world_drop(&w, fd);
        turns(20);
        stop();
    }
}

/* The head, which would say so otherwise, is sent while the model is loaded. */
Test(models, what_is_not_enforced_is_told_in_the_first_event) {
#define LOOSE R"({"type":"object","properties":{"a":{"type":"string","pattern":"\\bx"}}})"
#define LOOSE_RESPONSE                                                                             \
    R"("input":"hi","tools":[{"type":"function","name":"get",)"                                    \
    R"("strict":false,"parameters":)" LOOSE "}"                                                    \
    "]"
    const struct {
        const char *path, *fields;
    } table[] = {
        {CHAT, R"("messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function",)"
               R"("function":{"name":"get","parameters":)" LOOSE "}}]"},
        {"/v1/messages", R"("max_tokens":4,"messages":[{"role":"user","content":"hi"}],)"
                         R"("tools":[{"name":"get","input_schema":)" LOOSE "}]"},
        {"/v1/responses", LOOSE_RESPONSE},
        {"/v1/responses", R"("background":true,)" LOOSE_RESPONSE},
    };

    keepalive_ms = 1;
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        CLEANUP(buf_deinit) struct buf seen = {.max = 1 << 20};
        char body[800];

        stores = true;
        start(60000);
        snprintf(body, sizeof(body), R"({"model":"other","stream":true,%s})", table[i].fields);
        int fd = world_connect(&w);
        world_post(&w, fd, table[i].path, body);
        turns(20);
        api_model_set(model, API_MODEL_LOADING, 0.25f);
        cr_assert(world_read_until(&w, fd, &seen, ": other is loading, 25 %"));
        loaded();
        turns(100);
        cr_assert(world_read_until(&w, fd, &seen,
                                   R"(,"weft":{"loosened":"get#/properties/a/pattern"}})"
                                   "\n\n"));
        cr_expect_null(strstr(seen.data, "X-Weft-Loosened"), "%s", seen.data);
        cr_assert(world_read_until(&w, fd, &seen, "other"));
        const char *once = strstr(seen.data, "loosened");
        cr_expect(once && !strstr(once + 1, "loosened"), "%s", seen.data);
        world_drop(&w, fd);
        turns(20);
        stop();
    }
}

Test(models, a_client_that_leaves_waits_no_longer) {
    start(60000);
    int fd = ask(R"(,"model":"other")");
    world_drop(&w, fd);
    turns(20);
    cr_expect_eq(api_model_use(model).n_jobs, 0);
    loaded();
    turns(20);
    cr_expect_eq(other.n, 0);
    stop();
}

Test(models, what_waits_when_the_service_ends_is_told) {
    start(60000);
    int fd = ask(R"(,"model":"other")");
    api_close(w.api);
    expect(fd, 503, "shutting_down");
    stop();
}

Test(models, lists_say_what_is_loaded) {
    struct reply r;

    start(60000);
    world_get(&w, "/v1/models", &r);
    cr_expect(strstr(r.body.data, R"("id":"tiny")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("status":{"value":"unloaded"})"), "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/api/tags", &r);
    cr_expect(strstr(r.body.data, R"("name":"other")"), "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/api/ps", &r);
    cr_expect_not(strstr(r.body.data, R"("name":"other")"), "%s", r.body.data);
    reply_deinit(&r);
    /* otherwise clients that ask before it is loaded do not offer tools */
    world_ask(&w, "/api/show", R"({"model":"other"})", &r);
    cr_expect(strstr(r.body.data, R"("capabilities":["completion","tools"])"), "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/api/v0/models/other", &r);
    cr_expect(strstr(r.body.data, R"("capabilities":["tool_use"])"), "%s", r.body.data);
    reply_deinit(&r);
    loaded();
    world_get(&w, "/api/ps", &r);
    cr_expect(strstr(r.body.data, R"("name":"other")"), "%s", r.body.data);
    reply_deinit(&r);
    expect_state("loaded");
    api_model_set(model, API_MODEL_UNLOADING, 0);
    expect_state("unloading");
    api_worker_stopped(model);
    expect_state("unloaded");
    api_model_set(model, API_MODEL_LOADING, 0.5f);
    expect_state("loading");
    api_worker_failed(model, "it is cut off", 7000);
    expect_state("failed");
    stop();
}

#define STATE(name, state, v)                                                                      \
    "vllm:"                                                                                        \
    R"(engine_sleep_state{model_name=")" name R"(",engine="0",sleep_state=")" state R"("} )" v     \
    "\n"
#define STATES(name, awake, discarded)                                                             \
    STATE(name, "awake", awake)                                                                    \
    STATE(name, "weights_offloaded", "0")                                                          \
    STATE(name, "discard_all", discarded)

Test(models, metrics_have_series_of_each_model_that_was_loaded) {
    struct reply r;

    start(60000);
    expect(ask(""), 200, "first");
    world_get(&w, "/metrics", &r);
    cr_expect_not(strstr(r.body.data, R"(model_name="other")"), "%s", r.body.data);
    reply_deinit(&r);
    loaded();
    expect(ask(R"(,"model":"other")"), 200, "other");
    world_get(&w, "/metrics", &r);
    static const char *const lines[] = {
        "\n"
        R"(vllm:generation_tokens_total{model_name="tiny",engine="0"} 5)"
        "\n"
        R"(vllm:generation_tokens_total{model_name="other",engine="0"} 5)"
        "\n",
        "\n"
        R"(vllm:time_to_first_token_seconds_count{model_name="other",engine="0"} 1)"
        "\n",
        "\n"
        R"(vllm:num_requests_running{model_name="other",engine="0"} 0)"
        "\n",
    };
    for (size_t i = 0; i < 3; i++)
        cr_expect(strstr(r.body.data, lines[i]), "%s in %s", lines[i], r.body.data);
    reply_deinit(&r);
    world_get(&w, "/health", &r);
    cr_expect(strstr(r.body.data, R"("models":{"tiny":"loaded","other":"loaded"})"), "%s",
              r.body.data);
    reply_deinit(&r);
    api_worker_stopped(model); /* the model has no memory now, and its counters stay */
    expect_answer("GET", "/metrics", 200, STATES("tiny", "1", "0") STATES("other", "0", "1"));
    expect_answer("GET", "/metrics", 200,
                  "\n"
                  R"(vllm:generation_tokens_total{model_name="other",engine="0"} 5)"
                  "\n");
    stop();
}

Test(models, lm_studio_loads_and_unloads) {
    struct reply r;

    start(60000);
    expect_answer("GET", "/api/v0/models/other", 200,
                  R"("state":"not-loaded","capabilities":["tool_use"])");
    expect_answer("GET", "/api/v1/models", 200, R"("params_string":null,"loaded_instances":[])");
    int fd = world_connect(&w);
    world_post(&w, fd, "/api/v1/models/load", R"({"model":"second"})");
    turns(20);
    cr_expect_eq(n_wants, 1);
    loaded();
    turns(100);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"({"type":"llm","instance_id":"other",)"
                                  R"("load_time_seconds":)"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"(,"status":"loaded"})"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    expect_answer("GET", "/api/v0/models/other", 200,
                  R"("state":"loaded","max_context_length":512,)"
                  R"("loaded_context_length":512,"capabilities":["tool_use"])");
    cr_expect_neq(api_model_use(model).keep_alive_s, 0);
    world_ask(&w, "/api/v1/models/unload", R"({"instance_id":"second"})", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(r.body.data, R"({"instance_id":"other"})");
    reply_deinit(&r);
    cr_expect_eq(api_model_use(model).keep_alive_s, 0, "the daemon unloads it");
    stop();
}

/* Deaths of one worker do not affect streams of the other model. */
Test(models, a_worker_that_dies_takes_no_other_models_requests) {
    start(60000);
    loaded();
    other.script = w.port.script = NULL;
    int a = ask(R"(,"model":"tiny")"), b = ask(R"(,"model":"other")");
    fake_accept(&w.port, 0);
    fake_accept(&other, 0);
    fake_tokens(&other, 0, "mine ");
    struct event stolen = {.id = other.r[0].id, .kind = EVENT_FINISH, .finish = FINISH_STOP};
    api_on_event(api_first_model(w.api), &stolen); /* events of another worker do not count */
    api_worker_down(api_first_model(w.api));
    cr_expect_eq(api_model_use(model).n_running, 1);
    fake_tokens(&other, 0, "is whole");
    fake_finish(&other, 0, FINISH_STOP);
    expect(b, 200, R"("content":"mine is whole")");
    cr_expect_eq(other.r[0].n_submits, 1);
    api_worker_up(api_first_model(w.api), NULL);
    cr_expect_eq(w.port.r[0].n_submits, 2);
    fake_accept(&w.port, 0);
    fake_tokens_from(&w.port, 0, 0, "again");
    fake_finish(&w.port, 0, FINISH_STOP);
    expect(a, 200, R"("content":"again")");
    stop();
}
