/* Requests on the admin socket: the input is a target, a newline, the method's number and the rest
 * of a head. The daemon behind it is made of the stubs below: one model that a worker served. */

#include "daemon/front/admin.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/flight_file.h"
#include "tests/api/world.h"
#include "tests/fuzz/fuzz.h"

static struct flight *flight;

static int pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    FUZZ_ASSERT(strlen(name) < 8192);
    return err_set(err, 403, NULL, "not here");
}

const struct api_manage models_manage = {.pull = pull};

bool models_rescan(void *models, struct api_rescan *wait) {
    return false;
}

uint32_t models_n(const struct models *m) {
    return 1;
}

const char *models_bad_preset(const struct models *m, size_t i, const char **why) {
    *why = "not readable";
    return i == 0 ? "bad" : NULL;
}

void models_info(const struct models *m, uint32_t i, struct models_info *out) {
    const struct world *w = (const void *)m;

    *out = (struct models_info){.name = "tiny",
                                .state = "ready",
                                .why = "",
                                .file = "/a",
                                .swap = "",
                                .idle_ms = -1,
                                .unload_ms = -1,
                                .info = &w->model};
}

uint64_t models_budget(const struct models *m) {
    return 1 << 20;
}

int models_index(const struct models *m, const char *name, struct err *err) {
    FUZZ_ASSERT(strlen(name) < 8192);
    return strcmp(name, "tiny") == 0 ? 0 : err_set(err, 404, NULL, "there is no %s", name);
}

int models_load(struct models *m, uint32_t i, struct err *err) {
    return 0;
}

int models_unload(struct models *m, uint32_t i, struct err *err) {
    return 0;
}

int models_swap(struct models *m, uint32_t i, const char *file, struct err *err) {
    FUZZ_ASSERT(!file || file[0]);
    return 0;
}

void workers_stats(const struct workers *w, struct workers_stats *out) {
    *out = (struct workers_stats){.state = "up", .weights = "", .failure = "", .stats_age_ms = -1};
}

const struct flight *workers_flight(const struct workers *w) {
    return flight;
}

int workers_dump(const struct workers *w, struct buf *out) {
    return buf_add_str(out, "flight");
}

static const char *health(void *ctx) {
    return "serving";
}

static void drain(void *ctx) {}

static int refuse(void *ctx, struct err *err) {
    return err_set(err, 400, NULL, "not here");
}

static struct world world;
static char path[64], path_of_api[64];

static void remove_sockets(void) {
    unlink(path);
    unlink(path_of_api);
}

static void start(void) {
    struct admin *a;
    struct err err = {0};

    flight = calloc(1, FLIGHT_BYTES);
    FUZZ_ASSERT(flight);
    world_init(&world);
    world_start(&world);
    struct admin_opts o = {.loop = &world.loop,
                           .api = world.api,
                           .models = (struct models *)&world,
                           .clock = clock_monotonic(),
                           .health = health,
                           .drain = drain,
                           .reload = refuse,
                           .upgrade = refuse,
                           .url = "http://127.0.0.1:8080"};
    strcpy(path_of_api, world.path);
    snprintf(path, sizeof(path), "%.50s.admin", world.path);
    atexit(remove_sockets);
    FUZZ_ASSERT(admin_new(&a, &o) == 0 && admin_listen_unix(a, path, &err) == 0);
    struct reply ended; /* for /requests/ended */
    world.port.script = "ab";
    world_ask(&world, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", &ended);
    FUZZ_ASSERT(ended.status == 200);
    reply_deinit(&ended);
    strcpy(world.path, path); /* sends the requests of this file to its socket */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static const char *const methods[] = {"GET", "POST", "DELETE", "OPTIONS"};
    const uint8_t *end = len ? memchr(data, '\n', len) : NULL;
    size_t n = end ? (size_t)(end - data) : len, behind = len - n;
    char got[10];

    if (n == 0)
        return -1;
    if (!flight)
        start();
    int fd = world_connect_unix(&world);
    world_say(&world, fd, "%s /", methods[behind > 1 ? end[1] % 4 : 0]);
    world_send(&world, fd, (const char *)data, n);
    world_say(&world, fd, " HTTP/1.1\r\nHost: localhost\r\n");
    if (behind > 2)
        world_send(&world, fd, (const char *)end + 2, behind - 2);
    world_say(&world, fd, "\r\n\r\n");
    world_turns(&world, 6);
    ssize_t r = recv(fd, got, 9, MSG_DONTWAIT);
    FUZZ_ASSERT(r <= 0 || memcmp(got, "HTTP/1.1 ", (size_t)r) == 0);
    world_drop(&world, fd);
    return 0;
}
