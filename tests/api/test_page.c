/* The web page: who gets it, and with which headers. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/generation/env.h"
#include "api/http/dialect.h"
#include "api/http/json.h"
#include "api/service/history.h"
#include "api/service/recent.h"
#include "base/log.h"
#include "base/util.h"
#include "world.h"

static void ask(struct world *w, const char *path, const char *headers, struct reply *r) {
    int fd = world_connect(w);

    world_say(w, fd, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, headers);
    world_receive(w, fd, r);
    world_drop(w, fd);
}

#define HTML "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n"

Test(page, a_browser_gets_it_and_others_a_line_of_text) {
    struct world w;
    struct reply r;
    char v[400];

    world_init(&w);
    world_start(&w);
    ask(&w, "/", HTML, &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(reply_header(&r, "content-type", v, sizeof(v)), "text/html; charset=utf-8");
    cr_expect(strstr(r.body.data, R"(<script type="module" src="web/app.js">)"));
    reply_deinit(&r);
    ask(&w, "/", "Accept: */*\r\n", &r);
    cr_expect_eq(strncmp(r.body.data, "weft ", 5), 0);
    reply_deinit(&r);
    ask(&w, "/", "", &r);
    cr_expect_eq(strncmp(r.body.data, "weft ", 5), 0);
    cr_expect_str_eq(reply_header(&r, "content-security-policy", v, sizeof(v)), "");
    reply_deinit(&r);
    world_stop(&w);
}

/* Each file that the page uses is served under the policy, and uses no other server. */
Test(page, every_file_is_under_the_policy) {
    static const struct {
        const char *path, *type;
    } file[] = {
        {"/", "text/html; charset=utf-8"},
        {"/web/index.html", "text/html; charset=utf-8"},
        {"/web/style.css", "text/css; charset=utf-8"},
        {"/web/app.js", "text/javascript; charset=utf-8"},
        {"/web/markdown.js", "text/javascript; charset=utf-8"},
        {"/web/live.js", "text/javascript; charset=utf-8"},
        {"/web/icon.svg", "image/svg+xml"},
    };
    struct world w;

    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(file); i++) {
        struct reply r;
        char v[400];

        ask(&w, file[i].path, HTML, &r);
        cr_expect_eq(r.status, 200, "%s: %d", file[i].path, r.status);
        cr_expect_str_eq(reply_header(&r, "content-type", v, sizeof(v)), file[i].type);
        cr_expect_str_eq(reply_header(&r, "content-security-policy", v, sizeof(v)),
                         "default-src 'none'; script-src 'self'; style-src 'self'; "
                         "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
                         "form-action 'none'; frame-ancestors 'none'");
        cr_expect_str_eq(reply_header(&r, "x-content-type-options", v, sizeof(v)), "nosniff");
        cr_expect_str_eq(reply_header(&r, "referrer-policy", v, sizeof(v)), "no-referrer");
        cr_expect_str_eq(reply_header(&r, "cache-control", v, sizeof(v)), "no-cache");
        cr_expect_not(strstr(r.body.data, "innerHTML ="), "%s", file[i].path);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(page, what_the_browser_has_is_not_sent_again) {
    struct world w;
    struct reply r;
    char etag[80], headers[128], v[80], length[80];

    world_init(&w);
    world_start(&w);
    ask(&w, "/web/app.js", "", &r);
    cr_assert_eq(strlen(reply_header(&r, "etag", etag, sizeof(etag))), 34);
    reply_header(&r, "content-length", length, sizeof(length));
    reply_deinit(&r);
    snprintf(headers, sizeof(headers), "If-None-Match: W/\"x\", %s\r\nConnection: close\r\n", etag);
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
    int fd = world_connect(&w);
    world_say(&w, fd, "GET /web/app.js HTTP/1.1\r\nHost: localhost\r\n%s\r\n", headers);
    while (world_read_until(&w, fd, &b, "never"))
        ;
    world_drop(&w, fd);
    cr_expect_eq(strncmp(b.data, "HTTP/1.1 304 Not Modified\r\n", 27), 0, "%s", b.data);
    snprintf(v, sizeof(v), "\r\nContent-Length: %.20s\r\n", length);
    cr_expect(strstr(b.data, v));
    cr_expect_str_eq(b.data + b.len - 4, "\r\n\r\n"); /* no body */
    ask(&w, "/web/app.js",
        R"(If-None-Match: "other")"
        "\r\n",
        &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_stop(&w);
}

/* The rates are those of the time between two samples, and the ring drops the oldest sample. */
Test(page, charts_have_a_history) {
    struct world w;
    struct reply r;

    world_init(&w);
    world_start(&w);
    struct gen_env env = {0};
    struct history *h = calloc(1, sizeof(*h));

    cr_assert(h);
    list_init(&env.models.list);
    for (uint32_t i = 0; i <= HISTORY_MAX + 3; i++) {
        env.stats.n_output_tokens += i;
        env.admit.n_queued = i;
        history_note(h, &env, (int64_t)(i + 1) * 2000000000);
    }
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct json j = {.out = &b};

    json_open(&j, '{');
    history_put(h, &j);
    json_close(&j, '}');
    cr_assert_eq(buf_add_char(&b, 0), 0);
    cr_expect_eq(strstr(b.data, R"({"seconds":5,"output":[2,2.5,3,)"), b.data, "%.60s", b.data);
    cr_expect(strstr(b.data, R"(361,361.5],"prompt":[0,0)"), "%s", b.data);
    cr_expect(strstr(b.data, R"(722,723],"rows":[0)"), "%s", b.data);
    free(h);
    ask(&w, "/web/history", "", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_eq(strstr(r.body.data, R"({"seconds":5,"output":[)"), r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(page, it_can_be_turned_off) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.web_page = false;
    world_start(&w);
    ask(&w, "/", HTML, &r);
    cr_expect_eq(strncmp(r.body.data, "weft ", 5), 0);
    reply_deinit(&r);
    ask(&w, "/web/app.js", "", &r);
    cr_expect_eq(r.status, 404);
    reply_deinit(&r);
    world_stop(&w);
}

Test(page, no_other_file_is_under_its_paths) {
    static const char *const path[] = {"/web/",        "/web/../web/app.js", "/web/%2e%2e/app.js",
                                       "/web//app.js", "/web/APP.js",        "/web/app.js/x"};
    struct world w;

    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(path); i++) {
        struct reply r;

        ask(&w, path[i], HTML, &r);
        cr_expect_eq(r.status, 404, "%s: %d", path[i], r.status);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* The page may be opened at any address of the machine, and its requests name that address as their
 * origin. */
Test(page, its_own_origin_may_ask) {
    static const struct {
        const char *host, *origin;
        int status;
    } table[] = {
        {"10.1.2.3:8080", "http://10.1.2.3:8080", 200},
        {"[fd00::1]:8080", "http://[fd00::1]:8080", 200},
        {"10.1.2.3:8080", "http://10.1.2.3:9090", 403},
        {"10.1.2.3:8080", "http://10.1.2.4:8080", 403},
        {"10.1.2.3:8080", "http://10.1.2.3:8080.evil.example", 403},
        {"10.1.2.3:8080", "file://10.1.2.3:8080", 403},
        {"evil.example", "http://evil.example", 421},
    };
    struct world w;

    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct reply r;
        int fd = world_connect(&w);

        world_say(&w, fd, "GET /health HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n\r\n", table[i].host,
                  table[i].origin);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, table[i].status, "%s from %s: %d", table[i].host, table[i].origin,
                     r.status);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

/* Sends a request of the key's tenant with the id mine-1, and finishes it. */
static void complete_as(struct world *w, const char *key) {
    uint32_t i = w->port.n;
    struct reply r;
    int fd = world_connect(w);

    world_say(w, fd,
              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
              "X-Request-Id: mine-1\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}",
              key);
    world_turns(w, 5);
    fake_accept(&w->port, i);
    fake_finish(&w->port, i, FINISH_STOP);
    world_receive(w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(w, fd);
}

/* Starts a world whose keys are in @path, a template of mkstemp(). */
static void start_with_keys(struct world *w, char *path, const char *keys) {
    int file = mkstemp(path);

    cr_assert_eq(write(file, keys, strlen(keys)), (ssize_t)strlen(keys));
    close(file);
    world_init(w);
    w->opts.api_keys_file = path;
    world_start(w);
}

/* Asks with @key for @path, and returns the status and the text in @r. */
static int ask_as(struct world *w, const char *key, const char *path, struct reply *r) {
    char header[80];

    snprintf(header, sizeof(header), "Authorization: Bearer %s\r\n", key);
    ask(w, path, header, r);
    return r->status;
}

/* Expects the answer to have @n requests, and with @text in it. */
static void expect_requests(struct world *w, const char *key, const char *path, uint32_t n,
                            const char *text) {
    struct reply r;
    uint32_t found = 0;

    cr_expect_eq(ask_as(w, key, path, &r), 200, "%s", path);
    for (const char *at = r.body.data; (at = strstr(at, R"("generation":)")); at++)
        found++;
    cr_expect_eq(found, n, "%s of %s: %s", path, key, r.body.data);
    cr_expect(strstr(r.body.data, text), "%s of %s: %s", path, key, r.body.data);
    reply_deinit(&r);
}

static void expect_status(struct world *w, const char *key, const char *path, int status) {
    struct reply r;

    cr_expect_eq(ask_as(w, key, path, &r), status, "%s of %s: %s", path, key, r.body.data);
    reply_deinit(&r);
}

/* A tenant gets the list and the stories of its own requests, also where another one has used the
 * same id; the operator is told that the id is not enough. */
Test(page, the_requests_are_the_tenants_own) {
    char path[] = "/tmp/weft-keys-XXXXXX";
    struct world w;
    uint64_t id;

    start_with_keys(&w, path, "one:sk-one\ntwo:sk-two\n");
    complete_as(&w, "sk-one");
    complete_as(&w, "sk-two"); /* the same name, which is not the first one's */
    expect_requests(&w, "sk-one", "/v1/requests", 1,
                    R"({"operator":false,"requests":[{"id":"mine-1",)"
                    R"("generation":1,"tenant":"one",")"
                    R"(path":"/v1/completions","status":200,"finish":"stop")");
    expect_requests(&w, "sk-two", "/v1/requests?tenant=two", 1, R"("total_ms":)");
    expect_status(&w, "sk-one", "/v1/requests?tenant=two", 403);
    expect_status(&w, "sk-one", "/v1/requests?tenant=nobody", 403);
    expect_requests(&w, "sk-one", "/v1/requests/1/why", 1,
                    R"({"code":"pages","text":"waited for pages of the KV )"
                    R"(cache","at_ms":0,"ms":5,"steps":3,"rows":0},{"code":"ended",)");
    expect_requests(&w, "sk-two", "/v1/requests/2/why", 1, R"("steps":4,)");
    expect_status(&w, "sk-one", "/v1/requests/2/why", 404);
    cr_expect_eq(api_find(w.api, "mine-1", &id), -ENOTUNIQ);
    cr_expect_eq(api_find(w.api, "mine-2", &id), -ENOENT);
    world_stop(&w);
    unlink(path);
}

/* The list has the slowest requests of the ring in their order, of equal ones the last first. */
Test(page, the_slowest_requests_come_first) {
    struct recent *ring = calloc(1, sizeof(*ring));
    const struct recent_filter all = {.all_tenants = true, .oldest_ns = INT64_MAX, .slowest = true};
    const struct recent_request *list[50];

    cr_assert(ring);
    cr_expect_eq(recent_find(ring, &all, 0, list, 50), 0);
    for (; ring->n < RECENT_MAX + 100; ring->n++)
        ring->list[share_ring_add(&ring->ring, RECENT_MAX, 0)] = (struct recent_request){
            .gen = ring->n, .order = ring->n, .total_ns = (int64_t)(ring->n * 7919 % 1009)};
    cr_assert_eq(recent_find(ring, &all, 0, list, 50), 50);
    cr_expect_eq(list[0]->total_ns, 1008);
    for (uint32_t i = 1; i < 50; i++) {
        const struct recent_request *a = list[i - 1], *b = list[i];

        cr_expect_eq(a->total_ns - b->total_ns, i % 4 == 0, "%u", i);
        cr_expect(a->total_ns > b->total_ns || a->gen > b->gen, "%u", i);
    }
    free(ring);
}

static uint32_t tell(const struct gen_ids *ids, uint64_t id, const struct flight_record *r,
                     uint32_t n, uint32_t max, char *out) {
    struct flight_record told[24];
    int64_t begin_ns;
    uint32_t got = gen_ids_story(ids, id, r, n, told, max, &begin_ns);

    *out = 0;
    for (uint32_t i = 0; i < got; i++)
        out += sprintf(out, "%s:%lld-%lld ", flight_name(told[i].why),
                       (long long)(told[i].from_ns - begin_ns) / 1000000,
                       (long long)(told[i].until_ns - begin_ns) / 1000000);
    return got;
}

/* A story begins at the receipt; the waits of the front are told where they are known, and none of
 * the worker's records is lost for them. */
Test(page, a_story_begins_with_the_waits_of_the_front) {
    enum { MS = 1000000 };
    static struct gen_ids ids;
    const struct gen_times t = {1000 * MS, 1002 * MS, 1402 * MS, 1402 * MS + 5, 0, 0};
    const struct flight_record r[] = {
        {.id = 7, .from_ns = 1500 * MS, .until_ns = 1510 * MS, .why = WHY_QUEUED},
        {.id = 7, .from_ns = 1510 * MS, .until_ns = 1600 * MS, .why = WHY_DECODE},
        {.id = 7, .from_ns = 1650 * MS, .until_ns = 1650 * MS, .why = WHY_QUEUED},
        {.id = 7, .from_ns = 1650 * MS, .until_ns = 1660 * MS, .why = WHY_DECODE},
        {.id = 7, .from_ns = 1660 * MS, .until_ns = 1660 * MS, .why = WHY_QUEUED},
    };
    char text[800];

    tell(&ids, 7, r, 1, 17, text);
    cr_expect_str_eq(text, "queued:0-10 ", "an unknown one begins with its first record");
    gen_ids_note(&ids, 1, "x", 7, &t, "");
    cr_expect_eq(tell(&ids, 7, NULL, 0, 16, text), 2);
    cr_expect_str_eq(text, "read:0-2 load:2-402 ");
    gen_ids_start(&ids, 7, 1450 * MS);
    gen_ids_start(&ids, 8, 1 * MS);
    tell(&ids, 7, r, 5, 21, text);
    cr_expect_str_eq(text, "read:0-2 load:2-402 place:402-450 worker:450-500 queued:500-510 "
                           "decode:510-600 worker:600-650 queued:650-650 decode:650-660 "
                           "queued:660-660 ");
    tell(&ids, 7, r + 1, 1, 17, text);
    cr_expect_str_eq(text, "read:0-2 load:2-402 place:402-450 decode:510-600 ",
                     "the ring has lost its beginning");
    tell(&ids, 7, r, 5, 6, text);
    cr_expect_str_eq(text, "read:0-2 queued:500-510 decode:510-600 queued:650-650 "
                           "decode:650-660 queued:660-660 ");
    const struct flight_record end = {
        .id = 7, .from_ns = 1660 * MS, .until_ns = 1660 * MS, .why = WHY_ENDED};
    gen_ids_end(&ids, 7, 1661 * MS - 1);
    tell(&ids, 7, &end, 1, 17, text);
    cr_expect_str_eq(text, "read:0-2 load:2-402 place:402-450 ended:660-660 ");
    gen_ids_end(&ids, 7, 1684 * MS);
    tell(&ids, 7, &end, 1, 17, text);
    cr_expect_str_eq(text, "read:0-2 load:2-402 place:402-450 ended:660-660 front:660-684 ",
                     "the front was late");
    tell(&ids, 7, r, 1, 17, text);
    cr_expect(!strstr(text, "front"), "the worker has not ended it: %s", text);
    const struct gen_times none = {5 * MS, 5 * MS, 5 * MS, 5 * MS, 5 * MS, 0};
    gen_ids_note(&ids, 1, "y", 9, &none, "");
    cr_expect_eq(tell(&ids, 9, NULL, 0, 16, text), 0);
}

/* The requests of a tenant stay known while another one sends thousands. */
Test(page, a_flood_leaves_the_requests_of_others) {
    static struct gen_ids ids;
    const struct gen_times none = {0};
    struct recent *ring = calloc(1, sizeof(*ring));
    const struct recent_filter two = {.tenant = 2, .oldest_ns = INT64_MAX};
    const struct recent_request *list[2];
    const struct route route = {.path = "/v1/completions", .generates = true};
    struct exchange x = {.route = &route, .id = "a"};
    uint64_t id;

    cr_assert(ring);
    for (uint32_t i = 0; i < 3 * RECENT_MAX; i++) {
        char name[16];

        x.tenant = 1 + (i == 5);
        x.gen = i;
        recent_note(ring, &x, i);
        snprintf(name, sizeof(name), "r%u", i);
        gen_ids_note(&ids, x.tenant, name, i, &none, "");
    }
    cr_assert_eq(recent_find(ring, &two, 3 * RECENT_MAX, list, 2), 1);
    cr_expect_eq(list[0]->gen, 5);
    cr_expect_eq(gen_ids_find(&ids, "r5", &id), 0);
    cr_expect_eq(gen_ids_find(&ids, "r6", &id), -ENOENT);
    free(ring);
}

/* The time of a request that ended before its first token is told as well. */
Test(page, the_times_of_a_request_are_its_whole_time) {
    char path[] = "/tmp/weft-keys-XXXXXX";
    double queue, prefill, decode, total;
    struct world w;
    struct reply r;

    start_with_keys(&w, path, "one:sk-one\n");
    complete_as(&w, "sk-one");
    ask_as(&w, "sk-one", "/v1/requests", &r);
    const char *at = strstr(r.body.data, R"("queue_ms":)");
    cr_assert(at, "%s", r.body.data);
    int n = sscanf(at, R"("queue_ms":%lf,"prefill_ms":%lf,"decode_ms":%lf,"total_ms":%lf)", &queue,
                   &prefill, &decode, &total);
    cr_expect_eq(n, 4, "%s", at);
    cr_expect_gt(total, 0);
    cr_expect_float_eq(queue + prefill + decode, total, 0.01, "%s", at);
    reply_deinit(&r);
    world_stop(&w);
    unlink(path);
}

/* The key of an operator selects among the requests of all tenants; another key of its name sees
 * that tenant's alone. */
Test(page, an_operators_key_sees_all_requests) {
    char path[] = "/tmp/weft-keys-XXXXXX";
    struct world w;
    struct reply r;

    start_with_keys(&w, path, "one:sk-one\ntwo:sk-two\none:sk-root operator\n");
    complete_as(&w, "sk-one");
    complete_as(&w, "sk-two");
    expect_requests(&w, "sk-root", "/v1/requests", 2,
                    R"({"operator":true,"requests":[{"id":"mine-1","generation":2,)");
    expect_requests(&w, "sk-root", "/v1/requests?tenant=one", 1, R"("generation":1,)");
    expect_requests(&w, "sk-root", "/v1/requests?newest_s=9999", 0, R"("requests":[])");
    expect_requests(&w, "sk-root", "/v1/requests?oldest_s=0", 0, R"("requests":[])");
    expect_requests(&w, "sk-root", "/v1/requests?oldest_s=9999&newest_s=0&order=slowest", 2, "");
    expect_requests(&w, "sk-one", "/v1/requests", 1, R"("generation":1,)");
    expect_requests(&w, "sk-root", "/v1/requests/2/why", 1, R"("steps":4,)");
    expect_status(&w, "sk-root", "/v1/requests?tenant=nobody", 404);
    static const char *const bad[] = {"oldest_s=-1", "newest_s=1s", "oldest_s=", "order=fastest"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char target[80];

        snprintf(target, sizeof(target), "/v1/requests?%s", bad[i]);
        expect_status(&w, "sk-root", target, 400);
    }
    static const char *const none[] = {"0", "3", "2x", "x", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(none); i++) {
        char target[80];

        snprintf(target, sizeof(target), "/v1/requests/%s/why", none[i]);
        expect_status(&w, "sk-root", target, 404);
    }
    ask(&w, "/v1/requests", "", &r);
    cr_expect_eq(r.status, 401);
    reply_deinit(&r);
    world_stop(&w);
    unlink(path);
}

/* The live view asks for the list every few seconds: only a refusal is worth a line of the log. */
Test(page, the_live_views_questions_are_not_logged) {
    char path[] = "/tmp/weft-keys-XXXXXX", log[4000] = "";
    FILE *f = tmpfile();
    struct world w;
    struct reply r;

    cr_assert(f && dup2(fileno(f), STDERR_FILENO) >= 0); /* before the first event is logged */
    start_with_keys(&w, path, "one:sk-one\n");
    log_set_level(WLOG_INFO);
    ask(&w, "/v1/requests", "Authorization: Bearer sk-one\r\n", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    ask(&w, "/v1/requests", "", &r);
    cr_expect_eq(r.status, 401);
    reply_deinit(&r);
    rewind(f);
    log[fread(log, 1, sizeof(log) - 1, f)] = 0;
    cr_expect(!strstr(log, "path=/v1/requests status=200"), "%s", log);
    cr_expect(strstr(log, "path=/v1/requests status=401"), "%s", log);
    world_stop(&w);
    fclose(f);
    unlink(path);
}
