#pragma once

/* service - what monitors and routers ask, whatever dialect they speak: health, load, metrics. */

#include "api/http/dialect.h"

extern const struct route service_routes[]; /* ends with one without path */

/* route.serve: metrics_page.c, recent_page.c */
void metrics_serve(struct exchange *x, struct http *h);
void recent_serve(struct exchange *x, struct http *h);
