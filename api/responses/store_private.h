#pragma once

/* store_private - what the files of the store share: store.c (the index), store_save.c (when it is
 * written), store_rows.c (rows of the database). All functions are called under the store's lock,
 * unless they say otherwise. */

#include "api/responses/store.h"

struct db;

/* ---- store.c ---- */

struct store_tenant {
    /* stored.link */
    struct list kept;
    /* length of the list */
    uint32_t n;
    /* sum of all that is not freed: those in `kept`, and those that are held */
    uint64_t bytes;
    double weight;
    /* with a database: its name there */
    char name[64];
};

/* A row of the database. */
struct stored_row {
    struct list link;
    int64_t number, parent, created_s, used_s;
    char tenant[64], id[48];
    enum row_listed listed;
    struct stored_parts parts;
};

size_t stored_bytes(const struct stored *r); /* memory that it is charged for */
/* Makes room for @tenant in the array. Returns 0 or -ENOMEM. */
int store_reserve_tenant(struct store *s, uint32_t tenant);
/* Adds what was read, used at @used_ns, if what it continues is there. Its parts are taken over or
 * left. */
void store_insert_row(struct store *s, struct stored_row *row, uint32_t tenant, int64_t used_ns);
void store_unref_locked(struct stored *r); /* drops a reference */
void store_free_locked(struct store *s);   /* frees all without references */

/* ---- store_save.c ---- */

void save_init(struct store *s, uv_loop_t *loop); /* opens its handles */
void save_close(struct store *s);        /* closes the handles; on the loop, without the lock */
void save_deinit(struct store *s);       /* drops the rows not written; without the lock */
int64_t save_now(const struct store *s); /* seconds since 1970; on any thread */
/* Returns the date of a use: seconds since 1970 as the machine's time at the start counts them, so
 * that no row ages when that is set while the process runs. On any thread. */
int64_t save_use_date(const struct store *s);
/* Lets @r, and all that it continues, have rows. */
void save_want_locked(struct stored *r);
void save_mark_locked(struct stored *r); /* marks that the row, if there is one, differs */
void save_use_locked(struct stored *r);  /* marks that the response was used now */
/* Frees a response without parts, when its row needs no more change. */
void save_free_locked(struct stored *r);
/* Returns the response with this row, or NULL. */
struct stored *save_find_row(struct store *s, int64_t number);
void save_set_row(struct stored *r, int64_t number); /* @r has this row from now on */
void save_pin_locked(struct stored *r); /* takes over a reference until the next look */

/* ---- store_rows.c; on the thread, in a transaction, without the lock ---- */

/* Writes what is new or has changed of @r. Returns 0 or -errno. */
int rows_write(struct db *db, struct stored *r, const char *tenant, int64_t writer);
/* Deletes rows that were not used for @ttl_s and that no younger ones continue. Rows dated after
 * @now_s count as used now. If all are older than @ttl_s, the clock was wrong or is: none is
 * deleted, and the dates move until the newest is @now_s. */
int rows_clean(struct db *db, int64_t now_s, int64_t ttl_s);
/* Adds rows with numbers above *@last that other processes wrote to @out, up to @max_bytes, and
 * moves *@last. *@more: there may be more. Invalid rows are left out; *@n_bad counts those whose
 * checksum is wrong. Returns 0 or -errno. */
int rows_read(struct db *db, int64_t writer, size_t max_bytes, int64_t *last, struct list *out,
              bool *more, uint32_t *n_bad);
struct stored_row *stored_row_free(struct stored_row *row); /* returns NULL */
