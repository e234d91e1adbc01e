/*
 * A row is a response or a conversation; an index of its items saves parsing them, and is written
 * as [[AT, LENGTH, FLAGS, ID], ..]. A checksum of all that never changes begins the column of the
 * events; rows of version 0.2.0 have none. What is read may come from elsewhere: a row whose
 * checksum is wrong, whose texts are not JSON, or whose index does not fit its texts, is left out.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/http/json.h"
#include "api/responses/store_private.h"
#include "api/state/db.h"
#include "base/json_value.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/try.h"

#define FLAG_MESSAGE 1u
#define FLAG_SILENT 2u
#define CHECKSUM "sha256:"                       /* begins the column of events */
#define CHECKSUM_LEN (sizeof(CHECKSUM) - 1 + 64) /* with the digits */

enum { N_CONSTANT = 11 }; /* values of a row that the checksum covers */

static const char insert_into[] =
    "INSERT INTO responses (tenant, id, parent, listed, created, used, bytes, writer, cancelled, "
    "head, echo, input, output_items, input_items, events) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
static const char update_row[] = "UPDATE responses SET listed = ?, used = ? WHERE number = ?";
static const char delete_row[] = "DELETE FROM responses WHERE number = ?";
static const char delete_old[] =
    "DELETE FROM responses WHERE used < ?1 AND number NOT IN (WITH RECURSIVE young(n) AS ("
    "SELECT number FROM responses WHERE used >= ?1 AND listed UNION "
    "SELECT parent FROM responses JOIN young ON number = n WHERE parent > 0) SELECT n FROM young)";
static const char date_back[] = "UPDATE responses SET used = ?1 WHERE used > ?1";
static const char move_dates[] = "UPDATE responses SET used = used + ?";
static const char select_newest[] = "SELECT coalesce(max(used), ?) FROM responses";
static const char select_rows[] =
    "SELECT number, tenant, id, parent, listed, created, used, cancelled, head, echo, input, "
    "output_items, input_items, events FROM responses WHERE number > ? AND writer <> ? "
    "ORDER BY number";

static struct db_value number_value(int64_t n) {
    return (struct db_value){.number = n};
}

static struct db_value stored_text_value(const char *text, size_t len) {
    return (struct db_value){.text = text_or(text, ""), .len = len};
}

static struct db_value blob_value(const struct blob *b) {
    return stored_text_value(blob_data(b), b ? b->text.len : 0);
}

/* Writes the checksum of the values of a row that never change, each with its length. */
static void checksum_row(const struct db_value v[N_CONSTANT], char out[CHECKSUM_LEN + 1]) {
    struct sha256 sum;
    char number[32];

    sha256_init(&sum);
    for (uint32_t i = 0; i < N_CONSTANT; i++) {
        int n = snprintf(number, sizeof(number), "%zu,%lld:", v[i].len, (long long)v[i].number);

        sha256_add(&sum, number, (size_t)n);
        sha256_add(&sum, v[i].text ? v[i].text : "", v[i].len);
    }
    memcpy(out, CHECKSUM, sizeof(CHECKSUM) - 1);
    sha256_hex(&sum, out + sizeof(CHECKSUM) - 1);
}

/* ---- writing ---- */

static int write_index(struct buf *out, const struct item_list *l) {
    struct json j = {.out = out};

    json_open(&j, '[');
    for (size_t i = 0; i < item_list_n(l); i++) {
        const struct item_entry *e = item_list_get(l, i);

        json_open(&j, '[');
        json_uint(&j, e->at);
        json_uint(&j, e->len);
        json_uint(&j, (e->message ? FLAG_MESSAGE : 0) | (e->silent ? FLAG_SILENT : 0));
        json_cstring(&j, item_list_id(l, e));
        json_close(&j, ']');
    }
    json_close(&j, ']');
    return j.error;
}

static int write_events(struct buf *out, const struct stored_parts *p) {
    struct json j = {.out = out};

    if (!event_log_save(p->log, p->echo, &j))
        return 0;
    return j.error;
}

/* Returns the text of @r in one part, which is @whole if it has several. Returns 0 or -errno. */
static int whole_head(const struct spliced *r, struct buf *whole, struct db_value *out) {
    if (r->in.n > 0)
        TRY(spliced_read(r, 0, spliced_len(r), whole));
    if (r->in.n > 0)
        *out = stored_text_value(whole->data, whole->len);
    else
        *out = blob_value(r->text);
    return 0;
}

/* Writes the checksum of the values, with the events behind it. Returns 0 or -errno. */
static int put_checksum(const struct db_value v[N_CONSTANT], struct buf *out) {
    const struct db_value *events = &v[N_CONSTANT - 1];
    char checksum[CHECKSUM_LEN + 1];

    checksum_row(v, checksum);
    TRY(buf_add(out, checksum, CHECKSUM_LEN));
    return buf_add(out, events->text, events->len);
}

static int insert_row(struct db *db, struct stored *r, const char *tenant, int64_t writer) {
    CLEANUP(buf_deinit) struct buf output = {.max = DB_TEXT_MAX}, input = {.max = DB_TEXT_MAX};
    CLEANUP(buf_deinit) struct buf events = {.max = DB_TEXT_MAX}, whole = {.max = DB_TEXT_MAX};
    CLEANUP(buf_deinit) struct buf summed = {.max = DB_TEXT_MAX};
    struct db_value head;
    const struct stored_parts *p = &r->parts;
    int64_t parent = 0;

    TRY(write_index(&output, &p->output));
    TRY(write_index(&input, &p->items));
    TRY(write_events(&events, p));
    TRY(whole_head(&p->head, &whole, &head));
    if (r->parent)
        parent = r->parent->row ? r->parent->row : r->parent->next_row;
    assert(!r->parent || parent > 0); /* it was before this one in the queue */
    const struct db_value constant[N_CONSTANT] = {
        stored_text_value(tenant, strlen(tenant)),
        stored_text_value(r->id, strlen(r->id)),
        number_value(parent),
        number_value(r->created_s),
        number_value(p->cancelled),
        head,
        blob_value(p->echo),
        stored_text_value(p->input.data, p->input.len),
        stored_text_value(output.data, output.len),
        stored_text_value(input.data, input.len),
        stored_text_value(events.data, events.len),
    };
    TRY(put_checksum(constant, &summed));
    const struct db_value v[] = {
        constant[0],
        constant[1],
        constant[2],
        number_value(r->listed_then),
        constant[3],
        number_value(r->used_then),
        number_value((int64_t)stored_bytes(r)),
        number_value(writer),
        constant[4],
        constant[5],
        constant[6],
        constant[7],
        constant[8],
        constant[9],
        stored_text_value(summed.data, summed.len),
    };
    TRY(db_run(db, insert_into, v, ARRAY_SIZE(v)));
    r->next_row = db_last_number(db);
    return 0;
}

int rows_write(struct db *db, struct stored *r, const char *tenant, int64_t writer) {
    const struct db_value row = number_value(r->row);
    const struct db_value v[] = {number_value(r->listed_then), number_value(r->used_then), row};

    r->next_row = r->row;
    if (r->dead)
        return db_run(db, delete_row, &row, 1);
    if (r->row > 0)
        return db_run(db, update_row, v, ARRAY_SIZE(v));
    return insert_row(db, r, tenant, writer);
}

/* Writes when a row was used last to *@out; @now_s if there are no rows. */
static int find_newest(struct db *db, int64_t now_s, int64_t *out) {
    const struct db_value v = number_value(now_s);
    struct db_rows *rows;

    TRY(db_rows_begin(db, &rows, select_newest, &v, 1));
    int r = db_next(rows);
    if (r == 1)
        *out = db_number(rows, 0);
    db_rows_end(rows);
    return MIN(r, 0);
}

/* Fits the dates of rows to a clock that may have been set since they were written. */
static int fit_dates(struct db *db, int64_t now_s, int64_t ttl_s) {
    const struct db_value now = number_value(now_s);
    int64_t newest_s = now_s;

    TRY(db_run(db, date_back, &now, 1));
    TRY(find_newest(db, now_s, &newest_s));
    if (newest_s >= now_s - ttl_s)
        return 0;
    const struct db_value ahead = number_value(now_s - MAX(newest_s, 0));
    return db_run(db, move_dates, &ahead, 1);
}

int rows_clean(struct db *db, int64_t now_s, int64_t ttl_s) {
    const struct db_value before = number_value(now_s - ttl_s);

    TRY(fit_dates(db, now_s, ttl_s));
    return db_run(db, delete_old, &before, 1);
}

/* ---- reading ---- */

struct stored_row *stored_row_free(struct stored_row *row) {
    stored_parts_deinit(&row->parts);
    free(row);
    return NULL;
}

/* Adds an entry of an index to @l, if it is an object in @text behind those before. */
static int read_entry(struct item_list *l, yyjson_val *v, const char *text, size_t len) {
    struct item_entry e = {.at = yyjson_get_uint(yyjson_arr_get(v, 0)),
                           .len = yyjson_get_uint(yyjson_arr_get(v, 1))};
    uint64_t flags = yyjson_get_uint(yyjson_arr_get(v, 2));
    const char *id = json_cstr(yyjson_arr_get(v, 3));
    size_t n = item_list_n(l), after = 0;

    if (n > 0) {
        const struct item_entry *last = item_list_get(l, n - 1);

        after = last->at + last->len;
    }
    if (e.len < 2 || e.at < after || e.at > len || e.len > len - e.at)
        return -EINVAL;
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(text + e.at, e.len, 0);
    if (!yyjson_is_obj(yyjson_doc_get_root(doc)) || text[e.at] != '{' ||
        text[e.at + e.len - 1] != '}')
        return -EINVAL;
    e.message = flags & FLAG_MESSAGE;
    e.silent = flags & FLAG_SILENT;
    return item_list_add(l, e, id, id ? strlen(id) : 0);
}

/* Reads the index in column @column of items in @text; @named: each must have an id. */
static int stored_read_index(struct db_rows *rows, uint32_t column, struct item_list *l,
                             const char *text, size_t text_len, bool named) {
    size_t len;
    const char *index = db_text(rows, column, &len);
    CLEANUP(json_doc_freep) yyjson_doc *doc = index ? yyjson_read(index, len, 0) : NULL;
    yyjson_val *all = yyjson_doc_get_root(doc), *v;
    yyjson_arr_iter iter;

    if (!yyjson_is_arr(all))
        return -EINVAL;
    yyjson_arr_iter_init(all, &iter);
    while ((v = yyjson_arr_iter_next(&iter))) {
        if (named && !yyjson_is_str(yyjson_arr_get(v, 3)))
            return -EINVAL;
        TRY(read_entry(l, v, text, text_len));
    }
    return 0;
}

/* Makes a blob of a column; NULL of an empty one. Returns 0 or -ENOMEM. */
static int read_blob(struct db_rows *rows, uint32_t column, struct blob **out) {
    CLEANUP(buf_deinit) struct buf b = {.max = DB_TEXT_MAX};
    size_t len;
    const char *text = db_text(rows, column, &len);

    if (!text || len == 0)
        return enomem_unless(text);
    TRY(buf_add(&b, text, len));
    *out = blob_new(&b);
    return enomem_unless(*out);
}

/* Returns 0 if the texts are what a response has: an object in two parts, which items without a
 * response lack, and an array. */
static int check_texts(const struct stored_parts *p, bool named) {
    CLEANUP(buf_deinit) struct buf whole = {.max = DB_TEXT_MAX};

    TRY(spliced_read(&p->head, 0, spliced_len(&p->head), &whole));
    TRY(p->echo ? buf_add(&whole, p->echo->text.data, p->echo->text.len) : 0);
    TRY(buf_add_char(&whole, '}'));
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(whole.data, whole.len, 0);
    if (named && !yyjson_is_obj(yyjson_doc_get_root(doc)))
        return -EINVAL;
    if (p->input.len == 0)
        return 0;
    CLEANUP(json_doc_freep) yyjson_doc *input = yyjson_read(p->input.data, p->input.len, 0);
    if (!yyjson_is_arr(yyjson_doc_get_root(input)))
        return -EINVAL;
    return 0;
}

/* Finds the events, behind the checksum. Returns 0, or -EBADMSG if the checksum is wrong. */
static int read_events(struct db_rows *rows, const char **out, size_t *len) {
    static const uint8_t columns[N_CONSTANT] = {1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13};
    struct db_value v[N_CONSTANT] = {0};
    char checksum[CHECKSUM_LEN + 1];
    const char *text = db_text(rows, 13, len);

    *out = text;
    if (!text)
        return -ENOMEM;
    if (*len == 0 || *text == '[')
        return 0; /* of version 0.2.0 */
    if (*len < CHECKSUM_LEN)
        return -EBADMSG;
    for (uint32_t i = 0; i < N_CONSTANT; i++)
        if (columns[i] == 3 || columns[i] == 5 || columns[i] == 7)
            v[i].number = db_number(rows, columns[i]);
        else if (!(v[i].text = db_text(rows, columns[i], &v[i].len)))
            return -ENOMEM;
    *out = text + CHECKSUM_LEN;
    *len -= CHECKSUM_LEN;
    v[N_CONSTANT - 1] = stored_text_value(*out, *len);
    checksum_row(v, checksum);
    if (memcmp(checksum, text, CHECKSUM_LEN) != 0)
        return -EBADMSG;
    return 0;
}

static int read_parts(struct db_rows *rows, struct stored_parts *p, bool named) {
    const char *events;
    size_t len, n_head, n_events;

    TRY(read_events(rows, &events, &n_events));

    p->cancelled = db_number(rows, 7) != 0;
    TRY(read_blob(rows, 8, &p->head.text));
    TRY(read_blob(rows, 9, &p->echo));
    const char *input = db_text(rows, 10, &len);
    TRY(input ? 0 : -ENOMEM);
    TRY(len > 0 ? buf_add(&p->input, input, len) : 0);
    TRY(check_texts(p, named));
    n_head = spliced_len(&p->head);
    TRY(stored_read_index(rows, 11, &p->output, blob_data(p->head.text), n_head, true));
    TRY(stored_read_index(rows, 12, &p->items, p->input.data, p->input.len, false));
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(events, n_events, 0);
    p->log = event_log_load(yyjson_doc_get_root(doc), p->echo);
    return 0;
}

static bool stored_read_name(struct db_rows *rows, uint32_t column, char *out, size_t size) {
    size_t len;
    const char *text = db_text(rows, column, &len);

    if (!text || len == 0 || len >= size || strlen(text) != len)
        return false;
    memcpy(out, text, len + 1);
    return true;
}

static bool is_id(const char *id) {
    static const char *const prefixes[] = {"resp_", "conv_", "item_"};

    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
        if (strncmp(id, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static enum row_listed read_listed(struct db_rows *rows, uint32_t column) {
    int64_t n = db_number(rows, column);

    if (n == ROW_PROMISED)
        return ROW_PROMISED;
    if (n == ROW_HIDDEN)
        return ROW_HIDDEN;
    return ROW_LISTED;
}

/* Adds the row to @out, unless it is invalid, and counts it in *@n_bad if it is damaged. Returns
 * its size, or -ENOMEM. */
static int64_t stored_read_row(struct db_rows *rows, struct list *out, uint32_t *n_bad) {
    struct stored_row *row = calloc(1, sizeof(*row));

    if (!row)
        return -ENOMEM;
    stored_parts_init(&row->parts);
    row->number = db_number(rows, 0);
    row->parent = db_number(rows, 3);
    row->listed = read_listed(rows, 4);
    row->created_s = db_number(rows, 5);
    row->used_s = db_number(rows, 6);
    int r = -EINVAL;
    if (stored_read_name(rows, 1, row->tenant, sizeof(row->tenant)) &&
        stored_read_name(rows, 2, row->id, sizeof(row->id)) && is_id(row->id) && row->parent >= 0 &&
        row->parent < row->number)
        r = read_parts(rows, &row->parts, row->listed);
    if (r < 0) {
        *n_bad += r == -EBADMSG;
        stored_row_free(row);
        if (r == -ENOMEM)
            return r;
        return 0;
    }
    list_push_back(out, &row->link);
    return (int64_t)(spliced_bytes(&row->parts.head) + blob_bytes(row->parts.echo) +
                     row->parts.input.cap + event_log_bytes(row->parts.log));
}

int rows_read(struct db *db, int64_t writer, size_t max_bytes, int64_t *last, struct list *out,
              bool *more, uint32_t *n_bad) {
    const struct db_value v[] = {number_value(*last), number_value(writer)};
    struct db_rows *rows;
    size_t n = 0;
    int r;

    *more = false;
    *n_bad = 0;
    TRY(db_rows_begin(db, &rows, select_rows, v, ARRAY_SIZE(v)));
    while ((r = db_next(rows)) == 1) {
        int64_t size = stored_read_row(rows, out, n_bad);

        if (size < 0) {
            r = (int)size;
            break;
        }
        *last = db_number(rows, 0);
        n += (size_t)size + 1;
        if (n >= max_bytes) {
            *more = true;
            r = 0;
            break;
        }
    }
    db_rows_end(rows);
    return r;
}
