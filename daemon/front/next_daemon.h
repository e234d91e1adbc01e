#pragma once

/*
 * next_daemon - the old daemon's side of an upgrade: upgrade.h exchanges the messages with the next
 * daemon; this file decides what the front does at each of them.
 *
 *      start
 *      opened  the workers release the device
 *      ready   requests under way are offered, the disk tier is released, "take" is sent
 *      taken   the next daemon listens and becomes the main process; this one drains
 *      failed  the device and the disk tier are this daemon's again
 */

#include "base/err.h"

struct front;

/* Creates f->upgrade. Returns 0 or -ENOMEM. */
int next_daemon_new(struct front *f);
/* Starts the next daemon. @front is the struct front. Returns 0, or a negative value with @err. */
int next_daemon_start(void *front, struct err *err);
/* Offers the next daemon the requests of models that have not been offered. */
void next_daemon_offer(struct front *f);
/* Returns a text that is equal in two daemons if each can continue the other's requests. */
const char *next_daemon_sources(void);

void next_daemon_on_away(void *ctx);   /* implements models_opts.on_away */
void next_daemon_on_answer(void *ctx); /* implements models_opts.on_answer */
