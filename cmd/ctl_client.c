#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "cmd/ctl.h"
#include "cmd/curl_again.h"

#define CONNECT_MS 2000
#define CALL_MS 10000
#define LINE_MAX_BYTES (1u << 20)

/* A client of the admin socket, for one call at a time. */
struct ctl {
    CURL *curl;
    char *socket;
    /* refusals name the socket and the status */
    bool details;
    char why[CURL_ERROR_SIZE];
};

int ctl_new(struct ctl **out, const char *socket) {
    const char *env = getenv("WEFT_ADMIN"), *path = socket ? socket : env;
    CLEANUP(ctl_freep) struct ctl *c = calloc(1, sizeof(*c));

    if (!c || curl_global_init(CURL_GLOBAL_NOTHING) != CURLE_OK)
        return -ENOMEM;
    c->socket = path && *path ? strdup(path) : NULL;
    if (!c->socket && path && *path)
        return -ENOMEM;
    *out = STEAL(c);
    return 0;
}

struct ctl *ctl_free(struct ctl *c) {
    if (!c)
        return NULL;
    curl_easy_cleanup(c->curl);
    free(c->socket);
    free(c);
    return NULL;
}

void ctl_report_details(struct ctl *c) {
    c->details = true;
}

/* Receives the body of an answer. */
struct sink {
    struct buf *reply;
    CURL *curl;
    /* called for each line; NULL: the whole body goes into `reply` */
    bool (*line)(void *ctx, const char *text, size_t len);
    void *ctx;
    bool enough, too_long;
    /* the answer may take any time */
    bool patient;
};

/* Passes on the complete lines that have arrived. Returns false if the caller wants no more. */
static bool hand_out_lines(struct sink *s) {
    char *end;

    assert(s->line);
    while ((end = memchr(s->reply->data, '\n', s->reply->len)) != NULL) {
        size_t len = (size_t)(end - s->reply->data);

        if (!s->line(s->ctx, s->reply->data, len))
            return false;
        buf_consume(s->reply, len + 1);
    }
    return true;
}

/* Takes bytes of a body. Returning fewer bytes than arrived ends the transfer: enough was read, or
 * the answer is too long. */
static size_t client_on_data(char *data, size_t size, size_t n, void *ctx) {
    struct sink *s = ctx;
    long status = 0;

    s->too_long = buf_add(s->reply, data, size * n) < 0;
    if (s->too_long)
        return 0;
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &status);
    s->enough = s->line && status / 100 == 2 && s->reply->len > 0 && !hand_out_lines(s);
    if (s->enough)
        return 0;
    return size * n;
}

/* Explains in @err why there was no answer, and what to do. Returns the exit code. */
static int unreachable(struct ctl *c, CURLcode code, struct err *err) {
    long os = 0;

    curl_easy_getinfo(c->curl, CURLINFO_OS_ERRNO, &os);
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        if (os == EACCES) {
            err_set(err, 0, NULL,
                    "%s: permission denied: only root and members of the socket's group may "
                    "connect",
                    c->socket);
            return CTL_DENIED;
        }
        err_set(err, 0, NULL, "no daemon answers on %s: %s", c->socket,
                os ? strerror((int)os) : "cannot connect");
        break;
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        err_set(err, 0, NULL,
                "%s: the connection was closed without an answer (only root, the daemon's user and "
                "members of the socket's group may connect)",
                c->socket);
        break;
    case CURLE_OPERATION_TIMEDOUT:
        err_set(err, 0, NULL,
                "%s: no answer in time: the daemon hangs or is stopped (kill -CONT PID, or restart "
                "it)",
                c->socket);
        break;
    default:
        err_set(err, 0, NULL, "%s: not a complete HTTP answer: %s", c->socket,
                c->why[0] ? c->why : curl_easy_strerror(code));
    }
    return CTL_UNREACHABLE;
}

/* Reports that the API answers on this socket, or a daemon of another version. Returns the exit
 * code. */
static int strange(const struct ctl *c, const char *path, struct err *err) {
    err_set(err, 0, NULL,
            "%s: does not know %.100s: this is not the admin socket, or the daemon has another "
            "version than weftctl (weftctl --version, weftd --version)",
            c->socket, path);
    return CTL_REFUSED;
}

/* Returns true if @path names a request or a model, which may not exist. */
static bool names_one(const char *path) {
    return strchr(path + 1, '/') != NULL;
}

/* Copies the reason of a refusal, {"error": {"message": ...}}, to @err. Returns the exit code. */
static int client_refused(struct ctl *c, const char *path, long status, const struct buf *reply,
                          struct err *err) {
    yyjson_doc *doc = ctl_parse(reply->data, reply->len);
    yyjson_val *error = yyjson_obj_get(yyjson_doc_get_root(doc), "error");
    struct printable why = ctl_message(error, "message");

    /* Errors of the API have a type. */
    if ((status == 404 && (!names_one(path) || yyjson_obj_get(error, "type"))) || status == 405)
        strange(c, path, err);
    else if (!c->details && doc)
        err_set(err, 0, NULL, "%s", why.s);
    else
        err_set(err, 0, NULL, "%s: refused: %s (status %ld)", c->socket, why.s, status);
    yyjson_doc_free(doc);
    return CTL_REFUSED;
}

/* Finds the socket of the daemon, unless the user named it. Returns an exit code. */
static int client_find_socket(struct ctl *c, struct err *err) {
    char path[PATH_MAX];

    if (c->socket)
        return CTL_OK;
    int r = ctl_socket(path, sizeof(path), err);
    if (r != CTL_OK)
        return r;
    c->socket = strdup(path);
    if (c->socket)
        return CTL_OK;
    err_set(err, 0, NULL, "out of memory");
    return CTL_REFUSED;
}

/* Sends one request. Returns CLI_OK with the answer in @s, or an exit code with @err. */
static int client_perform(struct ctl *c, const char *method, const char *path, struct sink *s,
                          struct err *err) {
    CLEANUP(freep) char *url = NULL;
    long status = 0;

    assert(path[0] == '/' && s->reply);
    int found = client_find_socket(c, err);
    if (found != CTL_OK)
        return found;
    if (asprintf(&url, "http://weftd%s", path) < 0)
        url = NULL;
    c->curl = curl_again(c->curl);
    if (!url || !c->curl) {
        err_set(err, 0, NULL, "out of memory");
        return CTL_REFUSED;
    }
    c->why[0] = 0;
    s->curl = c->curl;
    curl_easy_setopt(c->curl, CURLOPT_UNIX_SOCKET_PATH, c->socket);
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    curl_easy_setopt(c->curl, CURLOPT_PROXY, "");
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, s->line || s->patient ? 0L : (long)CALL_MS);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, c->why);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, client_on_data);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, s);
    if (strcmp(method, "POST") == 0)
        curl_easy_setopt(c->curl, CURLOPT_COPYPOSTFIELDS, "");
    CURLcode code = curl_easy_perform(c->curl);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (s->too_long) {
        err_set(err, 0, NULL, "%s: the answer is too long", c->socket);
        return CTL_REFUSED;
    }
    if (code != CURLE_OK && !s->enough)
        return unreachable(c, code, err);
    if (status / 100 != 2)
        return client_refused(c, path, status, s->reply, err);
    return CTL_OK;
}

int ctl_call(struct ctl *c, const char *method, const char *path, struct buf *reply,
             struct err *err) {
    struct sink s = {.reply = reply};

    return client_perform(c, method, path, &s, err);
}

int ctl_call_long(struct ctl *c, const char *method, const char *path, struct buf *reply,
                  struct err *err) {
    struct sink s = {.reply = reply, .patient = true};

    return client_perform(c, method, path, &s, err);
}

yyjson_doc *ctl_parse(const char *text, size_t len) {
    yyjson_doc *doc = len > 0 ? yyjson_read(text, len, 0) : NULL;

    if (yyjson_is_obj(yyjson_doc_get_root(doc)))
        return doc;
    yyjson_doc_free(doc);
    return NULL;
}

/* Returns whether the answer to GET @path has the member that tells it from an answer of the
 * API. */
static bool has_member(yyjson_val *root, const char *path) {
    static const char *const named[] = {"/health", "/requests", "/models", "/tenants"};

    for (size_t i = 0; i < ARRAY_SIZE(named); i++)
        if (strcmp(path, named[i]) == 0)
            return yyjson_obj_get(root, path + 1) != NULL;
    return true;
}

int ctl_read(struct ctl *c, const char *path, const struct buf *reply, yyjson_doc **out,
             struct err *err) {
    yyjson_doc *doc = ctl_parse(reply->data, reply->len);

    if (!doc) {
        err_set(err, 0, NULL, "%s: the answer to GET %s is not a JSON object", c->socket, path);
        return CTL_REFUSED;
    }
    if (!has_member(yyjson_doc_get_root(doc), path)) {
        yyjson_doc_free(doc);
        return strange(c, path, err);
    }
    *out = doc;
    return CTL_OK;
}

int ctl_get(struct ctl *c, const char *path, yyjson_doc **out, struct err *err) {
    CLEANUP(buf_deinit) struct buf reply = {.max = CTL_REPLY_MAX};
    int r = ctl_call(c, "GET", path, &reply, err);

    if (r != CTL_OK)
        return r;
    return ctl_read(c, path, &reply, out, err);
}

int ctl_watch(struct ctl *c, const char *path,
              bool (*line)(void *ctx, const char *text, size_t len), void *ctx, struct err *err) {
    CLEANUP(buf_deinit) struct buf reply = {.max = LINE_MAX_BYTES};
    struct sink s = {.reply = &reply, .line = line, .ctx = ctx};

    assert(line);
    int r = client_perform(c, "GET", path, &s, err);
    if (r != CTL_OK || s.enough)
        return r;
    err_set(err, 0, NULL, "%s: the daemon has ended", c->socket);
    return CTL_UNREACHABLE;
}
