#include "base/json_read.h"
#include "cmd/ctl.h"

#ifdef HAVE_NCURSES

#include <assert.h>
#include <langinfo.h>
#include <locale.h>
#include <ncurses.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

#define HISTORY 128

/* Kinds of lists below the figures. */
enum view { VIEW_REQUESTS, VIEW_TENANTS, VIEW_MODELS };

/* State of the screen. Invariants: n_history <= HISTORY; `before` is the answer before `stats`, and
 * arrived at before_ns; the selected item is stored by name and may be in no list any more. */
struct top {
    struct ctl *ctl;
    /* NULL: the last call failed, or there was none */
    yyjson_doc *stats, *before, *list;
    enum view view;
    bool unicode;
    /* output tokens per second, the latest at the end */
    double history[HISTORY];
    unsigned n_history;
    int64_t at_ns, before_ns;
    /* id of the selected request */
    uint64_t selected;
    /* a request is selected */
    bool any;
    /* selected model, whose figures are shown; "": the first one */
    char model[256];
    /* text of the last line */
    char note[512];
};

static double seconds_between(const struct top *t) {
    if (!t->before)
        return 0;
    return (double)(t->at_ns - t->before_ns) * 1e-9;
}

/* Returns the object of the selected model with the members "model" and "worker". */
static yyjson_val *figures_of(const struct top *t, yyjson_doc *stats) {
    yyjson_val *root = yyjson_doc_get_root(stats);

    JSON_EACH(m, yyjson_obj_get(root, "models")) {
        if (yyjson_equals_str(yyjson_obj_get(m, "id"), t->model))
            return m;
    }
    return root;
}

static yyjson_val *worker_of(const struct top *t, yyjson_doc *stats) {
    return yyjson_obj_get(figures_of(t, stats), "worker");
}

/* Adds the rate of output tokens between the last two answers to the history. */
static void remember_rate(struct top *t) {
    double now, before, s = seconds_between(t);

    if (s <= 0 || !ctl_value(worker_of(t, t->stats), "output_tokens", &now) ||
        !ctl_value(worker_of(t, t->before), "output_tokens", &before))
        return;
    if (t->n_history == HISTORY)
        memmove(t->history, t->history + 1, sizeof(*t->history) * --t->n_history);
    /* the difference is negative for a new worker */
    t->history[t->n_history++] = MAX(now - before, 0) / s;
    assert(t->n_history <= HISTORY);
}

/* Requests new figures. The error of a failed request goes to the last line, and its figures are
 * removed. */
static void poll_daemon(struct top *t) {
    static const char *const paths[] = {"/requests", "/tenants", "/models"};
    struct err err = {0};
    yyjson_doc *stats = NULL, *list = NULL;
    assert(t->view < ARRAY_SIZE(paths));
    int r = ctl_get(t->ctl, "/stats", &stats, &err);

    if (r == CTL_OK)
        r = ctl_get(t->ctl, paths[t->view], &list, &err);
    if (r != CTL_OK)
        snprintf(t->note, sizeof(t->note), "%s", err.message);
    yyjson_doc_free(t->before);
    yyjson_doc_free(t->list);
    t->before = t->stats;
    t->before_ns = t->at_ns;
    t->stats = stats;
    t->list = list;
    t->at_ns = clock_now(clock_monotonic());
    remember_rate(t);
}

/* Returns the list from which an item is selected; NULL for tenants, which cannot be selected. */
static yyjson_val *top_list(const struct top *t) {
    static const char *const keys[] = {"requests", "", "models"};

    return yyjson_obj_get(yyjson_doc_get_root(t->list), keys[t->view]);
}

static yyjson_val *id_at(const struct top *t, size_t i) {
    return yyjson_obj_get(yyjson_arr_get(top_list(t), i), "id");
}

static bool is_selected(const struct top *t, size_t i) {
    if (t->view == VIEW_MODELS)
        return yyjson_equals_str(id_at(t, i), t->model);
    return t->any && yyjson_get_uint(id_at(t, i)) == t->selected;
}

/* Returns the index of the selected item, or the length of the list if it is not there. */
static size_t selected_at(const struct top *t) {
    size_t n = yyjson_arr_size(top_list(t)), i = 0;

    while (i < n && !is_selected(t, i))
        i++;
    return i;
}

/* Moves the selection up (@by < 0) or down; without a selection, to the last or the first item. */
static void move_selection(struct top *t, int by) {
    assert(by != 0);
    size_t n = yyjson_arr_size(top_list(t)), i = selected_at(t);

    if (n == 0)
        return;
    if (i == n)
        i = by > 0 ? 0 : n - 1;
    else if (by > 0 ? i + 1 < n : i > 0)
        i = by > 0 ? i + 1 : i - 1;
    if (t->view == VIEW_MODELS) {
        const char *id = json_cstr(id_at(t, i));

        snprintf(t->model, sizeof(t->model), "%s", text_or(id, ""));
        t->n_history = 0;
        return;
    }
    t->selected = yyjson_get_uint(id_at(t, i));
    t->any = true;
}

/* Draws the lines of @text from row @y on. Returns the next row. */
static int draw_text(const struct buf *text, int y, int bottom) {
    const char *line = text_or(text->data, "");

    for (; *line && y < bottom; y++) {
        size_t len = strcspn(line, "\n");

        mvaddnstr(y, 0, line, (int)MIN(len, (size_t)COLS));
        line += len + (line[len] == '\n');
    }
    return y;
}

/* Draws a table with its headline and line @marked in reverse. */
static void draw_table(const struct buf *text, int y, int bottom, size_t marked) {
    int end = draw_text(text, y, bottom);

    if (y < end)
        mvchgat(y, 0, -1, A_REVERSE, 0, NULL);
    if (marked < (size_t)MAX(end - y, 0))
        mvchgat(y + (int)marked, 0, -1, A_REVERSE, 0, NULL);
}

/* Draws the latest rates as bars of one line's height, as many as fit. */
static void draw_history(const struct top *t, int y, int x) {
    static const char *const bars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {" ", ".", ".", ":", ":", "+", "+", "#", "#"};
    unsigned room = COLS > x ? (unsigned)(COLS - x) : 0, n = MIN(t->n_history, room);
    const double *from = t->history + t->n_history - n;
    double top = 0;

    for (unsigned i = 0; i < n; i++)
        top = MAX(top, from[i]);
    for (unsigned i = 0; i < n; i++) {
        int height = top > 0 && from[i] > 0 ? (int)(from[i] / top * 7 + 1) : 0;

        mvaddstr(y, x + (int)i, (t->unicode ? bars : ascii)[height]);
    }
}

/* Appends "[####.. ]" of @width characters: used, cached and free pages. */
static void add_pages(struct buf *out, yyjson_val *w, size_t width) {
    double all, used, cached;

    if (!ctl_value(w, "pages", &all) || !ctl_value(w, "pages_used", &used) ||
        !ctl_value(w, "pages_cached", &cached) || all <= 0)
        return;
    (void)buf_printf(out, " [");
    for (size_t i = 0; i < width; i++) {
        double at = ((double)i + 0.5) / (double)width * all;
        char c = ' ';

        if (at < used)
            c = '#';
        else if (at < used + cached)
            c = '.';
        (void)buf_add_char(out, c);
    }
    (void)buf_printf(out, "]");
}

#define ADD(...) ((void)buf_printf(out, __VA_ARGS__))

/* Writes the lines above the table; HISTORY_ROW is the fourth one. */
static void show_head(const struct top *t, struct buf *out) {
    yyjson_val *stats = yyjson_doc_get_root(t->stats);
    yyjson_val *m = yyjson_obj_get(figures_of(t, t->stats), "model");
    yyjson_val *f = yyjson_obj_get(stats, "front"), *w = worker_of(t, t->stats);
    yyjson_val *w0 = worker_of(t, t->before);
    double s = seconds_between(t);

    ADD("weftd %s  %s  up %s  %s, context %s\n", ctl_text(stats, "version").s,
        ctl_text(stats, "health").s, ctl_duration(stats, "uptime_s", 1).s, ctl_text(m, "id").s,
        ctl_number(m, "max_context").s);
    ADD("requests  %s running, %s queued, %s connections, loop lag %s; so far %s, %s rejected, %s "
        "failed\n",
        ctl_number(f, "running").s, ctl_number(f, "queued").s, ctl_number(f, "connections").s,
        ctl_duration(f, "loop_lag_us", 1e-6).s, ctl_number(f, "requests").s,
        ctl_number(f, "rejected").s, ctl_number(f, "server_errors").s);
    ADD("tokens/s  prompt %s, from the cache %s; drafts accepted: %s\n",
        ctl_rate(w, w0, "prompt_tokens", s).s, ctl_rate(w, w0, "cached_tokens", s).s,
        ctl_percent(w, "accepted", "drafted").s);
    ADD("          output %6s\n", ctl_rate(w, w0, "output_tokens", s).s);
    ADD("step      %s rows of %s sequences in %s\n", ctl_number(w, "last_rows").s,
        ctl_number(w, "last_seqs").s, ctl_duration(w, "last_step_us", 1e-6).s);
    ADD("pages    ");
    add_pages(out, w, 20);
    ADD(" %s used, %s cached, %s free; %s evicted\n", ctl_number(w, "pages_used").s,
        ctl_number(w, "pages_cached").s, ctl_number(w, "pages_free").s, ctl_number(w, "evicted").s);
    ADD("worker    %s, pid %s, %s died, %s hung; %s preemptions\n", ctl_text(w, "state").s,
        ctl_number(w, "pid").s, ctl_number(w, "deaths").s, ctl_number(w, "hangs").s,
        ctl_number(w, "preemptions").s);
    ctl_add_devices(out, w, w0);
}

/* Position of the history graph, in the line with the output rate. */
enum { HISTORY_ROW = 3, HISTORY_COLUMN = 25 };

static void top_draw(struct top *t) {
    static void (*const show[])(struct buf * out, yyjson_val * list, size_t columns) = {
        ctl_show_requests, ctl_show_tenants, ctl_show_served};
    static const char *const keys[] = {
        "q quit   up, down select   c cancel   t tenants   m models",
        "q quit   t requests   m models",
        "q quit   up, down select: the figures above are its   t tenants   m requests",
    };
    CLEANUP(buf_deinit) struct buf head = {.max = CTL_REPLY_MAX}, list = {.max = CTL_REPLY_MAX};
    size_t marked = selected_at(t);
    int bottom = LINES - 1, y;

    show_head(t, &head);
    show[t->view](&list, yyjson_doc_get_root(t->list), (size_t)COLS);
    erase();
    y = draw_text(&head, 0, bottom);
    mvchgat(0, 0, -1, A_BOLD, 0, NULL);
    if (HISTORY_ROW < bottom)
        draw_history(t, HISTORY_ROW, HISTORY_COLUMN);
    draw_table(&list, y + 1, bottom, t->view == VIEW_TENANTS ? SIZE_MAX : marked + 1);
    attron(A_BOLD);
    mvaddnstr(bottom, 0, t->note[0] ? t->note : keys[t->view], COLS - 1);
    attroff(A_BOLD);
    refresh();
}

/* Asks in the last line whether to cancel the selected request; any key other than y keeps it. */
static void cancel_selected(struct top *t) {
    CLEANUP(buf_deinit) struct buf reply = {.max = CTL_REPLY_MAX};
    struct err err = {0};
    char path[64];

    if (t->view != VIEW_REQUESTS || !t->any || selected_at(t) == yyjson_arr_size(top_list(t)))
        return;
    snprintf(t->note, sizeof(t->note), "cancel request %llu? (y/n)",
             (unsigned long long)t->selected);
    top_draw(t);
    timeout(-1);
    int key = getch();
    t->note[0] = 0;
    if (key != 'y')
        return;
    snprintf(path, sizeof(path), "/requests/%llu/cancel", (unsigned long long)t->selected);
    if (ctl_call(t->ctl, "POST", path, &reply, &err) != CTL_OK)
        snprintf(t->note, sizeof(t->note), "%s", err.message);
    poll_daemon(t);
}

static volatile sig_atomic_t stop;

/* Ends top_run(); the handler of ncurses would end the program with the status of a refused
 * command. */
static void top_on_interrupt(int number) {
    (void)number;
    stop = 1;
}

/* Handles keys, and gets new figures every @interval_s, until q or SIGINT. */
static void top_run(struct top *t, double interval_s) {
    int64_t interval_ns = (int64_t)(interval_s * 1e9);

    while (!stop) {
        int64_t left = t->at_ns + interval_ns - clock_now(clock_monotonic());

        top_draw(t);
        timeout((int)MAX(left / 1000000, 0));
        int key = getch();
        switch (key) {
        case 'q':
            return;
        case KEY_UP:
        case 'k':
            move_selection(t, -1);
            break;
        case KEY_DOWN:
        case 'j':
            move_selection(t, 1);
            break;
        case 'c':
            cancel_selected(t);
            break;
        case 't':
            t->view = t->view == VIEW_TENANTS ? VIEW_REQUESTS : VIEW_TENANTS;
            poll_daemon(t);
            break;
        case 'm':
            t->view = t->view == VIEW_MODELS ? VIEW_REQUESTS : VIEW_MODELS;
            poll_daemon(t);
            break;
        default:
            break;
        }
        if (clock_now(clock_monotonic()) - t->at_ns >= interval_ns) {
            t->note[0] = 0;
            poll_daemon(t);
        }
    }
}

int ctl_top(struct ctl *c, double interval_s, struct err *err) {
    const struct sigaction interrupt = {.sa_handler = top_on_interrupt};
    struct top t = {.ctl = c};
    int r = ctl_get(c, "/stats", &t.stats, err);

    if (r != CTL_OK)
        return r;
    setlocale(LC_CTYPE, "");
    t.unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    SCREEN *screen =
        isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) ? newterm(NULL, stdout, stdin) : NULL;
    if (!screen) {
        yyjson_doc_free(t.stats);
        err_set(err, 0, NULL, "top needs a terminal; try stats --watch");
        return CTL_REFUSED;
    }
    sigaction(SIGINT, &interrupt, NULL);
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    poll_daemon(&t);
    top_run(&t, interval_s);
    endwin();
    delscreen(screen);
    yyjson_doc_free(t.stats);
    yyjson_doc_free(t.before);
    yyjson_doc_free(t.list);
    return CTL_OK;
}

#else

int ctl_top(struct ctl *c, double interval_s, struct err *err) {
    err_set(err, 0, NULL, "this weftctl was built without ncurses; try stats --watch");
    return CTL_REFUSED;
}

#endif
