#pragma once

/* conn_private - what conn.c, the life of a connection, and conn_accept.c, its beginning, share. */

#include "api/http/conn.h"

#define LINGER_MS 1000 /* reading on after the last answer, so that the client sees it */

/* The only place that changes the state, and by that what the connection offers to others. */
void conn_set_state(struct conn *c, enum conn_state next);
/* The one timer, which each state sets anew. What is broken keeps the time that ends it. */
void conn_arm(struct conn *c, uint64_t ms);
/* From now on it takes turns when something has arrived. 0 or an error of libuv. */
int conn_read_start(struct conn *c);
