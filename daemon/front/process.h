#pragma once

/* process - prepares the process before it becomes a front or a worker. */

#include <stdbool.h>

#include "base/err.h"

/* Removes @flag from the arguments, at any position. Returns false if it is not there. */
bool process_consume_flag(int *argc, char **argv, const char *flag);
/* Allocates in advance the resources that the first request would need: the threads of file_work.h,
 * their arenas, and stack of the main thread. Returns 0 or -errno. */
int process_make_ready(void);
/* Turns core files off for front and workers, since prompts and keys are in their memory. */
void process_forbid_cores(void);
/* Returns @r, and puts the key of the option that it concerns at the beginning of @err. */
int process_name_key(int r, const char *key, struct err *err);
