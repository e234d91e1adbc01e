#pragma once

/* serve - turns a connection's events into exchanges: finds dialect and route, lets the owner check
 * the head, and passes the complete request to the route. */

#include "api/http/conn.h"

/* Events of every http_server; called on its loop's thread. */
extern const struct conn_events serve_events;
