#pragma once

/*
 * reload - reads the options and the files of keys, tenants and certificates again, on a thread of
 * file_work.h, since a file may be on a disk or a mount that does not answer, and takes over
 * what it has read on the loop. One reload reads at a time, so that files that never answer take
 * one thread.
 */

#include "base/err.h"

struct front;

/* Reads the files of keys, tenants and certificates and takes them over before it returns, for the
 * start. Returns 0 or -errno with @err. */
int reload_first(struct front *f, struct err *err);
/* Begins a reload for the admin socket; @front is the struct front. Returns 0: the end of the
 * reload calls admin_reload_over(); or -EBUSY with @err while another one reads. */
int reload_for_admin(void *front, struct err *err);
/* Begins a reload for a signal, or another one when the running one has ended. */
void reload_for_signal(struct front *f);
