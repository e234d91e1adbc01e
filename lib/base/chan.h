#pragma once

/*
 * chan - framed messages between the front and the worker, over a UNIX stream socket pair.
 *
 * A frame is a header {u32 length of the payload, u16 type, u16 zero} and the payload, 8-byte
 * aligned in memory on both sides. The two processes are the same executable on the same machine,
 * so integers travel in host order. A frame over the limit, a non-zero third field or a closed peer
 * makes the channel dead: all functions then return -EPROTO or -EPIPE.
 *
 * Writing never blocks: chan_send() queues frames up to a limit and returns CHAN_FULL beyond it;
 * then the caller drops the frame, since events are cumulative. chan_recv() reads, after poll() or
 * chan_wait() has found the socket readable. One thread uses a channel.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define CHAN_FULL 1  /* answer of chan_send(): the queue is full, and the frame was not queued */
#define CHAN_EMPTY 1 /* answer of chan_recv(): no whole frame has arrived */

/* A message as chan_recv() returns it. */
struct chan_frame {
    uint16_t type;
    uint32_t len;
    /* 8-byte aligned; valid until the next chan_recv() */
    const void *data;
};

/* Invariants: consumed <= in.len, a multiple of 8; sent <= out.len <= max_queued; a
 * dead channel stays dead. */
struct chan {
    /* non-blocking; owned */
    int fd;
    /* 0 or the negative errno that ended it */
    int dead;
    uint32_t max_frame;
    struct buf in, out;
    /* bytes of `in` that were handed out; frames are multiples of 8 bytes */
    size_t consumed;
    /* bytes of `out` that were written */
    size_t sent;
};

/* Initialises a channel over the socket @fd, which it takes over. @max_frame: largest payload in
 * bytes, in either direction; @max_queued: bytes that may wait to be written, at least one
 * frame. */
void chan_init(struct chan *c, int fd, uint32_t max_frame, size_t max_queued);
/* Closes the socket; queued frames are lost. */
void chan_deinit(struct chan *c);

/* Queues a frame of at most max_frame bytes and writes as much as the socket accepts. Returns 0,
 * CHAN_FULL or -errno. */
int chan_send(struct chan *c, uint16_t type, const void *data, uint32_t len);
/* Writes as much as the socket accepts. Returns 0, also when frames remain, or -errno. */
int chan_flush(struct chan *c);
/* Returns true if frames are queued, so that the caller must poll for POLLOUT. */
bool chan_wants_write(const struct chan *c);
/* Reads the next frame. Returns 0, CHAN_EMPTY or -errno. Frames that arrived before the peer closed
 * the socket come before the error. */
int chan_recv(struct chan *c, struct chan_frame *out);

/* Flushes and sleeps until the channel is readable (or writable, when frames are queued), a signal
 * comes or @timeout_ms has passed (-1: no limit). Returns 0 or -errno. */
int chan_wait(struct chan *c, int timeout_ms);
/* Waits like chan_wait(), and also returns when descriptor @other becomes readable; -1: there is
 * none. */
int chan_wait_or(struct chan *c, int other, int timeout_ms);
