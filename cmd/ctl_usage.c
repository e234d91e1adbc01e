#include "cmd/ctl_usage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json_read.h"
#include "base/text.h"
#include "cmd/ctl.h"

/* A row of sums; its texts point into the answer. */
struct sum {
    const char *tenant, *key, *model;
    double n[4];
};

static const char *const counts[] = {"requests", "prompt_tokens", "cached_tokens", "output_tokens"};
static const char *const names[] = {"date", "tenant", "key", "model"};

bool ctl_usage_is_date(const char *s) {
    struct tm tm = {0};
    char day[16], again[16];

    snprintf(day, sizeof(day), "%s%s", s, strlen(s) == strlen("0000-00") ? "-01" : "");
    if (!strptime(day, "%Y-%m-%d", &tm) || timegm(&tm) == -1)
        return false;
    strftime(again, sizeof(again), "%Y-%m-%d", &tm);
    return strcmp(day, again) == 0;
}

/* Returns true if the row is of @since or later. A row of a whole month counts if the day is in
 * that month. */
static bool is_since(yyjson_val *row, const char *since) {
    const char *date = json_cstr(yyjson_obj_get(row, "date"));

    return date && strncmp(date, since, MIN(strlen(date), strlen(since))) >= 0;
}

static const char *ctl_usage_text(yyjson_val *row, const char *key) {
    const char *s = json_cstr(yyjson_obj_get(row, key));

    if (s)
        return s;
    return "";
}

static int ctl_usage_compare(const void *a, const void *b) {
    const struct sum *x = a, *y = b;
    int r = strcmp(x->tenant, y->tenant);

    if (r != 0)
        return r;
    r = strcmp(x->key, y->key);
    if (r != 0)
        return r;
    return strcmp(x->model, y->model);
}

/* Reads the rows since @since into the new array *@out, and adds up rows with the same names.
 * Returns the length of the array. */
static size_t ctl_usage_add_up(yyjson_val *list, const char *since, struct sum **out) {
    struct sum *s = calloc(yyjson_arr_size(list) + 1, sizeof(*s));
    size_t n = 0, kept = 0;

    *out = s;
    if (!s)
        return 0;
    JSON_EACH(row, list) {
        if (!is_since(row, since))
            continue;
        s[n] = (struct sum){ctl_usage_text(row, "tenant"),
                            ctl_usage_text(row, "key"),
                            ctl_usage_text(row, "model"),
                            {0}};
        for (size_t k = 0; k < ARRAY_SIZE(counts); k++)
            ctl_value(row, counts[k], &s[n].n[k]);
        n++;
    }
    qsort(s, n, sizeof(*s), ctl_usage_compare);
    for (size_t k = 0; k < n; k++) {
        if (kept == 0 || ctl_usage_compare(&s[kept - 1], &s[k]) != 0) {
            s[kept++] = s[k];
            continue;
        }
        for (size_t c = 0; c < ARRAY_SIZE(counts); c++)
            s[kept - 1].n[c] += s[k].n[c];
    }
    return kept;
}

void ctl_usage_table(struct buf *out, yyjson_val *usage, const char *since, size_t columns) {
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    CLEANUP(json_doc_freep) yyjson_doc *rows = NULL;
    CLEANUP(freep) struct sum *s = NULL;
    size_t n = ctl_usage_add_up(yyjson_obj_get(usage, "usage"), since, &s);
    yyjson_mut_val *list = yyjson_mut_arr(d);

    for (size_t i = 0; i < n; i++) {
        yyjson_mut_val *row = yyjson_mut_arr_add_obj(d, list);

        yyjson_mut_obj_add_str(d, row, "tenant", s[i].tenant);
        yyjson_mut_obj_add_str(d, row, "key", s[i].key);
        yyjson_mut_obj_add_str(d, row, "model", s[i].model);
        for (size_t k = 0; k < ARRAY_SIZE(counts); k++)
            yyjson_mut_obj_add_uint(d, row, counts[k], (uint64_t)s[i].n[k]);
    }
    rows = yyjson_mut_val_imut_copy(list, NULL);
    buf_printf(out, "since %s (UTC)\n", since);
    ctl_show_usage(out, yyjson_doc_get_root(rows), columns);
}

/* Appends a field, in quotes if CSV requires them. */
static void add_field(struct buf *out, const char *text) {
    if (!text[strcspn(text, ",\"\r\n")]) {
        buf_add_str(out, text);
        return;
    }
    buf_add_char(out, '"');
    for (; *text; text++) {
        if (*text == '"')
            buf_add_char(out, '"');
        buf_add_char(out, *text);
    }
    buf_add_char(out, '"');
}

void ctl_usage_csv(struct buf *out, yyjson_val *usage, const char *since) {
    buf_add_str(out, "date,tenant,key,model,requests,prompt_tokens,cached_tokens,output_tokens\n");
    JSON_EACH(row, yyjson_obj_get(usage, "usage")) {
        if (!is_since(row, since))
            continue;
        for (size_t k = 0; k < ARRAY_SIZE(names); k++) {
            add_field(out, printable(ctl_usage_text(row, names[k])).s);
            buf_add_char(out, ',');
        }
        for (size_t k = 0; k < ARRAY_SIZE(counts); k++)
            buf_printf(out, "%s%s", k ? "," : "", ctl_number(row, counts[k]).s);
        buf_add_char(out, '\n');
    }
}
