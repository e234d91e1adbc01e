#pragma once

/*
 * dialect - an API that clients speak, as a table: its paths, and the form of its errors, heads and
 * streams. The code for connections and for generations uses dialects only through this table and
 * never tests which one it serves.
 *
 * Each dialect of the API has a folder with its `struct dialect`; api/dialects.h lists them.
 */

#include <llhttp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct endpoint;
struct err;
struct exchange;
struct http;
struct json;

struct route {
    const char *path; /* one "*" in it stands for the argument; NULL ends a table */
    uint8_t method;   /* HTTP_GET (HEAD too), HTTP_POST or HTTP_DELETE */
    bool open;        /* no key is needed */
    bool generates;   /* refused while starting or draining */
    void (*serve)(struct exchange *x, struct http *h);
    const struct endpoint *endpoint; /* of a path whose body is a prompt; NULL: another path */
};

/* Remaining part of a limit per minute, for the headers of an answer. */
struct limit_left {
    const char *what; /* "requests", "tokens" */
    double limit, left;
    double reset_ms; /* time until the limit is full again */
};

struct dialect {
    const char *name;

    /* ---- which exchanges are in it ---- */

    const char *const *prefixes; /* prefixes of the dialect's paths; ends with NULL */
    const char *header; /* header whose clients speak this dialect if the path does not decide; or
                         * NULL */
    const struct route *routes; /* ends with one without path */
    const char *websocket; /* the POST route that messages of a WebSocket are for; NULL: none */
    bool takes_forms;      /* a JSON body may be declared as a form, the default of curl -d */

    /* ---- the head of an answer ---- */

    /* Write whole header lines into [@out, @out + @size) and return their length, which is below
     * @size. May be NULL. @processing_ms: time since the request was received. */
    size_t (*put_ids)(const struct exchange *x, int64_t processing_ms, char *out, size_t size);
    size_t (*put_limit)(const struct limit_left *l, char *out, size_t size);

    /* ---- errors ---- */

    int (*status_of)(int status); /* the HTTP status for an error's; NULL: the same */
    /* Writes the error object, which is the whole body. */
    void (*put_error)(struct json *j, const struct exchange *x, const struct err *err);

    /* ---- streams ---- */

    const char *stream_type;             /* Content-Type */
    const char *event_begin, *event_end; /* around the JSON of an event without name */
    const char *error_event;             /* name of the event that is an error; NULL: none */
    const char *keepalive;               /* sent after silence; NULL: the dialect has no such
                                          * line */
    const char *stream_end;              /* the last bytes of a stream that did not fail */
};

#define SSE_TYPE "text/event-stream; charset=utf-8"
#define SSE_BEGIN "data: "
#define SSE_END "\n\n"
#define SSE_COMMENT ": keep-alive\n\n"
