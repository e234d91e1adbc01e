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
#include "proto/flight_file.h"
#include "tests/api/world.h"

static struct world w;
static struct admin *admin;
static FILE *log_file; /* in place of stderr */
static char path[64];
static char did[400]; /* the last operation of the daemon */
static bool refuses, scans;
static struct flight *flight;
static struct api_task *pull;
static uint64_t budget;
static struct workers_stats worker = {.state = "up", .weights = "kept", .failure = ""};
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
    *out = worker;
}

/* Returns the recorder of the second model, and an empty one for other models. */
const struct flight *workers_flight(const struct workers *of) {
    static struct flight *none;

    if (!none)
        none = calloc(1, FLIGHT_BYTES);
    return of == (const struct workers *)&infos[1] ? flight : none;
}

int workers_dump(const struct workers *of, struct buf *out) {
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

static void start(void) {
    struct err err = {0};

    log_file = tmpfile();
    cr_assert(log_file && dup2(fileno(log_file), STDERR_FILENO) >= 0);
    flight = calloc(1, FLIGHT_BYTES);
    cr_assert(flight);
    world_init(&w);
    world_start(&w);
    const struct admin_opts o = {.loop = &w.loop,
                                 .api = w.api,
                                 .clock = clock_monotonic(),
                                 .started_ns = clock_now(clock_monotonic()) - 5500000000,
                                 .health = on_health,
                                 .drain = on_drain,
                                 .reload = on_reload,
                                 .upgrade = on_upgrade};
    snprintf(path, sizeof(path), "%.50s.admin", w.path);
    cr_assert_eq(admin_new(&admin, &o), 0);
    cr_assert_eq(admin_listen_unix(admin, path, &err), 0, "%s", err.message);
}

static void stop(void) {
    admin_close(admin);
    world_stop(&w);
    cr_expect_lt(access(path, F_OK), 0);
    admin_free(admin);
    free(flight);
    fclose(log_file);
}

TestSuite(admin, .init = start, .fini = stop);

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

/* Expects @part in the answer, which is one complete line. */
static void expect_answer(int fd, int status, const char *part) {
    struct reply r;

    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, status, "%d %s", r.status, r.body.data);
    cr_expect(r.body.data && strstr(r.body.data, part), "%s\nlacks %s", r.body.data, part);
    cr_expect(r.body.len > 0 && strchr(r.body.data, '\n') == r.body.data + r.body.len - 1);
    reply_deinit(&r);
    world_drop(&w, fd);
}

static void expect(const char *request, int status, const char *part) {
    expect_answer(ask(request), status, part);
}

static void expect_action(const char *request, int status, const char *part, const char *what) {
    expect(request, status, part);
    cr_expect_str_eq(did, what, "%s: %s", request, did);
}

#define ERROR(status, text) R"({"error":{"message":")" text R"(","code":)" #status "}}\n"

Test(admin, each_path_has_one_action) {
    static const char accepted[] = R"({"accepted":true})"
                                   "\n";
    static const struct {
        const char *request, *answer, *what;
        int status;
    } table[] = {
        {"POST /models/tiny/load", accepted, "load tiny", 200},
        {"POST /models/b/unload", accepted, "unload b", 200},
        {"POST /models/b/swap", accepted, "swap b -", 200},
        {"POST /models/b/swap?file=/c%20d", accepted, "swap b /c d", 200},
        {"POST /drain",
         R"({"draining":true})"
         "\n",
         "drain", 200},
    };
    static const char *const refused[][2] = {
        {"POST /models/tiny/load", "load tiny"},
        {"POST /models/b/unload", "unload b"},
        {"POST /models/b/swap", "swap b -"},
        {"POST /reload", "reload"},
        {"POST /upgrade", "upgrade"},
        {"POST /pull?name=hf:a/b", "pull hf:a/b"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_action(table[i].request, table[i].status, table[i].answer, table[i].what);
    refuses = true;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        expect_action(refused[i][0], 409, ERROR(409, "not now"), refused[i][1]);
}

/* Sends a request to the API. Returns its connection. */
static int begin(const char *id) {
    int fd = world_connect(&w);

    world_say(&w, fd,
              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\n"
              "Content-Length: 14\r\n\r\n"
              R"({"prompt":"a"})",
              id);
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

/* Expects the answer @want, with 0 in place of each number. The list of records is left out: a
 * slow machine has one where a fast one has none. */
static void expect_shape(const char *request, const char *want) {
    static const char records_begin[] = R"("records":[)";
    int fd = ask(request);
    struct reply r;
    size_t n = 0;

    world_receive(&w, fd, &r);
    for (const char *at = r.body.data; *at; n++) {
        bool digit = *at >= '0' && *at <= '9';

        r.body.data[n] = digit ? '0' : *at;
        at += digit ? strspn(at, "0123456789") : 1;
    }
    r.body.data[n] = 0;
    char *records = strstr(r.body.data, records_begin);
    if (records) {
        const char *rest = strrchr(records, ']');

        memmove(records + strlen(records_begin), rest, strlen(rest) + 1);
    }
    cr_expect_str_eq(r.body.data, want, "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
}

Test(admin, each_member_of_a_request_is_there) {
    char request[60];

    int fd = begin("one");
    snprintf(request, sizeof(request), "GET /requests/%llu/why",
             (unsigned long long)w.port.r[0].id);
    expect_shape(request, R"({"id":0,"age_ms":0,"now":"pages: waited for pages of the KV cache",)"
                          R"("records":[]})"
                          "\n");
    fake_accept(&w.port, 0);
    expect_shape("GET /requests",
                 R"({"requests":[{"id":0,"request_id":"one","endpoint":"/v0/completions",)"
                 R"("state":"running","prompt_tokens":0,"output_tokens":0,"cached_tokens":0,)"
                 R"("prompt_tokens_done":0,"max_tokens":0,"waits_for":"pages","age_ms":0,)"
                 R"("session":"-","session_from":"-"}]})"
                 "\n");
    end(fd, 0);
    expect_shape("GET /requests/ended",
                 R"({"requests":[{"request_id":"one","tenant":"default",)"
                 R"("endpoint":"/v0/completions","status":0,"finish":"stop","prompt_tokens":0,)"
                 R"("cached_tokens":0,"output_tokens":0,"queue_ms":0,"ttft_ms":0,"total_ms":0,)"
                 R"("ago_ms":0}]})"
                 "\n");
}

Test(admin, requests_that_live_are_listed) {
    const char *const parts[] = {
        R"("request_id":"one")", R"("endpoint":"/v1/completions")", R"("state":"running")",
        R"("prompt_tokens":1,)", R"("output_tokens":0,)",
    };

    expect("GET /requests", 200, R"({"requests":[]})");
    int fd = begin("one");
    expect("GET /requests", 200, R"("state":"queued")");
    fake_accept(&w.port, 0);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        expect("GET /requests", 200, parts[i]);
    end(fd, 0);
    expect("GET /requests", 200, R"({"requests":[]})");
}

Test(admin, requests_that_have_ended_are_listed) {
    expect("GET /requests/ended", 200, R"({"requests":[]})");
    generate("one");
    generate("two");
    expect("GET /requests/ended", 200, R"({"requests":[{"request_id":"two","tenant":"default",)");
    expect("GET /requests/ended?order=slowest&oldest_s=1000&tenant=default", 200,
           R"("endpoint":"/v1/completions","status":200,"finish":"stop")");
    expect("GET /requests/ended?newest_s=1000", 200, R"({"requests":[]})");
}

Test(admin, what_is_not_understood_is_refused) {
    static const char paths[] = R"({"error":{"message":"paths are /stats, /requests, )";
    static const char watch[] = ERROR(400, "watch: must be from 100ms to 1h, as in ?watch=1s");
    static const struct {
        const char *request, *answer;
        int status;
    } table[] = {
        {"GET /", paths, 404},
        {"GET /requests/1/what", paths, 404},
        {"POST /requests/x/cancel", paths, 404},
        {"POST /requests/1x/cancel", paths, 404},
        {"POST /requests/:/cancel", paths, 404},
        {"GET /requests/a%2fb/why", paths, 404},
        {"POST /stats", ERROR(405, "this path has another method"), 405},
        {"POST /requests/7/cancel",
         ERROR(404, "no live request has this id; weftctl requests lists them"), 404},
        {"GET /requests/r7/why",
         ERROR(404, "no recent request with this id reached a worker; weftctl requests lists the "
                    "live ones"),
         404},
        {"GET /requests/9/why", "no recent request with this id", 404},
        {"GET /requests/ended?tenant=nobody",
         ERROR(404, "no tenant has this name; weftctl tenants lists them"), 404},
        {"GET /requests/ended?oldest_s=1m", "oldest_s, newest_s: a number of seconds", 400},
        {"GET /requests/ended?newest_s=-1", "oldest_s, newest_s: a number of seconds", 400},
        {"GET /requests/ended?oldest_s=99999999999999999999", "oldest_s, newest_s: a number", 400},
        {"GET /requests/ended?order=newest", "order: slowest", 400},
        {"POST /models/c/load", ERROR(404, "there is no c"), 404},
        {"POST /models/c/unload", ERROR(404, "there is no c"), 404},
        {"POST /models/c/swap", ERROR(404, "there is no c"), 404},
        {"GET /flight/c", ERROR(404, "there is no c"), 404},
        {"POST /models/b/swap?file=", ERROR(400, "file: must be the path of a GGUF file"), 400},
        {"POST /models/b/swap?file=%0", ERROR(400, "file: must be the path of a GGUF file"), 400},
        {"POST /pull?name=%0", ERROR(400, "name: must be hf:OWNER/REPO[:QUANT], URL-encoded"), 400},
        {"GET /stats?watch=99ms", watch, 400},
        {"GET /stats?watch=3600001ms", watch, 400},
        {"GET /stats?watch=1m", watch, 400},
        {"GET /stats?watch=s", watch, 400},
        {"GET /stats?x", watch, 400},
        {"GET / x", ERROR(400, "Malformed HTTP request: Expected HTTP/."), 400},
        {"GET /health HTTP/2.0\r\nX:", ERROR(505, "Only HTTP/1.1 and HTTP/1.0 are supported."),
         505},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_action(table[i].request, table[i].status, table[i].answer, "");
    scans = true;
    expect("POST /models/c/load", 404,
           ERROR(404, "no model is named c so far; the folders of models are being read, try "
                      "again"));
}

Test(admin, an_upgrade_is_answered_when_it_is_over) {
    int fd = ask("POST /upgrade");

    world_turns(&w, 4);
    cr_expect_str_eq(did, "upgrade");
    admin_upgrade_over(admin, 42, NULL);
    expect_answer(fd, 200,
                  R"({"upgraded":true,"pid":42})"
                  "\n");
    fd = ask("POST /upgrade");
    world_turns(&w, 4);
    admin_upgrade_over(admin, 0, "it ended");
    expect_answer(fd, 500, ERROR(500, "it ended"));
    fd = ask("POST /upgrade");
    world_turns(&w, 4);
    world_drop(&w, fd);
    admin_upgrade_over(admin, 42, NULL); /* no client waits */
}

Test(admin, a_reload_is_answered_when_it_is_over) {
    static const char *const later[] = {"listen", "threads"};
    const struct err err = {.message = "line 3"};
    int fd = ask("POST /reload");

    world_turns(&w, 4);
    cr_expect_str_eq(did, "reload");
    admin_reload_over(admin, later, 2, NULL);
    expect_answer(fd, 200,
                  R"({"reloaded":true,"needs_restart":["listen","threads"]})"
                  "\n");
    fd = ask("POST /reload");
    world_turns(&w, 4);
    admin_reload_over(admin, NULL, 0, &err);
    expect_answer(fd, 400, ERROR(400, "line 3"));
    fd = ask("POST /reload");
    world_turns(&w, 4);
    world_drop(&w, fd);
    admin_reload_over(admin, later, 2, NULL); /* no client waits */
}

Test(admin, a_pull_tells_its_lines) {
    struct api_task *t;
    struct err gone = {.status = 404, .message = "gone"};
    struct reply r;

    for (int fails = 0; fails < 2; fails++) {
        int fd = ask("POST /pull?name=hf:a/b");

        world_turns(&w, 4);
        t = pull;
        t->line(t, R"({"a":1})", 7);
        t->over(t, fails ? &gone : NULL);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(r.body.data, fails ? R"({"a":1})"
                                              "\n" ERROR(404, "gone")
                                            : R"({"a":1})"
                                              "\n");
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    int fd = ask("POST /pull?name=hf:a/b");
    world_turns(&w, 4);
    world_drop(&w, fd);
    cr_expect_str_eq(did, "cancelled");
}

Test(admin, figures_are_watched) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    int fd = ask("GET /stats?watch=0.1");

    for (int i = 0; i < 3; i++) {
        cr_expect(world_read_until(&w, fd, &b, "}\n"));
        buf_clear(&b);
    }
    world_drop(&w, fd);
    fd = ask("GET /stats?watch=100ms");
    cr_expect(world_read_until(&w, fd, &b, "}\n"));
    world_drop(&w, fd);
    expect("GET /stats?", 200, R"({"version":")");
}

#define MODEL R"("max_context":512,"n_pages":64,"page_tokens":16)"

Test(admin, stats_have_the_front_and_the_first_worker) {
    worker.pid = 7;
    worker.n_started = 2;
    worker.n_deaths = 3;
    worker.n_hangs = 4;
    worker.stats_age_ms = 5;
    worker.last.n_devices = 2;
    worker.last.device[0].number = 6;
    worker.last.device[1].number = 9;
    expect("GET /stats", 200,
           R"(","uptime_s":5,"health":"serving","model":{"id":"tiny",)" MODEL R"(},"front":{")");
    expect("GET /stats", 200,
           R"("worker":{"state":"up","pid":7,"starts":2,"weights":"kept","deaths":3,)"
           R"("hangs":4,"age_ms":5,")");
    expect("GET /stats", 200, R"("devices":[{"device":6,")");
    expect("GET /stats", 200, R"(},{"device":9,")");
    worker.last.n_devices = 0;
    expect("GET /stats", 200,
           R"("devices":[]}})"
           "\n");
    budget = 80;
    expect("GET /stats", 200, R"("devices":[]},"models":[{)");
    expect("GET /health", 200,
           R"({"health":"serving","worker":"up"})"
           "\n");
    worker.failure = "no file";
    expect("GET /health", 200,
           R"({"health":"serving","worker":"up","reason":"no file"})"
           "\n");
}

Test(admin, each_model_is_listed) {
    budget = 80;
    expect("GET /models", 200,
           R"({"models":[{"model":{"id":"tiny",)" MODEL
           R"(},"id":"tiny","state":"ready","file":"/a","bytes":70,"memory_bytes":60,)"
           R"("progress":0.5,"pinned":true,"running":1,"waiting":2,"loads":3,)"
           R"("idle_ms":4,"unload_ms":5,"worker":{)");
    expect("GET /models", 200,
           R"("id":"b","state":"failed","reason":"no? room","swap":"next",)"
           R"("file":"/b","bytes":0,"progress":0.0,"pinned":false,)");
    expect("GET /models", 200,
           R"(],"models_memory":80,"presets_not_read":[{"id":"bad","reason":"is )"
           R"(wrong"}]})"
           "\n");
}

/* Returns the number of audit lines that say that request @id was cancelled. */
static int n_audited(unsigned long long id) {
    char line[1000], part[200];
    int n = 0;

    rewind(log_file);
    snprintf(part, sizeof(part),
             R"(audit action=cancel target="%llu" detail="" by=admin client=uid:%u )"
             "result=accepted",
             id, getuid());
    while (fgets(line, sizeof(line), log_file))
        n += strstr(line, part) != NULL;
    return n;
}

Test(admin, live_requests_are_listed_and_cancelled) {
    char text[200];

    expect("GET /requests", 200,
           R"({"requests":[]})"
           "\n");
    int fd = world_connect(&w);
    world_post(&w, fd, "/v1/completions", R"({"model":"tiny","prompt":"hi","max_tokens":9})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    world_turns(&w, 4);
    const unsigned long long id = w.port.r[0].id;
    snprintf(text, sizeof(text), R"({"requests":[{"id":%llu,"request_id":")", id);
    expect("GET /requests", 200, text);
    expect("GET /requests", 200, R"("prompt_tokens_done":0,"max_tokens":9,"waits_for":")");
    expect("GET /requests", 200,
           R"(,"session":"-","session_from":"-"}]})"
           "\n");
    snprintf(text, sizeof(text), "POST /requests/%llu/cancel", id);
    expect(text, 200,
           R"({"cancelled":true})"
           "\n");
    expect(text, 404, "no live request");
    world_drop(&w, fd);
    cr_expect_eq(n_audited(id), 1, "the refused one changed nothing");
}

/* Expects the answer's `age_ms` to be @least or, on a slow machine, up to a minute more. */
static void expect_age(const char *request, long long least) {
    long long age = -1;
    struct reply r;
    int fd = ask(request);

    world_receive(&w, fd, &r);
    const char *at = strstr(r.body.data, R"("age_ms":)");
    cr_assert(at && sscanf(at, R"("age_ms":%lld)", &age) == 1, "%s", r.body.data);
    cr_expect(age >= least && age < least + 60000, "%lld", age);
    reply_deinit(&r);
    close(fd);
}

Test(admin, decisions_about_a_request_are_told) {
    static const struct {
        enum why why;
        uint32_t detail;
        const char *text;
    } rows[] = {
        {WHY_TIME, 4, R"("row_us":4})"},        {WHY_PREEMPTED, 7, R"("pages":7})"},
        {WHY_DECODE, 4, R"("rows":1})"},        {WHY_ENDED, 0, R"("finish":"none"})"},
        {WHY_ENDED, 5, R"("finish":"error"})"}, {WHY_ENDED, 77, R"("finish":"error"})"},
    };
    uint64_t at = 0;

    flight_note(flight, &at, 9, WHY_ADMITTED, 0, 5, 1000000000);
    flight_note(flight, &at, 9, WHY_PROMPT, 3, 6, 1002500000);
    flight_note(flight, &at, 9, WHY_PROMPT, 2, 7, 1003000000);
    flight_note(flight, &at, 9, WHY_ENDED, 0, 2, 1004000999);
    expect("GET /requests/9/why", 200,
           R"("records":[{"why":"admitted","text":"was admitted","at_ms":0.0,"ms":2.5,)"
           R"("steps":1,"rows":0,"cached_tokens":5},)"
           R"({"why":"prompt","text":"computed its prompt","at_ms":2.5,"ms":1.5,)"
           R"("steps":2,"rows":5,"row_us":7},)"
           R"({"why":"ended","text":"ended","at_ms":4.0,"ms":0.0,"steps":1,"rows":0,)"
           R"("finish":"length"}]})"
           "\n");
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char request[40];

        snprintf(request, sizeof(request), "GET /requests/%zu/why", 10 + i);
        flight_note(flight, &(uint64_t){0}, 10 + i, rows[i].why, 1, rows[i].detail,
                    clock_now(clock_monotonic()) - 5500000000);
        expect(request, 200, rows[i].text);
        expect_age(request, 5500);
    }
}

Test(admin, recordings_are_files) {
    struct reply r;
    static const char *const asks[][2] = {{"GET /flight", "flight of tiny"},
                                          {"GET /flight/b", "flight of b"}};

    for (size_t i = 0; i < ARRAY_SIZE(asks); i++) {
        int fd = ask(asks[i][0]);

        world_receive(&w, fd, &r);
        cr_expect_str_eq(r.body.data, asks[i][1]);
        cr_expect(strstr(r.head, "application/octet-stream"), "%s", r.head);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
}

Test(admin, tenants_are_listed_and_nothing_else) {
    struct reply r;
    int fd = ask("GET /tenants");

    world_receive(&w, fd, &r);
    cr_expect(strstr(r.body.data, R"("tenant":"default")"), "%s", r.body.data);
    cr_expect_null(strstr(r.body.data, R"("tenant":"")"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
}

/* In an upgrade the next daemon listens on the same socket, so its file stays. */
Test(admin, the_file_is_handed_over) {
    admin_hand_over(admin);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(access(path, F_OK), 0);
    unlink(path);
}

Test(admin, the_file_is_for_the_group) {
    struct stat st;

    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_mode & 07777u, 0660);
    expect("GET /tenants", 200, R"({"tenants":[{"tenant":")");
    expect("GET /tenants", 200, R"("class":"normal")");
    expect("GET /usage", 200, "{");
}

/* Returns true if a process of this user and these groups gets an answer. */
static bool answers(uid_t uid, gid_t gid, gid_t other) {
    static const char request[] = "GET /tenants HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int status = 0;
    char c;

    snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        if (setgroups(1, &other) < 0 || setgid(gid) < 0 || setuid(uid) < 0 ||
            connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
            _exit(2);
        _exit(send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0 && read(fd, &c, 1) == 1);
    }
    while (waitpid(pid, &status, WNOHANG) == 0)
        world_turn(&w);
    cr_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        cr_skip_test("this user namespace lacks the users and groups");
    return WEXITSTATUS(status) == 1;
}

/* Members of root's group are no operators. */
Test(admin, operators_are_root_and_members_of_the_group, .timeout = 60) {
    if (geteuid() != 0)
        cr_skip_test("only root can become others");
    cr_assert_eq(chmod(path, 0666), 0);
    cr_expect(answers(0, 0, 0));
    cr_expect_not(answers(65534, 65534, 65534));
    cr_expect_not(answers(65534, 0, 0));
    if (chown(path, 0, 1234) < 0)
        cr_skip_test("this user namespace lacks the group");
    cr_expect(answers(65534, 1234, 65534));
    cr_expect(answers(65534, 65534, 1234));
    cr_expect_not(answers(65534, 65534, 65534));
}
