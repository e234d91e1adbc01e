/* Ollama's requests that change models: the operations that the daemon gets, and the answers to
 * clients. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "world.h"

static struct world w;
static struct api_task *task;
static char told[1200]; /* operations that the daemon got */
static bool busy;       /* the daemon refuses operations */

static int begin(struct api_task *t, struct err *err) {
    if (busy)
        return err_set_code(err, 429, "too_many_pulls", NULL, "try again later");
    task = t;
    return 0;
}

static int on_pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    snprintf(told, sizeof(told), "pull %s", name);
    return begin(t, err);
}

static int on_create(void *ctx, const struct api_preset *p, struct api_task *t, struct err *err) {
    snprintf(told, sizeof(told), "create %s from %s: %s, %s, %s, %u", p->name, p->from,
             p->sampling ? p->sampling : "-", p->template ? p->template : "-",
             p->system ? p->system : "-", p->max_context);
    return begin(t, err);
}

static int on_remove(void *ctx, const char *name, struct api_task *t, struct err *err) {
    snprintf(told, sizeof(told), "remove %s", name);
    return begin(t, err);
}

static void on_cancel(void *ctx, struct api_task *t) {
    cr_expect_eq(t, task);
    task = NULL;
    strcat(told, ", cancelled");
}

static const struct api_manage manage = {on_pull, on_create, on_remove, on_cancel};

static void start(void) {
    static const char *const all[] = {"*", NULL};

    world_init(&w);
    w.opts.manage = &manage;
    w.opts.managers = all;
    world_start(&w);
}

static void stop(void) {
    world_stop(&w);
}

TestSuite(ollama_manage, .init = start, .fini = stop);

static void over(const struct err *err) {
    struct api_task *t = task;

    task = NULL;
    t->over(t, err);
}

static void send_to(int fd, const char *method, const char *path, const char *body) {
    world_say(&w, fd, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", method,
              path, strlen(body), body);
}

/* Sends a request, ends the daemon's operation with @err, and expects the answer. */
static void expect(const char *method, const char *path, const char *body, const struct err *err,
                   int status, const char *answer) {
    int fd = world_connect(&w);
    struct reply r;

    *told = 0;
    send_to(fd, method, path, body);
    for (uint64_t end = world_limit(); !task && !busy && uv_hrtime() < end;)
        world_turn(&w);
    cr_assert(busy || task, "%s", body);
    if (task)
        over(err);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, status, "%d", r.status);
    cr_expect_str_eq(r.body.data ? r.body.data : "", answer);
    reply_deinit(&r);
    world_drop(&w, fd);
}

/* Expects a refusal before the daemon gets the operation. */
static void expect_refusal(const char *path, const char *body, int status, const char *why) {
    char text[400];
    struct reply r;

    *told = 0;
    world_ask(&w, path, body, &r);
    snprintf(text, sizeof(text), R"({"error":"%s"})", why);
    cr_expect_eq(r.status, status, "%s: %d", body, r.status);
    cr_expect_str_eq(r.body.data, text);
    cr_expect_str_eq(told, "");
    reply_deinit(&r);
}

#define SUCCESS R"({"status":"success"})"

Test(ollama_manage, the_end_of_a_task_is_told) {
    const struct err lost = {.status = 404, .message = "gone"}, plain = {.message = "broken"};
    static const char pull[] = R"({"name":"hf.co/a/b","stream":false})";
    static const char make[] = R"({"model":"c","from":"tiny"})";
    static const char copy[] = R"({"source":"alias","destination":"d:latest"})";

    expect("POST", "/api/pull", pull, NULL, 200, SUCCESS);
    cr_expect_str_eq(told, "pull hf.co/a/b");
    expect("POST", "/api/pull", pull, &lost, 404, R"({"error":"gone"})");
    expect("POST", "/api/pull", pull, &plain, 500, R"({"error":"broken"})");
    expect("POST", "/api/pull", R"({"model":"hf.co/a/b"})", &lost, 200,
           "{\"status\":\"pulling manifest\"}\n{\"error\":\"gone\"}\n");
    expect("POST", "/api/create", make, NULL, 200,
           R"({"status":"writing manifest"})"
           "\n" SUCCESS "\n");
    cr_expect_str_eq(told, "create c from tiny: -, -, -, 0");
    expect("POST", "/api/create", make, &lost, 404, R"({"error":"gone"})");
    expect("POST", "/api/copy", copy, NULL, 200, "");
    cr_expect_str_eq(told, "create d from tiny: -, -, -, 0");
    expect("DELETE", "/api/delete", R"({"name":"alias"})", NULL, 200, "");
    cr_expect_str_eq(told, "remove tiny");
    busy = true;
    expect("POST", "/api/pull", pull, NULL, 429, R"({"error":"try again later"})");
    expect("POST", "/api/create", make, NULL, 429, R"({"error":"try again later"})");
    expect("POST", "/api/copy", copy, NULL, 429, R"({"error":"try again later"})");
    expect("DELETE", "/api/delete", R"({"model":"tiny"})", NULL, 429,
           R"({"error":"try again later"})");
}

Test(ollama_manage, a_model_that_is_there_is_not_pulled) {
    struct reply r;

    world_ask(&w, "/api/pull", R"({"model":"alias"})", &r);
    cr_expect_str_eq(r.body.data, SUCCESS "\n");
    reply_deinit(&r);
    world_ask(&w, "/api/pull", R"({"model":"tiny","stream":false})", &r);
    cr_expect_str_eq(r.body.data, SUCCESS);
    reply_deinit(&r);
    cr_expect_str_eq(told, "");
}

/* Pairs a line of weftctl with the line that a client reads. */
Test(ollama_manage, progress_is_one_bar_for_each_file) {
    static const char *const lines[][2] = {
        {R"({"status":"waiting","message":"please wait"})", R"({"status":"please wait"})"
                                                            "\n"},
        {R"({"status":"downloading","file":"a.gguf","sha256":"0123456789abcdef",)"
         R"("file_total":70,"file_completed":7})",
         R"({"status":"pulling 0123456789ab","digest":"sha256:0123456789abcdef",)"
         R"("total":70,"completed":7})"
         "\n"},
        {R"({"status":"downloading","file":"a.gguf","file_total":70})",
         R"({"status":"pulling a.gguf","digest":"a.gguf","total":70,"completed":0})"
         "\n"},
        {R"({"status":"checking","file":"a.gguf","file_total":70,"file_completed":70})",
         R"({"status":"verifying sha256 digest","digest":"a.gguf","total":70,)"
         R"("completed":70})"
         "\n"},
        {R"({"status":"listing"})", ""},
        {R"({"file":"a.gguf"})", ""},
        {R"({"status":"listing","file":1})", ""},
    };
    char answer[1000] = R"({"status":"pulling manifest"})"
                        "\n";

    for (int streams = 0; streams < 2; streams++) {
        int fd = world_connect(&w);
        struct reply r;

        send_to(fd, "POST", "/api/pull",
                streams ? R"({"model":"hf.co/a/b"})" : R"({"model":"hf.co/a/b","stream":false})");
        world_turns(&w, 4);
        cr_assert(task);
        for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
            task->line(task, lines[i][0], strlen(lines[i][0]));
            if (streams)
                strcat(answer, lines[i][1]);
        }
        over(NULL);
        world_receive(&w, fd, &r);
        cr_expect_str_eq(r.body.data, streams ? strcat(answer, SUCCESS "\n") : SUCCESS);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
}

Test(ollama_manage, a_client_that_leaves_ends_its_pull) {
    int fd = world_connect(&w);

    send_to(fd, "POST", "/api/pull", R"({"model":"hf.co/a/b"})");
    world_turns(&w, 4);
    cr_assert(task);
    world_drop(&w, fd);
    world_turns(&w, 4);
    cr_expect_str_eq(told, "pull hf.co/a/b, cancelled");
}

Test(ollama_manage, fields_of_a_preset_are_passed_on) {
    static const char body[] =
        R"({"name":"new:latest","from":"alias","stream":false,"template":"{{ 1 }}",)"
        R"("system":"Be brief.","files":{},"messages":[],"adapters":null,"parameters":{)"
        R"("temperature":0.5,"top_k":20,"top_p":1,"min_p":0,"seed":7,)"
        R"("repeat_penalty":1.25,"presence_penalty":-1,"frequency_penalty":0.1,)"
        R"("num_ctx":2147483647}})";

    expect("POST", "/api/create", body, NULL, 200, SUCCESS);
    cr_expect_str_eq(told, "create new from tiny: temperature=0.5,top_k=20,top_p=1,min_p=0,seed=7,"
                           "repetition_penalty=1.25,presence_penalty=-1,frequency_penalty=0.1, "
                           "{{ 1 }}, Be brief., 2147483647");
    expect("POST", "/api/create",
           R"({"model":"new","from":"tiny","template":"","system":null,)"
           R"("parameters":null,"stream":false})",
           NULL, 200, SUCCESS);
    cr_expect_str_eq(told, "create new from tiny: -, -, -, 0");
    expect("POST", "/api/create",
           R"({"model":"new","from":"tiny","stream":false,)"
           R"("parameters":{"num_ctx":4096.0,"top_k":40.0}})",
           NULL, 200, SUCCESS);
    cr_expect_str_eq(told, "create new from tiny: top_k=40, -, -, 4096");
    expect("POST", "/api/create",
           R"({"model":"new","from":"tiny","stream":false,)"
           R"("parameters":{"seed":1e15}})",
           NULL, 200, SUCCESS);
    cr_expect_str_eq(told, "create new from tiny: seed=1000000000000000, -, -, 0");
    expect("POST", "/api/create",
           R"({"model":"new","from":"tiny","stream":false,)"
           R"("parameters":{"seed":18446744073709551615}})",
           NULL, 200, SUCCESS);
    cr_expect_str_eq(told, "create new from tiny: seed=18446744073709551615, -, -, 0");
}

#define MAKE(more) R"({"model":"new","from":"tiny",)" more "}"

Test(ollama_manage, what_cannot_be_made_is_refused) {
    static const struct {
        const char *path, *body, *why;
        int status;
    } table[] = {
        {"/api/pull", "{}", "model is required", 400},
        {"/api/pull", R"({"model":"a\u0000b"})", "model must not contain NUL", 400},
        {"/api/create", R"({"from":"tiny"})", "model is required", 400},
        {"/api/create", R"({"model":"new"})", "from is required", 400},
        {"/api/create", R"({"model":"new","from":"x"})", "model 'x' not found", 404},
        {"/api/create", MAKE(R"("files":{"a":"b"})"),
         "files is not supported: a model is made from a served one, which `from` names", 400},
        {"/api/create", MAKE(R"("modelfile":"FROM a")"),
         "modelfile is not supported: a model is made from a served one, which `from` names", 400},
        {"/api/create", MAKE(R"("template":7)"),
         "template must be a string of at most 1 MiB without NUL", 400},
        {"/api/create", MAKE(R"("system":"a\u0000")"),
         "system must be a string of at most 1 MiB without NUL", 400},
        {"/api/create", MAKE(R"("parameters":[1])"), "parameters must be an object", 400},
        {"/api/create", MAKE(R"("parameters":{"stop":["a"]})"),
         "parameters.stop cannot be stored in a preset", 400},
        {"/api/create", MAKE(R"("parameters":{"seed":"7"})"),
         "parameters.seed must be a number in its range", 400},
        {"/api/create", MAKE(R"("parameters":{"seed":0.5})"),
         "parameters.seed must be a number in its range", 400},
        {"/api/create", MAKE(R"("parameters":{"seed":1e20})"),
         "parameters.seed must be a number in its range", 400},
        {"/api/create", MAKE(R"("parameters":{"num_ctx":0})"),
         "parameters.num_ctx must be a number in its range", 400},
        {"/api/create", MAKE(R"("parameters":{"num_ctx":4096.5})"),
         "parameters.num_ctx must be a number in its range", 400},
        {"/api/create", MAKE(R"("parameters":{"num_ctx":2147483648})"),
         "parameters.num_ctx must be a number in its range", 400},
        {"/api/copy", R"({"destination":"b"})", "source is required", 400},
        {"/api/copy", R"({"source":"x","destination":"b"})", "model 'x' not found", 404},
        {"/api/copy", R"({"source":"tiny"})", "destination is required", 400},
    };
    char many[2000] = MAKE(R"("parameters":{)"), long_text[9000];

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_refusal(table[i].path, table[i].body, table[i].status, table[i].why);
    many[strlen(many) - 1] = 0;
    for (int i = 0; i < 60; i++) /* each takes 23 of the 1,000 bytes in the file of the preset */
        strcat(many, R"("repeat_penalty":1.5,)");
    strcpy(many + strlen(many) - 1, "}}");
    expect_refusal("/api/create", many, 400,
                   "parameters must be shorter: a preset has room for fewer of them");
    memset(long_text, ' ', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = 0;
    expect_refusal("/api/pull", long_text, 413, "The request body is larger than 8192 bytes.");
}

Test(ollama_manage, a_model_that_the_tenant_may_not_use_does_not_exist) {
    const struct api_tenant row = {
        .name = "default", .weight = 1, .models = {"other"}, .n_models = 1};
    static const char why[] = "model 'tiny' not found";

    cr_assert_eq(api_set_tenants(w.api, &row, 1), 0);
    expect_refusal("/api/create", R"({"model":"new","from":"tiny"})", 404, why);
    expect_refusal("/api/copy", R"({"source":"tiny","destination":"b"})", 404, why);
    expect_refusal("/api/show", R"({"model":"tiny"})", 404, why);
}
