#include "api/limits/usage_rows.h"

#include <stdio.h>
#include <string.h>

#include "api/state/db.h"
#include "base/try.h"
#include "base/util.h"

#define SELECT                                                                                     \
    "SELECT day, tenant, key, model, requests, prompt_tokens, cached_tokens, output_tokens "       \
    "FROM usage ORDER BY day, tenant, key, model"
#define PUT "INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
#define DELETE "DELETE FROM usage WHERE day = ? AND tenant = ? AND key = ? AND model = ?"

static bool usage_read_name(struct db_rows *rows, uint32_t column, char *out, size_t size) {
    size_t len;
    const char *text = db_text(rows, column, &len);

    if (!text || len >= size || strlen(text) != len)
        return false;
    memcpy(out, text, len + 1);
    return true;
}

static bool usage_read_count(struct db_rows *rows, uint32_t column, uint64_t *out) {
    int64_t n = db_number(rows, column);

    *out = (uint64_t)n;
    return n >= 0 && *out <= USAGE_COUNT_MAX;
}

/* Returns false for a row that the daemon has not written. */
static bool usage_read_row(struct db_rows *rows, struct usage_row *row) {
    int64_t date = db_number(rows, 0);

    *row = (struct usage_row){.date = (uint32_t)date};
    return usage_is_date(date) && usage_read_name(rows, 1, row->tenant, sizeof(row->tenant)) &&
           usage_read_name(rows, 2, row->key, sizeof(row->key)) &&
           usage_read_name(rows, 3, row->model, sizeof(row->model)) &&
           usage_read_count(rows, 4, &row->sum.requests) &&
           usage_read_count(rows, 5, &row->sum.prompt_tokens) &&
           usage_read_count(rows, 6, &row->sum.cached_tokens) &&
           usage_read_count(rows, 7, &row->sum.output_tokens);
}

/* Reads all rows to @t. *@foreign is set if some are invalid or too many, so that the table does
 * not have the rows of the database. */
static int usage_read_all(struct db *db, struct usage_table *t, bool *foreign) {
    struct db_rows *rows;
    struct usage_row row;
    uint64_t n = 0;
    int r;

    TRY(db_rows_begin(db, &rows, SELECT, NULL, 0));
    while ((r = db_next(rows)) == 1) {
        n++;
        if (usage_read_row(rows, &row) && (r = usage_table_add(t, &row)) < 0)
            break;
    }
    db_rows_end(rows);
    *foreign = n != t->n;
    return r;
}

static void usage_put_key(const struct usage_row *row, struct db_value v[4]) {
    v[0] = (struct db_value){.number = row->date};
    v[1] = (struct db_value){.text = row->tenant, .len = strlen(row->tenant)};
    v[2] = (struct db_value){.text = row->key, .len = strlen(row->key)};
    v[3] = (struct db_value){.text = row->model, .len = strlen(row->model)};
}

static int usage_write_row(struct db *db, const struct usage_row *row) {
    const struct usage_sum *s = &row->sum;
    struct db_value v[8];

    usage_put_key(row, v);
    v[4] = (struct db_value){.number = (int64_t)s->requests};
    v[5] = (struct db_value){.number = (int64_t)s->prompt_tokens};
    v[6] = (struct db_value){.number = (int64_t)s->cached_tokens};
    v[7] = (struct db_value){.number = (int64_t)s->output_tokens};
    return db_run(db, PUT, v, ARRAY_SIZE(v));
}

static int delete_row(struct db *db, const struct usage_row *row) {
    struct db_value v[4];

    usage_put_key(row, v);
    return db_run(db, DELETE, v, ARRAY_SIZE(v));
}

/* Makes the rows of the database, which are @was, those of @is. Both are in the same order. */
static int write_difference(struct db *db, const struct usage_table *was,
                            const struct usage_table *is) {
    uint32_t i = 0, k = 0;

    while (i < was->n || k < is->n) {
        int order = i == was->n ? 1 : -1;

        if (i < was->n && k < is->n)
            order = usage_row_compare(&was->rows[i], &is->rows[k]);
        if (order < 0) {
            TRY(delete_row(db, &was->rows[i++]));
            continue;
        }
        bool same = order == 0 &&
                    memcmp(&was->rows[i].sum, &is->rows[k].sum, sizeof(was->rows[i].sum)) == 0;
        TRY(same ? 0 : usage_write_row(db, &is->rows[k]));
        i += order == 0;
        k++;
    }
    return 0;
}

int usage_rows_add(struct db *db, const struct usage_table *own, uint32_t today,
                   struct usage_table *out) {
    CLEANUP(usage_table_deinit) struct usage_table was = {0}, t = {0};
    bool foreign = false;

    TRY(usage_read_all(db, &was, &foreign));
    TRY(usage_table_merge(&t, &was));
    if (own->n > 0) {
        TRY(usage_table_merge(&t, own));
        TRY(usage_table_fold(&t, today));
        if (foreign) {
            TRY(db_run(db, "DELETE FROM usage", NULL, 0));
            usage_table_deinit(&was);
        }
        TRY(write_difference(db, &was, &t));
    }
    *out = t;
    t = (struct usage_table){0};
    return 0;
}
