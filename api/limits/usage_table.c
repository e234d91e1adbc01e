/*
 * The text, which earlier versions wrote, is a line for each row, its fields separated by tabs,
 * between a line that names the format and one that counts the rows: a file that was cut is
 * recognised. Bytes of names that could end a field are written as %XX.
 */

#include "api/limits/usage_table.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/try.h"
#include "base/util.h"

#define HEAD "weft usage 1"
#define MONTHS_KEPT 24
#define FIELDS 8
#define DATE_MAX 99991231
#define FOLDS 5 /* levels of fold_row() */

/* ---- dates ---- */

static struct tm utc(int64_t unix_s) {
    time_t t = (time_t)unix_s;
    struct tm tm;

    gmtime_r(&t, &tm);
    return tm;
}

uint32_t usage_day(int64_t unix_s) {
    struct tm tm = utc(unix_s);

    return (uint32_t)((tm.tm_year + 1900) * 10000 + (tm.tm_mon + 1) * 100 + tm.tm_mday);
}

int64_t usage_next_day(int64_t unix_s) {
    struct tm tm = utc(unix_s);

    tm.tm_mday++;
    tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
    return timegm(&tm);
}

int64_t usage_next_month(int64_t unix_s) {
    struct tm tm = utc(unix_s);

    tm.tm_mon++;
    tm.tm_mday = 1;
    tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
    return timegm(&tm);
}

bool usage_is_date(int64_t v) {
    return v >= 0 && v <= DATE_MAX && v / 100 % 100 >= 1 && v / 100 % 100 <= 12 && v % 100 <= 31;
}

/* Returns the month of day @date as the date of its row. */
static uint32_t month_of(uint32_t date) {
    return date / 100 * 100;
}

/* ---- rows ---- */

void usage_table_deinit(struct usage_table *t) {
    free(t->rows);
    *t = (struct usage_table){0};
}

int usage_row_compare(const struct usage_row *a, const struct usage_row *b) {
    if (a->date != b->date) {
        if (a->date > b->date)
            return 1;
        return -1;
    }
    int r = strcmp(a->tenant, b->tenant);

    if (r != 0)
        return r;
    r = strcmp(a->key, b->key);
    if (r != 0)
        return r;
    return strcmp(a->model, b->model);
}

/* Returns the number of rows that come before @row. */
static uint32_t rank(const struct usage_table *t, const struct usage_row *row) {
    uint32_t low = 0, high = t->n;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (usage_row_compare(&t->rows[mid], row) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void usage_table_add_up(uint64_t *to, uint64_t n) {
    assert(*to <= USAGE_COUNT_MAX && n <= USAGE_COUNT_MAX);
    *to = MIN(*to + n, USAGE_COUNT_MAX);
}

static void add_sum(struct usage_sum *to, const struct usage_sum *s) {
    usage_table_add_up(&to->requests, s->requests);
    usage_table_add_up(&to->prompt_tokens, s->prompt_tokens);
    usage_table_add_up(&to->cached_tokens, s->cached_tokens);
    usage_table_add_up(&to->output_tokens, s->output_tokens);
}

static void name_others(struct usage_row *row) {
    snprintf(row->key, sizeof(row->key), "%s", USAGE_OTHERS);
    snprintf(row->model, sizeof(row->model), "%s", USAGE_OTHERS);
}

int usage_table_add(struct usage_table *t, const struct usage_row *row) {
    struct usage_row own = *row;
    uint32_t at = rank(t, row);
    bool known = at < t->n && usage_row_compare(&t->rows[at], row) == 0;

    if (!known && t->n >= 2 * USAGE_ROWS_MAX) {
        name_others(&own);
        at = rank(t, &own);
        known = at < t->n && usage_row_compare(&t->rows[at], &own) == 0;
    }
    if (known) {
        add_sum(&t->rows[at].sum, &own.sum);
        return 0;
    }
    if (t->n == t->cap) {
        uint32_t cap = MAX(2 * t->cap, 16);

        if (!array_resize(&t->rows, cap, sizeof(*t->rows)))
            return -ENOMEM;
        t->cap = cap;
    }
    memmove(&t->rows[at + 1], &t->rows[at], (t->n - at) * sizeof(*t->rows));
    t->rows[at] = own;
    t->n++;
    return 0;
}

int usage_table_merge(struct usage_table *t, const struct usage_table *from) {
    for (uint32_t i = 0; i < from->n; i++)
        TRY(usage_table_add(t, &from->rows[i]));
    return 0;
}

struct usage_sum usage_table_sum(const struct usage_table *t, const char *tenant, uint32_t first,
                                 uint32_t last) {
    const struct usage_row from = {.date = first};
    struct usage_sum sum = {0};

    for (uint32_t i = rank(t, &from); i < t->n && t->rows[i].date <= last; i++)
        if (strcmp(t->rows[i].tenant, tenant) == 0)
            add_sum(&sum, &t->rows[i].sum);
    return sum;
}

/* ---- folding ---- */

/* The newest months that have rows, up to that of the day @today; the newest is the first. */
struct used {
    uint32_t today, n, month[MONTHS_KEPT];
};

static struct used used_months(const struct usage_table *t, uint32_t today) {
    struct used u = {.today = today};

    for (uint32_t i = t->n; i > 0 && u.n < MONTHS_KEPT; i--) {
        uint32_t month = month_of(t->rows[i - 1].date);

        if (month <= today && (u.n == 0 || month < u.month[u.n - 1]))
            u.month[u.n++] = month;
    }
    return u;
}

/* Returns the age of @row: the number of later months in which something was used. The calendar
 * does not count: a clock that is years ahead adds one month, and would otherwise make all rows
 * old. */
static uint32_t age_of(const struct used *u, const struct usage_row *row) {
    uint32_t age = 0;

    while (age < u->n && u->month[age] > month_of(row->date))
        age++;
    return age;
}

/* Changes @row to the row that sums it up. Each level from 0 to FOLDS - 1 sums up more than the one
 * before. Returns false if the row is too old to be kept. */
static bool fold_row(struct usage_row *row, const struct used *u, uint32_t level) {
    uint32_t age = age_of(u, row), today = u->today;
    bool sums_days = row->date < today;

    if (level == 0)
        sums_days = age > 1;
    else if (level == 1)
        sums_days = age > 0;
    if (sums_days)
        row->date = month_of(row->date);
    if (level >= 3 && row->date < today)
        name_others(row);
    return age < (level >= 4 ? 2 : MONTHS_KEPT);
}

int usage_table_fold(struct usage_table *t, uint32_t today) {
    const struct used used = used_months(t, today);

    for (uint32_t level = 0; level < FOLDS; level++) {
        struct usage_table next = {0};

        for (uint32_t i = 0; i < t->n; i++) {
            struct usage_row row = t->rows[i];

            if (fold_row(&row, &used, level) && usage_table_add(&next, &row) < 0) {
                usage_table_deinit(&next);
                return -ENOMEM;
            }
        }
        usage_table_deinit(t);
        *t = next;
        if (t->n <= USAGE_ROWS_MAX)
            break;
    }
    return 0;
}

/* ---- text ---- */

static bool usage_table_is_plain(unsigned char c) {
    return c > ' ' && c != '%' && c != 0x7f;
}

struct field {
    const char *s;
    size_t len;
};

/* Returns the value of a hexadecimal digit as this file writes it, with capital letters; or -1. */
static int hex(char c) {
    if (c >= 'a')
        return -1;
    return hex_digit(c);
}

static bool usage_table_read_name(const struct field *f, char *out, size_t size) {
    size_t n = 0;

    memset(out, 0, size);
    if (f->len == 1 && *f->s == '-')
        return true;
    for (size_t i = 0; i < f->len; i++) {
        int c = (unsigned char)f->s[i];

        if (c == '%') {
            if (i + 2 >= f->len || hex(f->s[i + 1]) < 0 || hex(f->s[i + 2]) < 0)
                return false;
            c = hex(f->s[i + 1]) * 16 + hex(f->s[i + 2]);
            i += 2;
        } else if (!usage_table_is_plain((unsigned char)c)) {
            return false;
        }
        if (c == 0 || n + 1 >= size)
            return false;
        out[n++] = (char)c;
    }
    return n > 0;
}

static bool usage_table_read_count(const struct field *f, uint64_t max, uint64_t *out) {
    uint64_t v = 0;

    if (f->len == 0 || f->len > 19)
        return false;
    for (size_t i = 0; i < f->len; i++) {
        if (f->s[i] < '0' || f->s[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(f->s[i] - '0');
    }
    *out = v;
    return v <= max;
}

/* Reads a date with its 8 digits. */
static bool read_date(const struct field *f, uint32_t *out) {
    uint64_t v;

    if (f->len != 8 || !usage_table_read_count(f, DATE_MAX, &v))
        return false;
    *out = (uint32_t)v;
    return usage_is_date((int64_t)v);
}

/* Splits a line into its fields; returns how many there are. */
static uint32_t usage_table_split(const char *line, size_t len, struct field f[FIELDS]) {
    uint32_t n = 0;

    while (n < FIELDS) {
        const char *tab = memchr(line, '\t', len);
        size_t own = tab ? (size_t)(tab - line) : len;

        f[n++] = (struct field){line, own};
        if (!tab)
            return n;
        line += own + 1;
        len -= own + 1;
    }
    return FIELDS + 1;
}

static bool usage_table_read_row(const char *line, size_t len, struct usage_row *row) {
    struct usage_sum *s = &row->sum;
    struct field f[FIELDS];

    return usage_table_split(line, len, f) == FIELDS && read_date(&f[0], &row->date) &&
           usage_table_read_name(&f[1], row->tenant, sizeof(row->tenant)) &&
           usage_table_read_name(&f[2], row->key, sizeof(row->key)) &&
           usage_table_read_name(&f[3], row->model, sizeof(row->model)) &&
           usage_table_read_count(&f[4], USAGE_COUNT_MAX, &s->requests) &&
           usage_table_read_count(&f[5], USAGE_COUNT_MAX, &s->prompt_tokens) &&
           usage_table_read_count(&f[6], USAGE_COUNT_MAX, &s->cached_tokens) &&
           usage_table_read_count(&f[7], USAGE_COUNT_MAX, &s->output_tokens);
}

static bool usage_table_is_end(const char *line, size_t len, uint32_t n_rows) {
    char text[32];

    return len == (size_t)snprintf(text, sizeof(text), "end %u", n_rows) &&
           memcmp(line, text, len) == 0;
}

int usage_table_read(struct usage_table *t, const char *text, size_t len, struct err *err) {
    uint32_t n_rows = 0;
    bool ended = false;

    for (uint32_t number = 1; len > 0; number++) {
        const char *end = memchr(text, '\n', len);
        size_t own = end ? (size_t)(end - text) : len;
        struct usage_row row = {0};

        if (!end || ended)
            return err_set(err, 0, "usage", "line %u: is incomplete, or follows the last line",
                           number);
        if (number == 1 && (own != strlen(HEAD) || memcmp(text, HEAD, own) != 0))
            return err_set(err, 0, "usage", "line 1: must be \"%s\"", HEAD);
        if (number > 1 && !(ended = usage_table_is_end(text, own, n_rows))) {
            if (!usage_table_read_row(text, own, &row))
                return err_set(err, 0, "usage", "line %u: is not a row of usage", number);
            if (usage_table_add(t, &row) < 0)
                return -ENOMEM;
            n_rows++;
        }
        text += own + 1;
        len -= own + 1;
    }
    if (!ended)
        return err_set(err, 0, "usage", "the last line is missing");
    return 0;
}
