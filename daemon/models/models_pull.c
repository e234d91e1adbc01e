/*
 * weftctl, a child process, downloads and removes files: the front has no code for a hub and does
 * not wait for a disk. It reads weftctl's output, a line of JSON for each step, from a pipe. A
 * child that is not needed any more is killed at once; the downloaded part is kept, and the next
 * pull continues.
 */

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/result.h"
#include "base/try.h"
#include "daemon/models/models_private.h"
#include "daemon/models/pull_lines.h"

#define PULLS_MAX 4
#define UNREACHABLE 69 /* exit codes of weftctl */
#define DENIED 77

/*
 * One child process. It is freed when its process and its pipe are closed: n_open is 2, 1, 0.
 * task->of is `doing`; task is NULL once it was cancelled or its end was reported.
 */
struct pull {
    /* api_task.of */
    struct models_doing doing;
    /* in models.pulls */
    struct list link;
    struct models *of;
    struct api_task *task;
    uv_process_t process;
    uv_pipe_t out;
    struct pull_lines lines;
    char read[4096];
    int64_t status;
    /* open handles: process and pipe */
    int n_open;
    /* the process has ended, or was never started */
    bool ended;
};

/* ---- arguments of weftctl ---- */

/* Finds the weftctl beside this program. */
static int find_program(char *out, size_t size) {
    ssize_t n = readlink("/proc/self/exe", out, size - 1);

    if (n < 0)
        return -errno;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (!slash || (size_t)(slash - out) + sizeof("/weftctl") > size)
        return -ENOENT;
    memcpy(slash, "/weftctl", sizeof("/weftctl"));
    return errno_if_negative(access(out, X_OK));
}

/* Writes the name "hf.co/OWNER/REPO[:QUANT]" as weftctl pull takes it. Returns 0 or -EINVAL with
 * @err. */
static int spec_of(const char *name, char *out, size_t size, struct err *err) {
    static const char *const hosts[] = {"hf:", "hf.co/", "huggingface.co/", "https://hf.co/",
                                        "https://huggingface.co/"};
    const char *rest = NULL, *slash;

    for (size_t i = 0; i < ARRAY_SIZE(hosts) && !rest; i++)
        if (strncmp(name, hosts[i], strlen(hosts[i])) == 0)
            rest = name + strlen(hosts[i]);
    size_t n = rest ? strlen(rest) : 0;
    if (n > 7 && strcmp(rest + n - 7, ":latest") == 0)
        n -= 7;
    slash = rest ? memchr(rest, '/', n) : NULL;
    bool ok = slash && slash > rest && isalnum((unsigned char)slash[1]) && n + 4 <= size &&
              isalnum((unsigned char)*rest);
    for (size_t i = 0; ok && i < n; i++)
        ok = isalnum((unsigned char)rest[i]) || strchr("._-/:", rest[i]);
    if (!ok)
        return err_set_code(err, 400, "invalid_value", "model",
                            "model '%.100s': only models of the Hugging Face hub can be pulled; "
                            "name them hf.co/OWNER/REPO[:QUANT]",
                            name);
    snprintf(out, size, "hf:%.*s", (int)n, rest);
    return 0;
}

/* ---- life of a pull ---- */

/* Frees a pull whose handles are both closed, or that never began. */
static void pull_free(struct pull *p) {
    assert(p->n_open == 0);
    list_remove(&p->link);
    pull_lines_deinit(&p->lines);
    free(p);
}

static void end_task(struct pull *p, const struct err *err) {
    struct api_task *t = p->task;

    assert(t && t->of == &p->doing);
    p->task = NULL;
    t->of = NULL;
    t->over(t, err);
}

static void models_pull_on_rescanned(struct api_rescan *r) {
    struct api_task *t = CONTAINER_OF(r, struct api_task, rescan);

    t->of = NULL;
    t->over(t, NULL);
}

bool models_task_done(struct models *m, struct api_task *t) {
    t->of = NULL;
    t->rescan.over = models_pull_on_rescanned;
    return models_rescan_now(m, &t->rescan);
}

/* Returns the HTTP status for weftctl's exit code. */
static int pull_http_status(int64_t code) {
    switch (code) {
    case UNREACHABLE:
        return 502;
    case DENIED:
        return 403;
    default:
        return 400;
    }
}

/* Returns why the pull has failed. */
static const char *pull_failure(const struct pull *p) {
    if (*p->lines.error)
        return p->lines.error;
    if (p->status == 0)
        return "out of memory while the folder of models was read again";
    return "weftctl failed; the server's log has the reason";
}

/* Writes @text to @out with "models-dir" for the path of that folder, which is the operator's. A
 * relative path tells nothing. */
static void hide_folder(const char *text, const char *models_dir, char *out, size_t size) {
    char folder[1024];
    size_t n = 0;

    snprintf(folder, sizeof(folder), "%s", models_dir);
    for (size_t end = strlen(folder); end > 0 && folder[end - 1] == '/';)
        folder[--end] = 0;
    if (*folder != '/')
        *folder = 0;
    for (const char *at; *folder && n < size && (at = strstr(text, folder));
         text = at + strlen(folder))
        n += (size_t)snprintf(out + n, size - n, "%.*smodels-dir", (int)(at - text), text);
    if (n < size)
        snprintf(out + n, size - n, "%s", text);
}

static void models_pull_finish(struct pull *p) {
    char why[sizeof(p->lines.error) + 100];
    struct err err = {0};
    struct api_task *t = p->task;

    if (!t || p->of->stopping)
        return;
    log_event(p->status == 0 ? WLOG_INFO : WLOG_WARN, "pull_ended", "status=%lld%s%s",
              (long long)p->status, *p->lines.error ? " error=" : "",
              *p->lines.error ? quoted(p->lines.error).s : "");
    if (p->status == 0 && models_task_done(p->of, t)) {
        p->task = NULL;
        return;
    }
    hide_folder(pull_failure(p), p->of->opts.config->models_dir, why, sizeof(why));
    err_set(&err, pull_http_status(p->status), "model", "%s", why);
    end_task(p, &err);
}

static void models_pull_on_closed(uv_handle_t *h) {
    struct pull *p = h->data;

    assert(p->n_open > 0);
    if (--p->n_open > 0)
        return;
    assert(p->ended);
    models_pull_finish(p);
    pull_free(p);
}

static void models_pull_on_exit(uv_process_t *process, int64_t status, int sig) {
    struct pull *p = process->data;

    api_mark_loop("the end of a download");
    p->status = sig ? 128 + sig : status;
    p->ended = true;
    uv_close((uv_handle_t *)process, models_pull_on_closed);
}

static void models_pull_kill(struct pull *p) {
    if (!p->ended)
        uv_process_kill(&p->process, SIGKILL);
}

/* Implements models_doing.cancel. */
static void models_pull_cancel(struct models_doing *d) {
    struct pull *p = CONTAINER_OF(d, struct pull, doing);

    p->task = NULL;
    models_pull_kill(p);
}

/* Implements pull_lines.report. */
static void models_pull_report(void *ctx, const char *text, size_t len) {
    struct pull *p = ctx;

    if (p->task && p->task->line)
        p->task->line(p->task, text, len);
}

static void models_pull_on_alloc(uv_handle_t *h, size_t size, uv_buf_t *out) {
    struct pull *p = h->data;

    *out = uv_buf_init(p->read, sizeof(p->read));
}

static void models_pull_on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
    struct pull *p = s->data;

    api_mark_loop("lines of a download");
    if (n < 0) {
        if (!uv_is_closing((uv_handle_t *)s))
            uv_close((uv_handle_t *)s, models_pull_on_closed);
        return;
    }
    if (pull_lines_add(&p->lines, buf->base, (size_t)n) < 0)
        models_pull_kill(p);
}

/* Starts weftctl with @args, which begin with its name, for model @name. Returns 0, or -errno with
 * @err, and then @t is not taken over. */
static int models_pull_start(struct models *m, char **args, const char *name, struct api_task *t,
                             struct err *err) {
    struct pull *p = calloc(1, sizeof(*p));
    char program[512] = "weftctl"; /* for the error, if the program is not found */
    uv_stdio_container_t stdio[3] = {{.flags = UV_IGNORE}, {0}, {.flags = UV_INHERIT_FD}};
    uv_process_options_t o = {.exit_cb = models_pull_on_exit,
                              .file = program,
                              .args = args,
                              .stdio_count = 3,
                              .stdio = stdio};

    if (!p)
        return -ENOMEM;
    int r = find_program(program, sizeof(program));
    if (r < 0) {
        free(p);
        return err_set(err, 500, NULL, "%.200s cannot be run: %s", program, strerror(-r));
    }
    p->doing.cancel = models_pull_cancel;
    p->of = m;
    p->task = t;
    p->n_open = 2;
    p->lines.report = models_pull_report;
    p->lines.ctx = p;
    uv_pipe_init(m->opts.loop, &p->out, 0);
    p->out.data = p->process.data = p;
    stdio[1].flags = (uv_stdio_flags)(UV_CREATE_PIPE | UV_WRITABLE_PIPE);
    stdio[1].data.stream = (uv_stream_t *)&p->out;
    stdio[2].data.fd = STDERR_FILENO;
    list_push_back(&m->pulls, &p->link);
    r = uv_spawn(m->opts.loop, &p->process, &o);
    p->process.data = p;
    if (r < 0) {
        p->task = NULL;
        p->ended = true;
        uv_close((uv_handle_t *)&p->process, models_pull_on_closed);
        uv_close((uv_handle_t *)&p->out, models_pull_on_closed);
        return err_set(err, 500, NULL, "%.200s cannot be run: %s", program, uv_strerror(r));
    }
    t->of = &p->doing;
    log_event(WLOG_INFO, "pull_started", "what=%s name=%s pid=%d", args[1], quoted(name).s,
              p->process.pid);
    uv_read_start((uv_stream_t *)&p->out, models_pull_on_alloc, models_pull_on_read);
    return 0;
}

static int models_pull_check_folder(const struct models *m, struct err *err) {
    uint32_t n = 0;

    if (!*m->opts.config->models_dir)
        return err_set_code(err, 400, "not_managed", NULL,
                            "models-dir: this server has no folder for pulled models; its operator "
                            "can set the option models-dir");
    LIST_FOREACH(node, &m->pulls)
    n++;
    if (n >= PULLS_MAX)
        return err_set_code(err, 429, "too_many_pulls", NULL,
                            "%u pulls are running, which is the limit; try again later", n);
    return 0;
}

/* Writes "--models=DIR" to @out. Returns false if weftctl uses the same folder without it. */
static bool folder_option(const struct models *m, char *out, size_t size) {
    snprintf(out, size, "--models=%s", m->opts.config->models_dir);
    return strcmp(m->opts.config->models_dir, "auto") != 0;
}

/* Writes "--memory=BYTES" to @out: models in memory make room for the one that is pulled. Returns
 * false if it is not known. */
static bool memory_option(const struct models *m, char *out, size_t size) {
    uint64_t bytes = memory_for_model(m->available);

    snprintf(out, size, "--memory=%llu", (unsigned long long)bytes);
    return bytes > 0;
}

/* Implements api_manage.pull. */
int models_pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    struct models *m = ctx;
    char spec[300], option[1100], memory[40];
    char *args[7] = {(char *)"weftctl", (char *)"pull", (char *)"--json", spec};
    size_t n = 4;

    TRY(models_pull_check_folder(m, err));
    TRY(spec_of(name, spec, sizeof(spec), err));
    if (folder_option(m, option, sizeof(option)))
        args[n++] = option;
    if (memory_option(m, memory, sizeof(memory)))
        args[n++] = memory;
    return models_pull_start(m, args, spec, t, err);
}

int models_remove_file(struct models *m, const char *name, struct api_task *t, struct err *err) {
    char option[1100], *plain = (char *)(uintptr_t)name;
    char *args[] = {(char *)"weftctl", (char *)"rm", (char *)"--", plain, NULL, NULL};

    TRY(models_pull_check_folder(m, err));
    if (folder_option(m, option, sizeof(option))) {
        args[2] = option;
        args[3] = (char *)"--";
        args[4] = plain;
    }
    return models_pull_start(m, args, name, t, err);
}

void models_pull_stop(struct models *m) {
    LIST_FOREACH(node, &m->pulls)
    models_pull_kill(LIST_ENTRY(node, struct pull, link));
}
