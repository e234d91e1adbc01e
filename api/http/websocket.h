#pragma once

/*
 * websocket - the server's side of RFC 6455: parses the frames of a client and makes those of the
 * server. A message is text and goes to the caller's buffer; pings, pongs and closes are handled
 * here, and their replies are collected in `reply`. No extension is negotiated.
 *
 * Pure: no clock, no input.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define WEBSOCKET_CONTROL 125u /* most bytes of a ping, a pong or a close */
#define WEBSOCKET_HEAD 14u     /* most bytes of a frame's header */
#define WEBSOCKET_ACCEPT 29u   /* size of the text that answers a client's key */
/* Bytes up to which the buffer of a body or message grows in steps. A larger one gets all its room
 * at once: to copy some MB takes milliseconds of the event loop. */
#define BODY_GROWS_TO (256u << 10)

enum websocket_opcode {
    WEBSOCKET_CONTINUATION = 0,
    WEBSOCKET_TEXT = 1,
    WEBSOCKET_BINARY = 2,
    WEBSOCKET_CLOSE = 8,
    WEBSOCKET_PING = 9,
    WEBSOCKET_PONG = 10
};

/* Codes of a close. */
enum {
    WEBSOCKET_NORMAL = 1000,
    WEBSOCKET_GOING_AWAY = 1001,
    WEBSOCKET_PROTOCOL = 1002,
    WEBSOCKET_NOT_TEXT = 1003,
    /* never sent */
    WEBSOCKET_NO_CODE = 1005,
    WEBSOCKET_BAD_TEXT = 1007,
    WEBSOCKET_TOO_LARGE = 1009
};

/* Results of websocket_feed(). */
enum websocket_answer { WEBSOCKET_MORE, WEBSOCKET_BEGUN, WEBSOCKET_MESSAGE, WEBSOCKET_CLOSED };

/* Where in a character of UTF-8 a text that comes in pieces stands: n_left bytes are missing, of
 * which the next is between low and high. */
struct websocket_text {
    uint8_t n_left, low, high;
};

/* Invariants: n_head <= WEBSOCKET_HEAD; in_frame: the header is complete and `left` bytes of the
 * payload are to come; code != 0: nothing is read any more. */
struct websocket {
    uint8_t head[WEBSOCKET_HEAD], control[WEBSOCKET_CONTROL];
    uint8_t n_head, n_control;
    /* missing and received bytes of the frame's payload */
    uint64_t left, at;
    /* in_message: between its first frame and its last */
    bool in_frame, in_message;
    /* of the message */
    struct websocket_text text;
    /* no frame has arrived since the server's ping */
    bool pinged;
    bool close_sent;
    /* code of the close that ends the connection; 0: it is open */
    uint16_t code;
    /* frames that are to be sent */
    struct buf reply;

    /* Data of the route whose messages come here; `drop`, if not NULL, frees it in the end. */
    void *state;
    void (*drop)(void *state);
};

struct websocket *websocket_new(void);                              /* NULL: no memory */
struct websocket *websocket_free(struct websocket *w);              /* accepts NULL */
void websocket_accept(const char *key, char out[WEBSOCKET_ACCEPT]); /* Sec-WebSocket-Accept */

/* Reads up to @len bytes, whose number is *used. WEBSOCKET_BEGUN stops behind the header of a
 * message's first frame, WEBSOCKET_MESSAGE behind its last byte: call again with the rest, even
 * when the rest is empty. The text of the message is added to @body, whose limit is that of a
 * message. @busy: no message can be taken now, so it stops in front of one, with WEBSOCKET_MORE.
 * WEBSOCKET_CLOSED: the client ends the connection. -EPROTO, or -ENOMEM: it is to be ended by
 * websocket_close() with w->code. */
int websocket_feed(struct websocket *w, const char *data, size_t len, bool busy, struct buf *body,
                   size_t *used);
/* Appends a close to w->reply, if none was sent. Returns 0 or -ENOMEM. */
int websocket_close(struct websocket *w, uint16_t code);
/* Writes the header of a whole frame with @len bytes and returns its length. */
size_t websocket_head(uint8_t out[WEBSOCKET_HEAD], enum websocket_opcode opcode, size_t len);
