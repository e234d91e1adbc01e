#include "cmd/ctl.h"

#ifdef HAVE_NCURSES

#include <locale.h>
#include <ncurses.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"

struct top {
    struct ctl *ctl;
    yyjson_doc *stats, *before, *requests; /* NULL: the last call failed, or there was none */
    int64_t at_ns, before_ns;
    uint64_t selected; /* id of a request */
    bool any;          /* something is selected */
    char note[512];    /* at the bottom */
};

static void poll_daemon(struct top *t) {
    struct err err = {0};
    yyjson_doc *stats = NULL, *requests = NULL;
    int r = ctl_get(t->ctl, "/stats", &stats, &err);

    if (r == CTL_OK)
        r = ctl_get(t->ctl, "/requests", &requests, &err);
    if (r != CTL_OK)
        snprintf(t->note, sizeof(t->note), "%s", err.message);
    yyjson_doc_free(t->before);
    yyjson_doc_free(t->requests);
    t->before = t->stats;
    t->before_ns = t->at_ns;
    t->stats = stats;
    t->requests = requests;
    t->at_ns = clock_now(clock_monotonic());
}

static yyjson_val *list_of(const struct top *t) {
    return yyjson_obj_get(yyjson_doc_get_root(t->requests), "requests");
}

static uint64_t id_at(const struct top *t, size_t i) {
    return yyjson_get_uint(yyjson_obj_get(yyjson_arr_get(list_of(t), i), "id"));
}

/* Where the selected request stands in the list; its length: nowhere. */
static size_t selected_at(const struct top *t) {
    size_t n = yyjson_arr_size(list_of(t)), i = 0;

    while (t->any && i < n && id_at(t, i) != t->selected)
        i++;
    return t->any ? i : n;
}

static void move_selection(struct top *t, int by) {
    size_t n = yyjson_arr_size(list_of(t)), i = selected_at(t);

    if (n == 0)
        return;
    if (i == n)
        i = by > 0 ? 0 : n - 1;
    else if (by > 0 ? i + 1 < n : i > 0)
        i = by > 0 ? i + 1 : i - 1;
    t->selected = id_at(t, i);
    t->any = true;
}

/* Line by line from row @y on; the first in reverse, and the one at @marked. Returns the row after. */
static int draw_table(const struct buf *text, int y, int bottom, size_t marked) {
    const char *line = text->data ? text->data : "";

    for (size_t i = 0; *line && y < bottom; i++, y++) {
        size_t len = strcspn(line, "\n");

        mvaddnstr(y, 0, line, (int)MIN(len, (size_t)COLS));
        if (i == 0 || i == marked)
            mvchgat(y, 0, -1, A_REVERSE, 0, NULL);
        line += len + (line[len] == '\n');
    }
    return y;
}

static int draw_text(const struct buf *text, int y, int bottom) {
    const char *line = text->data ? text->data : "";

    for (; *line && y < bottom; y++) {
        size_t len = strcspn(line, "\n");

        mvaddnstr(y, 0, line, (int)MIN(len, (size_t)COLS));
        line += len + (line[len] == '\n');
    }
    return y;
}

static void draw(struct top *t) {
    CLEANUP(buf_deinit) struct buf head, rates, list;
    yyjson_val *stats = yyjson_doc_get_root(t->stats), *before = yyjson_doc_get_root(t->before);
    size_t marked = selected_at(t);
    int bottom = LINES - 1, y;

    buf_init(&head, CTL_REPLY_MAX);
    buf_init(&rates, CTL_REPLY_MAX);
    buf_init(&list, CTL_REPLY_MAX);
    ctl_show_stats(&head, stats);
    ctl_show_line(&rates, stats, before, (double)(t->at_ns - t->before_ns) * 1e-9, 0);
    ctl_show_requests(&list, yyjson_doc_get_root(t->requests));
    erase();
    y = draw_text(&head, 0, bottom);
    y = draw_table(&rates, y + 1, bottom, SIZE_MAX);
    draw_table(&list, y + 1, bottom, marked + 1);
    attron(A_BOLD);
    mvaddnstr(bottom, 0, t->note[0] ? t->note : "q quit   up, down select   c cancel", COLS - 1);
    attroff(A_BOLD);
    refresh();
}

/* Asks, in the last line; any other key than y lets the request live. */
static void cancel_selected(struct top *t) {
    CLEANUP(buf_deinit) struct buf reply;
    struct err err = {0};
    char path[64];

    buf_init(&reply, CTL_REPLY_MAX);
    if (!t->any || selected_at(t) == yyjson_arr_size(list_of(t)))
        return;
    snprintf(t->note, sizeof(t->note), "cancel request %llu? (y/n)",
             (unsigned long long)t->selected);
    draw(t);
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

static void run(struct top *t, double interval_s) {
    int64_t interval_ns = (int64_t)(interval_s * 1e9);

    for (;;) {
        int64_t left = t->at_ns + interval_ns - clock_now(clock_monotonic());

        draw(t);
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
    struct top t = {.ctl = c};
    int r = ctl_get(c, "/stats", &t.stats, err);

    if (r != CTL_OK)
        return r;
    setlocale(LC_CTYPE, "");
    SCREEN *screen =
        isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) ? newterm(NULL, stdout, stdin) : NULL;
    if (!screen) {
        yyjson_doc_free(t.stats);
        err_set(err, 0, NULL, "top needs a terminal; try stats --watch");
        return CTL_REFUSED;
    }
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    poll_daemon(&t);
    run(&t, interval_s);
    endwin();
    delscreen(screen);
    yyjson_doc_free(t.stats);
    yyjson_doc_free(t.before);
    yyjson_doc_free(t.requests);
    return CTL_OK;
}

#else

int ctl_top(struct ctl *c, double interval_s, struct err *err) {
    (void)c;
    (void)interval_s;
    err_set(err, 0, NULL, "this weftctl was built without ncurses; try stats --watch");
    return CTL_REFUSED;
}

#endif
