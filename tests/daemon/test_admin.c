/* The admin socket: the effect of each request, and the content of the answers. The models and
 * workers behind it are the variables below. */

#include <criterion/criterion.h>
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/front/admin.h"
#include "daemon/front/admin_json.h"
#include "proto/flight_file.h"
#include "proto/stats.h"
#include "tests/api/world.h"

#define START_NS INT64_C(1000000000000) /* when the daemon started */
#define NOW_NS (START_NS + 5500000000)

static struct world w;
static struct clock_virtual virt;
static struct admin *admin;
static char url[40];
static FILE *log_file; /* in place of stderr */
static char path[64];
static char did[400]; /* the last operation of the daemon */
static bool refuses, scans, short_of_memory;
static struct flight *first_flight, *flight; /* the recorders of the models */
static struct api_task *pull;
static uint64_t budget;
static int n_rescans;
static struct workers_stats worker = {.state = "up", .weights = "kept", .failure = ""};
static const struct workers_stats other_worker = {
    .state = "down", .pid = 99, .weights = "read", .stats_age_ms = -1, .failure = "no device"};
static struct models_info infos[] = {
    {.name = "tiny",
     .state = "ready",
     .why = "",
     .file = "/a",
     .swap = "",
     .bytes = 70,
     .memory = 60,
     .progress = 0.5f,
     .pinned = true,
     .n_running = 1,
     .n_waiting = 2,
     .n_loads = 3,
     .idle_ms = 4,
     .unload_ms = 5},
    {.name = "b", .state = "failed", .why = "no\xff room", .file = "/b", .swap = "next"},
};

static int refusal(struct err *err) {
    if (short_of_memory)
        return -ENOMEM;
    return refuses ? err_set(err, 409, NULL, "not now") : 0;
}

static int on_pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    snprintf(did, sizeof(did), "pull %s", name);
    pull = t;
    return refusal(err);
}

static void on_cancel(void *ctx, struct api_task *t) {
    cr_expect_eq(t, pull);
    snprintf(did, sizeof(did), "cancelled");
}

const struct api_manage models_manage = {.pull = on_pull, .cancel = on_cancel};

bool models_rescan(void *models, struct api_rescan *wait) {
    n_rescans++;
    return scans;
}

uint32_t models_n(const struct models *m) {
    return ARRAY_SIZE(infos);
}

const char *models_bad_preset(const struct models *m, size_t i, const char **why) {
    *why = "is wrong";
    return i == 0 ? "bad" : NULL;
}

void models_info(const struct models *m, uint32_t i, struct models_info *out) {
    cr_assert_lt(i, ARRAY_SIZE(infos));
    *out = infos[i];
    out->info = &w.model;
    out->workers = (const struct workers *)&infos[i];
}

uint64_t models_budget(const struct models *m) {
    return budget;
}

int models_index(const struct models *m, const char *name, struct err *err) {
    for (uint32_t i = 0; i < ARRAY_SIZE(infos); i++)
        if (strcmp(infos[i].name, name) == 0)
            return (int)i;
    err_set(err, 404, NULL, "there is no %s", name);
    return -ENOENT;
}

static int change(const char *what, uint32_t i, struct err *err) {
    snprintf(did, sizeof(did), "%s %s", what, infos[i].name);
    return refusal(err);
}

int models_load(struct models *m, uint32_t i, struct err *err) {
    return change("load", i, err);
}

int models_unload(struct models *m, uint32_t i, struct err *err) {
    return change("unload", i, err);
}

int models_swap(struct models *m, uint32_t i, const char *file, struct err *err) {
    change("swap", i, err);
    snprintf(did + strlen(did), sizeof(did) - strlen(did), " %s", file ? file : "-");
    return refusal(err);
}

void workers_stats(const struct workers *of, struct workers_stats *out) {
    *out = of == (const struct workers *)&infos[1] ? other_worker : worker;
}

const struct flight *workers_flight(const struct workers *of) {
    return of == (const struct workers *)&infos[1] ? flight : first_flight;
}

int workers_dump(const struct workers *of, struct buf *out) {
    if (short_of_memory)
        return -ENOMEM;
    return buf_printf(out, "flight of %s", ((const struct models_info *)of)->name);
}

static const char *on_health(void *ctx) {
    return "serving";
}

static void on_drain(void *ctx) {
    strcpy(did, "drain");
}

static int on_reload(void *ctx, struct err *err) {
    strcpy(did, "reload");
    return refusal(err);
}

static int on_upgrade(void *ctx, struct err *err) {
    strcpy(did, "upgrade");
    return refusal(err);
}

static void start_with(const char *template) {
    struct err err = {0};

    log_file = tmpfile();
    cr_assert(log_file && dup2(fileno(log_file), STDERR_FILENO) >= 0);
    flight = calloc(1, FLIGHT_BYTES);
    first_flight = calloc(1, FLIGHT_BYTES);
    cr_assert(flight && first_flight);
    world_init(&w);
    clock_virtual_init(&virt, NOW_NS);
    w.clock = w.port.clock = &virt.clock;
    w.opts.max_running = 2;
    if (template)
        world_use_template(&w, template, strlen(template));
    world_start(&w);
    const struct admin_opts o = {.loop = &w.loop,
                                 .api = w.api,
                                 .clock = &virt.clock,
                                 .started_ns = START_NS,
                                 .health = on_health,
                                 .url = url,
                                 .drain = on_drain,
                                 .reload = on_reload,
                                 .upgrade = on_upgrade};
    snprintf(path, sizeof(path), "%.50s.admin", w.path);
    cr_assert_eq(admin_new(&admin, &o), 0);
    cr_assert_eq(admin_listen_unix(admin, path, &err), 0, "%s", err.message);
}

static void start(void) {
    start_with(NULL);
}

/* The model writes calls of tools, as Hermes does. */
static void start_with_tools(void) {
    start_with("{{ tools | tojson }}{{ messages[0].content }}<tool_call>");
}

static void stop(void) {
    admin_close(admin);
    world_stop(&w);
    admin_free(admin);
    free(flight);
    free(first_flight);
    fclose(log_file);
}

TestSuite(admin, .init = start, .fini = stop);
TestSuite(admin_tools, .init = start_with_tools, .fini = stop);

static int ask(const char *request) {
    char api[sizeof(w.path)];

    strcpy(api, w.path);
    strcpy(w.path, path);
    int fd = world_connect_unix(&w);
    strcpy(w.path, api);
    *did = 0;
    world_say(&w, fd, "%s HTTP/1.1\r\nHost: localhost\r\n\r\n", request);
    return fd;
}

/* Expects the answer @text, which ends with a newline that the argument lacks. */
static void expect_answer(int fd, int status, const char *text) {
    struct reply r;

    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, status, "%d %s", r.status, r.body.data);
    cr_assert(r.body.len > 0 && r.body.data[r.body.len - 1] == '\n');
    r.body.data[r.body.len - 1] = 0;
    cr_expect_str_eq(r.body.data, text, "%s\nis not %s", r.body.data, text);
    reply_deinit(&r);
    world_drop(&w, fd);
}

static void expect(const char *request, int status, const char *text) {
    expect_answer(ask(request), status, text);
}

static void expect_action(const char *request, int status, const char *text, const char *what) {
    expect(request, status, text);
    cr_expect_str_eq(did, what, "%s: %s", request, did);
}

/* Expects these lines of the audit log since the last call; USER stands for this user. */
static void expect_audited(const char *want) {
    static long at;
    static char got[8000], told[8000];
    char line[1000], user[40];
    size_t n = 0;

    snprintf(user, sizeof(user), "client=uid:%u ", getuid());
    fseek(log_file, at, SEEK_SET);
    *got = *told = 0;
    while (fgets(line, sizeof(line), log_file)) {
        const char *event = strstr(line, "audit action=");

        if (event)
            n += (size_t)snprintf(got + n, sizeof(got) - n, "%s", event + strlen("audit "));
    }
    at = ftell(log_file);
    n = 0;
    for (const char *c = want; *c; c++) {
        bool is_user = strncmp(c, "USER ", 5) == 0;

        n += (size_t)snprintf(told + n, sizeof(told) - n, is_user ? "%s" : "%.1s",
                              is_user ? user : c);
        c += is_user ? 4 : 0;
    }
    cr_expect_str_eq(got, told, "%s\nis not\n%s", got, told);
}

#define ERROR(status, text) R"({"error":{"message":")" text R"(","code":)" #status "}}"
#define ACCEPTED(action, target)                                                                   \
    "action=" action R"( target=")" target R"(" detail="" by=admin USER result=accepted )"         \
    R"(reason="")"                                                                                 \
    "\n"
#define NO_MEMORY ERROR(503, "Out of memory. Try again later.")

Test(admin, each_path_has_one_action) {
    static const char accepted[] = R"({"accepted":true})";
    static const struct {
        const char *request, *answer, *what;
        int status;
    } table[] = {
        {"POST /models/tiny/load", accepted, "load tiny", 200},
        {"POST /models/b/unload", accepted, "unload b", 200},
        {"POST /models/b/swap", accepted, "swap b -", 200},
        {"POST /models/b/swap?file=/c%20d", accepted, "swap b /c d", 200},
        {"POST /drain", R"({"draining":true})", "drain", 200},
    };
    static const char *const refused[][2] = {
        {"POST /models/tiny/load", "load tiny"},
        {"POST /models/b/unload", "unload b"},
        {"POST /models/b/swap", "swap b -"},
        {"POST /reload", "reload"},
        {"POST /upgrade", "upgrade"},
        {"POST /pull?name=hf:a/b", "pull hf:a/b"},
        {"POST /pull", "pull "},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_action(table[i].request, table[i].status, table[i].answer, table[i].what);
    expect_audited(R"(action=load target="tiny" detail="" by=admin USER result=accepted reason="")"
                   "\n"
                   R"(action=unload target="b" detail="" by=admin USER result=accepted reason="")"
                   "\n"
                   R"(action=swap target="b" detail="" by=admin USER result=accepted reason="")"
                   "\n"
                   R"(action=swap target="b" detail="/c d" by=admin USER result=accepted )"
                   R"(reason="")"
                   "\n"
                   R"(action=drain target="" detail="" by=admin USER result=accepted reason="")"
                   "\n");
    expect_action("POST /models/tiny/unload", 200, accepted, "unload tiny");
    expect_action("POST /models/tiny/swap", 200, accepted, "swap tiny -");
    expect_action("POST /models/b/load", 200, accepted, "load b");
    expect_audited(ACCEPTED("unload", "tiny") ACCEPTED("swap", "tiny") ACCEPTED("load", "b"));
    refuses = true;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        expect_action(refused[i][0], 409, ERROR(409, "not now"), refused[i][1]);
    expect_audited(
        R"(action=load target="tiny" detail="" by=admin USER result=refused reason="not now")"
        "\n"
        R"(action=unload target="b" detail="" by=admin USER result=refused reason="not now")"
        "\n"
        R"(action=swap target="b" detail="" by=admin USER result=refused reason="not now")"
        "\n"
        R"(action=reload target="" detail="" by=admin USER result=refused reason="not now")"
        "\n"
        R"(action=upgrade target="" detail="" by=admin USER result=refused reason="not now")"
        "\n"
        R"(action=pull target="hf:a/b" detail="" by=admin USER result=refused reason="not now")"
        "\n"
        R"(action=pull target="" detail="" by=admin USER result=refused reason="not now")"
        "\n");
    short_of_memory = true;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        expect_action(refused[i][0], 503, NO_MEMORY, refused[i][1]);
    expect("GET /flight", 503, NO_MEMORY);
}

#define COMPLETION(id)                                                                             \
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\n"                     \
    "Content-Length: 14\r\n\r\n"                                                                   \
    R"({"prompt":"a"})",                                                                           \
        id

/* Sends a request to the API. Returns its connection. */
static int begin(const char *id) {
    int fd = world_connect(&w);

    world_say(&w, fd, COMPLETION(id));
    world_turns(&w, 5);
    return fd;
}

static void end(int fd, uint32_t n) {
    struct reply r;

    fake_finish(&w.port, n, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    world_drop(&w, fd);
}

/* Sends a request to the API and lets it end. */
static void generate(const char *id) {
    uint32_t n = w.port.n;
    int fd = begin(id);

    fake_accept(&w.port, n);
    end(fd, n);
}

/* Lets the clock advance. */
static void later(int64_t ms) {
    virt.ns += ms * 1000000;
}

/* Expects the answer @want, with 0 in place of the number of a session, which has a secret. */
static void expect_with_session(const char *request, const char *want) {
    static const char begin_of[] = R"("session":")";
    int fd = ask(request);
    struct reply r;

    world_receive(&w, fd, &r);
    for (char *at = r.body.data; (at = strstr(at, begin_of)); at++) {
        char *digits = at + strlen(begin_of);

        if (strspn(digits, "0123456789abcdef") == 16)
            memset(digits, '0', 16);
    }
    r.body.data[r.body.len - 1] = 0;
    cr_expect_str_eq(r.body.data, want, "%s\nis not %s", r.body.data, want);
    reply_deinit(&r);
    world_drop(&w, fd);
}

Test(admin, each_member_of_a_request_is_there) {
    char request[60], text[3000];
    const char *const sent = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                             "X-Request-Id: three\r\nX-Session-Id: s\r\nContent-Length: 60\r\n\r\n"
                             R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":7})";

    expect("GET /requests", 200, R"({"requests":[]})");
    expect("GET /requests/ended", 200, R"({"requests":[]})");
    int one = begin("one");
    unsigned long long id = w.port.r[0].id;
    snprintf(request, sizeof(request), "GET /requests/%llu/why", id);
    snprintf(text, sizeof(text),
             R"({"id":%llu,"age_ms":0,"now":"pages: waited for pages of the KV cache",)"
             R"("records":[]})",
             id);
    expect(request, 200, text);
    expect("GET /requests/one/why", 200, text);
    fake_accept(&w.port, 0);
    later(1500);
    int two = begin("two");
    later(250);
    int three = world_connect(&w);
    world_say(&w, three, "%s", sent);
    world_turns(&w, 5);
    later(10);
    fake_tokens(&w.port, 0, "x");
    world_turns(&w, 5);
    static const char state[] =
        R"({"requests":[{"id":%llu,"request_id":"one","endpoint":"/v1/completions",)"
        R"("state":"running","prompt_tokens":1,"output_tokens":1,"cached_tokens":0,)"
        R"("prompt_tokens_done":1,"max_tokens":16,"waits_for":"decode","age_ms":1760,)"
        R"("session":"-","session_from":"-"},)"
        R"({"id":%llu,"request_id":"two","endpoint":"/v1/completions","state":"queued",)"
        R"("prompt_tokens":1,"output_tokens":0,"cached_tokens":0,"prompt_tokens_done":0,)"
        R"("max_tokens":16,"waits_for":"pages","age_ms":260,"session":"-",)"
        R"("session_from":"-"},)"
        R"({"id":%llu,"request_id":"three","endpoint":"/v1/chat/completions",)"
        R"("state":"queued","prompt_tokens":21,"output_tokens":0,"cached_tokens":0,)"
        R"("prompt_tokens_done":0,"max_tokens":7,"waits_for":"place","expected_ms":500,)"
        R"("age_ms":10,"session":"%016llx","session_from":"x-session-id"}]})";
    snprintf(text, sizeof(text), state, id, id + 1, id + 2, 0ull);
    expect_with_session("GET /requests", text);
    later(40);
    end(one, 0);
    fake_accept(&w.port, 2);
    later(5);
    fake_tokens(&w.port, 2, "xyz");
    world_turns(&w, 5);
    later(7);
    end(three, 2);
    later(3000);
    world_drop(&w, two);
    expect("GET /requests", 200, R"({"requests":[]})");
    expect("GET /requests/ended", 200,
           R"({"requests":[{"request_id":"two","tenant":"default",)"
           R"("endpoint":"/v1/completions","status":499,"finish":"-","prompt_tokens":1,)"
           R"("cached_tokens":0,"output_tokens":0,"queue_ms":0,"ttft_ms":0,"total_ms":3312,)"
           R"("ago_ms":0},{"request_id":"three","tenant":"default",)"
           R"("endpoint":"/v1/chat/completions","status":200,"finish":"stop",)"
           R"("prompt_tokens":21,"cached_tokens":10,"output_tokens":3,"queue_ms":50,)"
           R"("ttft_ms":55,"total_ms":62,"ago_ms":3000},{"request_id":"one",)"
           R"("tenant":"default","endpoint":"/v1/completions","status":200,"finish":"stop",)"
           R"("prompt_tokens":1,"cached_tokens":0,"output_tokens":1,"queue_ms":0,)"
           R"("ttft_ms":1760,"total_ms":1800,"ago_ms":3012}]})");
}

/* A schema may have what no grammar holds. */
Test(admin_tools, what_is_not_enforced_is_told) {
    int fd = world_connect(&w);
    char text[500], want[500];

    world_post(&w, fd, "/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function",)"
               R"("function":{"name":"get","parameters":{"type":"object","properties":)"
               R"({"a":{"type":"string","pattern":"\\bx"}}}}}]})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 1);
    unsigned long long id = w.port.r[0].id;
    snprintf(text, sizeof(text), "GET /requests/%llu/why", id);
    snprintf(want, sizeof(want),
             R"({"id":%llu,"age_ms":0,"now":"pages: waited for pages of the KV cache",)"
             R"("not_enforced":"get#/properties/a/pattern","records":[]})",
             id);
    expect(text, 200, want);
    world_drop(&w, fd);
}

#define NOTHING R"("running":0,"queued":0,"context_tokens":0,"reserved_tokens":0,)"
#define NO_TOKENS R"("cached_tokens":0,"output_tokens":0,"device_ns":0},)"

/* Clients at UNIX sockets belong to the tenant of their user. */
Test(admin, a_request_id_may_be_that_of_several_tenants) {
    struct api_tenant rows[2] = {{.name = "local", .weight = 2.5, .class = 2, .n_uids = 1},
                                 {.name = "other", .weight = 1, .class = 1}};

    static const char why[] =
        R"({"id":1,"age_ms":3,"now":"pages: waited for pages of the KV cache","records":[]})";

    rows[0].uids[0] = getuid();
    cr_assert_eq(api_set_tenants(w.api, rows, 2), 0);
    int fd = world_connect_unix(&w);
    world_say(&w, fd, COMPLETION("one"));
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    later(3);
    expect("GET /requests/one/why", 200, why);
    end(fd, 0);
    expect("GET /requests/ended?tenant=local", 200,
           R"({"requests":[{"request_id":"one","tenant":"local","endpoint":"/v1/completions",)"
           R"("status":200,"finish":"stop","prompt_tokens":1,"cached_tokens":0,)"
           R"("output_tokens":0,"queue_ms":0,"ttft_ms":0,"total_ms":3,"ago_ms":0}]})");
    expect("GET /requests/ended?tenant=default", 200, R"({"requests":[]})");
    expect("GET /tenants", 200,
           R"({"tenants":[{"tenant":"default","weight":1.0,"class":"normal",)" NOTHING
           R"("requests":0,"limited":0,"prompt_tokens":0,)" NO_TOKENS
           R"({"tenant":"local","weight":2.5,"class":"batch",)" NOTHING
           R"("requests":1,"limited":0,"prompt_tokens":1,)" NO_TOKENS
           R"({"tenant":"other","weight":1.0,"class":"interactive",)" NOTHING
           R"("requests":0,"limited":0,"prompt_tokens":0,"cached_tokens":0,)"
           R"("output_tokens":0,"device_ns":0}]})");
    generate("one");
    expect("GET /requests/one/why", 409,
           ERROR(409, "requests of several tenants have this id; use the number that weftctl "
                      "requests shows"));
}

Test(admin, requests_that_have_ended_are_selected) {
    static const char *const cases[][2] = {
        {"", "three two one "},
        {"?order=slowest", "one three two "},
        {"?oldest_s=9", "three two "},
        {"?newest_s=9", "one "},
        {"?tenant=default", "three two one "},
    };

    int fd = begin("one");
    fake_accept(&w.port, 0);
    later(2000);
    end(fd, 0);
    later(10000);
    generate("two");
    later(1);
    generate("three");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char request[100], ids[200] = "";
        struct reply r;

        snprintf(request, sizeof(request), "GET /requests/ended%s", cases[i][0]);
        fd = ask(request);
        world_receive(&w, fd, &r);
        for (const char *at = r.body.data; (at = strstr(at, R"("request_id":")")); at++)
            sscanf(at, R"("request_id":"%31[a-z])", ids + strlen(ids)), strcat(ids, " ");
        cr_expect_str_eq(ids, cases[i][1], "%s: %s", request, ids);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
}

Test(admin, what_is_not_understood_is_refused) {
    static const char paths[] =
        ERROR(404, "paths are /stats, /requests, /requests/ended, /requests/ID/cancel, "
                   "/requests/ID/why, /tenants, /usage, /health, /flight[/NAME], /reload, "
                   "/upgrade, /drain, /models, /models/NAME/load, /models/NAME/unload, "
                   "/models/NAME/swap[?file=PATH], /pull?name=hf:OWNER/REPO[:QUANT]");
    static const char watch[] = ERROR(400, "watch: must be from 100ms to 1h, as in ?watch=1s");
    static const char unknown[] =
        ERROR(404, "no recent request with this id reached a worker; weftctl requests lists the "
                   "live ones");
    static const char seconds[] =
        ERROR(400, "oldest_s, newest_s: a number of seconds; order: slowest");
    static const char file[] = ERROR(400, "file: must be the path of a GGUF file");
    static const struct {
        const char *request, *answer;
        int status;
    } table[] = {
        {"GET /", paths, 404},
        {"GET /requests/1/what", paths, 404},
        {"POST /requests/x/cancel", paths, 404},
        {"POST /requests/1x/cancel", paths, 404},
        {"POST /requests/:/cancel", paths, 404},
        {"POST /requests/+1/cancel", paths, 404},
        {"POST /requests/-1/cancel", paths, 404},
        {"GET /requests/a%2fb/why", paths, 404},
        {"POST /stats", ERROR(405, "this path has another method"), 405},
        {"POST /requests/7/cancel",
         ERROR(404, "no live request has this id; weftctl requests lists them"), 404},
        {"GET /requests/r7/why", unknown, 404},
        {"GET /requests/9/why", unknown, 404},
        {"GET /requests/ended?tenant=nobody",
         ERROR(404, "no tenant has this name; weftctl tenants lists them"), 404},
        {"GET /requests/ended?oldest_s=1m", seconds, 400},
        {"GET /requests/ended?newest_s=-1", seconds, 400},
        {"GET /requests/ended?oldest_s=99999999999999999999", seconds, 400},
        {"GET /requests/ended?order=newest", seconds, 400},
        {"POST /models/c/load", ERROR(404, "there is no c"), 404},
        {"POST /models/c/unload", ERROR(404, "there is no c"), 404},
        {"POST /models/c/swap", ERROR(404, "there is no c"), 404},
        {"GET /flight/c", ERROR(404, "there is no c"), 404},
        {"POST /models/b/swap?file=", file, 400},
        {"POST /models/b/swap?file=%0", file, 400},
        {"POST /pull?name=%0", ERROR(400, "name: must be hf:OWNER/REPO[:QUANT], URL-encoded"), 400},
        {"GET /stats?watch=99ms", watch, 400},
        {"GET /stats?watch=0.0999s", watch, 400},
        {"GET /stats?watch=3600001ms", watch, 400},
        {"GET /stats?watch=3601", watch, 400},
        {"GET /stats?watch=1m", watch, 400},
        {"GET /stats?watch=1ss", watch, 400},
        {"GET /stats?watch=s", watch, 400},
        {"GET /stats?watch=ms", watch, 400},
        {"GET /stats?watch=", watch, 400},
        {"GET /stats?watch:1s", watch, 400},
        {"GET /stats?x", watch, 400},
        {"GET / x", ERROR(400, "Malformed HTTP request: Expected HTTP/."), 400},
        {"GET /health HTTP/2.0\r\nX:", ERROR(505, "Only HTTP/1.1 and HTTP/1.0 are supported."),
         505},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_action(table[i].request, table[i].status, table[i].answer, "");
    expect_audited("");
    scans = true;
    expect("POST /models/c/load", 404,
           ERROR(404, "no model is named c so far; the folders of models are being read, try "
                      "again"));
}

/* Asks @request, which the daemon then does, and does not answer it yet. */
static int ask_and_wait(const char *request, const char *what) {
    int fd = ask(request);

    world_turns(&w, 4);
    cr_expect_str_eq(did, what);
    return fd;
}

Test(admin, an_upgrade_is_answered_when_it_is_over) {
    int fd = ask_and_wait("POST /upgrade", "upgrade");

    admin_upgrade_over(admin, 2147483647, NULL);
    expect_answer(fd, 200, R"({"upgraded":true,"pid":2147483647})");
    fd = ask_and_wait("POST /upgrade", "upgrade");
    admin_upgrade_over(admin, 0, "it ended");
    expect_answer(fd, 500, ERROR(500, "it ended"));
    fd = ask_and_wait("POST /upgrade", "upgrade");
    world_drop(&w, fd);
    admin_upgrade_over(admin, 42, NULL); /* no client waits */
    expect_audited(ACCEPTED("upgrade", "") ACCEPTED("upgrade", "") ACCEPTED("upgrade", ""));
}

Test(admin, a_reload_is_answered_when_it_is_over) {
    static const char *const keys[] = {"listen", "threads"};
    const struct err err = {.message = "line 3"}, none = {0};
    int fd = ask_and_wait("POST /reload", "reload");

    expect_audited(ACCEPTED("reload", ""));
    admin_reload_over(admin, keys, 2, NULL);
    expect_answer(fd, 200, R"({"reloaded":true,"needs_restart":["listen","threads"]})");
    fd = ask_and_wait("POST /reload", "reload");
    admin_reload_over(admin, keys, 0, NULL);
    expect_answer(fd, 200, R"({"reloaded":true,"needs_restart":[]})");
    fd = ask_and_wait("POST /reload", "reload");
    admin_reload_over(admin, NULL, 0, &err);
    expect_answer(fd, 400, ERROR(400, "line 3"));
    fd = ask_and_wait("POST /reload", "reload");
    admin_reload_over(admin, NULL, 0, &none);
    expect_answer(fd, 503, NO_MEMORY);
    fd = ask_and_wait("POST /reload", "reload");
    world_drop(&w, fd);
    admin_reload_over(admin, keys, 2, NULL); /* no client waits */
}

/* Reads the answer @text and leaves the connection open. */
static void expect_first_answer(int fd, const char *text) {
    struct reply r;

    world_receive(&w, fd, &r);
    cr_expect(r.body.data && strncmp(r.body.data, text, strlen(text)) == 0, "%s", r.body.data);
    reply_deinit(&r);
}

/* A client that has its answer, and leaves later, is not the one that waits then. */
Test(admin, who_has_an_answer_waits_no_more) {
    static const char *const none[1] = {NULL};
    int first = ask_and_wait("POST /reload", "reload");

    admin_reload_over(admin, none, 0, NULL);
    expect_first_answer(first, R"({"reloaded":true,"needs_restart":[]})");
    int second = ask_and_wait("POST /reload", "reload");
    world_drop(&w, first);
    admin_reload_over(admin, none, 0, NULL);
    expect_answer(second, 200, R"({"reloaded":true,"needs_restart":[]})");

    first = ask_and_wait("POST /upgrade", "upgrade");
    admin_upgrade_over(admin, 1, NULL);
    expect_first_answer(first, R"({"upgraded":true,"pid":1})");
    second = ask_and_wait("POST /upgrade", "upgrade");
    world_drop(&w, first);
    admin_upgrade_over(admin, 2, NULL);
    expect_answer(second, 200, R"({"upgraded":true,"pid":2})");
}

#define FIRST                                                                                      \
    R"({"a":1})"                                                                                   \
    "\n\r\n"

Test(admin, a_pull_tells_its_lines) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct api_task *t;
    struct err gone = {.status = 404, .message = "gone"};

    for (int fails = 0; fails < 2; fails++) {
        int fd = ask("POST /pull?name=hf%3aa/b");

        buf_clear(&b);
        cr_expect(world_read_until(&w, fd, &b, "\r\n\r\n"), "the head comes before any line");
        cr_expect_str_eq(did, "pull hf:a/b");
        t = pull;
        t->line(t, R"({"a":1}, and more)", 7);
        cr_expect(world_read_until(&w, fd, &b, "\r\n8\r\n" FIRST));
        t->over(t, fails ? &gone : NULL);
        cr_expect(world_read_until(&w, fd, &b, "\r\n0\r\n\r\n"));
        const char *last = strstr(b.data, FIRST) + strlen(FIRST);
        cr_expect_str_eq(last + (fails ? strcspn(last, "{") : 0),
                         fails ? ERROR(404, "gone") "\n\r\n0\r\n\r\n" : "0\r\n\r\n");
        cr_expect(strstr(b.data, "HTTP/1.1 200 OK\r\n") == b.data);
        world_drop(&w, fd);
        cr_expect_str_eq(did, "pull hf:a/b", "it was over");
    }
    int fd = ask_and_wait("POST /pull?name=hf:a/b", "pull hf:a/b");
    world_drop(&w, fd);
    cr_expect_str_eq(did, "cancelled");
}

/* A timer of the loop that repeats every `ms`, and how many there are. */
struct found {
    uint64_t ms;
    uv_timer_t *timer;
    int n;
};

static void look_at(uv_handle_t *h, void *arg) {
    struct found *f = arg;

    if (h->type != UV_TIMER || uv_is_closing(h) || uv_timer_get_repeat((uv_timer_t *)h) != f->ms)
        return;
    f->timer = (uv_timer_t *)h;
    f->n++;
}

static struct found timers(uint64_t ms) {
    struct found f = {.ms = ms};

    uv_walk(&w.loop, look_at, &f);
    return f;
}

Test(admin, figures_are_watched) {
    static const struct {
        const char *text;
        uint64_t ms;
    } cases[] = {{"0.1", 100},      {"0.5s", 500},          {"100ms", 100}, {"2", 2000},
                 {"3600", 3600000}, {"3600000ms", 3600000}, {"1s", 1000},   {"250ms", 250}};
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char request[60];
        int before = timers(cases[i].ms).n;

        snprintf(request, sizeof(request), "GET /stats?watch=%s", cases[i].text);
        int fd = ask(request);
        cr_expect(world_read_until(&w, fd, &b, "}\n"), "the first line comes at once");
        struct found f = timers(cases[i].ms);
        cr_expect_eq(f.n, before + 1, "%s", request);
        for (int k = 0; k < 2; k++) {
            buf_clear(&b);
            f.timer->timer_cb(f.timer);
            cr_expect(world_read_until(&w, fd, &b, "}\n"));
        }
        world_drop(&w, fd);
        cr_expect_eq(timers(cases[i].ms).n, before, "nobody watches any more");
        buf_clear(&b);
    }
    int fd = ask("GET /stats?watch=100ms");
    for (int i = 0; i < 3; i++) {
        cr_expect(world_read_until(&w, fd, &b, "}\n"), "the timer runs");
        buf_clear(&b);
    }
    world_drop(&w, fd);
}

/* The front keeps 4 MiB that a watcher has not read, and as much of another's. */
Test(admin, watchers_who_do_not_read_are_dropped) {
    enum { KEPT = 4 << 20, OF_SYSTEM = 1 << 20 };
    struct found f[2];
    size_t line = 0, sent[2];
    int fd[2];

    budget = 80;
    char *text = admin_json_stats(&(struct admin_opts){
        .api = w.api, .clock = &virt.clock, .started_ns = START_NS, .health = on_health});
    line = strlen(text);
    free(text);
    for (int i = 0; i < 2; i++) {
        fd[i] = ask(i ? "GET /stats?watch=3501" : "GET /stats?watch=3500");
        world_turns(&w, 4);
        f[i] = timers(i ? 3501000 : 3500000);
        cr_assert_eq(f[i].n, 1);
        for (sent[i] = line; sent[i] < KEPT * 9 / 10; sent[i] += line)
            f[i].timer->timer_cb(f[i].timer);
    }
    world_turns(&w, 4);
    for (int i = 0; i < 2; i++)
        for (; timers(f[i].ms).n && sent[i] < 2 * KEPT; sent[i] += line)
            f[i].timer->timer_cb(f[i].timer), world_turn(&w);
    for (int i = 0; i < 2; i++) {
        cr_expect(sent[i] > KEPT && sent[i] < KEPT + OF_SYSTEM, "%zu", sent[i]);
        world_drop(&w, fd[i]);
    }
}

#define MODEL R"("max_context":512,"n_pages":64,"page_tokens":16)"

/* Writes the number @n to each field of @row, the next one to the next, and what an answer has of
 * these. */
static void fill(const struct stat_row *row, size_t n_rows, void *stats, unsigned n, char *out,
                 size_t size) {
    size_t len = 0;

    for (size_t i = 0; i < n_rows; i++, n++) {
        uint32_t v32 = n;
        uint64_t v64 = n;
        double real = n;

        memcpy((char *)stats + row[i].offset,
               row[i].is_real ? (void *)&real : (row[i].size == 4 ? (void *)&v32 : (void *)&v64),
               row[i].size);
        len += (size_t)snprintf(out + len, size - len, R"("%s":%u%s,)", row[i].key, n,
                                row[i].is_real ? ".0" : "");
    }
}

static char worker_text[8000], front_text[4000];

/* Gives the first model's worker statistics, all different. */
static void fill_worker(void) {
    static char rows[4000], device[2][400];

    worker.pid = 7;
    worker.n_started = 2;
    worker.n_deaths = 3;
    worker.n_hangs = 4;
    worker.stats_age_ms = 5;
    fill(worker_rows, n_worker_rows, &worker.last, 1000, rows, sizeof(rows));
    for (unsigned i = 0; i < MSG_DRAFT_SOURCES; i++) {
        worker.last.drafted_by[i] = 10 + i;
        worker.last.accepted_by[i] = 20 + i;
    }
    worker.last.n_devices = 2;
    for (unsigned i = 0; i < 2; i++) {
        worker.last.device[i].number = 6 + 3 * i;
        fill(device_rows, n_device_rows, &worker.last.device[i], 2000 + 100 * i, device[i],
             sizeof(device[i]));
        device[i][strlen(device[i]) - 1] = 0; /* the comma */
    }
    snprintf(worker_text, sizeof(worker_text),
             R"({"state":"up","pid":7,"starts":2,"weights":"kept","deaths":3,"hangs":4,"age_ms":5,)"
             R"(%s"drafts":{"forced":{"drafted":10,"accepted":20},)"
             R"("prediction":{"drafted":11,"accepted":21},"suffix":{"drafted":12,"accepted":22},)"
             R"("recent":{"drafted":13,"accepted":23},"model":{"drafted":14,"accepted":24},)"
             R"("mtp":{"drafted":15,"accepted":25}},)"
             R"("devices":[{"device":6,%s},{"device":9,%s}]})",
             rows, device[0], device[1]);
}

/* Returns the answer about the second model's worker, which has counted nothing. */
static const char *other_text(void) {
    static char text[8000], rows[4000];
    struct msg_stats none;
    size_t n = 0;

    fill(worker_rows, n_worker_rows, &none, 0, rows, sizeof(rows));
    for (size_t i = 0; i < n_worker_rows; i++)
        n += (size_t)snprintf(rows + n, sizeof(rows) - n, R"("%s":0%s,)", worker_rows[i].key,
                              worker_rows[i].is_real ? ".0" : "");
    n = (size_t)snprintf(text, sizeof(text),
                         R"({"state":"down","pid":99,"starts":0,"weights":"read","deaths":0,)"
                         R"("hangs":0,"age_ms":-1,%s"drafts":{)",
                         rows);
    for (size_t i = 0; i < MSG_DRAFT_SOURCES; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, R"(%s"%s":{"drafted":0,"accepted":0})",
                              i ? "," : "", msg_draft_source[i]);
    snprintf(text + n, sizeof(text) - n, R"(},"devices":[]})");
    return text;
}

/* Returns the answer to /models without its last member. */
static const char *models_text(void) {
    static char text[20000];

    snprintf(text, sizeof(text),
             R"("models":[{"model":{"id":"tiny",)" MODEL
             R"(},"id":"tiny","state":"ready","file":"/a","bytes":70,"memory_bytes":60,)"
             R"("progress":0.5,"pinned":true,"running":1,"waiting":2,"loads":3,)"
             R"("idle_ms":4,"unload_ms":5,"worker":%s},{"model":{"id":"tiny",)" MODEL
             R"(},"id":"b","state":"failed","reason":"no? room","swap":"next","file":"/b",)"
             R"("bytes":0,"progress":0.0,"pinned":false,"running":0,"waiting":0,"loads":0,)"
             R"("idle_ms":0,"unload_ms":0,"worker":%s}],"models_memory":%llu)",
             worker_text, other_text(), (unsigned long long)budget);
    return text;
}

/* Returns what an answer has of the front. The lag of the loop is another one in each answer, so
 * that it is 0 here and in @answer. */
static const char *front_of(char *answer) {
    struct api_stats s;
    size_t n = 0;

    api_stats(w.api, &s);
    s.loop_lag_us = 0;
    for (size_t i = 0; i < n_front_rows; i++)
        n +=
            (size_t)snprintf(front_text + n, sizeof(front_text) - n, R"("%s":%llu,)",
                             front_rows[i].key, (unsigned long long)stat_whole(&front_rows[i], &s));
    front_text[n - 1] = 0;
    char *lag = strstr(answer, R"("loop_lag_us":)");
    cr_assert(lag);
    lag += strlen(R"("loop_lag_us":)");
    size_t digits = strspn(lag, "0123456789");
    *lag = '0';
    memmove(lag + 1, lag + digits, strlen(lag + digits) + 1);
    return front_text;
}

static void expect_stats(const char *worker_of, const char *models) {
    static char want[40000];
    struct reply r;
    int fd = ask("GET /stats");

    world_receive(&w, fd, &r);
    snprintf(want, sizeof(want),
             R"({"version":"%s","uptime_s":5,"health":"serving","model":{"id":"tiny",)" MODEL
             R"(},"front":{%s},"worker":%s%s%s})"
             "\n",
             WEFT_VERSION, front_of(r.body.data), worker_of, *models ? "," : "", models);
    cr_expect_str_eq(r.body.data, want, "%s\nis not %s", r.body.data, want);
    reply_deinit(&r);
    world_drop(&w, fd);
}

Test(admin, stats_have_the_front_and_the_first_worker) {
    fill_worker();
    generate("one"); /* for the counters of the front */
    expect_stats(worker_text, "");
    budget = 80;
    expect_stats(worker_text, models_text());
    infos[0].memory = 0; /* the second one is loaded */
    infos[1].memory = 1;
    budget = 0;
    expect_stats(other_text(), "");
    infos[1].memory = 0; /* none is */
    expect_stats(worker_text, "");
    world_turns(&w, 4);
    worker.last.n_devices = MSG_DEVICES + 1;
    int fd = ask("GET /stats?");
    struct reply r;
    world_receive(&w, fd, &r);
    int n = 0;
    for (const char *at = r.body.data; (at = strstr(at, R"({"device":)")); at++)
        n++;
    cr_expect_eq(n, MSG_DEVICES, "of a worker that errs");
    reply_deinit(&r);
    world_drop(&w, fd);
}

Test(admin, health_is_that_of_the_first_worker) {
    expect("GET /health", 200, R"({"health":"serving","worker":"up"})");
    worker.failure = "no file";
    strcpy(url, "http://127.0.0.1:1");
    expect("GET /health", 200,
           R"({"health":"serving","worker":"up","reason":"no file","url":"http://127.0.0.1:1"})");
    infos[0].memory = 0;
    infos[1].memory = 1;
    expect("GET /health", 200,
           R"({"health":"serving","worker":"down","reason":"no device",)"
           R"("url":"http://127.0.0.1:1"})");
}

Test(admin, each_model_is_listed) {
    static char text[40000];

    fill_worker();
    for (budget = 0; budget <= 80; budget += 80) {
        snprintf(text, sizeof(text),
                 R"({%s,"presets_not_read":[{"id":"bad","reason":"is wrong"}]})", models_text());
        expect("GET /models", 200, text);
    }
    cr_expect_eq(n_rescans, 2, "new files are seen");
}

Test(admin, live_requests_are_cancelled) {
    char text[200], audited[200];

    for (int i = 0; i < 10; i++) /* so that the number has several digits */
        generate("one");
    int fd = begin("two");
    fake_accept(&w.port, 10);
    world_turns(&w, 4);
    const unsigned long long id = w.port.r[10].id;
    cr_assert_gt(id, 9);
    snprintf(text, sizeof(text), "POST /requests/%llu/cancel", id);
    snprintf(audited, sizeof(audited), ACCEPTED("cancel", "%llu"), id);
    expect(text, 200, R"({"cancelled":true})");
    cr_expect(w.port.r[10].cancelled);
    expect(text, 404, ERROR(404, "no live request has this id; weftctl requests lists them"));
    world_drop(&w, fd);
    expect_audited(audited);
}

Test(admin, decisions_about_a_request_are_told) {
#define RECORD(name, text, more)                                                                   \
    R"({"id":%zu,"age_ms":5500,"records":[{"why":")" name R"(","text":")" text                     \
    R"(","at_ms":0.0,"ms":0.0,"steps":1,"rows":1)" more "}]}"
#define ENDED(finish) RECORD("ended", "ended", R"(,"finish":")" finish R"(")")
    static const struct {
        enum why why;
        uint32_t detail;
        const char *text;
    } rows[] = {
        {WHY_TIME, 4,
         RECORD("time", "waited while steps computed other requests", R"(,"row_us":4)")},
        {WHY_PREEMPTED, 7, RECORD("preempted", "was preempted for its pages", R"(,"pages":7)")},
        {WHY_DECODE, 4, RECORD("decode", "generated tokens", "")},
        {WHY_ENDED, 0, ENDED("none")},
        {WHY_ENDED, 1, ENDED("stop")},
        {WHY_ENDED, 3, ENDED("cancelled")},
        {WHY_ENDED, 4, ENDED("deadline")},
        {WHY_ENDED, 5, ENDED("error")},
        {WHY_ENDED, 77, ENDED("error")},
    };
    uint64_t at = 0;

    flight_note(flight, &at, 9, WHY_ADMITTED, 0, 5, NOW_NS - 10000000);
    flight_note(flight, &at, 9, WHY_PROMPT, 3, 6, NOW_NS - 7500000);
    flight_note(flight, &at, 9, WHY_PROMPT, 2, 7, NOW_NS - 7000000);
    flight_note(flight, &at, 9, WHY_ENDED, 0, 2, NOW_NS - 5999001);
    expect("GET /requests/9/why", 200,
           R"({"id":9,"age_ms":10,)"
           R"("records":[{"why":"admitted","text":"was admitted","at_ms":0.0,"ms":2.5,)"
           R"("steps":1,"rows":0,"cached_tokens":5},)"
           R"({"why":"prompt","text":"computed its prompt","at_ms":2.5,"ms":1.5,)"
           R"("steps":2,"rows":5,"row_us":7},)"
           R"({"why":"ended","text":"ended","at_ms":4.0,"ms":0.0,"steps":1,"rows":0,)"
           R"("finish":"length"}]})");
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char request[40], want[400];

        snprintf(request, sizeof(request), "GET /requests/%zu/why", 10 + i);
        snprintf(want, sizeof(want), rows[i].text, 10 + i);
        flight_note(flight, &(uint64_t){0}, 10 + i, rows[i].why, 1, rows[i].detail, START_NS);
        expect(request, 200, want);
    }
    flight_note(first_flight, &(uint64_t){0}, 99, WHY_ENDED, 1, 1, START_NS);
    char want[400];
    snprintf(want, sizeof(want), ENDED("stop"), (size_t)99);
    expect("GET /requests/99/why", 200, want);
}

Test(admin, recordings_are_files) {
    struct reply r;
    static const char *const asks[][2] = {{"GET /flight", "flight of tiny"},
                                          {"GET /flight/tiny", "flight of tiny"},
                                          {"GET /flight/b", "flight of b"}};

    for (size_t i = 0; i < ARRAY_SIZE(asks); i++) {
        int fd = ask(asks[i][0]);
        char type[60];

        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(r.body.data, asks[i][1]);
        cr_expect_str_eq(reply_header(&r, "content-type", type, sizeof(type)),
                         "application/octet-stream");
        reply_deinit(&r);
        world_drop(&w, fd);
    }
}

Test(admin, usage_is_that_of_the_api) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    cr_assert_eq(api_usage(w.api, &b), 0);
    cr_assert(b.len > 2 && buf_add_char(&b, 0) == 0);
    expect("GET /usage", 200, b.data);
}

/* Bodies are read, though no route uses one, and of all connections at once. */
Test(admin, bodies_of_many_clients_are_read) {
    static char body[16 << 10];
    int fd[4];

    memset(body, ' ', sizeof(body));
    for (int i = 0; i < 4; i++) {
        fd[i] = ask("POST /drain HTTP/1.1\r\nContent-Length: 16384\r\nX:");
        world_send(&w, fd[i], body, sizeof(body) - 1);
        world_turns(&w, 4);
    }
    for (int i = 0; i < 4; i++) {
        world_send(&w, fd[i], body, 1);
        expect_answer(fd[i], 200, R"({"draining":true})");
    }
    int more = ask("POST /drain HTTP/1.1\r\nContent-Length: 16385\r\nX:");
    world_send(&w, more, body, sizeof(body));
    world_send(&w, more, body, 1);
    expect_answer(more, 413, ERROR(413, "The request body is larger than 16384 bytes."));
}

/* In an upgrade the next daemon listens on the same socket, so its file stays. */
Test(admin, the_file_is_handed_over) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    admin_hand_over(admin);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(access(path, F_OK), 0);
    cr_expect_lt(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0, "it accepts nobody");
    close(fd);
    admin_close(admin);
    cr_expect_eq(access(path, F_OK), 0);
    unlink(path);
}

Test(admin, its_file_goes_with_it) {
    admin_close(admin);
    cr_expect_lt(access(path, F_OK), 0);
}

Test(admin, sockets_are_listened_on_by_path_and_by_number) {
    struct sockaddr_un at = {0};
    socklen_t len = sizeof(at);
    struct err err = {0};
    char own[sizeof(path)], other[80];

    cr_assert_eq(getsockname(admin_last_fd(admin), (struct sockaddr *)&at, &len), 0);
    cr_expect_str_eq(at.sun_path, path);
    strcpy(own, path);
    snprintf(other, sizeof(other), "%.60s.2", own);
    at = (struct sockaddr_un){.sun_family = AF_UNIX};
    strcpy(at.sun_path, other);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(listen(fd, 8), 0);
    cr_assert_eq(admin_listen_fd(admin, fd, &err), 0, "%s", err.message);
    strcpy(path, other);
    expect("GET /health", 200, R"({"health":"serving","worker":"up"})");
    strcpy(path, own);
    cr_expect_null(admin_free(NULL));
    admin_own_paths(admin); /* it removes the file of a socket that it got */
    admin_close(admin);
    cr_expect_lt(access(other, F_OK), 0);
}

Test(admin, the_file_is_for_the_group) {
    struct stat st;

    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 07777u, 0660);
}

/* Returns true if a process of this user and these groups gets an answer from a daemon of the user
 * @own. */
static bool answers_as(uid_t own, uid_t uid, gid_t gid, gid_t other) {
    static const char request[] = "GET /tenants HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const gid_t groups[] = {65534, other};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int status = 0;
    char c;

    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        if (setgroups(2, groups) < 0 || setgid(gid) < 0 || setuid(uid) < 0 ||
            connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
            _exit(2);
        _exit(send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0 && read(fd, &c, 1) == 1);
    }
    cr_assert_eq(seteuid(own), 0);
    while (waitpid(pid, &status, WNOHANG) == 0)
        world_turn(&w);
    cr_assert_eq(seteuid(0), 0);
    cr_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        cr_skip_test("this user namespace lacks the users and groups");
    return WEXITSTATUS(status) == 1;
}

static bool answers(uid_t uid, gid_t gid, gid_t other) {
    return answers_as(0, uid, gid, other);
}

/* Members of root's group are no operators. */
Test(admin, operators_are_root_and_members_of_the_group, .timeout = 60) {
    char own[sizeof(path)];

    if (geteuid() != 0)
        cr_skip_test("only root can become others");
    cr_assert_eq(chmod(path, 0666), 0);
    cr_expect(answers(0, 0, 0));
    cr_expect_not(answers(65534, 65534, 65534));
    cr_expect_not(answers(65534, 0, 0));
    cr_expect(answers_as(65534, 65534, 65534, 65534));
    cr_expect(answers_as(65534, 0, 0, 0));
    cr_expect_not(answers_as(65534, 1, 1, 1));
    if (chown(path, 0, 1234) < 0)
        cr_skip_test("this user namespace lacks the group");
    cr_expect(answers(65534, 1234, 65534));
    cr_expect(answers(65534, 65534, 1234));
    cr_expect_not(answers(65534, 65534, 65534));
    strcpy(own, path);
    snprintf(path, sizeof(path), "%.55s.moved", own);
    cr_assert_eq(rename(own, path), 0); /* so that nothing tells its group */
    cr_expect_not(answers(65534, 1, 1));
    unlink(path);
}
