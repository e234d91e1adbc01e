#include "vision/decoder.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/files.h"
#include "base/result.h"
#include "base/text.h"
#include "base/try.h"
#include "vision/decoder_private.h"

/* The caller's side of the decoder. The mutex guards restarts of the process; requests for
 * different pictures run concurrently. */
struct decoder {
    pthread_mutex_t mutex;
    char *program;
    /* socket to the process; -1: there is no process */
    int socket;
    pid_t pid;
};

extern char **environ;

/* Starts the process with @end as DECODER_FD. Returns 0 or -errno. */
static int spawn_with(struct decoder *d, int end) {
    char *argv[] = {d->program, (char *)DECODER_FLAG, NULL}, *env[] = {NULL};
    CLEANUP(posix_spawn_file_actions_destroy) posix_spawn_file_actions_t files = {0};

    TRY(-posix_spawn_file_actions_init(&files));
    TRY(-posix_spawn_file_actions_adddup2(&files, end, DECODER_FD));
    return -posix_spawn(&d->pid, d->program, &files, NULL, argv, env);
}

/* Starts the process with its end of a new socket. Returns 0 or -errno. */
static int start_process(struct decoder *d) {
    int pair[2];

    assert(d->socket < 0);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    CLEANUP(files_closep) int own = pair[0], other = pair[1];
    /* F_DUPFD, because dup2() of a number to itself would keep the close-on-exec flag. */
    CLEANUP(files_closep) int end = fcntl(other, F_DUPFD_CLOEXEC, DECODER_FD + 1);
    if (end < 0)
        return -errno;
    TRY(spawn_with(d, end));
    d->socket = own;
    own = -1;
    return 0;
}

static void end_process(struct decoder *d) {
    if (d->socket < 0)
        return;
    close(d->socket);      /* the process ends when its caller has closed the socket */
    kill(d->pid, SIGKILL); /* also if it is stopped or hangs; its children go on */
    d->socket = -1;
    while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

int decoder_new(struct decoder **out, const char *program) {
    CLEANUP(decoder_freep) struct decoder *d = calloc(1, sizeof(*d));

    if (!d)
        return -ENOMEM;
    d->socket = -1;
    pthread_mutex_init(&d->mutex, NULL);
    d->program = strdup(program);
    int r = d->program ? start_process(d) : -ENOMEM;
    if (r == 0)
        *out = STEAL(d);
    return r;
}

struct decoder *decoder_free(struct decoder *d) {
    if (!d)
        return NULL;
    end_process(d);
    pthread_mutex_destroy(&d->mutex);
    free(d->program);
    free(d);
    return NULL;
}

/* Sends descriptor @fd to the process. Returns 0 or -errno. */
static int send_fd(int socket, int fd) {
    char control[CMSG_SPACE(sizeof(fd))] = {0}, byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return errno_if_negative(sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT));
}

/* Starts the process again and sends @fd to it. */
static int send_to_new(struct decoder *d, int fd) {
    end_process(d);
    TRY(start_process(d));
    return send_fd(d->socket, fd);
}

/* Makes a socket to a new child of process *@by; a process that has died is restarted once. Returns
 * 0 or -errno. */
static int start_child(struct decoder *d, int *out, pid_t *by) {
    int pair[2], r = -1;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    pthread_mutex_lock(&d->mutex);
    if (d->socket >= 0)
        r = send_fd(d->socket, pair[1]);
    if (r < 0)
        r = send_to_new(d, pair[1]);
    *by = d->pid;
    pthread_mutex_unlock(&d->mutex);
    close(pair[1]);
    if (r == 0)
        *out = pair[0];
    else
        close(pair[0]);
    return r;
}

/* Returns the milliseconds of a monotonic clock. */
static int64_t now_ms(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Sends @n bytes (@out) or receives them, until @deadline. Returns 0, -ETIMEDOUT, or -EPIPE if the
 * other side has ended. */
static int decoder_move_bytes(int socket, bool out, void *data, size_t n, int64_t deadline) {
    for (size_t at = 0; at < n;) {
        struct pollfd p = {socket, out ? POLLOUT : POLLIN, 0};
        int64_t left = deadline - now_ms();

        if (left <= 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, (int)MIN(left, (int64_t)INT_MAX)) < 0 && errno != EINTR)
            return -errno;
        ssize_t r;

        if (out)
            r = send(socket, (char *)data + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        else
            r = recv(socket, (char *)data + at, n - at, MSG_DONTWAIT);
        if (r > 0)
            at += (size_t)r;
        else if (r == 0 || (errno != EAGAIN && errno != EINTR))
            return -EPIPE;
    }
    return 0;
}

int decoder_read_answer(int socket, const struct picture_fit *fit, struct picture *p,
                        struct picture_layout *layout, int64_t deadline, struct err *err) {
    struct decoder_answer a;

    TRY(decoder_move_bytes(socket, false, &a, sizeof(a), deadline));
    if (a.result < 0) {
        a.message[sizeof(a.message) - 1] = 0;
        for (char *c = a.message; *c; c++)
            *c = *c < 0x20 || *c > 0x7E ? '?' : *c;
        err_set(err, 0, NULL, "%s", text_filled_or(a.message, "The picture cannot be decoded."));
        if (a.result == -ENOMEM)
            return -ENOMEM;
        return -EINVAL;
    }
    TRY(picture_check(a.width, a.height, PICTURE_MEGAPIXELS_MAX, err));
    if (fit) {
        picture_fit_layout(fit, a.width, a.height, layout);
        a.width = layout->width;
        a.height = layout->height;
    }
    TRY(picture_new(p, a.width, a.height, err));
    TRY(decoder_move_bytes(socket, false, p->rgb, picture_bytes(p->width, p->height), deadline));
    if (fit && fit->free_bytes)
        *fit->free_bytes = MIN(*fit->free_bytes, a.free_bytes);
    return 0;
}

/* Returns true if the process @by still has its end of the socket. */
static bool is_alive(struct decoder *d, pid_t by) {
    pthread_mutex_lock(&d->mutex);
    struct pollfd p = {d->socket, 0, 0};
    bool alive = d->socket >= 0 && d->pid == by && poll(&p, 1, 0) == 0;
    pthread_mutex_unlock(&d->mutex);
    return alive;
}

/* Ends the process @by, which has not answered, so that the next picture has a new one. */
static void replace_process(struct decoder *d, pid_t by) {
    pthread_mutex_lock(&d->mutex);
    if (d->pid == by)
        end_process(d);
    pthread_mutex_unlock(&d->mutex);
}

/* A picture to be decoded. */
struct job {
    const void *data;
    size_t len;
    const struct picture_fit *fit;
};

/* Decodes in one child of process *@by. Returns -EPIPE if it ended without an answer. */
static int run_child(struct decoder *d, const struct job *job, pid_t *by, struct picture *out,
                     struct picture_layout *layout, struct err *err) {
    int64_t deadline = now_ms() + DECODER_SECONDS * 2000;
    struct decoder_request q = {.len = job->len, .fits = job->fit != NULL};
    CLEANUP(files_closep) int socket = -1;

    if (job->fit) {
        q.fit = *job->fit;
        q.fit.projector.name = NULL; /* pointers into this process are not sent */
        q.fit.free_bytes = NULL;
        q.counts = job->fit->free_bytes != NULL;
        q.free_bytes = q.counts ? *job->fit->free_bytes : 0;
    }
    TRY(start_child(d, &socket, by));
    TRY(decoder_move_bytes(socket, true, &q, sizeof(q), deadline));
    TRY(decoder_move_bytes(socket, true, (void *)(uintptr_t)job->data, job->len, deadline));
    return decoder_read_answer(socket, job->fit, out, layout, deadline, err);
}

int decoder_run(struct decoder *d, const void *data, size_t len, const struct picture_fit *fit,
                struct picture *out, struct picture_layout *layout, struct err *err) {
    const struct job job = {data, len, fit};
    struct picture p = {0};
    pid_t by;

    if (len > PICTURE_FILE_MAX) /* sets @err */
        return picture_decode(data, len, out, err);
    int r = run_child(d, &job, &by, &p, layout, err);
    if (r == -EPIPE && !is_alive(d, by)) { /* perhaps before it made the child */
        picture_deinit(&p);
        r = run_child(d, &job, &by, &p, layout, err);
    }
    if (r == -EPIPE && !is_alive(d, by))
        r = -ENOMEM; /* memory is short when the kernel kills processes */
    if (r == -EPIPE)
        r = err_set(err, 0, NULL, "the picture took too much time or memory to decode");
    if (r == -ETIMEDOUT) {
        replace_process(d, by);
        r = err_set(err, 0, NULL, "the picture took longer than %u s to decode",
                    DECODER_SECONDS * 2);
    }
    if (r < 0)
        picture_deinit(&p);
    else
        *out = p;
    return r;
}
