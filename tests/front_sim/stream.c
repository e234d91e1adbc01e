#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/front_sim/loop.h"

#define SIM_BUFS 16 /* most buffers of a uv_write() */

/* A uv_write() whose end has not been reported. */
struct sim_write {
    struct list link;
    uv_write_t *req;
    uv_write_cb cb;
    uv_buf_t buf[SIM_BUFS];
    /* buf[at] is being sent */
    unsigned n, at;
    /* bytes of it */
    size_t sent;
    /* 1: under way */
    int status;
};

static size_t write_left(const struct sim_write *w) {
    size_t n = 0;

    for (unsigned i = w->at; i < w->n; i++)
        n += w->buf[i].len;
    return n - w->sent;
}

/* ---- streams ---- */

int uv_tcp_init(uv_loop_t *loop, uv_tcp_t *h) {
    handle_new(loop, h, UV_TCP);
    h->write_queue_size = 0;
    return 0;
}

int uv_pipe_init(uv_loop_t *loop, uv_pipe_t *h, int ipc) {
    handle_new(loop, h, UV_NAMED_PIPE);
    h->write_queue_size = 0;
    return 0;
}

int uv_tcp_bind(uv_tcp_t *h, const struct sockaddr *sa, unsigned flags) {
    struct sim_handle *s = handle_usable(h, "uv_tcp_bind");

    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (s->fd < 0)
        return -errno;
    return bind(s->fd, sa, sizeof(struct sockaddr_in)) < 0 ? -errno : 0;
}

int uv_tcp_open(uv_tcp_t *h, uv_os_sock_t fd) {
    handle_usable(h, "uv_tcp_open")->fd = fd;
    return 0;
}

int uv_pipe_open(uv_pipe_t *h, uv_file fd) {
    handle_usable(h, "uv_pipe_open")->fd = fd;
    return 0;
}

int uv_tcp_getsockname(const uv_tcp_t *h, struct sockaddr *sa, int *len) {
    socklen_t n = (socklen_t)*len;
    int r = getsockname(handle_usable(h, "uv_tcp_getsockname")->fd, sa, &n);

    *len = (int)n;
    return r < 0 ? -errno : 0;
}

int uv_tcp_nodelay(uv_tcp_t *h, int on) {
    return 0;
}

int uv_tcp_keepalive(uv_tcp_t *h, int on, unsigned delay) {
    return 0;
}

int uv_listen(uv_stream_t *h, int backlog, uv_connection_cb cb) {
    bool was = sim_enter();
    struct sim_handle *s = handle_usable(h, "uv_listen");
    int r = fd_listen(s->fd);

    s->cb.connection = cb;
    s->listens = s->active = r == 0;
    sim_leave(was);
    return r;
}

int uv_accept(uv_stream_t *server, uv_stream_t *client) {
    bool was = sim_enter();
    struct sim_handle *l = handle_usable(server, "uv_accept");
    struct sim_handle *c = handle_usable(client, "uv_accept");
    int fd = fd_accept(l->fd);

    sim_event("accept", (uint64_t)fd, 0);
    sim_spend(was ? SIM_ACCEPT_NS : 0);
    l->waits_for_accept = false;
    if (fd >= 0)
        c->fd = fd;
    sim_leave(was);
    return fd < 0 ? fd : 0;
}

int uv_fileno(const uv_handle_t *h, uv_os_fd_t *fd) {
    if (h->flags || !handle_of(h) || handle_of(h)->fd < 0)
        return UV_EBADF;
    *fd = handle_of(h)->fd;
    return 0;
}

int uv_read_start(uv_stream_t *h, uv_alloc_cb on_alloc, uv_read_cb on_read) {
    struct sim_handle *s = handle_usable(h, "uv_read_start");

    if (s->fd < 0)
        return UV_ENOTCONN;
    s->on_alloc = on_alloc;
    s->cb.read = on_read;
    s->reads = s->active = true;
    return 0;
}

int uv_read_stop(uv_stream_t *h) {
    if (uv_is_closing((uv_handle_t *)h))
        return 0;
    struct sim_handle *s = handle_usable(h, "uv_read_stop");
    s->reads = s->active = false;
    return 0;
}

static uv_stream_t *queue_of(struct sim_handle *s) {
    return (uv_stream_t *)s->h;
}

/* Sends as much as the socket takes. */
static void push(struct sim_handle *s) {
    LIST_FOREACH(i, &s->writes) {
        struct sim_write *w = LIST_ENTRY(i, struct sim_write, link);

        while (w->status == 1 && w->at < w->n) {
            const uv_buf_t *b = &w->buf[w->at];
            ssize_t n = sock_send(fd_sock(s->fd), b->base + w->sent, b->len - w->sent);

            if (n == -EAGAIN)
                return;
            if (n < 0)
                w->status = (int)n;
            else
                w->sent += (size_t)n;
            if (n > 0)
                queue_of(s)->write_queue_size -= (size_t)n;
            if (n >= 0 && w->sent == b->len) {
                w->at++;
                w->sent = 0;
            }
            if (sim_one_in(3))
                break;
        }
        if (w->status == 1 && w->at == w->n)
            w->status = 0;
        if (w->status == 1)
            return;
    }
}

int uv_write(uv_write_t *req, uv_stream_t *h, const uv_buf_t bufs[], unsigned n, uv_write_cb cb) {
    bool was = sim_enter();
    struct sim_handle *s = handle_usable(h, "uv_write");

    if (s->fd < 0) {
        sim_leave(was);
        return UV_EBADF;
    }
    struct sim_write *w = calloc(1, sizeof(*w));
    assert(n > 0 && n <= SIM_BUFS);
    *w = (struct sim_write){.req = req, .cb = cb, .n = n, .status = 1};
    memcpy(w->buf, bufs, n * sizeof(*bufs));
    req->handle = h;
    h->write_queue_size += write_left(w);
    sim_event("write", (uint64_t)s->fd, write_left(w));
    list_push_back(&s->writes, &w->link);
    sim_spend(SIM_WRITE_NS);
    push(s);
    sim_leave(was);
    return 0;
}

int uv_shutdown(uv_shutdown_t *req, uv_stream_t *h, uv_shutdown_cb cb) {
    bool was = sim_enter();
    struct sim_handle *s = handle_usable(h, "uv_shutdown");
    bool gone = s->fd < 0 || !sock_reads(fd_sock(s->fd));

    sim_event("shutdown", (uint64_t)s->fd, gone);
    if (!gone) {
        s->shutdown = req;
        s->on_shutdown = cb;
    }
    sim_leave(was);
    return gone ? UV_ENOTCONN : 0;
}

/* ---- polls ---- */

int uv_poll_init(uv_loop_t *loop, uv_poll_t *h, int fd) {
    handle_new(loop, h, UV_POLL)->fd = fd;
    return 0;
}

int uv_poll_start(uv_poll_t *h, int events, uv_poll_cb cb) {
    struct sim_handle *s = handle_usable(h, "uv_poll_start");

    s->cb.poll = cb;
    s->wants = events;
    s->active = events != 0;
    return 0;
}

int uv_poll_stop(uv_poll_t *h) {
    handle_usable(h, "uv_poll_stop")->active = false;
    return 0;
}

/* Returns the events of a poll; negative: an error. */
static int poll_events(const struct sim_handle *s) {
    int ready = fd_ready(s->fd), told = 0;

    if (!s->active)
        return 0;
    if (ready & SOCK_ERROR)
        return UV_EBADF;
    told |= ready & (SOCK_READABLE | SOCK_HANGUP) ? UV_READABLE : 0;
    told |= ready & (SOCK_WRITABLE | SOCK_HANGUP) ? UV_WRITABLE : 0;
    told |= ready & SOCK_HANGUP ? UV_DISCONNECT : 0;
    return told & s->wants;
}

static void tell_poll(struct sim_handle *s) {
    uv_poll_t *h = (uv_poll_t *)s->h;
    int events = poll_events(s);

    sim_event("poll", (uint64_t)s->fd, (uint64_t)events);
    if (events < 0) {
        s->active = false;
        IN_FRONT(s->cb.poll(h, events, 0));
    } else {
        IN_FRONT(s->cb.poll(h, 0, events));
    }
}

/* ---- reported events ---- */

enum { TELL_WRITTEN = 1, TELL_READ = 2, TELL_CONNECTION = 4, TELL_PUSH = 8, TELL_SHUTDOWN = 16 };

static const struct sim_write *first_write(const struct sim_handle *s) {
    return list_empty(&s->writes) ? NULL : LIST_ENTRY(s->writes.next, struct sim_write, link);
}

int stream_ready(const struct sim_handle *s) {
    int what = 0;

    if (s->h->type == UV_POLL)
        return poll_events(s);
    if (s->fd < 0)
        return 0;
    const struct sim_write *w = first_write(s);
    int ready = fd_ready(s->fd);
    if (s->listens)
        return ready & SOCK_READABLE && !s->waits_for_accept ? TELL_CONNECTION : 0;
    if (w && w->status != 1)
        what |= TELL_WRITTEN;
    if (w && w->status == 1 && ready & SOCK_WRITABLE)
        what |= TELL_PUSH;
    if (!w && s->shutdown)
        what |= TELL_SHUTDOWN;
    if (s->reads && ready & (SOCK_READABLE | SOCK_HANGUP))
        what |= TELL_READ;
    return what;
}

static void tell_written(struct sim_handle *s) {
    struct sim_write *w = LIST_ENTRY(s->writes.next, struct sim_write, link);
    uv_write_cb cb = w->cb;
    uv_write_t *req = w->req;
    int status = w->status;

    queue_of(s)->write_queue_size -= write_left(w);
    list_remove(&w->link);
    free(w);
    sim_event("written", (uint64_t)s->fd, (uint64_t)status);
    IN_FRONT(cb(req, status));
}

static void tell_read(struct sim_handle *s) {
    uv_stream_t *h = (uv_stream_t *)s->h;
    uv_buf_t b = {0};

    sim_event("readable", (uint64_t)s->fd, 0);
    sim.has_read = true;
    IN_FRONT(s->on_alloc(s->h, 65536, &b));
    if (s->closing || !s->reads)
        return;
    if (!b.base || b.len == 0) {
        IN_FRONT(s->cb.read(h, UV_ENOBUFS, &b));
        return;
    }
    ssize_t n = sock_recv(fd_sock(s->fd), b.base, b.len);
    if (n == 0) {
        s->reads = s->active = false;
        n = UV_EOF;
    }
    IN_FRONT(s->cb.read(h, n, &b));
}

static void tell_connection(struct sim_handle *s) {
    bool fails = sim_one_in(60);

    sim_event("connection", (uint64_t)s->fd, fails);
    s->waits_for_accept = !fails;
    IN_FRONT(s->cb.connection((uv_stream_t *)s->h, fails ? UV_EMFILE : 0));
}

void stream_tell(struct sim_handle *s) {
    int what = stream_ready(s);

    if (s->h->type == UV_POLL) {
        tell_poll(s);
        return;
    }
    if (what & TELL_CONNECTION)
        tell_connection(s);
    else if (what & TELL_READ && (what == TELL_READ || sim_one_in(2)))
        tell_read(s);
    else if (what & TELL_WRITTEN)
        tell_written(s);
    else if (what & TELL_PUSH)
        push(s);
    else if (what & TELL_SHUTDOWN) {
        uv_shutdown_t *req = s->shutdown;

        s->shutdown = NULL;
        sock_shutdown(fd_sock(s->fd));
        IN_FRONT(s->on_shutdown(req, 0));
    }
}

/* libuv closes the descriptor of a stream at once; the descriptor of a poll belongs to its
 * owner. */
void stream_closing(struct sim_handle *s) {
    bool owns = s->h->type == UV_TCP || s->h->type == UV_NAMED_PIPE;

    s->reads = s->listens = false;
    if (owns && s->fd >= 0)
        close(s->fd);
    if (owns || s->h->type == UV_POLL)
        s->fd = -1;
}

void stream_closed(struct sim_handle *s) {
    while (!list_empty(&s->writes)) {
        struct sim_write *w = LIST_ENTRY(s->writes.next, struct sim_write, link);

        if (w->status == 1)
            w->status = UV_ECANCELED;
        tell_written(s);
    }
    if (s->shutdown)
        IN_FRONT(s->on_shutdown(s->shutdown, UV_ECANCELED));
    s->shutdown = NULL;
}

bool stream_busy(const struct sim_handle *s) {
    return !list_empty(&s->writes) || s->shutdown;
}
