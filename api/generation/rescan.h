#pragma once

/* rescan - what asks for models waits until their folder has been looked at, where that was not
 * done just now (api_opts.rescan). */

#include "api/http/dialect.h"

struct gen_env;
struct api_rescan;

/* False: there is nothing to wait for. */
bool rescan_begin(struct gen_env *env, struct api_rescan *wait);
/* The exchange waits, and is then given to @serve again (without a parser); false: there is nothing
 * to wait for. */
bool rescan_first(struct exchange *x, void (*serve)(struct exchange *x, struct http *h));
