/*
 * Replaces each member of the recorded bodies of all dialects (bodies.json), at any depth, by
 * values of every type. For any value the process continues, each request gets exactly one answer,
 * and no answer is a 5xx.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <yyjson.h>

#include "responses_support.h"

#define LONG 9000     /* bytes of a body that is read on the pool */
#define PATIENCE_S 30 /* longest wait for one answer, on a busy machine under sanitizers */

static char long_text[LONG + 3]; /* string with its quotes */
static const char *const values[] = {"null",  "true",          "0",       "-1", "1e308",
                                     R"("")", R"("a\u0000b")", long_text, "[]", "[1,2]",
                                     "{}",    R"({"a":"b"})"};

static struct world w;
static char now[LONG + 8192]; /* the request that is under way, for the report of a crash */

/* Reports the request that was under way. A signal handler. */
static void report(int sig) {
    if (write(STDERR_FILENO, now, strlen(now)) < 0 || write(STDERR_FILENO, "\n", 1) < 0)
        _exit(1);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* ---- a daemon that changes nothing ---- */

static bool rescan(void *ctx, struct api_rescan *r) {
    return false;
}

static int refuse(const char *name, struct err *err) {
    cr_assert(name && strlen(name) <= LONG);
    return err_set_code(err, 400, "test", "model", "this daemon changes nothing");
}

static int pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    return refuse(name, err);
}

static int create(void *ctx, const struct api_preset *p, struct api_task *t, struct err *err) {
    cr_assert(p->from);
    return refuse(p->name, err);
}

static void cancel(void *ctx, struct api_task *t) {}

static const struct api_manage manage = {pull, create, pull, cancel};
static const char *const managers[] = {"*", NULL};

/* Starts a model "a" with all abilities, beside which others may exist, so that names are looked
 * up. */
static void start(void) {
    static const char *const aliases[] = {"a", NULL};

    responses_init(&w);
    world_see(&w);
    w.model.aliases = aliases;
    w.model.max_context = 4096; /* the fake reports this number of tokens of a prompt */
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    w.opts.rescan = rescan;
    w.opts.manage = &manage;
    w.opts.managers = managers;
    world_start(&w);
    w.port.script = "ab";
}

/* ---- cases ---- */

/* Returns member number *@left of @v, counted in the order of the text; NULL with *@left
 * reduced. */
static yyjson_mut_val *find(yyjson_mut_val *v, size_t *left) {
    yyjson_mut_val *key, *item, *found = NULL;
    size_t i, n;

    if ((*left)-- == 0)
        return v;
    yyjson_mut_arr_foreach(v, i, n, item) {
        if ((found = find(item, left)))
            return found;
    }
    yyjson_mut_obj_foreach(v, i, n, key, item) {
        if ((found = find(item, left)))
            return found;
    }
    return NULL;
}

/* Returns @body with @value in place of its member @at, malloc'd; NULL: it has fewer members. */
static char *changed(yyjson_val *body, size_t at, const char *value, size_t *len) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_val_mut_copy(doc, body);
    yyjson_mut_val *target = find(root, &at);
    yyjson_doc *with = yyjson_read(value, strlen(value), 0);
    char *text = NULL;

    cr_assert(with, "%s", value);
    yyjson_mut_val *new = yyjson_val_mut_copy(doc, yyjson_doc_get_root(with));
    if (target) {
        target->tag = new->tag;
        target->uni = new->uni;
        yyjson_mut_doc_set_root(doc, root);
        text = yyjson_mut_write(doc, 0, len);
        cr_assert(text);
    }
    yyjson_doc_free(with);
    yyjson_mut_doc_free(doc);
    return text;
}

/* Sends one request and reads its answer. Returns the status. */
static int answer(int *fd, const char *method, const char *path, const char *body, size_t len) {
    struct reply r;
    char byte;

    snprintf(now, sizeof(now), "%s %s %s", method, path, body);
    alarm(PATIENCE_S);
    world_say(&w, *fd, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", method,
              path, len);
    world_send(&w, *fd, body, len);
    world_receive(&w, *fd, &r);
    cr_assert(r.status >= 200 && r.status < 500, "%d %s for %s", r.status, r.body.data, now);
    if (r.status != 200)
        cr_assert(r.body.len > 0, "no reason for %s", now);
    world_turns(&w, 2);
    ssize_t n = recv(*fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    cr_assert(n == 0 || (n < 0 && errno == EAGAIN), "a second answer for %s", now);
    if (n == 0) {
        world_drop(&w, *fd);
        *fd = world_connect(&w);
    }
    int status = r.status;
    reply_deinit(&r);
    w.port.n = 0; /* the request is answered */
    return status;
}

Test(types, any_member_of_any_body_may_be_of_any_type) {
    yyjson_doc *all = yyjson_read_file(getenv("WEFT_BODIES"), 0, NULL, NULL);
    yyjson_val *row;
    size_t i, n, n_cases = 0, n_ok = 0, len;

    cr_assert(all, "WEFT_BODIES must name bodies.json");
    memset(long_text, 'x', LONG + 2);
    long_text[0] = long_text[LONG + 1] = '"';
    signal(SIGABRT, report);
    signal(SIGSEGV, report);
    signal(SIGALRM, report);
    start();
    int fd = world_connect(&w);
    yyjson_arr_foreach(yyjson_doc_get_root(all), i, n, row) {
        const char *method = yyjson_get_str(yyjson_arr_get(row, 0));
        const char *path = yyjson_get_str(yyjson_arr_get(row, 1));
        yyjson_val *body = yyjson_arr_get(row, 2);
        char *text = yyjson_val_write(body, 0, &len);

        answer(&fd, method, path, text, len); /* the recorded body */
        free(text);
        for (size_t at = 1, more = 1; more; at++) {
            for (size_t k = 0; k < ARRAY_SIZE(values) && more; k++) {
                if (!(text = changed(body, at, values[k], &len))) {
                    more = 0;
                    break;
                }
                n_ok += answer(&fd, method, path, text, len) == 200;
                n_cases++;
                free(text);
            }
        }
        cr_assert_eq(answer(&fd, "GET", "/health", "", 0), 200);
    }
    alarm(0);
    cr_expect_gt(n_cases, 14000, "%zu", n_cases);
    cr_expect(n_ok > n_cases / 8 && n_ok < n_cases / 2, "%zu of %zu", n_ok, n_cases);
    yyjson_doc_free(all);
    world_drop(&w, fd);
    world_stop(&w);
}
