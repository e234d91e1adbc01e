#pragma once

/*
 * pictures - rows of the pictures in prompts: asks for their pixels, computes them in pieces
 * between steps, and keeps them for other requests.
 *
 *   WANTED ---> ASKED ---> PIXELS ---> UNDER_WAY ---> READY ---> evicted, the least recently used
 *     |  ^________|          |             |            |        first, when no request holds it
 *     |   the request that was named ended |            |
 *     '-----------'----------'-------------'            '--> rows are read by steps
 *            no request wants it any more: freed
 *
 * There is one entry for each content of a picture (kvpager/media.h) and isolation key, so a
 * picture is computed once for all requests while it is kept. A running request holds the entries
 * whose rows its next steps read, and the first two that it lacks, so that the pixels of the second
 * arrive while the first is computed. Rows that the request's pages already have are neither asked
 * for nor computed. A request holds rows until the steps that read them have ended.
 *
 * Bounds: rows take at most max_bytes plus the rows of one picture, so a request that holds
 * pictures cannot keep another request from its first picture. Pixels take at most PICTURES_PIXELS
 * bytes, or the pixels of one picture.
 *
 * The engine computes one picture at a time, in pieces. Then it takes a picture of the tenant that
 * is furthest behind.
 */

#include "engine/engine.h"
#include "proto/flight.h"
#include "scheduler/picture.h"
#include "scheduler/request.h"

#define PICTURES_PIXELS (UINT64_C(256) << 20) /* bytes */
#define PICTURES_AHEAD 2u                     /* pictures of a request that are asked for at once */
#define PICTURES_BUCKETS 4096u

/* Invariants: n_bytes counts the rows of ready pictures and of `now`; n_held_bytes counts the rows
 * of ready pictures with users; n_pixel_bytes counts the pixels of pictures that are ASKED, PIXELS
 * or UNDER_WAY, also before they arrive. Only ready pictures may be without users. */
struct pictures {
    const struct sched_view *view;
    struct engine *engine;
    struct list coming, ready;
    struct sched_picture *bucket[PICTURES_BUCKETS];
    /* UNDER_WAY; NULL: none */
    struct sched_picture *now;
    /* remaining work of `now`, in multiply-adds */
    uint64_t left;
    uint64_t max_bytes, n_bytes, n_held_bytes, n_pixel_bytes;
    /* running mean of the time per multiply-add; 0: not known */
    double ns_per_work;
};

/* Initialises @p without pictures. Rows take at most @max_bytes plus the rows of one picture. */
void pictures_init(struct pictures *p, const struct sched_view *view, struct engine *engine,
                   uint64_t max_bytes);
void pictures_deinit(struct pictures *p); /* accepts a zeroed one; no request may hold a picture */

/* Makes running request @r hold the pictures that its next rows read. Returns the position of the
 * first picture without rows, up to which its rows can be computed; UINT32_MAX: all have rows. */
uint32_t pictures_hold(struct pictures *p, struct request *r);
/* Releases the pictures that @r does not need any more: called when a step was taken back and when
 * @r stops running. */
void pictures_release(struct pictures *p, struct request *r);
/* Returns whether the next row of running request @r is a row of a picture that is not computed
 * yet. */
bool pictures_block(const struct request *r);
/* Returns WHY_ENCODE if @r waits for a picture that is being computed, WHY_PICTURE if it waits for
 * pixels or for its turn, else WHY_N. */
enum why pictures_why(const struct request *r);

/* Returns the position of the first picture of @r with rows after the first @n_tokens tokens;
 * UINT32_MAX: none. */
uint32_t pictures_first(const struct request *r, uint32_t n_tokens);

/* Writes to @out the picture whose pixels are to be asked for next. Returns false if there is
 * none. */
bool pictures_need(struct pictures *p, struct msg_need_picture *out);
/* Notes that the pixels named by @m were asked for. */
void pictures_asked(struct pictures *p, const struct msg_need_picture *m);
/* Takes a part of the pixels; parts that no request waits for are dropped. Returns the picture that
 * failed, for sched_fail_picture(), or NULL. */
struct sched_picture *pictures_receive(struct pictures *p, const struct msg_picture *m);

/* Returns whether a piece of a picture can be computed. */
bool pictures_has_work(const struct pictures *p);
/* Returns the request that pays for the next piece, while there is one. */
const struct request *pictures_payer(const struct pictures *p);
/* Computes pieces for about @ns, at least one. Returns the time taken in ns, or -EIO: the engine is
 * lost. *failed: NULL, or a picture that cannot be computed, for the reason @why. */
int64_t pictures_step(struct pictures *p, int64_t ns, struct sched_picture **failed,
                      struct err *why);

/* Returns a running request that waits for @x, or NULL. */
struct request *pictures_waiter(const struct pictures *p, const struct sched_picture *x);
