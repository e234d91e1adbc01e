/*
 * Simulated sockets with their descriptors, and replacements of libc's system calls that the front
 * uses for them. A descriptor below FD_FIRST is real: files are not simulated.
 */

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "tests/front_sim/sim.h"

#define FD_FIRST 10000
#define FDS_MAX 4096
#define BUFFER_MAX (64u << 10)

enum sock_kind { SOCK_NEW, SOCK_LISTENER, SOCK_STREAM_END, SOCK_PACKET_END };

/* One message of a socket that keeps messages apart. */
struct packet {
    struct list link;
    /* passed reference; NULL: none */
    struct sock *passed;
    size_t len;
    char data[600];
};

/* An end of a socket. refs: number of descriptors and processes that have it. @peer is NULL once
 * that end is closed. */
struct sock {
    /* in listeners, or in sock.backlog of one */
    struct list link;
    enum sock_kind kind;
    /* AF_UNIX */
    bool local;
    uint32_t refs, n_fds;
    struct sock *peer;
    /* actor woken by events; NULL: the front */
    struct actor *owner;
    struct buf in;
    /* room of `in` */
    size_t room;
    /* the other side had bytes for which there was no room, and nothing has been read since */
    bool blocks;
    /* no more bytes will arrive */
    bool ended;
    bool reset;
    struct list packets, backlog;
    /* address of a listener */
    char address[112];
    /* the client's address or uid */
    uint32_t from;
};

static struct sock *fds[FDS_MAX];
static struct list listeners = {&listeners, &listeners};
static int next_port = 20000;

static struct sock *sock_new(enum sock_kind kind, bool local) {
    struct sock *s = calloc(1, sizeof(*s));

    s->kind = kind;
    s->local = local;
    s->room = sim_one_in(6) ? sim_between(1, 600) : sim_between(2000, BUFFER_MAX);
    buf_init(&s->in, SIZE_MAX);
    list_init(&s->packets);
    list_init(&s->backlog);
    list_init(&s->link);
    return s;
}

static void wake(struct sock *s) {
    if (s && s->owner)
        actor_wake(s->owner, 1000 + sim_below(300000));
}

static void connect_ends(struct sock *a, struct sock *b) {
    a->peer = b;
    b->peer = a;
}

static void drop_packets(struct sock *s);

static void end_of(struct sock *s, bool resets) {
    struct sock *p = s->peer;

    if (!p)
        return;
    p->peer = NULL;
    p->ended = true;
    p->reset = resets || s->in.len > 0;
    s->peer = NULL;
    wake(p);
}

static void unref(struct sock *s, bool resets) {
    if (--s->refs > 0)
        return;
    end_of(s, resets);
    while (!list_empty(&s->backlog)) { /* connections that were not accepted */
        struct sock *c = LIST_ENTRY(s->backlog.next, struct sock, link);

        list_remove(&c->link);
        unref(c, true);
    }
    if (s->kind == SOCK_LISTENER)
        list_remove(&s->link);
    drop_packets(s);
    buf_deinit(&s->in);
    free(s);
}

static void drop_packets(struct sock *s) {
    while (!list_empty(&s->packets)) {
        struct packet *p = LIST_ENTRY(s->packets.next, struct packet, link);

        list_remove(&p->link);
        if (p->passed)
            unref(p->passed, false);
        free(p);
    }
}

/* ---- the other side's ends ---- */

struct sock *sock_connect(const char *address, uint32_t from, struct actor *owner) {
    LIST_FOREACH(i, &listeners) {
        struct sock *l = LIST_ENTRY(i, struct sock, link);

        if (strcmp(l->address, address) != 0)
            continue;
        struct sock *ours = sock_new(SOCK_STREAM_END, l->local);
        struct sock *theirs = sock_new(SOCK_STREAM_END, l->local);

        connect_ends(ours, theirs);
        ours->refs = theirs->refs = 1;
        ours->owner = owner;
        theirs->from = from;
        list_push_back(&l->backlog, &theirs->link);
        return ours;
    }
    return NULL;
}

/* Returns mostly @n, sometimes a part. */
static size_t part_of(size_t n) {
    return n > 1 && sim_one_in(4) ? sim_between(1, (uint32_t)n) : n;
}

ssize_t sock_send(struct sock *s, const void *data, size_t len) {
    if (s->reset)
        return -ECONNRESET;
    if (!s->peer || s->peer->ended)
        return -EPIPE;
    size_t used = s->peer->in.len, room = s->peer->room;

    if (used >= room) {
        s->peer->blocks = true;
        return -EAGAIN;
    }
    len = part_of(MIN(len, room - used));
    buf_add(&s->peer->in, data, len);
    wake(s->peer);
    return (ssize_t)len;
}

ssize_t sock_recv(struct sock *s, void *data, size_t len) {
    if (s->in.len == 0 && s->reset)
        return -ECONNRESET;
    if (s->in.len == 0)
        return s->ended ? 0 : -EAGAIN;
    len = part_of(MIN(len, s->in.len));
    memcpy(data, s->in.data, len);
    buf_consume(&s->in, len);
    s->blocks = false;
    wake(s->peer);
    return (ssize_t)len;
}

void sock_shutdown(struct sock *s) {
    if (s->peer) {
        s->peer->ended = true;
        wake(s->peer);
    }
}

void sock_close(struct sock *s, bool resets) {
    s->owner = NULL;
    unref(s, resets);
}

bool sock_reads(const struct sock *s) {
    return s->peer != NULL;
}

bool sock_blocks(const struct sock *s) {
    return s->blocks && s->peer;
}

void sock_narrow(struct sock *s, size_t room) {
    s->room = MIN(s->room, room);
}

size_t sock_unread(const struct sock *s) {
    return s->in.len;
}

void sock_set_owner(struct sock *s, struct actor *owner) {
    s->owner = owner;
}

/* ---- descriptors ---- */

static int fd_new(struct sock *s) {
    for (int i = 0; i < FDS_MAX; i++) {
        if (fds[i])
            continue;
        fds[i] = s;
        s->refs++;
        s->n_fds++;
        return FD_FIRST + i;
    }
    return -EMFILE;
}

static bool is_sim(int fd) {
    return fd >= FD_FIRST && fd < FD_FIRST + FDS_MAX;
}

/* Asserts that the descriptor is open; any other one is an error of the front. */
struct sock *fd_sock(int fd) {
    if (!is_sim(fd) || !fds[fd - FD_FIRST])
        sim_fail("DESCRIPTORS", "descriptor %d is used and not open", fd);
    return fds[fd - FD_FIRST];
}

struct sock *fd_hold(int fd, struct actor *owner) {
    struct sock *s = fd_sock(fd);

    s->refs++;
    s->owner = owner;
    return s;
}

int fd_of_held(struct sock *s) {
    int fd = fd_new(s);

    s->refs--;
    s->n_fds--; /* the reference is not a descriptor of the front */
    return fd;
}

int fd_ready(int fd) {
    const struct sock *s = fd_sock(fd);
    int bits = 0;

    if (s->kind == SOCK_LISTENER)
        return list_empty(&s->backlog) ? 0 : SOCK_READABLE;
    if (s->in.len > 0 || s->ended || !list_empty(&s->packets))
        bits |= SOCK_READABLE;
    if (!s->peer || s->peer->ended || s->peer->in.len < s->peer->room)
        bits |= SOCK_WRITABLE;
    if (!s->peer)
        bits |= SOCK_HANGUP | (s->reset ? SOCK_ERROR : 0);
    return bits;
}

int fd_accept(int fd) {
    struct sock *l = fd_sock(fd);

    if (list_empty(&l->backlog))
        return -EAGAIN;
    struct sock *s = LIST_ENTRY(l->backlog.next, struct sock, link);
    list_remove(&s->link);
    list_init(&s->link);
    int at = fd_new(s);
    s->refs--; /* reference of the backlog */
    return at;
}

int fd_listen(int fd) {
    struct sock *s = fd_sock(fd);

    if (s->kind == SOCK_LISTENER)
        return 0;
    if (!*s->address)
        return -EINVAL;
    s->kind = SOCK_LISTENER;
    list_push_back(&listeners, &s->link);
    return 0;
}

uint32_t fds_open(void) {
    uint32_t n = 0;

    for (int i = 0; i < FDS_MAX; i++)
        n += fds[i] && fds[i]->n_fds > 0;
    return n;
}

void fds_list(void) {
    for (int i = 0; i < FDS_MAX; i++)
        if (fds[i] && fds[i]->n_fds > 0)
            fprintf(stderr, "descriptor %d: kind %d local %d %s\n", FD_FIRST + i, fds[i]->kind,
                    fds[i]->local, fds[i]->address);
}

uint32_t listeners_n(void) {
    uint32_t n = 0;

    LIST_FOREACH(i, &listeners)
    n++;
    return n;
}

/* ---- system calls ---- */

static int fail(int error) {
    errno = error;
    return -1;
}

int close(int fd) {
    if (!is_sim(fd))
        return (int)syscall(SYS_close, fd);
    bool was = sim_enter();
    struct sock *s = fd_sock(fd);

    sim_event("close", (uint64_t)fd, 0);
    fds[fd - FD_FIRST] = NULL;
    if (s->n_fds > 0)
        s->n_fds--;
    unref(s, false);
    sim_leave(was);
    return 0;
}

int socket(int domain, int type, int protocol) {
    bool was = sim_enter();
    int fd = fd_new(sock_new(SOCK_NEW, domain == AF_UNIX));

    sim_leave(was);
    return fd < 0 ? fail(-fd) : fd;
}

int socketpair(int domain, int type, int protocol, int pair[2]) {
    bool was = sim_enter();
    enum sock_kind kind = (type & 0xf) == SOCK_SEQPACKET ? SOCK_PACKET_END : SOCK_STREAM_END;
    struct sock *a = sock_new(kind, true), *b = sock_new(kind, true);

    a->room = b->room = MAX(a->room, (size_t)4096);
    connect_ends(a, b);
    pair[0] = fd_new(a);
    pair[1] = fd_new(b);
    sim_leave(was);
    return pair[0] < 0 || pair[1] < 0 ? fail(EMFILE) : 0;
}

static void print_address(const struct sockaddr *sa, char *out, size_t size) {
    const struct sockaddr_in *in = (const struct sockaddr_in *)sa;

    if (sa->sa_family == AF_UNIX)
        snprintf(out, size, "%.107s", ((const struct sockaddr_un *)sa)->sun_path);
    else
        snprintf(out, size, "tcp:%d", ntohs(in->sin_port) ? ntohs(in->sin_port) : next_port++);
}

int bind(int fd, __CONST_SOCKADDR_ARG to, socklen_t len) {
    const struct sockaddr *sa = to.__sockaddr__;
    struct sock *s = fd_sock(fd);
    char address[112];

    print_address(sa, address, sizeof(address));
    LIST_FOREACH(i, &listeners)
    if (strcmp(LIST_ENTRY(i, struct sock, link)->address, address) == 0)
        return fail(EADDRINUSE);
    memcpy(s->address, address, sizeof(address));
    s->local = sa->sa_family == AF_UNIX;
    return 0;
}

int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t len) {
    return fail(ECONNREFUSED);
}

int getsockname(int fd, __SOCKADDR_ARG out, socklen_t *len) {
    struct sockaddr *sa = out.__sockaddr__;
    const struct sock *s = fd_sock(fd);

    if (s->local) {
        struct sockaddr_un u = {.sun_family = AF_UNIX};

        memcpy(u.sun_path, s->address, sizeof(u.sun_path));
        memcpy(sa, &u, MIN(*len, sizeof(u)));
        *len = sizeof(u);
        return 0;
    }
    struct sockaddr_in in = {.sin_family = AF_INET};
    in.sin_port = htons((uint16_t)(*s->address ? atoi(s->address + 4) : 0));
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memcpy(sa, &in, MIN(*len, sizeof(in)));
    *len = sizeof(in);
    return 0;
}

int getpeername(int fd, __SOCKADDR_ARG out, socklen_t *len) {
    struct sockaddr *sa = out.__sockaddr__;
    const struct sock *s = fd_sock(fd);
    struct sockaddr_in in = {.sin_family = AF_INET};

    if (s->local) {
        sa->sa_family = AF_UNIX;
        *len = sizeof(sa->sa_family);
        return 0;
    }
    if (!s->peer)
        return fail(ENOTCONN);
    in.sin_addr.s_addr = htonl(0x7f000001u + s->from);
    memcpy(sa, &in, MIN(*len, sizeof(in)));
    *len = sizeof(in);
    return 0;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *len) {
    const struct sock *s = fd_sock(fd);
    int number = 0;

    if (name == SO_PEERCRED) {
        struct ucred c = {.pid = 1, .uid = s->from, .gid = s->from};

        memcpy(value, &c, sizeof(c));
        return 0;
    }
    if (name == SO_TYPE)
        number = s->kind == SOCK_PACKET_END ? SOCK_SEQPACKET : SOCK_STREAM;
    else if (name == SO_ACCEPTCONN)
        number = s->kind == SOCK_LISTENER;
    memcpy(value, &number, sizeof(number));
    return 0;
}

static ssize_t result(ssize_t r, bool was) {
    sim_leave(was);
    if (r >= 0)
        return r;
    errno = (int)-r;
    return -1;
}

/* Serves the front's loop over new connections. */
int accept4(int fd, __SOCKADDR_ARG address, socklen_t *len, int flags) {
    bool was = sim_enter();
    int next = sim_one_in(60) ? -EMFILE : fd_accept(fd);

    sim_event("accept", (uint64_t)next, 0);
    sim_spend(was && next >= 0 ? SIM_ACCEPT_NS : 0);
    return (int)result(next, was);
}

/* Replaces poll(), whose own declaration says that it only writes to @p. */
int sim_poll(struct pollfd *p, nfds_t n, int timeout) __asm__("poll");

/* Serves the front's question whether a client has left. */
int sim_poll(struct pollfd *p, nfds_t n, int timeout) {
    if (n != 1 || !is_sim(p->fd)) /* real descriptors */
        return (int)syscall(SYS_poll, p, n, timeout);
    bool was = sim_enter();
    int ready = fd_ready(p->fd), told = 0;
    const struct sock *s = fd_sock(p->fd);

    if (s->ended)
        told |= POLLRDHUP;
    if (ready & SOCK_HANGUP)
        told |= POLLHUP;
    if (ready & SOCK_ERROR)
        told |= POLLERR;
    p->revents = (short)(told & (p->events | POLLHUP | POLLERR));
    sim_leave(was);
    return p->revents != 0;
}

static ssize_t send_packet(struct sock *s, const void *data, size_t len, struct sock *passed) {
    struct packet *p;

    if (!s->peer)
        return -EPIPE;
    if (!(p = calloc(1, sizeof(*p))))
        return -ENOBUFS;
    p->len = MIN(len, sizeof(p->data));
    memcpy(p->data, data, p->len);
    p->passed = passed;
    if (passed)
        passed->refs++;
    list_push_back(&s->peer->packets, &p->link);
    wake(s->peer);
    return (ssize_t)len;
}

static ssize_t recv_packet(struct sock *s, void *data, size_t len, struct sock **passed) {
    if (list_empty(&s->packets))
        return s->ended ? 0 : -EAGAIN;
    struct packet *p = LIST_ENTRY(s->packets.next, struct packet, link);
    size_t n = MIN(len, p->len);

    memcpy(data, p->data, n);
    *passed = p->passed;
    list_remove(&p->link);
    free(p);
    return (ssize_t)n;
}

ssize_t send(int fd, const void *data, size_t len, int flags) {
    if (!is_sim(fd)) /* real descriptors, as of the log */
        return syscall(SYS_sendto, fd, data, len, flags, NULL, 0);
    bool was = sim_enter();
    struct sock *s = fd_sock(fd);
    ssize_t n =
        s->kind == SOCK_PACKET_END ? send_packet(s, data, len, NULL) : sock_send(s, data, len);

    sim_event("send", (uint64_t)fd, (uint64_t)n);
    sim_spend(was ? SIM_WRITE_NS : 0);
    return result(n, was);
}

ssize_t recv(int fd, void *data, size_t len, int flags) {
    bool was = sim_enter();
    struct sock *s = fd_sock(fd), *passed = NULL;
    ssize_t n =
        s->kind == SOCK_PACKET_END ? recv_packet(s, data, len, &passed) : sock_recv(s, data, len);

    if (passed)
        unref(passed, false);
    sim_event("recv", (uint64_t)fd, (uint64_t)n);
    sim_spend(was && n > 0 ? (int64_t)n * SIM_BYTE_NS : 0);
    return result(n, was);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
    bool was = sim_enter();
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    struct sock *passed = NULL;
    int number;

    if (c) {
        memcpy(&number, CMSG_DATA(c), sizeof(number));
        passed = fd_sock(number);
    }
    return result(send_packet(fd_sock(fd), m->msg_iov->iov_base, m->msg_iov->iov_len, passed), was);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
    bool was = sim_enter();
    struct sock *passed = NULL;
    ssize_t n = recv_packet(fd_sock(fd), m->msg_iov->iov_base, m->msg_iov->iov_len, &passed);

    m->msg_controllen = 0;
    if (passed)
        unref(passed, false);
    return result(n, was);
}
