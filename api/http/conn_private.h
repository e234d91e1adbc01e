#pragma once

/* conn_private - functions shared by conn.c, the life of a connection, conn_accept.c, its
 * beginning, and conn_write.c, its output. */

#include "api/http/conn.h"

#define CONN_WRITE (32u << 10) /* most bytes that are sent in a turn */
#define LINGER_MS 1000         /* reading on after the last answer, so that the client sees it */

/* Changes the state, and with it the connection's offer of charges to others; no other function
 * does. */
void conn_set_state(struct conn *c, enum conn_state next);
/* Sets the connection's timer, as each state does. A broken connection keeps the time that ends
 * it. */
void conn_arm(struct conn *c, uint64_t ms);
/* Lets the connection take turns when bytes have arrived. 0 or an error of libuv. */
int conn_read_start(struct conn *c);
/* Queues a new connection for a turn in which it reads what its client has sent by then; only
 * afterwards is its socket watched, since many clients have sent their request when they are
 * accepted, and those that leave at once cost no call of epoll. */
void conn_read_first(struct conn *c);
/* Queues the connection for a turn in which it sends. */
void conn_want_send(struct conn *c);
/* Goes on when a write has ended: with the rest, or to what follows the answer. */
void conn_written(struct conn *c);
