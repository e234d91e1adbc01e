#pragma once

/* Formats the address at the other end of a connection for log lines. */

#define WHO_CLIENT 48

struct conn;

/* Writes the address of the peer of @c, or "uid:N" at a UNIX socket; "-" if it is not known. */
void who_client(struct conn *c, char out[WHO_CLIENT]);
