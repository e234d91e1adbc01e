#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/printable.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#include "cmd/ctl_progress.h"
#include "proto/stats.h"

#define HEADLINE_EVERY 20

static const struct ctl_cell none = {"-"};

size_t ctl_columns(void) {
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || !size.ws_col)
        return SIZE_MAX;
    return size.ws_col;
}

/* Returns the characters that a line needs for column @c. */
static size_t column_length(const struct ctl_column *c) {
    return (size_t)(c->gap + abs(c->width));
}

size_t ctl_fit_columns(bool *shown, const struct ctl_column *c, size_t n, size_t length,
                       size_t longest) {
    int rank = 0;

    for (size_t i = 0; i < n; i++) {
        shown[i] = true;
        length += column_length(&c[i]);
        rank = MAX(rank, c[i].rank);
    }
    for (; rank > 0 && length > longest; rank--) {
        for (size_t i = 0; i < n; i++) {
            if (c[i].rank != rank)
                continue;
            shown[i] = false;
            length -= column_length(&c[i]);
        }
    }
    return length;
}

/* The text is escaped; one that does not fit ends in "...". */
struct ctl_cell ctl_text(yyjson_val *object, const char *key) {
    const char *s = json_cstr(yyjson_obj_get(object, key));
    struct ctl_cell c = {""};
    size_t n = 0, n_one;
    char one[PRINTABLE_MAX];

    if (!s || !*s)
        return none;
    for (size_t i = 0, len = strlen(s); i < len; n += n_one) {
        i += printable_next(s + i, len - i, one, &n_one);
        if (n + n_one > sizeof(c.s) - 4) {
            memcpy(c.s + n, "...", 4);
            break;
        }
        memcpy(c.s + n, one, n_one);
    }
    return c;
}

struct printable ctl_message(yyjson_val *object, const char *key) {
    const char *s = json_cstr(yyjson_obj_get(object, key));

    return printable(s && *s ? s : none.s);
}

void ctl_print_json(yyjson_mut_doc *d, FILE *out) {
    yyjson_write_flag flags = isatty(fileno(out)) ? YYJSON_WRITE_ESCAPE_UNICODE : 0;
    size_t len = 0;
    CLEANUP(freep)
    char *text = yyjson_mut_write(d, flags | YYJSON_WRITE_ALLOW_INVALID_UNICODE, &len);

    if (text) { /* the bytes may not be UTF-8: a name from outside, or a message that was cut */
        utf8_repair(text, len);
        fprintf(out, "%s\n", text);
    }
    yyjson_mut_doc_free(d);
}

void ctl_report(int code, const char *message) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "status", "error");
    yyjson_mut_obj_add_str(d, root, "error", message);
    yyjson_mut_obj_add_int(d, root, "code", code);
    ctl_print_json(d, stdout);
    fflush(stdout);
}

void ctl_print_result(const char *name, const char *value, const char *key, const char *is,
                      uint64_t n) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, name, value);
    if (is)
        yyjson_mut_obj_add_str(d, root, key, is);
    else
        yyjson_mut_obj_add_uint(d, root, key, n);
    ctl_print_json(d, stdout);
}

bool ctl_value(yyjson_val *object, const char *key, double *out) {
    yyjson_val *v = yyjson_obj_get(object, key);

    if (!yyjson_is_num(v))
        return false;
    *out = yyjson_get_num(v);
    return true;
}

struct ctl_cell ctl_number(yyjson_val *object, const char *key) {
    yyjson_val *v = yyjson_obj_get(object, key);
    struct ctl_cell c;

    if (yyjson_is_uint(v))
        snprintf(c.s, sizeof(c.s), "%llu", (unsigned long long)yyjson_get_uint(v));
    else if (yyjson_is_sint(v))
        snprintf(c.s, sizeof(c.s), "%lld", (long long)yyjson_get_sint(v));
    else if (yyjson_is_num(v))
        snprintf(c.s, sizeof(c.s), "%g", yyjson_get_num(v));
    else
        return none;
    return c;
}

/* Renders @s seconds. */
static struct ctl_cell show_seconds(double s) {
    struct ctl_cell c;

    if (s < 1e-3)
        snprintf(c.s, sizeof(c.s), "%.0f us", s * 1e6);
    else if (s < 1)
        snprintf(c.s, sizeof(c.s), s < 0.1 ? "%.1f ms" : "%.0f ms", s * 1e3);
    else if (s < 60)
        snprintf(c.s, sizeof(c.s), "%.1f s", s);
    else if (s < 3600)
        snprintf(c.s, sizeof(c.s), "%.0f min %02.0f s", floor(s / 60), floor(fmod(s, 60)));
    else if (s < 86400)
        snprintf(c.s, sizeof(c.s), "%.0f h %02.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
    else
        snprintf(c.s, sizeof(c.s), "%.0f d %02.0f h", floor(s / 86400),
                 floor(fmod(s, 86400) / 3600));
    return c;
}

struct ctl_cell ctl_duration(yyjson_val *object, const char *key, double unit_s) {
    double v;

    if (!ctl_value(object, key, &v) || v < 0)
        return none;
    return show_seconds(v * unit_s);
}

struct ctl_cell ctl_percent(yyjson_val *object, const char *part, const char *whole) {
    struct ctl_cell c;
    double a, b;

    if (!ctl_value(object, part, &a) || !ctl_value(object, whole, &b) || b <= 0)
        return none;
    snprintf(c.s, sizeof(c.s), "%.0f %%", 100 * a / b);
    return c;
}

/* Appends text. Without memory the table ends early, since the caller could report nothing
 * better. */
#define ADD(...) ((void)buf_printf(out, __VA_ARGS__))

/* Breaks the lines of @text that have more than @columns characters at blanks; the further lines
 * begin with @indent blanks, of narrow lines a third. */
static void show_wrap(struct buf *text, size_t columns, size_t indent) {
    CLEANUP(buf_deinit) struct buf out = {.max = CTL_REPLY_MAX};
    size_t i = 0, before = 0;

    while (columns < SIZE_MAX && i < text->len) {
        const char *line = text->data + i, *end = memchr(line, '\n', text->len - i);
        size_t n = end ? (size_t)(end - line) : text->len - i, cut = n;

        if (n > columns - before)
            for (cut = columns - before; cut > 0 && line[cut] != ' ';)
                cut--;
        if (cut <= strspn(line, " ")) /* a word that is too long */
            cut = n;
        (void)buf_printf(&out, "%*s%.*s\n", (int)before, "", (int)cut, line);
        before = cut < n ? MIN(indent, columns / 3) : 0;
        i += cut + 1;
    }
    if (!out.len)
        return;
    buf_clear(text);
    (void)buf_add(text, out.data, out.len);
}

/* Adds the counters of the front. */
static void show_front(struct buf *out, yyjson_val *f) {
    ADD("requests   %s running, %s queued; %s connections; loop lag %s\n",
        ctl_number(f, "running").s, ctl_number(f, "queued").s, ctl_number(f, "connections").s,
        ctl_duration(f, "loop_lag_us", 1e-6).s);
    ADD("  so far   %s: %s ok, %s client errors, %s server errors,\n", ctl_number(f, "requests").s,
        ctl_number(f, "ok").s, ctl_number(f, "client_errors").s, ctl_number(f, "server_errors").s);
    ADD("           %s rejected, %s cancelled, %s resumed\n", ctl_number(f, "rejected").s,
        ctl_number(f, "cancelled").s, ctl_number(f, "resumed").s);
    ADD("  tokens   %s prompt, %s output\n", ctl_number(f, "prompt_tokens").s,
        ctl_number(f, "output_tokens").s);
}

/* Returns true if one of the two members is present and not zero. */
static bool any_of(yyjson_val *o, const char *a, const char *b) {
    double x = 0, y = 0;

    (void)ctl_value(o, a, &x);
    (void)ctl_value(o, b, &y);
    return x > 0 || y > 0;
}

/* Adds lines about tiers and features that are configured or have been used. */
static void show_tiers(struct buf *out, yyjson_val *w) {
    if (any_of(w, "states", "snapshots"))
        ADD("  states   %s of %s slots; %s snapshots; %s made, %s used, %s evicted\n",
            ctl_number(w, "states_used").s, ctl_number(w, "states").s, ctl_number(w, "snapshots").s,
            ctl_number(w, "snapshots_made").s, ctl_number(w, "snapshots_used").s,
            ctl_number(w, "snapshots_evicted").s);
    if (any_of(w, "host_offloaded_tokens", "host_loaded_tokens"))
        ADD("  host     %s tokens offloaded, %s loaded\n", ctl_number(w, "host_offloaded_tokens").s,
            ctl_number(w, "host_loaded_tokens").s);
    if (any_of(w, "disk_pages", "disk_bad_pages"))
        ADD("  disk     %s of %s pages; %s tokens written, %s read; %s damaged\n",
            ctl_number(w, "disk_pages_used").s, ctl_number(w, "disk_pages").s,
            ctl_number(w, "disk_saved_tokens").s, ctl_number(w, "disk_loaded_tokens").s,
            ctl_number(w, "disk_bad_pages").s);
    if (any_of(w, "disk_snapshots", "disk_loaded_snapshots"))
        ADD("           %s snapshots; %s written, %s read\n", ctl_number(w, "disk_snapshots").s,
            ctl_number(w, "disk_saved_snapshots").s, ctl_number(w, "disk_loaded_snapshots").s);
    if (any_of(w, "pages_pinned", "pins_dropped"))
        ADD("  pinned   %s pages for sessions' next turns; %s turns dropped\n",
            ctl_number(w, "pages_pinned").s, ctl_number(w, "pins_dropped").s);
    if (any_of(w, "prewarm_tokens", "prewarm_hit_tokens"))
        ADD("  prewarm  %s tokens computed ahead, %s of them hit\n",
            ctl_number(w, "prewarm_tokens").s, ctl_number(w, "prewarm_hit_tokens").s);
}

/* Returns the energy of all devices of a worker. */
static double energy_mj(yyjson_val *w) {
    double sum = 0;

    JSON_EACH(device, yyjson_obj_get(w, "devices")) {
        double mj = 0;

        ctl_value(device, "energy_mj", &mj);
        sum += mj;
    }
    return sum;
}

static void add_device(struct buf *out, yyjson_val *device, bool numbered) {
    double total = 0, used = 0, mw = 0, mhz = 0, celsius = 0, throttled = 0;

    ctl_value(device, "memory_bytes", &total);
    ctl_value(device, "memory_used_bytes", &used);
    ctl_value(device, "power_mw", &mw);
    ctl_value(device, "clock_mhz", &mhz);
    ctl_value(device, "celsius", &celsius);
    ctl_value(device, "throttled", &throttled);
    ADD("device %s  %.1f of %.1f GiB used; %.0f W, %.0f MHz%s, %.0f C",
        numbered ? ctl_number(device, "device").s : " ", used / (1 << 30), total / (1 << 30),
        mw * 1e-3, mhz, throttled > 0 ? " (throttled)" : "", celsius);
}

void ctl_add_devices(struct buf *out, yyjson_val *w, yyjson_val *before) {
    yyjson_val *devices = yyjson_obj_get(w, "devices");
    double n = 0, n0 = 0, mj = energy_mj(w) - energy_mj(before);
    size_t n_devices = yyjson_arr_size(devices);

    ctl_value(w, "output_tokens", &n);
    ctl_value(before, "output_tokens", &n0);
    JSON_EACH_AT(i, device, devices) {
        add_device(out, device, n_devices > 1);
        if (i + 1 == n_devices && n > n0 && mj > 0)
            ADD("; %.2f J a token of output", mj * 1e-3 / (n - n0));
        ADD("\n");
    }
}

/* Adds the counters of the worker's last report. */
static void show_worker(struct buf *out, yyjson_val *w) {
    ADD("worker     %s, pid %s, %s started, %s died, %s hung; last report %s ago\n",
        ctl_text(w, "state").s, ctl_number(w, "pid").s, ctl_number(w, "starts").s,
        ctl_number(w, "deaths").s, ctl_number(w, "hangs").s, ctl_duration(w, "age_ms", 1e-3).s);
    ADD("  runs     %s running, %s waiting; %s preemptions\n", ctl_number(w, "running").s,
        ctl_number(w, "waiting").s, ctl_number(w, "preemptions").s);
    ADD("  tokens   %s prompt computed, %s cached, %s output\n", ctl_number(w, "prompt_tokens").s,
        ctl_number(w, "cached_tokens").s, ctl_number(w, "output_tokens").s);
    if (any_of(w, "drafted", "accepted"))
        ADD("  drafts   %s of %s tokens accepted (%s)\n", ctl_number(w, "accepted").s,
            ctl_number(w, "drafted").s, ctl_percent(w, "accepted", "drafted").s);
    ADD("  steps    %s; the last: %s rows of %s sequences, %s, planned in %s\n",
        ctl_number(w, "steps").s, ctl_number(w, "last_rows").s, ctl_number(w, "last_seqs").s,
        ctl_duration(w, "last_step_us", 1e-6).s, ctl_duration(w, "last_plan_us", 1e-6).s);
    ADD("  expected %s for a step of one row, %s for each further row\n",
        ctl_duration(w, "first_row_us", 1e-6).s, ctl_duration(w, "next_row_us", 1e-6).s);
    ADD("pages      %s: %s used (%s), %s cached, %s free; %s evicted\n", ctl_number(w, "pages").s,
        ctl_number(w, "pages_used").s, ctl_percent(w, "pages_used", "pages").s,
        ctl_number(w, "pages_cached").s, ctl_number(w, "pages_free").s, ctl_number(w, "evicted").s);
    show_tiers(out, w);
    ctl_add_devices(out, w, NULL);
}

void ctl_show_stats(struct buf *out, yyjson_val *stats, size_t columns) {
    yyjson_val *m = yyjson_obj_get(stats, "model");

    ADD("weftd      %s, %s, up %s\n", ctl_text(stats, "version").s, ctl_text(stats, "health").s,
        ctl_duration(stats, "uptime_s", 1).s);
    ADD("model      %s\n", ctl_text(m, "id").s);
    ADD("  context  %s tokens; %s pages of %s tokens\n", ctl_number(m, "max_context").s,
        ctl_number(m, "n_pages").s, ctl_number(m, "page_tokens").s);
    show_front(out, yyjson_obj_get(stats, "front"));
    show_worker(out, yyjson_obj_get(stats, "worker"));
    show_wrap(out, columns, 11);
}

/* Shows a line with key, value and help for each statistic of @row in @object. */
static void show_rows(struct buf *out, const char *title, yyjson_val *object,
                      const struct stat_row *row, size_t n) {
    ADD("%s\n", title);
    for (; n > 0; n--, row++)
        ADD("  %-22s %14s  %s\n", row->key, ctl_number(object, row->key).s, row->help);
}

void ctl_show_all(struct buf *out, yyjson_val *stats, size_t columns) {
    show_rows(out, "front", yyjson_obj_get(stats, "front"), front_rows, n_front_rows);
    show_rows(out, "worker", yyjson_obj_get(stats, "worker"), worker_rows, n_worker_rows);
    show_wrap(out, columns, 11);
}

#define BYTES (-1.0)

static const struct column {
    const char *key, *title;
    /* aligned to the left */
    bool text;
    /* unit of a time in seconds; BYTES: the value is a size; 0: the value has no unit */
    double unit_s;
    /* columns of the highest rank are left out first if a line is too long; 0: never */
    int rank;
} request_columns[] = {
    {"id", "ID", false, 0, 0},
    {"request_id", "REQUEST", true, 0, 7},
    {"endpoint", "ENDPOINT", true, 0, 6},
    {"state", "STATE", true, 0, 0},
    {"waits_for", "WAITS", true, 0, 10},
    {"expected_ms", "EXPECTED", false, 1e-3, 10},
    {"session", "SESSION", true, 0, 8},
    {"session_from", "FROM", true, 0, 9},
    {"prompt_tokens", "PROMPT", false, 0, 2},
    {"prompt_tokens_done", "DONE", false, 0, 4},
    {"cached_tokens", "CACHED", false, 0, 3},
    {"output_tokens", "OUTPUT", false, 0, 1},
    {"max_tokens", "MAX", false, 0, 5},
    {"age_ms", "AGE", false, 1e-3, 0},
};

static const struct column ended_columns[] = {
    {"request_id", "REQUEST", true, 0, 0},    {"tenant", "TENANT", true, 0, 8},
    {"endpoint", "ENDPOINT", true, 0, 10},    {"status", "STATUS", false, 0, 1},
    {"finish", "FINISH", true, 0, 9},         {"prompt_tokens", "PROMPT", false, 0, 5},
    {"cached_tokens", "CACHED", false, 0, 7}, {"output_tokens", "OUTPUT", false, 0, 4},
    {"queue_ms", "QUEUED", false, 1e-3, 6},   {"ttft_ms", "FIRST TOKEN", false, 1e-3, 3},
    {"total_ms", "TOTAL", false, 1e-3, 0},    {"ago_ms", "ENDED AGO", false, 1e-3, 2},
};

static const struct column tenant_columns[] = {
    {"tenant", "TENANT", true, 0, 0},         {"class", "CLASS", true, 0, 6},
    {"weight", "WEIGHT", false, 0, 7},        {"running", "RUNNING", false, 0, 0},
    {"queued", "QUEUED", false, 0, 1},        {"requests", "REQUESTS", false, 0, 3},
    {"limited", "LIMITED", false, 0, 8},      {"prompt_tokens", "PROMPT", false, 0, 4},
    {"cached_tokens", "CACHED", false, 0, 5}, {"output_tokens", "OUTPUT", false, 0, 2},
};

/* Blanks before a title are the least width of its column where no terminal limits the line. */
static const struct column usage_columns[] = {
    {"tenant", "TENANT", true, 0, 4},
    {"key", "KEY", true, 0, 1},
    {"model", "MODEL", true, 0, 0},
    {"requests", "  REQUESTS", false, 0, 3},
    {"prompt_tokens", "        PROMPT", false, 0, 2},
    {"cached_tokens", "        CACHED", false, 0, 5},
    {"output_tokens", "        OUTPUT", false, 0, 0},
};

#define TABLE_COLUMNS_MAX 16

static const struct column served_columns[] = {
    {"id", "MODEL", true, 0, 0},
    {"state", "STATE", true, 0, 0},
    {"memory_bytes", "MEMORY", false, BYTES, 4},
    {"running", "RUNNING", false, 0, 1},
    {"waiting", "WAITING", false, 0, 2},
    {"loads", "LOADS", false, 0, 5},
    {"idle_ms", "LAST USED", false, 1e-3, 3},
    {"unload_ms", "UNLOADED IN", false, 1e-3, 5},
    {"swap", "SWAP", true, 0, 6},
    {"reason", "REASON", true, 0, 7},
};

static struct ctl_cell cell_of(yyjson_val *row, const struct column *c) {
    double bytes;

    if (c->unit_s < 0 && ctl_value(row, c->key, &bytes) && bytes >= 0 && bytes < 0x1p63) {
        struct ctl_cell cell;

        snprintf(cell.s, sizeof(cell.s), "%s", size_text((uint64_t)bytes).s);
        return cell;
    }
    if (c->unit_s > 0)
        return ctl_duration(row, c->key, c->unit_s);
    if (c->text)
        return ctl_text(row, c->key);
    return ctl_number(row, c->key);
}

static const char *title_of(const struct column *c) {
    return c->title + strspn(c->title, " ");
}

/* Computes the width of each column so that a line is no longer than @columns; 0: the column is
 * left out. */
static void fit(size_t width[TABLE_COLUMNS_MAX], yyjson_val *list, const struct column *columns,
                size_t n_columns, size_t longest) {
    size_t line = 0;

    assert(n_columns > 0 && n_columns <= TABLE_COLUMNS_MAX);
    for (size_t c = 0; c < n_columns; c++) {
        width[c] = strlen(longest == SIZE_MAX ? columns[c].title : title_of(&columns[c]));
        JSON_EACH(row, list) {
            struct ctl_cell cell = cell_of(row, &columns[c]);

            width[c] = MAX(width[c], strlen(cell.s));
        }
        line += width[c] + (c ? 2 : 0);
    }
    while (line > longest) {
        size_t least = 0;

        for (size_t c = 1; c < n_columns; c++)
            if (width[c] && columns[c].rank > (width[least] ? columns[least].rank : 0))
                least = c;
        if (columns[least].rank == 0 || width[least] == 0)
            return;
        line -= width[least] + 2;
        width[least] = 0;
    }
}

/* Adds the line of the object @row, or with NULL the headline. */
static void show_row(struct buf *out, yyjson_val *row, const struct column *columns,
                     size_t n_columns, const size_t *width) {
    const char *mark = "";

    for (size_t c = 0; c < n_columns; c++) {
        struct ctl_cell cell;

        if (!width[c])
            continue;
        if (row)
            cell = cell_of(row, &columns[c]);
        else
            snprintf(cell.s, sizeof(cell.s), "%s", title_of(&columns[c]));
        ADD("%s%*s", mark, columns[c].text ? -(int)width[c] : (int)width[c], cell.s);
        mark = "  ";
    }
    ADD("\n");
}

/* A headline and a line for each object of @list, no longer than @longest if columns may be left
 * out for it. */
static void show_table(struct buf *out, yyjson_val *list, const struct column *columns,
                       size_t n_columns, size_t longest) {
    size_t width[TABLE_COLUMNS_MAX];

    assert(n_columns <= ARRAY_SIZE(width));
    fit(width, list, columns, n_columns, longest);
    show_row(out, NULL, columns, n_columns, width);
    JSON_EACH(row, list) {
        show_row(out, row, columns, n_columns, width);
    }
}

struct ctl_cell ctl_rate(yyjson_val *now, yyjson_val *before, const char *key, double seconds) {
    struct ctl_cell c;
    double a, b;

    if (seconds <= 0 || !ctl_value(now, key, &a) || !ctl_value(before, key, &b) || a < b)
        return none;
    snprintf(c.s, sizeof(c.s), "%.0f", (a - b) / seconds);
    return c;
}

static const struct ctl_column line_columns[] = {
    {"health", 0, -8, 0},  {"conns", 1, 5, 7},    {"run", 1, 4, 0},  {"queue", 1, 5, 1},
    {"prompt/s", 1, 8, 3}, {"output/s", 1, 8, 2}, {"used", 1, 6, 5}, {"cached", 1, 6, 6},
    {"free", 1, 6, 5},     {"rows", 1, 5, 8},     {"step", 1, 8, 4},
};

#define LINE_COLUMNS ARRAY_SIZE(line_columns)

/* Adds the cells of the columns that a line of @columns characters has. */
static void show_cells(struct buf *out, const char *const cell[LINE_COLUMNS], size_t columns) {
    bool shown[LINE_COLUMNS];

    ctl_fit_columns(shown, line_columns, LINE_COLUMNS, 0, columns);
    for (size_t i = 0; i < LINE_COLUMNS; i++)
        if (shown[i])
            ADD("%*s%*s", line_columns[i].gap, "", line_columns[i].width, cell[i]);
    ADD("\n");
}

void ctl_show_line(struct buf *out, yyjson_val *stats, yyjson_val *before, double seconds,
                   uint64_t n, size_t columns) {
    yyjson_val *f = yyjson_obj_get(stats, "front"), *w = yyjson_obj_get(stats, "worker");
    yyjson_val *w0 = yyjson_obj_get(before, "worker");
    const char *title[LINE_COLUMNS];

    for (size_t i = 0; i < LINE_COLUMNS; i++)
        title[i] = line_columns[i].title;
    if (n % HEADLINE_EVERY == 0)
        show_cells(out, title, columns);
    show_cells(out,
               (const char *[]){ctl_text(stats, "health").s, ctl_number(f, "connections").s,
                                ctl_number(f, "running").s, ctl_number(f, "queued").s,
                                ctl_rate(w, w0, "prompt_tokens", seconds).s,
                                ctl_rate(w, w0, "output_tokens", seconds).s,
                                ctl_number(w, "pages_used").s, ctl_number(w, "pages_cached").s,
                                ctl_number(w, "pages_free").s, ctl_number(w, "last_rows").s,
                                ctl_duration(w, "last_step_us", 1e-6).s},
               columns);
}

void ctl_show_requests(struct buf *out, yyjson_val *requests, size_t columns) {
    show_table(out, yyjson_obj_get(requests, "requests"), request_columns,
               ARRAY_SIZE(request_columns), columns);
}

void ctl_show_ended(struct buf *out, yyjson_val *requests, size_t columns) {
    show_table(out, yyjson_obj_get(requests, "requests"), ended_columns, ARRAY_SIZE(ended_columns),
               columns);
}

void ctl_show_tenants(struct buf *out, yyjson_val *tenants, size_t columns) {
    show_table(out, yyjson_obj_get(tenants, "tenants"), tenant_columns, ARRAY_SIZE(tenant_columns),
               columns);
}

void ctl_show_usage(struct buf *out, yyjson_val *rows, size_t columns) {
    show_table(out, rows, usage_columns, ARRAY_SIZE(usage_columns), columns);
}

/* Renders a count: "1 step", "2 steps". */
static struct ctl_cell show_count(yyjson_val *object, const char *key, const char *what) {
    struct ctl_cell n = ctl_number(object, key), c;

    snprintf(c.s, sizeof(c.s), "%.40s %s%s", n.s, what, strcmp(n.s, "1") == 0 ? "" : "s");
    return c;
}

/* Sums of a request's records, in ms and tokens. */
struct why_sums {
    double all, prompt, decode;
    uint64_t n_prompt, n_cached;
};

static void why_add(struct why_sums *s, yyjson_val *r) {
    const char *why = json_cstr(yyjson_obj_get(r, "why"));
    double ms = yyjson_get_num(yyjson_obj_get(r, "ms"));
    uint64_t rows = yyjson_get_uint(yyjson_obj_get(r, "rows"));

    s->all = MAX(s->all, yyjson_get_num(yyjson_obj_get(r, "at_ms")) + ms);
    if (!why)
        return;
    if (strcmp(why, "admitted") == 0) {
        s->n_cached = MAX(s->n_cached, yyjson_get_uint(yyjson_obj_get(r, "cached_tokens")));
    } else if (strcmp(why, "prompt") == 0) {
        s->prompt += ms;
        s->n_prompt += rows;
    } else if (strcmp(why, "decode") == 0) {
        s->decode += ms;
    }
}

#define WAIT_SHARE 0.05 /* shortest wait of the first line, as a part of the whole time */

/* Writes the waits of at least @least_ms: " (4.4 s waited for its model to be loaded)". */
static void why_waits(struct buf *out, yyjson_val *list, double least_ms) {
    const char *mark = " (";

    JSON_EACH(r, list) {
        const char *why = json_cstr(yyjson_obj_get(r, "why"));
        bool works = why && (strcmp(why, "prompt") == 0 || strcmp(why, "decode") == 0);

        if (works || yyjson_get_num(yyjson_obj_get(r, "ms")) < least_ms)
            continue;
        ADD("%s%s %s", mark, ctl_duration(r, "ms", 1e-3).s, ctl_text(r, "text").s);
        mark = ", ";
    }
    if (*mark == ',')
        ADD(")");
}

/* Writes one line that says where the time of a request went. The rest of the time it waited. */
static void why_summary(struct buf *out, yyjson_val *list) {
    struct why_sums s = {.all = 0};

    JSON_EACH(r, list)
    why_add(&s, r);
    if (s.all <= 0)
        return;
    struct ctl_cell all = show_seconds(s.all * 1e-3);
    double rest = MAX(s.all - s.prompt - s.decode, 0);

    ADD("took %s: %.0f %% for %llu tokens of the prompt (%llu were cached), %.0f %% for the "
        "answer, %.0f %% waiting",
        all.s, 100 * s.prompt / s.all, (unsigned long long)s.n_prompt,
        (unsigned long long)s.n_cached, 100 * s.decode / s.all, 100 * rest / s.all);
    why_waits(out, list, s.all * WAIT_SHARE);
    ADD("\n");
}

/* Writes how fast a prompt was read: ": 6944 tokens in 21.8 s (318 tokens/s, 271 steps)". */
static void why_prompt(struct buf *out, yyjson_val *r) {
    double rows = yyjson_get_num(yyjson_obj_get(r, "rows"));
    double ms = yyjson_get_num(yyjson_obj_get(r, "ms"));

    ADD(": %s in %s", show_count(r, "rows", "token").s, ctl_duration(r, "ms", 1e-3).s);
    if (ms > 0)
        ADD(" (%.0f tokens/s, %s)", rows * 1e3 / ms, show_count(r, "steps", "step").s);
}

void ctl_show_why(struct buf *out, yyjson_val *story, size_t columns) {
    yyjson_val *list = yyjson_obj_get(story, "records");

    why_summary(out, list);

    JSON_EACH(r, list) {
        struct ctl_cell at = ctl_duration(r, "at_ms", 1e-3), ms = ctl_duration(r, "ms", 1e-3);
        struct ctl_cell why = ctl_text(r, "why"), text = ctl_text(r, "text");

        ADD("%10s  %-9s  %s", at.s, why.s, text.s);
        if (yyjson_obj_get(r, "finish"))
            ADD(": %s", ctl_text(r, "finish").s);
        else if (yyjson_obj_get(r, "cached_tokens"))
            ADD(" with %s from the cache", show_count(r, "cached_tokens", "token").s);
        else if (yyjson_is_uint(yyjson_obj_get(r, "rows")) &&
                 yyjson_get_uint(yyjson_obj_get(r, "rows")) == 0)
            ADD(": %s", ms.s);
        else if (strcmp(why.s, "prompt") == 0)
            why_prompt(out, r);
        else
            ADD(": %s, %s, %s", show_count(r, "steps", "step").s, show_count(r, "rows", "row").s,
                ms.s);
        ADD("\n");
    }
    if (yyjson_obj_get(story, "now"))
        ADD("now: %s\n", ctl_message(story, "now").s);
    if (yyjson_obj_get(story, "not_enforced"))
        ADD("not enforced in the schemas of tools: %s\n", ctl_message(story, "not_enforced").s);
    show_wrap(out, columns, 23);
}

void ctl_show_served(struct buf *out, yyjson_val *models, size_t columns) {
    show_table(out, yyjson_obj_get(models, "models"), served_columns, ARRAY_SIZE(served_columns),
               columns);
}
