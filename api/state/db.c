/*
 * A journal of writes to come (WAL) lets others read, for example an operator with sqlite3, while
 * the daemon writes. Each commit is on the disk when it returns (synchronous = FULL).
 *
 * struct db and struct db_rows are SQLite's own objects under names of ours.
 */

#include "api/state/db.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/try.h"
#include "base/util.h"

#define JOURNAL_MAX "8388608" /* bytes of the journal that stay allocated */

static sqlite3 *db_own(struct db *db) {
    return (sqlite3 *)db;
}

static sqlite3_stmt *db_rows_statement(struct db_rows *rows) {
    return (sqlite3_stmt *)rows;
}

static int errno_of(sqlite3 *s, int code) {
    static const struct {
        int code, error;
    } table[] = {
        {SQLITE_OK, 0},           {SQLITE_ROW, 0},        {SQLITE_DONE, 0},
        {SQLITE_BUSY, EBUSY},     {SQLITE_LOCKED, EBUSY}, {SQLITE_FULL, ENOSPC},
        {SQLITE_NOMEM, ENOMEM},   {SQLITE_TOOBIG, EFBIG}, {SQLITE_CORRUPT, EBADMSG},
        {SQLITE_NOTADB, EBADMSG}, {SQLITE_PERM, EACCES},  {SQLITE_READONLY, EROFS},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (table[i].code == (code & 0xff))
            return -table[i].error;
    int system = s ? sqlite3_system_errno(s) : 0;
    if (system <= 0)
        return -EIO;
    return -system;
}

/* Returns 0 if @path is a file or is not there yet: a FIFO or a device would be waited for. A new
 * file is for its owner only. */
static int check_file(const char *path) {
    struct stat st;

    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return -EISDIR;
        if (!S_ISREG(st.st_mode))
            return -EOPNOTSUPP;
        return 0;
    }
    if (errno != ENOENT)
        return -errno;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}

/* Refuses whatever a file from elsewhere could make SQLite execute or read. */
static int harden(sqlite3 *s) {
    static const char *const statements[] = {
        "PRAGMA trusted_schema=OFF", "PRAGMA cell_size_check=ON",
        "PRAGMA mmap_size=0",        "PRAGMA secure_delete=ON",
        "PRAGMA synchronous=FULL",   "PRAGMA journal_size_limit=" JOURNAL_MAX,
        "PRAGMA temp_store=MEMORY",
    };

    sqlite3_extended_result_codes(s, 1);
    sqlite3_busy_timeout(s, DB_WAIT_MS);
    sqlite3_limit(s, SQLITE_LIMIT_LENGTH, DB_TEXT_MAX);
    sqlite3_db_config(s, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(s, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(s, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(statements); i++)
        TRY(db_run((struct db *)s, statements[i], NULL, 0));
    return 0;
}

/* Reads the one number that @sql returns. */
static int read_number(struct db *db, const char *sql, int64_t *out) {
    struct db_rows *rows;

    TRY(db_rows_begin(db, &rows, sql, NULL, 0));
    int r = db_next(rows);
    if (r == 1)
        *out = db_number(rows, 0);
    else if (r == 0)
        r = -EBADMSG;
    db_rows_end(rows);
    return MIN(r, 0);
}

/* Returns 0 if the tables are exactly those of @schema. */
static int compare_tables(struct db *db, const struct db_schema *schema) {
    static const char list[] = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND "
                               "name NOT LIKE 'sqlite_%' ORDER BY rowid";
    struct db_rows *rows;
    uint32_t n = 0;
    int r;

    TRY(db_rows_begin(db, &rows, list, NULL, 0));
    while ((r = db_next(rows)) == 1) {
        const char *sql = db_text(rows, 0, NULL), *want = schema->create[n];

        if (!sql || !want || strcmp(sql, want) != 0) {
            r = -EMEDIUMTYPE;
            break;
        }
        n++;
    }
    db_rows_end(rows);
    if (r == 0 && schema->create[n])
        return -EMEDIUMTYPE;
    return r;
}

static int create_tables(struct db *db, const struct db_schema *schema) {
    char text[64];

    for (const char *const *sql = schema->create; *sql; sql++)
        TRY(db_run(db, *sql, NULL, 0));
    snprintf(text, sizeof(text), "PRAGMA application_id=%d", schema->program);
    TRY(db_run(db, text, NULL, 0));
    snprintf(text, sizeof(text), "PRAGMA user_version=%d", schema->version);
    return db_run(db, text, NULL, 0);
}

/* Creates the tables, unless another process has done so, and commits. */
static int create_if_empty(struct db *db, const struct db_schema *schema) {
    int64_t n = 0;

    TRY(read_number(db, "SELECT count(*) FROM sqlite_schema", &n));
    if (n == 0)
        TRY(create_tables(db, schema));
    return db_commit(db);
}

/* Makes the tables in an empty file, or checks that the file has them. Two daemons may be here at
 * the same time. */
static int have_tables(struct db *db, const struct db_schema *schema) {
    int64_t program = 0, version = 0, n = 0;

    TRY(read_number(db, "PRAGMA application_id", &program));
    TRY(read_number(db, "PRAGMA user_version", &version));
    TRY(read_number(db, "SELECT count(*) FROM sqlite_schema", &n));
    if (n > 0 && (program != schema->program || version != schema->version))
        return -EMEDIUMTYPE;
    if (n > 0)
        return compare_tables(db, schema);
    TRY(db_begin(db));
    int r = create_if_empty(db, schema);
    if (r < 0) {
        db_rollback(db);
        return r;
    }
    return compare_tables(db, schema);
}

/* Makes @s, which was opened with @code, ready for use. */
static int prepare_db(sqlite3 *s, int code, const struct db_schema *schema) {
    struct db *db = (struct db *)s;

    TRY(errno_of(s, code));
    TRY(harden(s));
    TRY(have_tables(db, schema));
    /* behind the check, because it changes the file */
    return db_run(db, "PRAGMA journal_mode=WAL", NULL, 0);
}

int db_open(struct db **out, const char *path, const struct db_schema *schema) {
    sqlite3 *s = NULL;

    *out = NULL;
    TRY(check_file(path));
    int code = sqlite3_open_v2(path, &s, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    int r = prepare_db(s, code, schema);
    if (r < 0)
        sqlite3_close(s);
    else
        *out = (struct db *)s;
    return r;
}

struct db *db_close(struct db *db) {
    sqlite3_close(db_own(db));
    return NULL;
}

int db_check(struct db *db) {
    struct db_rows *rows;
    const char *text;

    TRY(db_rows_begin(db, &rows, "PRAGMA quick_check(1)", NULL, 0));
    int r = db_next(rows);
    if (r == 1 && (!(text = db_text(rows, 0, NULL)) || strcmp(text, "ok") != 0))
        r = -EBADMSG;
    db_rows_end(rows);
    return MIN(r, 0);
}

int db_begin(struct db *db) {
    return db_run(db, "BEGIN IMMEDIATE", NULL, 0);
}

int db_commit(struct db *db) {
    return db_run(db, "COMMIT", NULL, 0);
}

void db_rollback(struct db *db) {
    if (!sqlite3_get_autocommit(db_own(db)))
        sqlite3_exec(db_own(db), "ROLLBACK", NULL, NULL, NULL);
}

static int db_bind(sqlite3_stmt *st, int at, const struct db_value *v) {
    if (v->text)
        return sqlite3_bind_text64(st, at, v->text, v->len, SQLITE_STATIC, SQLITE_UTF8);
    return sqlite3_bind_int64(st, at, v->number);
}

int db_rows_begin(struct db *db, struct db_rows **out, const char *sql, const struct db_value *v,
                  uint32_t n) {
    sqlite3_stmt *st = NULL;
    int code = sqlite3_prepare_v2(db_own(db), sql, -1, &st, NULL);

    for (uint32_t i = 0; i < n && code == SQLITE_OK; i++)
        code = db_bind(st, (int)i + 1, &v[i]);
    int r = errno_of(db_own(db), code);
    if (r < 0) {
        sqlite3_finalize(st);
        st = NULL;
    }
    *out = (struct db_rows *)st;
    return r;
}

int db_next(struct db_rows *rows) {
    int code = sqlite3_step(db_rows_statement(rows));

    if (code == SQLITE_ROW)
        return 1;
    return errno_of(sqlite3_db_handle(db_rows_statement(rows)), code);
}

struct db_rows *db_rows_end(struct db_rows *rows) {
    sqlite3_finalize(db_rows_statement(rows));
    return NULL;
}

int64_t db_number(struct db_rows *rows, uint32_t column) {
    return sqlite3_column_int64(db_rows_statement(rows), (int)column);
}

const char *db_text(struct db_rows *rows, uint32_t column, size_t *len) {
    const char *text = (const char *)sqlite3_column_text(db_rows_statement(rows), (int)column);
    int bytes = sqlite3_column_bytes(db_rows_statement(rows), (int)column);

    if (len)
        *len = text ? (size_t)bytes : 0;
    if (!text && sqlite3_column_type(db_rows_statement(rows), (int)column) == SQLITE_NULL)
        return "";
    return text;
}

int db_run(struct db *db, const char *sql, const struct db_value *v, uint32_t n) {
    struct db_rows *rows;
    int r;

    TRY(db_rows_begin(db, &rows, sql, v, n));
    while ((r = db_next(rows)) == 1)
        ;
    db_rows_end(rows);
    return r;
}

int64_t db_last_number(const struct db *db) {
    return sqlite3_last_insert_rowid((sqlite3 *)db);
}

int db_version(struct db *db, int64_t *out) {
    return read_number(db, "PRAGMA data_version", out);
}
