#include "cmd/ctl_progress.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/clock.h"
#include "base/printable.h"
#include "base/text.h"
#include "cmd/ctl.h"

#define SECOND 1000000000ll
#define SMOOTH_S 3.0 /* time constant of the rate in seconds */
#define BAR 24       /* most columns of the bar */
#define FIGURES 50   /* columns of the figures behind the bar */

/* Least time between two lines, by form. */
static const int64_t every_ns[] = {
    [PROGRESS_PLAIN] = 10 * SECOND,
    [PROGRESS_TERMINAL] = SECOND / 5,
    [PROGRESS_JSON] = SECOND / 2,
};

struct size_text size_text(uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct size_text t;
    double v = (double)bytes;
    size_t u = 0;

    for (; v >= 1000 && u + 1 < ARRAY_SIZE(units); u++)
        v /= 1024;
    snprintf(t.s, sizeof(t.s), u > 0 && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
    return t;
}

/* Returns whether a line can be drawn again: a dumb terminal, as in an editor, shows the control
 * sequences. */
static bool can_draw(void) {
    const char *kind = getenv("TERM");

    return isatty(STDERR_FILENO) && (!kind || strcmp(kind, "dumb") != 0);
}

void progress_init(struct progress *p, bool json) {
    *p = (struct progress){.form = PROGRESS_PLAIN, .out = stderr, .what = ""};
    if (json) {
        p->form = PROGRESS_JSON;
        p->out = stdout;
    } else if (can_draw()) {
        p->form = PROGRESS_TERMINAL;
    }
}

void progress_model(struct progress *p, const char *name, uint64_t total) {
    p->name = name;
    p->total = total;
    p->done_before = p->size = p->done = 0;
    p->rate_ns = 0;
}

void progress_file(struct progress *p, const char *file, const char *sha256, uint64_t size) {
    p->done_before += p->size;
    assert(p->done_before + size <= p->total);
    p->file = file;
    p->sha256 = sha256;
    p->size = size;
    p->done = 0;
    p->rate_ns = 0;
}

void progress_clear(struct progress *p) {
    if (p->is_drawn)
        fputs("\r\033[K", p->out);
    p->is_drawn = false;
    fflush(p->out);
}

static double left_s(const struct progress *p) {
    if (p->rate > 0)
        return (double)(p->total - p->done_before - p->done) / p->rate;
    return -1;
}

/* Prints one line of JSON with @message, or, if that is NULL, with the progress. Interrupts the
 * program when nothing reads its lines any more: a daemon that was killed cannot end its pull. */
static void progress_print_json(struct progress *p, const char *what, const char *message) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "status", what);
    if (message)
        yyjson_mut_obj_add_str(d, root, "message", message);
    if (p->name)
        yyjson_mut_obj_add_str(d, root, "name", p->name);
    if (!message && p->file) {
        yyjson_mut_obj_add_str(d, root, "file", p->file);
        if (p->sha256[0])
            yyjson_mut_obj_add_str(d, root, "sha256", p->sha256);
        yyjson_mut_obj_add_uint(d, root, "file_completed", p->done);
        yyjson_mut_obj_add_uint(d, root, "file_total", p->size);
        yyjson_mut_obj_add_uint(d, root, "completed", p->done_before + p->done);
        yyjson_mut_obj_add_uint(d, root, "total", p->total);
        if (p->rate > 0) {
            yyjson_mut_obj_add_uint(d, root, "bytes_per_second", (uint64_t)p->rate);
            yyjson_mut_obj_add_uint(d, root, "seconds_left", (uint64_t)left_s(p));
        }
    }
    ctl_print_json(d, p->out);
    if (fflush(p->out) == EOF && errno == EPIPE)
        raise(SIGTERM);
}

static int progress_columns(void) {
    struct winsize size = {0};

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || !size.ws_col)
        return 80;
    return size.ws_col;
}

/* Prints "NAME: checking 45 % [=====> ] 288 of 610 MiB 23.4 MiB/s 1:14 left", as far as it fits. */
static void progress_print_line(struct progress *p) {
    uint64_t done = p->done_before + p->done;
    double part = p->total ? (double)done / (double)p->total : 1;
    double left = left_s(p);
    char line[512];
    int room = p->form == PROGRESS_TERMINAL ? progress_columns() - 1 : 200;
    int n = snprintf(line, sizeof(line), "%.60s: %s%s%.0f %%", printable(text_or(p->name, "")).s,
                     p->what, *p->what ? " " : "", floor(100 * part));

    int bar = MIN(room - n - FIGURES, BAR);
    if (p->form == PROGRESS_TERMINAL && bar >= 8) {
        int full = (int)(part * bar);

        assert(full >= 0 && full <= bar);
        n += snprintf(line + n, sizeof(line) - (size_t)n, "  [%.*s%.*s]", full,
                      "========================", bar - full, "                        ");
    }
    n += snprintf(line + n, sizeof(line) - (size_t)n, "  %s of %s", size_text(done).s,
                  size_text(p->total).s);
    if (p->rate > 0)
        n += snprintf(line + n, sizeof(line) - (size_t)n, "  %s/s  %d:%02d left",
                      size_text((uint64_t)p->rate).s, (int)(left / 60), (int)left % 60);
    line[MAX(MIN(n, room), 0)] = 0;
    if (p->form == PROGRESS_TERMINAL)
        fprintf(p->out, "\r\033[K%s", line);
    else
        fprintf(p->out, "%s\n", line);
    p->is_drawn = p->form == PROGRESS_TERMINAL;
    fflush(p->out);
}

/* Updates the rate, an average over the last seconds. */
static void progress_measure(struct progress *p, int64_t now) {
    uint64_t done = p->done_before + p->done;

    if (p->rate_ns == 0 || done < p->rate_done) {
        p->rate = 0;
        p->rate_ns = now;
        p->rate_done = done;
    }
    double dt = (double)(now - p->rate_ns) * 1e-9;
    if (dt < 0.2)
        return;
    double v = (double)(done - p->rate_done) / dt;
    p->rate = p->rate > 0 ? p->rate + (v - p->rate) * (1 - exp(-dt / SMOOTH_S)) : v;
    p->rate_ns = now;
    p->rate_done = done;
}

void progress_at(struct progress *p, const char *what, uint64_t done) {
    int64_t now = clock_now(clock_monotonic());
    bool is_new = strcmp(what, p->what) != 0;

    assert(done <= p->size);
    p->what = what;
    p->done = done;
    if (is_new)
        p->rate_ns = 0;
    progress_measure(p, now);
    if ((is_new && p->form == PROGRESS_JSON) || now - p->drawn_ns >= every_ns[p->form]) {
        p->drawn_ns = now;
        if (p->form == PROGRESS_JSON)
            progress_print_json(p, text_filled_or(what, "downloading"), NULL);
        else
            progress_print_line(p);
    }
}

void progress_print(struct progress *p, const char *what, const char *fmt, ...) {
    char text[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (p->form == PROGRESS_JSON) {
        progress_print_json(p, what, text);
        return;
    }
    progress_clear(p);
    fprintf(p->out, "%s\n", printable(text).s);
    p->drawn_ns = clock_now(clock_monotonic());
}
