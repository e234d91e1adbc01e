#pragma once

/*
 * usage_table - the requests and tokens of each key, model and day: the rows, the text form in
 * which earlier versions stored them, and the summing up of older rows, which bounds them.
 *
 * Days are those of UTC. A day is written YYYYMMDD; a row for a whole month has day 0, and is the
 * sum of those of its days that have no rows of their own.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define USAGE_NAME 64
#define USAGE_MODEL 128
#define USAGE_ROWS_MAX 8192u /* limit to which usage_table_fold() reduces the rows */
#define USAGE_COUNT_MAX 1000000000000000000u
#define USAGE_OTHERS "(others)"

struct usage_sum {
    /* <= USAGE_COUNT_MAX */
    uint64_t requests, prompt_tokens, cached_tokens, output_tokens;
};

struct usage_row {
    uint32_t date;
    /* key "": none was given */
    char tenant[USAGE_NAME], key[USAGE_NAME], model[USAGE_MODEL];
    struct usage_sum sum;
};

/* Invariant: the rows are in the order of date, tenant, key and model, and no two are equal in
 * all. */
struct usage_table {
    /* [n], allocated: [cap] */
    struct usage_row *rows;
    uint32_t n, cap;
};

/* Returns true if @v is the date of a row: the month is 1 to 12, the day 0 to 31. */
bool usage_is_date(int64_t v);
/* Compares the names and dates of rows by their order in a table. */
int usage_row_compare(const struct usage_row *a, const struct usage_row *b);
/* Returns the day of @unix_s, in seconds since 1970. */
uint32_t usage_day(int64_t unix_s);
/* Returns when the day, or the month, after that of @unix_s begins. */
int64_t usage_next_day(int64_t unix_s);
int64_t usage_next_month(int64_t unix_s);

void usage_table_deinit(struct usage_table *t); /* empties it */
/* Adds the counts of @row to the row of the same names and date. A table that has many rows already
 * puts new ones under the key and the model USAGE_OTHERS. Returns 0 or -ENOMEM. */
int usage_table_add(struct usage_table *t, const struct usage_row *row);
/* Adds all rows of @from. Returns 0 or -ENOMEM, with some of them added. */
int usage_table_merge(struct usage_table *t, const struct usage_table *from);
/* Sums up what is older than the last two months with rows at the day @today, and more where there
 * are too many rows; forgets what is older than the last 24 months with rows. The sums of each
 * tenant for today and for this month stay. Returns 0 or -ENOMEM, and nothing changed. */
int usage_table_fold(struct usage_table *t, uint32_t today);
/* Returns the sum of the rows of @tenant from the day @first on that are not later than @last. */
struct usage_sum usage_table_sum(const struct usage_table *t, const char *tenant, uint32_t first,
                                 uint32_t last);

/* Adds the rows of the @len bytes at @text, a file of an earlier version. Returns 0, -ENOMEM, or
 * -EINVAL with @err: a line is malformed, or the end is missing. */
int usage_table_read(struct usage_table *t, const char *text, size_t len, struct err *err);
