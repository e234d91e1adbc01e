#pragma once

/* rescan - lets requests that concern models wait until the folders of models have been read,
 * unless that was done just now (api_opts.rescan). */

#include "api/http/dialect.h"

struct gen_env;
struct api_rescan;

/* Begins the wait. Returns false if there is nothing to wait for. */
bool rescan_begin(struct gen_env *env, struct api_rescan *wait);
/* Lets the exchange wait, and then calls @serve again (without a parser). Returns false if there is
 * nothing to wait for. */
bool rescan_first(struct exchange *x, void (*serve)(struct exchange *x, struct http *h));
