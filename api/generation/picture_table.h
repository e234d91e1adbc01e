#pragma once

/*
 * picture_table - remembers the pictures in requests. A picture file becomes a layout, for the
 * prompt, and a digest of its resized pixels, by which the worker finds pages and rows. Agents send
 * every picture again with every turn, so both are kept by the digest of the file: a known file is
 * not decoded. The file itself is kept as long as a request has it, because the worker may ask for
 * the pixels at any time; the pixels until they are sent, within a limit.
 *
 *     file ── SHA-256 with isolation key, projector, limits ──> struct picture_seen
 *                                              new: decode and resize, digest
 */

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "proto/messages.h"
#include "vision/fit.h"

#define PICTURE_TABLE_BUCKETS 4096u
#define PICTURE_TABLE_KNOWN_MAX 16384u /* files that are remembered when no request has them */
#define PICTURE_TABLE_PIXELS_MAX (256ull << 20) /* bytes of resized pixels */
#define PICTURE_TABLE_FILES_MAX (1ull << 30)    /* bytes of the files that requests have */

/* Settings that decide how a model sees pictures, and the tenant: entries of equal settings are
 * shared, and outlive the model. */
struct picture_way {
    /* without its name */
    struct projector projector;
    uint8_t projector_id[32];
    struct picture_budget budget;
    /* picture_pad() in place of picture_resize() */
    bool pads;
    enum picture_background background;
    uint8_t isolation_key[16];
};

/* Reasons of refused files, in /metrics. */
enum picture_refusal { REFUSED_URL, REFUSED_TOO_LARGE, REFUSED_BAD_FILE, REFUSED_OTHER };
#define PICTURE_REFUSALS 4
extern const char *const picture_refusal_name[PICTURE_REFUSALS];

struct picture_table {
    pthread_mutex_t mutex;
    picture_decode_fn decode;
    void *ctx;
    /* of a file */
    uint32_t max_megapixels;
    /* picture_seen.bucket, by key */
    struct list buckets[PICTURE_TABLE_BUCKETS];
    /* picture_seen.use: no request has them, oldest first */
    struct list idle;
    /* picture_seen.has_pixels, oldest first */
    struct list ready;
    uint32_t n_idle;
    uint64_t file_bytes, pixel_bytes;
    atomic_uint_least64_t n_decoded, n_known, n_refused[PICTURE_REFUSALS];
};

/* A picture file in the form for one model. Invariants: n_refs > 0 or in pictures.idle; a file
 * while n_refs > 0; in pictures.ready while it has pixels. `shown` and the file do not change while
 * the caller has a reference; the rest is under the mutex. */
struct picture_seen {
    struct picture_table *of;
    uint8_t key[32];
    struct list bucket, use, has_pixels;
    uint32_t n_refs;
    /* at: 0 */
    struct submit_picture shown;
    struct picture_way way;
    uint8_t *file, *pixels;
    size_t n_file;
};

/* @decode is picture_decode_fit() or the same in another process; it may wait. */
void picture_table_init(struct picture_table *p, picture_decode_fn decode, void *ctx,
                        uint32_t max_megapixels);
void picture_table_deinit(struct picture_table *p); /* no request has one */

/* Looks at the *file of @n bytes. On any thread but the loop's if it may wait for the decoder,
 * which takes from @free_bytes, the request's (picture_fit); if those are NULL, -EAGAIN for a file
 * that is not known, which remains. In all other cases the file is taken over. 0 with a reference;
 * -ENOMEM; or an error for the client about @place. */
int picture_table_look(struct picture_table *p, const struct picture_way *way, uint64_t *free_bytes,
                       uint8_t **file, size_t n, const char *place, struct picture_seen **out,
                       struct err *err);
struct picture_seen *picture_use(struct picture_seen *s);     /* another reference */
struct picture_seen *picture_release(struct picture_seen *s); /* accepts NULL, returns it */
/* Takes the pixels, which the caller then owns; NULL: there are none. */
uint8_t *picture_acquire_pixels(struct picture_seen *s);
/* Makes the pixels again, as picture_table_look() does. Returns 0 with *out, which the caller owns,
 * or -errno with @err. */
int picture_make_pixels(struct picture_seen *s, uint8_t **out, struct err *err);
/* Returns the size of the pixels in bytes. */
static inline size_t picture_seen_bytes(const struct picture_seen *s) {
    return picture_bytes(s->shown.width, s->shown.height);
}
/* Counts a file that was refused with @err. */
void picture_table_count_refused(struct picture_table *p, const struct err *err);
