#include "tests/fuzz/served.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <yyjson.h>

#include "tests/api/world.h"
#include "tests/fuzz/fuzz.h"

static struct world world;

static int refuse_pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    return err_set(err, 400, "model", "not here");
}

static int refuse_create(void *ctx, const struct api_preset *p, struct api_task *t,
                         struct err *err) {
    FUZZ_ASSERT(p->name && strcmp(p->from, "tiny") == 0);
    return err_set(err, 400, "model", "not here");
}

static const struct api_manage manage = {
    .pull = refuse_pull, .create = refuse_create, .remove = refuse_pull};

/* Asserts that at the end no request, connection or handle remains. */
static void stop(void) {
    world_turns(&world, 20);
    world_stop(&world);
}

static struct world *served(void) {
    static const char *const all[] = {"*", NULL};
    static bool made;
    struct world *w = &world;

    if (!made) {
        world_init(w);
        w->opts.manage = &manage;
        w->opts.managers = all;
        world_see(w);
        w->model.ranks = true;
        w->model.pair.before = w->model.pair.behind = "";
        w->model.pair.between = "<|im_end|>";
        w->opts.max_stored = 20;
        w->opts.stored_bytes = 64 << 10;
        w->opts.stored_ttl_s = 60;
        world_start(w);
        w->port.script = "ab";
        made = true;
        atexit(stop);
    }
    for (int i = 0; i < 100 && api_busy(w->api); i++) /* waits for responses in the background */
        world_turn(w);
    w->port.n = 0; /* submits of the last input were answered or cancelled */
    return w;
}

static void ask(struct world *w, int fd, const char *head, const uint8_t *data, size_t len,
                struct reply *out) {
    world_say(w, fd,
              "%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              "Content-Length: %zu\r\n\r\n",
              head, len);
    world_send(w, fd, (const char *)data, len);
    world_receive(w, fd, out);
}

static void leave(struct world *w, int *fd) {
    if (*fd >= 0)
        world_drop(w, *fd);
    *fd = -1;
}

/* Asks on connection *@fd, which stays open for the next input; below 0: there is none. */
static void ask_kept(struct world *w, int *fd, const char *head, const uint8_t *data, size_t len,
                     struct reply *out) {
    bool old = *fd >= 0;

    *fd = old ? *fd : world_connect_unix(w);
    ask(w, *fd, head, data, len, out);
    /* closed as idle, because the process was stopped between two inputs */
    if (old && out->status == 0) {
        reply_deinit(out);
        leave(w, fd);
        *fd = world_connect_unix(w);
        ask(w, *fd, head, data, len, out);
    }
    if (out->closed)
        leave(w, fd);
}

void served_bytes(const uint8_t *data, size_t len) {
    static int other = -1;
    struct world *w = served();
    int fd = world_connect_unix(w);
    size_t total = len;
    char out[9] = "";
    struct reply r;

    for (size_t n; len; data += n, len -= n) {
        n = MIN(len, 1 + data[0] * 4u);
        if (send(fd, data, n, MSG_NOSIGNAL) < 0)
            break;
        world_turn(w);
    }
    world_turns(w, 8);
    ssize_t got = recv(fd, out, sizeof(out), MSG_DONTWAIT);
    FUZZ_ASSERT(got <= 0 || memcmp(out, "HTTP/1.1 ", (size_t)got) == 0);
    world_drop(w, fd);
    w->port.n = 0;
    if (total % 8 == 0) /* whether new connections are accepted, for one length in eight */
        leave(w, &other);
    ask_kept(w, &other, "GET /health", NULL, 0, &r);
    FUZZ_ASSERT(r.status == 200);
    reply_deinit(&r);
}

static void check_reply(const struct reply *r) {
    static const int statuses[] = {200, 400, 403, 404, 405, 408, 413, 415, 417, 422, 429, 501};
    bool known = false;

    for (size_t i = 0; i < ARRAY_SIZE(statuses); i++)
        known |= r->status == statuses[i];
    FUZZ_ASSERT(known);
    if (r->status == 200 || r->body.len == 0)
        return;
    yyjson_doc *doc = yyjson_read(r->body.data, r->body.len, 0);
    FUZZ_ASSERT(doc && yyjson_is_obj(yyjson_doc_get_root(doc)));
    yyjson_doc_free(doc);
}

void served_body(const char *head, const uint8_t *data, size_t len) {
    static int fd = -1;
    struct reply r;

    ask_kept(served(), &fd, head, data, len, &r);
    check_reply(&r);
    reply_deinit(&r);
}

void served_choice(const char *const *heads, size_t n, const uint8_t *data, size_t len) {
    if (len > 0)
        served_body(heads[data[0] % n], data + 1, len - 1);
}
