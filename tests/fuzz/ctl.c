/* Answers that weftctl reads from an unknown socket: a thread sends the bytes of the input, as an
 * admin socket or a server would, and weftctl's clients read them and print their content. The
 * first line names the command and the columns of the terminal. */

#include "cmd/ctl.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/printable.h"
#include "cmd/ctl_chat.h"
#include "cmd/ctl_usage.h"
#include "tests/fuzz/fuzz.h"

static struct {
    char path[100];
    int listener;
    /* Bytes of the next connection: a copy, because a client may give up before the thread has sent
     * them. */
    uint8_t data[1 << 16];
    size_t len;
    struct ctl *ctl;
    struct chat_server *chat;
} f;

/* Reads the request of the last connection, since closing with unread bytes would be an error of
 * the socket, and closes it. */
static void end(int fd) {
    uint8_t request[4096];

    while (recv(fd, request, sizeof(request), MSG_DONTWAIT) > 0)
        ;
    close(fd);
}

/* Sends the answer before the request is read. A client may keep a connection that has ended, so it
 * is closed when the next one comes. */
static void *serve(void *ctx) {
    int last = -1, fd;

    while ((fd = accept(f.listener, NULL, NULL)) >= 0) {
        if (last >= 0)
            end(last);
        last = fd;
        for (size_t at = 0; at < f.len;) {
            ssize_t n = send(fd, f.data + at, f.len - at, MSG_NOSIGNAL);

            if (n <= 0)
                break;
            at += (size_t)n;
        }
        shutdown(fd, SHUT_WR);
    }
    return ctx;
}

static void remove_socket(void) {
    unlink(f.path);
}

static void start(void) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    pthread_t thread;

    if (f.ctl)
        return;
    snprintf(f.path, sizeof(f.path), "/tmp/weft-fuzz-ctl-%d", (int)getpid());
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", f.path);
    unlink(f.path);
    f.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_ASSERT(bind(f.listener, (struct sockaddr *)&a, sizeof(a)) == 0);
    FUZZ_ASSERT(listen(f.listener, 8) == 0);
    atexit(remove_socket);
    FUZZ_ASSERT(pthread_create(&thread, NULL, serve, NULL) == 0);
    FUZZ_ASSERT(ctl_new(&f.ctl, f.path) == 0);
    FUZZ_ASSERT(chat_server_new(&f.chat, "http://localhost", f.path, NULL) == 0);
}

/* Checks that text from outside is escaped, so that it cannot control the terminal. */
static void check_shown(const struct buf *shown) {
    CLEANUP(freep) char *text = fuzz_text(shown->data ? shown->data : "", shown->len);

    FUZZ_ASSERT(strlen(text) == shown->len);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        FUZZ_ASSERT(is_printable(line));
}

static void show_usage(struct buf *out, yyjson_val *usage, size_t columns) {
    ctl_usage_table(out, usage, "2026-11", columns);
}

static void show_csv(struct buf *out, yyjson_val *usage, size_t columns) {
    ctl_usage_csv(out, usage, "");
}

static const struct {
    const char *name, *path;
    void (*show)(struct buf *out, yyjson_val *object, size_t columns);
} asks[] = {
    {"stats", "/stats", ctl_show_stats},
    {"all", "/stats", ctl_show_all},
    {"requests", "/requests", ctl_show_requests},
    {"tenants", "/tenants", ctl_show_tenants},
    {"why", "/requests/1/why", ctl_show_why},
    {"served", "/models", ctl_show_served},
    {"usage", "/usage", show_usage},
    {"csv", "/usage", show_csv},
};

static void ask(size_t i, size_t columns) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 24};
    yyjson_doc *doc = NULL;
    struct err err = {0};

    if (ctl_get(f.ctl, asks[i].path, &doc, &err) == CTL_OK)
        asks[i].show(&out, yyjson_doc_get_root(doc), columns);
    else
        FUZZ_ASSERT(err.message[0]);
    yyjson_doc_free(doc);
    check_shown(&out);
}

/* State of `stats --watch`: the line before and the number of lines. */
struct watch {
    yyjson_doc *before;
    uint64_t n;
};

static bool on_line(void *ctx, const char *text, size_t len) {
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20};
    struct watch *w = ctx;
    yyjson_doc *doc = ctl_parse(text, len);
    yyjson_val *before = yyjson_doc_get_root(w->before);

    ctl_show_line(&out, yyjson_doc_get_root(doc), before, 0.5, w->n, 10 + w->n % 80);
    w->n++;
    ctl_add_devices(&out, yyjson_obj_get(yyjson_doc_get_root(doc), "worker"),
                    yyjson_obj_get(before, "worker"));
    check_shown(&out);
    yyjson_doc_free(w->before);
    w->before = doc;
    return w->n < 100;
}

static void watch(void) {
    struct watch w = {0};
    struct err err = {0};
    int r = ctl_watch(f.ctl, "/stats?watch=1", on_line, &w, &err);

    FUZZ_ASSERT(r == CTL_OK ? w.n == 100 : err.message[0]);
    yyjson_doc_free(w.before);
}

static void on_text(void *ctx, bool reasoning, const char *text, size_t len) {
    FUZZ_ASSERT(text && len > 0);
    *(size_t *)ctx += len;
}

static void chat(void) {
    size_t n = 0;
    const struct chat_sink sink = {.text = on_text, .ctx = &n};
    struct chat_answer a = {0};
    struct err err = {0};
    int r = chat_ask(f.chat, "{}", 2, &sink, &a, &err);

    FUZZ_ASSERT(r == CTL_OK || err.message[0]);
    FUZZ_ASSERT(n == a.text.len + a.reasoning.len && !a.stopped);
    FUZZ_ASSERT(memchr(a.finish, 0, sizeof(a.finish)));
    chat_answer_deinit(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    const uint8_t *end = len ? memchr(data, '\n', len) : NULL;
    char name[16] = "";
    unsigned columns = 0;
    yyjson_doc *doc = NULL;
    struct err err = {0};

    if (!end || len > sizeof(f.data))
        return -1;
    CLEANUP(freep) char *line = fuzz_text(data, (size_t)(end - data));
    sscanf(line, "%15s %5u", name, &columns);
    start();
    f.len = (size_t)(data + len - end - 1);
    memcpy(f.data, end + 1, f.len);
    for (size_t i = 0; i < ARRAY_SIZE(asks); i++)
        if (strcmp(name, asks[i].name) == 0)
            return ask(i, columns ? columns : SIZE_MAX), 0;
    if (strcmp(name, "watch") == 0)
        return watch(), 0;
    if (strcmp(name, "chat") == 0)
        return chat(), 0;
    if (strcmp(name, "get") != 0)
        return -1;
    FUZZ_ASSERT(chat_get(f.chat, "/v1/models", &doc, &err) == CTL_OK ? doc != NULL
                                                                     : err.message[0] != 0);
    yyjson_doc_free(doc);
    return 0;
}
