#pragma once

/*
 * ctl - code shared by weftctl's commands: calls to the admin socket, and tables from its JSON.
 * Private to weftctl. daemon/front/admin.h lists the routes, daemon/front/admin_json.c has the
 * fields.
 */

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "base/printable.h"

/* Exit codes of weftctl; the larger ones are EX_UNAVAILABLE and EX_NOPERM. */
enum { CTL_OK = 0, CTL_REFUSED = 1, CTL_UNREACHABLE = 69, CTL_DENIED = 77 };

#define CTL_REPLY_MAX (16u << 20)

struct ctl;

#define CTL_URL_MAX 64

/* Writes to @out the path of the admin socket of the one daemon that runs: a service's, or one in a
 * folder of files_socket_folder(). Returns an exit code; with @err if none or several run. */
int ctl_socket(char *out, size_t size, struct err *err);
/* Sets @out to the address of weftd for HTTP, in @text if need be: $WEFT_URL, else that of the one
 * daemon that runs, which is asked for it unless the name of its admin socket is a port, else
 * http://127.0.0.1:8080. Returns an exit code; with @err if several run. */
int ctl_url(const char **out, char text[static CTL_URL_MAX], struct err *err);
/* Returns a copy of the address @given, to which a path can be added: with http:// if it has no
 * scheme, and without slashes and /v1 at the end, which the base URLs of other programs have. NULL:
 * memory is short. */
char *ctl_base_url(const char *given);
/* Makes a client of the socket at this path, without connecting. NULL: the path is $WEFT_ADMIN, or
 * ctl_socket() finds it at the first call. Returns 0 or -ENOMEM. */
int ctl_new(struct ctl **out, const char *socket);
struct ctl *ctl_free(struct ctl *c);
DEFINE_FREEP(struct ctl, ctl)
/* Lets the reasons of refusals name the socket and the HTTP status, for programs. */
void ctl_report_details(struct ctl *c);

/* Sends a request. @reply gets the body of a 2xx answer. Returns an exit code, with the reason of a
 * failure in @err. */
int ctl_call(struct ctl *c, const char *method, const char *path, struct buf *reply,
             struct err *err);
/* Calls like ctl_call(), without a time limit for the answer. */
int ctl_call_long(struct ctl *c, const char *method, const char *path, struct buf *reply,
                  struct err *err);
/* Parses the answer to GET @path, which must be a JSON object of the admin socket. The caller frees
 * @out. */
int ctl_read(struct ctl *c, const char *path, const struct buf *reply, yyjson_doc **out,
             struct err *err);
/* Calls like ctl_call(), and reads the answer like ctl_read(). */
int ctl_get(struct ctl *c, const char *path, yyjson_doc **out, struct err *err);
/* Calls @line for every line of a streamed answer, until the answer ends or @line returns false;
 * then returns CTL_OK. */
int ctl_watch(struct ctl *c, const char *path,
              bool (*line)(void *ctx, const char *text, size_t len), void *ctx, struct err *err);

/* Parses @text; returns NULL if it is not a JSON object. */
yyjson_doc *ctl_parse(const char *text, size_t len);
/* Prints @d as a line and frees it; prints nothing if memory is short. */
void ctl_print_json(yyjson_mut_doc *d, FILE *out);
/* Reports why a command fails as a line of JSON on the standard output: {"status": "error",
 * "error": @message, "code": @code}. For cli_report_to(). */
void ctl_report(int code, const char *message);
/* Prints {@name: @value, @key: @is} as a line, or with @is NULL {@name: @value, @key: @n}. */
void ctl_print_result(const char *name, const char *value, const char *key, const char *is,
                      uint64_t n);

/*
 * Text for people. A field that is missing or of another type is shown as "-"; bytes that could
 * control a terminal are replaced.
 */
struct ctl_cell {
    char s[96];
};

/* Returns the string @key of the object whole, escaped, for sentences; "-" if there is none. */
struct printable ctl_message(yyjson_val *object, const char *key);
/* Return a string or a number of the object for a table; a text that does not fit is cut. */
struct ctl_cell ctl_text(yyjson_val *object, const char *key);
struct ctl_cell ctl_number(yyjson_val *object, const char *key);
/* renders "3.2 ms" */
struct ctl_cell ctl_duration(yyjson_val *object, const char *key, double unit_s);
struct ctl_cell ctl_percent(yyjson_val *object, const char *part, const char *whole);
/* Reads a number; returns false, with *out unchanged, if there is none. */
bool ctl_value(yyjson_val *object, const char *key, double *out);

/* Returns the columns of the terminal; SIZE_MAX if the output is no terminal. */
size_t ctl_columns(void);

/* A column whose width does not depend on its cells. */
struct ctl_column {
    const char *title;
    /* blanks before it; a negative width: aligned to the left */
    int gap, width;
    /* columns of the highest rank are left out first if a line is too long; 0: never */
    int rank;
};

/* Sets which of the @n columns @c a line of at most @longest characters has, of which it has
 * @length before them. Returns its length, which is larger if columns of rank 0 need more. */
size_t ctl_fit_columns(bool *shown, const struct ctl_column *c, size_t n, size_t length,
                       size_t longest);

/*
 * Write the output of commands. Columns of a table are left out, the least important first, so that
 * lines have at most @columns characters (SIZE_MAX: no limit); other lines are broken at blanks.
 */
void ctl_show_stats(struct buf *out, yyjson_val *stats, size_t columns);
/* Shows every statistic of proto/stats.h with its help. */
void ctl_show_all(struct buf *out, yyjson_val *stats, size_t columns);
/* Show the tables of /requests and /tenants, and the decisions about one request,
 * /requests/ID/why. */
void ctl_show_requests(struct buf *out, yyjson_val *requests, size_t columns);
void ctl_show_tenants(struct buf *out, yyjson_val *tenants, size_t columns);
void ctl_show_ended(struct buf *out, yyjson_val *requests, size_t columns);
void ctl_show_why(struct buf *out, yyjson_val *story, size_t columns);
/* Shows the array @rows of `weftctl usage`. */
void ctl_show_usage(struct buf *out, yyjson_val *rows, size_t columns);
/* Writes the path of /requests/ended for the options of `weftctl requests` (argv[0]): --ended,
 * --tenant NAME, --since TIME, --until TIME and --slowest, to @out. A TIME is HH:MM of the last 24
 * hours by the local clock, or a number of minutes or hours ago (15m, 2h). Returns -1, or the exit
 * code after --help, which prints @help, or after a mistake. */
int ctl_ended_path(int argc, char **argv, time_t now, const char *help, char *out, size_t size);

/* Shows an answer as a line of at most @columns characters, with rates since the answer @before
 * (NULL for the first). Every 20th line, counted by @n, comes after a headline. */
void ctl_show_line(struct buf *out, yyjson_val *stats, yyjson_val *before, double seconds,
                   uint64_t n, size_t columns);
/* Adds a line about each device of worker @w, the last one with joules per output token since
 * @before. */
void ctl_add_devices(struct buf *out, yyjson_val *w, yyjson_val *before);
/* Returns the rate per second since @before; "-" if it is not known. */
struct ctl_cell ctl_rate(yyjson_val *now, yyjson_val *before, const char *key, double seconds);

/* Asks for @what ("load", "unload", "swap" with @file or NULL) of the served model @name. Returns
 * an exit code, with @err. */
int ctl_change(struct ctl *c, const char *name, const char *what, const char *file,
               struct err *err);
/* Waits until @key of the model ("state", "swap") has none of the values @under_way (ends with
 * NULL); writes its value to @out. */
int ctl_wait_change(struct ctl *c, const char *name, const char *key, const char *const *under_way,
                    char out[500], struct err *err);
/* Reads the flight recorder of the served model @name (NULL: the first) into @out. Returns an exit
 * code. */
int ctl_flight(struct ctl *c, const char *name, struct buf *out, struct err *err);
/* Shows the table of /models. */
void ctl_show_served(struct buf *out, yyjson_val *models, size_t columns);

/* Runs the screen of `weftctl top`. Returns an exit code. */
int ctl_top(struct ctl *c, double interval_s, struct err *err);
