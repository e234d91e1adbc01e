#pragma once

/*
 * sim - the machine that a front runs on in the simulator: virtual time, one source of random
 * numbers, and actors (clients, workers, the administrator) that act between two callbacks of the
 * front's loop. The front is the real program; libuv, the pool of threads and the system calls that
 * reach other processes are replaced by this folder. One seed decides the order of everything.
 *
 * Only one thread exists. The code of the front and that of the simulator call each other, and
 * sim.in_front tells which of them runs: reading the clock takes time only in the front.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/rng.h"
#include "base/util.h"

/* An actor, which acts at times of its own. */
struct actor {
    /* sim.actors */
    struct list link;
    /* INT64_MAX: it waits until it is woken */
    int64_t next_ns;
    void (*step)(struct actor *a);
};

struct sim {
    uint64_t seed;
    struct rng rng;
    /* virtual time */
    int64_t ns;
    struct list actors;
    /* number of callbacks of the front, steps of actors, and calls of the front that act */
    uint64_t n_events;
    /* a hash of all events: equal for equal runs */
    uint64_t trace;
    /* calls of the simulator by the front in the present callback */
    uint64_t n_calls;
    bool in_front, verbose;
    /* the front is stopped now and then */
    bool pauses;
    /* time that it was */
    int64_t stopped_ns;
    /* many actors act between two polls, so that the front is always busy */
    bool crowded;
    /* in this iteration a socket was readable: often half of a request is there */
    bool has_read;
    /* time that the loop slept */
    int64_t idle_ns;
    /* price of what the front did in the present iteration of its loop */
    int64_t spent_ns;
    /* the same of all iterations */
    int64_t front_ns;
    /* time set by setitimer(), at which the front's process ends; 0: none */
    int64_t deadline_ns;
    /* no work on files ends any more */
    bool files_hang;
};

extern struct sim sim;

#define SIM_PAUSE_MS 5000 /* longest time for which the front is stopped */
/* most calls of the simulator in one callback; more means a loop without a bound */
#define SIM_CALLS_MAX 60000

/* Prices of what the front does on its loop: a byte that is copied, parsed or sent, a write, the
 * beginning and the end of a connection, and an item of a loop over readers, connections and the
 * like. Each is a few times that of a slow machine's core. */
#define SIM_BYTE_NS 2
#define SIM_WRITE_NS 10000
#define SIM_ACCEPT_NS 20000
#define SIM_CLOSE_NS 100000
#define SIM_ITEM_NS 100
#define SIM_ITERATION_NS 10000000 /* most that an iteration may cost */

/* Ends the run because rule @rule is broken. */
_Noreturn void sim_fail(const char *rule, const char *fmt, ...) PRINTF(2, 3);
/* Counts and hashes an event. */
void sim_event(const char *what, uint64_t a, uint64_t b);
void sim_note(const char *fmt, ...) PRINTF(1, 2); /* printed with --verbose only */
uint32_t sim_below(uint32_t n);                   /* returns a number that is uniform in [0, n) */
uint32_t sim_between(uint32_t least, uint32_t most);
bool sim_one_in(uint32_t n);

/* Counts a call of the simulator by the front. Returns the argument of sim_leave(). */
bool sim_enter(void);
void sim_leave(bool was);

/* Lets the front's loop spend @ns. */
void sim_spend(int64_t ns);
/* Ends an iteration of the front's loop, which must not have cost more than SIM_ITERATION_NS. */
void sim_iteration(void);
/* A loop_watcher: lets the front's loop pay for what it does. */
void sim_price(size_t bytes, size_t items);

void actor_start(struct actor *a, void (*step)(struct actor *a), int64_t delay_ns);
void actor_stop(struct actor *a);
/* Lets the actor act within @ns, if it does not act earlier. */
void actor_wake(struct actor *a, int64_t ns);
/* Lets one of the actors act whose time has come. Returns false if there is none. */
bool actors_act(void);
int64_t actors_next_ns(void); /* INT64_MAX: all wait to be woken */

/* ---- sockets (socket.c) ---- */

struct sock;

/* States that an end of a socket or a listener reports. */
enum { SOCK_READABLE = 1, SOCK_WRITABLE = 2, SOCK_HANGUP = 4, SOCK_ERROR = 8 };

/* Returns a client's end of a new connection to the listener at @address ("host:port", or a path);
 * NULL: there is no listener. @from: the number of the client's address, or its uid. */
struct sock *sock_connect(const char *address, uint32_t from, struct actor *owner);
/* Behave as send(2) and recv(2) for a random number of bytes; -EAGAIN, -EPIPE, -ECONNRESET. */
ssize_t sock_send(struct sock *s, const void *data, size_t len);
ssize_t sock_recv(struct sock *s, void *data, size_t len);
void sock_shutdown(struct sock *s);           /* ends sending */
void sock_close(struct sock *s, bool resets); /* also frees it, at some time */
bool sock_reads(const struct sock *s);        /* the other side has neither closed nor reset */
bool sock_blocks(const struct sock *s);       /* the other side waits until @s is read */
/* Lets at most @room bytes, at least 1, wait to be read from @s. */
void sock_narrow(struct sock *s, size_t room);
size_t sock_unread(const struct sock *s); /* number of bytes sent to @s and not read */
/* Descriptors. They belong to the front; other parts hold references. */
struct sock *fd_sock(int fd);
struct sock *fd_hold(int fd, struct actor *owner); /* takes a further reference for a process */
int fd_of_held(struct sock *s);                    /* returns a descriptor for a held reference */
int fd_ready(int fd);                              /* returns SOCK_* bits */
int fd_accept(int fd);                             /* returns a new descriptor, or -EAGAIN */
int fd_listen(int fd);
uint32_t fds_open(void); /* number of descriptors that the front has not closed */
void fds_list(void);     /* prints them on stderr */
void sock_set_owner(struct sock *s, struct actor *owner);
uint32_t listeners_n(void);

/* ---- the loop (loop.c, stream.c, process.c) ---- */

void sim_signal(int signum); /* sends a signal to the front */
uint32_t loop_handles(void); /* number of handles that are not closed */
/* Prints the handles on stderr. */
void loop_list(void);

/* ---- the pool of threads (jobs.c) ---- */

bool jobs_sim_run_one(void); /* runs one of the waiting jobs; returns false if there is none */
bool jobs_sim_wait(void);    /* returns true if jobs wait */
