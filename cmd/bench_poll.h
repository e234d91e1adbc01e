#pragma once

/*
 * bench_poll - waits for the sockets of a libcurl multi handle with epoll, so that the cost of an
 * iteration depends on the number of events and not on the number of transfers: of thousands of
 * streams a few have data at a time.
 */

#include <curl/curl.h>
#include <stdint.h>

struct bench_poll {
    CURLM *multi;
    int epoll;
    /* time when libcurl must be called without an event; INT64_MAX: never */
    int64_t timer_ns;
};

/* Takes over the callbacks of @multi. Returns 0 or -errno. */
int bench_poll_init(struct bench_poll *p, CURLM *multi);
void bench_poll_deinit(struct bench_poll *p); /* called after the end of @multi */

/* Waits for an event or @timeout_ms, and lets libcurl handle it. Returns 0 or -errno. */
int bench_poll_run(struct bench_poll *p, int timeout_ms);
