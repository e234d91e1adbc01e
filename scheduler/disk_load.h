#pragma once

/*
 * disk_load - what the scheduler does with the disk tier: a request of which the file has more than device and host memory is
 * put into the queue when those pages have been read, if that is faster than computing them. Private.
 */

#include "scheduler/request.h"

struct sched;
struct msg_stats;

/* Opens the tier that sched_opts.disk asks for. A file that cannot be used is noted, and there is no such tier. */
void disk_load_init(struct sched *s);

/* Whether @r, which could be put into the queue, waits for the disk: it is put there later. */
bool disk_load_begin(struct sched *s, struct request *r);
/* @r, which waits for it, is over. */
void disk_load_cancel(struct sched *s, struct request *r);

/* Takes what has been read and written meanwhile. */
void disk_load_step(struct sched *s);

void disk_load_stats(const struct sched *s, struct msg_stats *out);
/* When somebody has waited too long. */
int64_t disk_load_wake_ns(const struct sched *s);
