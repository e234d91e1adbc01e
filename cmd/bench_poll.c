#include "cmd/bench_poll.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/util.h"
#include "cmd/bench_clock.h"

#define EVENTS 256

/* Updates the epoll set when the events that libcurl waits for at a socket change. @known: the
 * socket is in the set. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known) {
    struct bench_poll *p = ctx;
    struct epoll_event e = {.data.fd = fd};

    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(p->epoll, EPOLL_CTL_DEL, fd,
                  NULL); /* fails without harm if the socket is closed already */
        curl_multi_assign(p->multi, fd, NULL);
        return 0;
    }
    e.events = (what & CURL_POLL_IN ? (uint32_t)EPOLLIN : 0) |
               (what & CURL_POLL_OUT ? (uint32_t)EPOLLOUT : 0);
    if (epoll_ctl(p->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) < 0)
        return -1;
    curl_multi_assign(p->multi, fd, p);
    return 0;
}

static int bench_poll_on_timer(CURLM *multi, long timeout_ms, void *ctx) {
    struct bench_poll *p = ctx;

    p->timer_ns = timeout_ms < 0 ? INT64_MAX : bench_now_ns() + timeout_ms * (int64_t)1000000;
    return 0;
}

int bench_poll_init(struct bench_poll *p, CURLM *multi) {
    *p = (struct bench_poll){multi, epoll_create1(EPOLL_CLOEXEC), INT64_MAX};
    if (p->epoll < 0)
        return -errno;
    curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, p);
    curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, bench_poll_on_timer);
    curl_multi_setopt(multi, CURLMOPT_TIMERDATA, p);
    return 0;
}

void bench_poll_deinit(struct bench_poll *p) {
    if (p->epoll > 0)
        close(p->epoll);
    p->epoll = -1;
}

/* Returns the whole milliseconds until its timer, rounded up, so that no iteration comes too
 * early. */
static int bench_poll_wait_ms(const struct bench_poll *p, int timeout_ms) {
    if (p->timer_ns == INT64_MAX)
        return timeout_ms;
    int64_t left_ns = MAX(p->timer_ns - bench_now_ns(), 0);

    return (int)MIN((left_ns + 999999) / 1000000, timeout_ms);
}

int bench_poll_run(struct bench_poll *p, int timeout_ms) {
    struct epoll_event events[EVENTS];
    assert(p->epoll >= 0 && timeout_ms >= 0);
    int n_alive, n = epoll_wait(p->epoll, events, EVENTS, bench_poll_wait_ms(p, timeout_ms));

    if (n < 0) {
        if (errno != EINTR)
            return -errno;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        uint32_t e = events[i].events;
        int what = (e & EPOLLIN ? CURL_CSELECT_IN : 0) | (e & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (e & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);

        if (curl_multi_socket_action(p->multi, events[i].data.fd, what, &n_alive) != CURLM_OK)
            return -EIO;
    }
    if (p->timer_ns > bench_now_ns())
        return 0;
    p->timer_ns = INT64_MAX; /* the callback may set it again */
    if (curl_multi_socket_action(p->multi, CURL_SOCKET_TIMEOUT, 0, &n_alive) != CURLM_OK)
        return -EIO;
    return 0;
}
