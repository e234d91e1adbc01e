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
    /* one "*" in it stands for the argument; NULL ends a table */
    const char *path;
    /* HTTP_GET (HEAD too), HTTP_POST or HTTP_DELETE */
    uint8_t method;
    /* no key is needed */
    bool open;
    /* refused while starting or draining */
    bool generates;
    void (*serve)(struct exchange *x, struct http *h);
    /* of a path whose body is a prompt; NULL: another path */
    const struct endpoint *endpoint;
};

/* Remaining part of a limit per minute, for the headers of an answer. */
struct limit_left {
    /* "requests", "tokens" */
    const char *what;
    double limit, left;
    /* time until the limit is full again */
    double reset_ms;
};

struct dialect {
    const char *name;

    /* ---- which exchanges are in it ---- */

    /* prefixes of the dialect's paths; ends with NULL */
    const char *const *prefixes;
    /* header whose clients speak this dialect if the path does not decide; or NULL */
    const char *header;
    /* ends with one without path */
    const struct route *routes;
    /* the POST route that messages of a WebSocket are for; NULL: none */
    const char *websocket;
    /* a JSON body may be declared as a form, the default of curl -d */
    bool takes_forms;

    /* ---- the head of an answer ---- */

    /* Write whole header lines into [@out, @out + @size) and return their length, which is below
     * @size. May be NULL. @processing_ms: time since the request was received. */
    size_t (*put_ids)(const struct exchange *x, int64_t processing_ms, char *out, size_t size);
    size_t (*put_limit)(const struct limit_left *l, char *out, size_t size);

    /* ---- errors ---- */

    /* the HTTP status of @err, for which other clients get @status; NULL: the same */
    int (*status_of)(const struct err *err, int status);
    /* Writes the error object, which is the whole body. */
    void (*put_error)(struct json *j, const struct exchange *x, const struct err *err);

    /* ---- streams ---- */

    /* Content-Type */
    const char *stream_type;
    /* around the JSON of an event without name */
    const char *event_begin, *event_end;
    /* name of the event that is an error; NULL: none */
    const char *error_event;
    /* sent after silence; NULL: the dialect has no such line */
    const char *keepalive;
    /* the last bytes of a stream that did not fail */
    const char *stream_end;
};

#define SSE_TYPE "text/event-stream; charset=utf-8"
#define SSE_BEGIN "data: "
#define SSE_END "\n\n"
#define SSE_COMMENT ": keep-alive\n\n"
