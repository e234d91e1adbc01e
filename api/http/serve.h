#pragma once

/* serve - from a connection's events to exchanges: finds dialect and route, lets the owner check,
 * and hands the complete request to the route. */

#include "api/http/conn.h"

/* Events of every http_server; called on its loop's thread. */
extern const struct conn_events serve_events;
