/* Lines of the process that downloads a model, as the daemon reads them, and the answer to a client
 * of Ollama's API. The first byte chooses the form of the answer, how the process ends, and the
 * length of the pieces in which its output comes. */

#include <string.h>
#include <sys/socket.h>
#include <yyjson.h>

#include "daemon/models/pull_lines.h"
#include "tests/api/world.h"
#include "tests/fuzz/fuzz.h"

static struct world world;
static struct api_task *task; /* task of the request that waits; NULL: none */

static int begin_pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    task = t;
    return 0;
}

static void cancel_pull(void *ctx, struct api_task *t) {
    task = NULL;
}

static const struct api_manage manage = {.pull = begin_pull, .cancel = cancel_pull};

static void stop(void) {
    world_stop(&world);
}

static void start(void) {
    static const char *const all[] = {"*", NULL};

    if (world.api)
        return;
    world_init(&world);
    world.opts.manage = &manage;
    world.opts.managers = all;
    world_start(&world);
    atexit(stop);
}

/* Counts lines and bytes; ctx: two numbers. */
static void count(void *ctx, const char *text, size_t len) {
    size_t *n = ctx;

    FUZZ_ASSERT(len > 0 && !memchr(text, '\n', len));
    n[0]++;
    n[1] += len;
}

static void pass_on(void *ctx, const char *text, size_t len) {
    count(ctx, text, len);
    if (task)
        task->line(task, text, len);
}

/* Checks that the answer is a JSON object, or one on each line. */
static void check_answer(const struct reply *r) {
    CLEANUP(freep) char *text = fuzz_text(r->body.data ? r->body.data : "", r->body.len);

    FUZZ_ASSERT(r->status != 0 && strlen(text) == r->body.len);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        yyjson_doc *doc = yyjson_read(line, strlen(line), 0);

        FUZZ_ASSERT(doc && yyjson_is_obj(yyjson_doc_get_root(doc)));
        yyjson_doc_free(doc);
    }
}

static void ask(int fd, bool streams) {
    const char *body =
        streams ? "{\"model\":\"hf.co/a/b\"}" : "{\"model\":\"hf.co/a/b\",\"stream\":false}";

    world_post(&world, fd, "/api/pull", body);
    for (int i = 0; i < 100 && !task; i++)
        world_turn(&world);
    FUZZ_ASSERT(task);
}

/* Ends the download as its process did. */
static void finish(const char *error, bool failed) {
    struct err err = {0};
    struct api_task *t = task;

    if (!t) /* too many bytes waited for the client */
        return;
    task = NULL;
    err_set(&err, 502, "model", "%s", error);
    t->over(t, failed ? &err : NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    size_t whole_n[2] = {0}, pieces_n[2] = {0};
    struct pull_lines whole = {.report = count, .ctx = whole_n};
    struct pull_lines pieces = {.report = pass_on, .ctx = pieces_n};
    struct reply r;

    if (len < 1 || len > 32 << 10)
        return -1;
    start();
    const size_t piece = 1 + (data[0] >> 2) * (size_t)(data[0] >> 2);
    int fd = world_connect_unix(&world);
    ask(fd, data[0] & 1);
    FUZZ_ASSERT(pull_lines_add(&whole, (const char *)data + 1, len - 1) == 0);
    for (size_t at = 1, n; at < len; at += n) {
        n = MIN(piece, len - at);
        FUZZ_ASSERT(pull_lines_add(&pieces, (const char *)data + at, n) == 0);
    }
    FUZZ_ASSERT(memcmp(whole_n, pieces_n, sizeof(whole_n)) == 0);
    FUZZ_ASSERT(strcmp(whole.error, pieces.error) == 0);
    FUZZ_ASSERT(strlen(whole.error) < sizeof(whole.error));
    finish(pieces.error, data[0] & 2);
    world_receive(&world, fd, &r);
    check_answer(&r);
    reply_deinit(&r);
    world_drop(&world, fd);
    pull_lines_deinit(&whole);
    pull_lines_deinit(&pieces);
    return 0;
}
