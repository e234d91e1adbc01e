/* Requests to a daemon to load, unload and swap its models. */

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "cmd/ctl.h"

#define POLL_MS 100
#define RESCAN_MS 500

/* Writes @text to @out with characters that a path of a URL cannot contain as %XX. Returns false if
 * it does not fit. */
static bool served_escape(const char *text, char *out, size_t size) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~:/";
    size_t n = 0;

    assert(size > 4);
    for (; *text && n + 4 < size; text++) {
        if (strchr(plain, *text))
            out[n++] = *text;
        else
            n += (size_t)snprintf(out + n, 4, "%%%02X", (unsigned char)*text);
    }
    out[n] = 0;
    return !*text;
}

int ctl_change(struct ctl *c, const char *name, const char *what, const char *file,
               struct err *err) {
    CLEANUP(buf_deinit) struct buf reply = {.max = CTL_REPLY_MAX};
    char model[800], path[3000], real[PATH_MAX] = "", at[900];

    if (file && !realpath(file, real)) {
        err_set(err, 0, "", "%.300s: there is no such file", file);
        return CTL_REFUSED;
    }
    if (!served_escape(name, model, sizeof(model)) || !served_escape(real, path, sizeof(path))) {
        err_set(err, 0, "", "%.100s: the name is too long", name);
        return CTL_REFUSED;
    }
    CLEANUP(freep) char *target = NULL;
    snprintf(at, sizeof(at), "/models/%s/%s", model, what);
    if (asprintf(&target, "%s%s%s", at, file ? "?file=" : "", path) < 0)
        return CTL_REFUSED;
    int r = ctl_call(c, "POST", target, &reply, err);
    if (r == CTL_REFUSED && strstr(err->message, "are being read")) {
        /* Waits, because the daemon is reading the folders of models and may find the model
         * there. */
        nanosleep(&(struct timespec){.tv_nsec = RESCAN_MS * 1000000L}, NULL);
        buf_clear(&reply);
        r = ctl_call(c, "POST", target, &reply, err);
    }
    return r;
}

int ctl_flight(struct ctl *c, const char *name, struct buf *out, struct err *err) {
    char model[800] = "", path[820];

    if (name && !served_escape(name, model, sizeof(model))) {
        err_set(err, 0, "", "%.100s: the name is too long", name);
        return CTL_REFUSED;
    }
    snprintf(path, sizeof(path), "/flight%s%s", name ? "/" : "", model);
    return ctl_call(c, "GET", path, out, err);
}

/* Returns the served model @name in the answer to GET /models, or NULL. */
static yyjson_val *served_find(yyjson_val *root, const char *name) {
    JSON_EACH(m, yyjson_obj_get(root, "models")) {
        yyjson_val *swap = yyjson_obj_get(m, "swap");

        if (yyjson_equals_str(yyjson_obj_get(m, "id"), name) && !yyjson_equals_str(swap, "next") &&
            !yyjson_equals_str(swap, "old"))
            return m;
    }
    return NULL;
}

/* Writes the value of member @key of the model to @out; "-": there is none. Returns an exit code,
 * with @err. */
static int served_look(struct ctl *c, const char *name, const char *key, char out[500],
                       struct err *err) {
    yyjson_doc *doc = NULL;
    int r = ctl_get(c, "/models", &doc, err);

    if (r == CTL_OK)
        snprintf(out, 500, "%.499s",
                 ctl_message(served_find(yyjson_doc_get_root(doc), name), key).s);
    yyjson_doc_free(doc);
    return r;
}

int ctl_wait_change(struct ctl *c, const char *name, const char *key, const char *const *under_way,
                    char out[500], struct err *err) {
    for (;;) {
        int r = served_look(c, name, key, out, err);
        bool again = false;

        for (const char *const *w = under_way; r == CTL_OK && *w; w++)
            again |= strcmp(out, *w) == 0;
        if (!again)
            return r;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
}
