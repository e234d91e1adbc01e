#pragma once

/*
 * db - a database of SQLite in a file: what the daemon keeps from one process to the next. The
 * file may come from elsewhere, so nothing in it is executed, and a file that another program made
 * is not touched.
 *
 * All functions may wait for the disk, and DB_WAIT_MS for another process. One thread at a time
 * uses a database. Errors are those of errno; -EBUSY: another process has it; -ENOSPC, -EFBIG: no
 * room on the disk; -EBADMSG: it is damaged; -EMEDIUMTYPE: it belongs to another program or to
 * another version of this one.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DB_WAIT_MS 2000
#define DB_TEXT_MAX (256u << 20) /* bytes of a value; above what a stored response may have */

struct db;

/* The tables of a program: its number in the file's head, the version of the tables, and the
 * statements that create them, NULL-terminated. */
struct db_schema {
    int32_t program, version;
    const char *const *create;
};

/* A value that stands for a ? of a statement. */
struct db_value {
    /* not copied; NULL: it is the number */
    const char *text;
    size_t len;
    int64_t number;
};

struct db_rows;

/* Opens or makes the file. Returns 0 or -errno. */
int db_open(struct db **out, const char *path, const struct db_schema *schema);
struct db *db_close(struct db *db); /* accepts NULL, returns NULL */
/* Reads the whole file. Returns 0, or -EBADMSG if it is damaged. */
int db_check(struct db *db);

/* A transaction, in which this process alone writes. */
int db_begin(struct db *db);
int db_commit(struct db *db);
void db_rollback(struct db *db);

/* Executes a statement whose rows are not needed. */
int db_run(struct db *db, const char *sql, const struct db_value *v, uint32_t n);
int64_t db_last_number(const struct db *db); /* the primary key of the row inserted last */

/* Begins a statement whose rows db_next() returns one by one; db_rows_end() ends it in any case. */
int db_rows_begin(struct db *db, struct db_rows **out, const char *sql, const struct db_value *v,
                  uint32_t n);
int db_next(struct db_rows *rows); /* 1, 0 at the end, or -errno */
struct db_rows *db_rows_end(struct db_rows *rows);
/* Values of a row; they are valid until the next one. */
int64_t db_number(struct db_rows *rows, uint32_t column);
/* Returns the value as text, "" for none; *@len may be NULL. NULL: no memory. */
const char *db_text(struct db_rows *rows, uint32_t column, size_t *len);

/* Puts a number that does not change as long as no other connection writes. 0 or -errno. */
int db_version(struct db *db, int64_t *out);
