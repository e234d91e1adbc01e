/*
 * One mutex protects the tables; nothing is decoded, resized or hashed under it. Two requests that
 * bring the same new file at the same time both decode it: the second result is dropped.
 */

#include "api/generation/picture_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/try.h"

const char *const picture_refusal_name[] = {"address", "too_large", "bad_file", "other"};

void picture_table_init(struct picture_table *p, picture_decode_fn decode, void *ctx,
                        uint32_t max_megapixels) {
    pthread_mutex_init(&p->mutex, NULL);
    p->decode = decode;
    p->ctx = ctx;
    p->max_megapixels = max_megapixels;
    list_init(&p->idle);
    list_init(&p->ready);
    for (uint32_t i = 0; i < PICTURE_TABLE_BUCKETS; i++)
        list_init(&p->buckets[i]);
}

static struct list *picture_bucket(struct picture_table *p, const uint8_t key[32]) {
    uint32_t n;

    memcpy(&n, key, sizeof(n));
    return &p->buckets[n % PICTURE_TABLE_BUCKETS];
}

/* ---- under the mutex ---- */

static void picture_drop_pixels(struct picture_seen *s) {
    if (!s->pixels)
        return;
    list_remove(&s->has_pixels);
    s->of->pixel_bytes -= picture_seen_bytes(s);
    free(s->pixels);
    s->pixels = NULL;
}

static void drop_file(struct picture_seen *s) {
    s->of->file_bytes -= s->n_file;
    free(s->file);
    s->file = NULL;
    s->n_file = 0;
}

/* Frees an entry to which no request refers. */
static void picture_forget(struct picture_seen *s) {
    assert(s->n_refs == 0 && !s->file);
    picture_drop_pixels(s);
    list_remove(&s->use);
    list_remove(&s->bucket);
    s->of->n_idle--;
    free(s);
}

static struct picture_seen *picture_find(struct picture_table *p, const uint8_t key[32]) {
    LIST_FOREACH_ENTRY(s, picture_bucket(p, key), struct picture_seen, bucket) {
        if (memcmp(s->key, key, sizeof(s->key)) == 0)
            return s;
    }
    return NULL;
}

/* Adds a reference. */
static void use(struct picture_seen *s) {
    if (s->n_refs++ == 0) {
        list_remove(&s->use);
        s->of->n_idle--;
    }
}

/* Gives @s the file, unless it has one. Returns 0, or -ENOSPC if the files of all requests would be
 * larger than PICTURE_TABLE_FILES_MAX. */
static int assign_file(struct picture_seen *s, uint8_t **file, size_t n) {
    struct picture_table *p = s->of;

    if (s->file)
        return 0;
    if (p->file_bytes + n > PICTURE_TABLE_FILES_MAX)
        return -ENOSPC;
    p->file_bytes += n;
    s->file = *file;
    s->n_file = n;
    *file = NULL;
    return 0;
}

/* Gives @s the pixels and drops the oldest pixels beyond PICTURE_TABLE_PIXELS_MAX. */
static void assign_pixels(struct picture_seen *s, uint8_t **pixels) {
    struct picture_table *p = s->of;

    if (s->pixels || !*pixels)
        return;
    s->pixels = *pixels;
    *pixels = NULL;
    p->pixel_bytes += picture_seen_bytes(s);
    list_push_back(&p->ready, &s->has_pixels);
    while (p->pixel_bytes > PICTURE_TABLE_PIXELS_MAX)
        picture_drop_pixels(LIST_ENTRY(p->ready.next, struct picture_seen, has_pixels));
}

static void picture_release_use(struct picture_seen *s) {
    struct picture_table *p = s->of;

    assert(s->n_refs > 0);
    if (--s->n_refs > 0)
        return;
    drop_file(s);
    list_push_back(&p->idle, &s->use);
    if (++p->n_idle > PICTURE_TABLE_KNOWN_MAX)
        picture_forget(LIST_ENTRY(p->idle.next, struct picture_seen, use));
}

/* ---- files ---- */

static void picture_key(const struct picture_way *w, const uint8_t *file, size_t n,
                        uint8_t out[32]) {
    const uint32_t limits[] = {w->budget.least, w->budget.most, w->budget.whole, w->pads,
                               w->background};
    struct sha256 sum;

    sha256_init(&sum);
    sha256_add(&sum, w->isolation_key, sizeof(w->isolation_key));
    sha256_add(&sum, w->projector_id, sizeof(w->projector_id));
    sha256_add(&sum, limits, sizeof(limits));
    sha256_add(&sum, file, n);
    sha256_end(&sum, out);
}

/* Decodes and resizes. The message of an error is about the picture: "the file is cut off". */
static int picture_make(struct picture_table *p, const struct picture_way *w, uint64_t *free_bytes,
                        const uint8_t *file, size_t n, struct picture_layout *layout,
                        uint8_t **pixels, struct err *err) {
    const struct picture_fit fit = {.projector = w->projector,
                                    .budget = w->budget,
                                    .pads = w->pads,
                                    .background = w->background,
                                    .max_megapixels = p->max_megapixels,
                                    .free_bytes = free_bytes};
    struct picture out = {0};
    int r = p->decode(p->ctx, file, n, &fit, &out, layout, err);

    *pixels = out.rgb;
    return r;
}

static void digest_of(const struct picture_way *w, const struct picture_layout *l,
                      const uint8_t *pixels, uint8_t out[32]) {
    const uint32_t size[] = {l->width, l->height};
    struct sha256 sum;

    sha256_init(&sum);
    sha256_add(&sum, w->projector_id, sizeof(w->projector_id));
    sha256_add(&sum, size, sizeof(size));
    sha256_add(&sum, pixels, picture_bytes(l->width, l->height));
    sha256_end(&sum, out);
}

/* Returns a new entry for a file that the table does not have. */
static struct picture_seen *new_seen(struct picture_table *p, const struct picture_way *w,
                                     const uint8_t key[32], const struct picture_layout *l,
                                     const uint8_t *pixels) {
    struct picture_seen *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->of = p;
    s->way = *w;
    memcpy(s->key, key, sizeof(s->key));
    list_init(&s->bucket);
    list_init(&s->use);
    list_init(&s->has_pixels);
    s->shown = (struct submit_picture){.n_rows = l->n_rows,
                                       .n_columns = l->n_columns,
                                       .n_lines = l->n_lines,
                                       .n_positions = l->n_positions,
                                       .width = l->width,
                                       .height = l->height};
    digest_of(w, l, pixels, s->shown.digest);
    return s;
}

/* Decodes a file that is not known, and adds it to the table with a reference. */
static int picture_learn(struct picture_table *p, const struct picture_way *w, uint64_t *free_bytes,
                         const uint8_t key[32], uint8_t **file, size_t n, struct picture_seen **out,
                         struct err *err) {
    struct picture_layout layout;
    uint8_t *pixels = NULL;

    TRY(picture_make(p, w, free_bytes, *file, n, &layout, &pixels, err));
    struct picture_seen *own = new_seen(p, w, key, &layout, pixels);
    if (!own) {
        free(pixels);
        return -ENOMEM;
    }
    atomic_fetch_add(&p->n_decoded, 1);
    pthread_mutex_lock(&p->mutex);
    struct picture_seen *s = picture_find(p, key);
    if (s) {
        use(s);
        free(own);
    } else {
        s = own;
        s->n_refs = 1;
        list_push_back(picture_bucket(p, key), &s->bucket);
    }
    int r = assign_file(s, file, n);
    assign_pixels(s, &pixels);
    if (r < 0)
        picture_release_use(s);
    pthread_mutex_unlock(&p->mutex);
    free(pixels);
    if (r == 0)
        *out = s;
    return r;
}

/* Finds a known file. Returns 0 with a reference, 1 if the file is not known, or -ENOSPC. */
static int recognise(struct picture_table *p, const uint8_t key[32], uint8_t **file, size_t n,
                     struct picture_seen **out) {
    int r = 1;

    pthread_mutex_lock(&p->mutex);
    struct picture_seen *s = picture_find(p, key);
    if (s) {
        use(s);
        r = assign_file(s, file, n);
        if (r < 0)
            picture_release_use(s);
    }
    pthread_mutex_unlock(&p->mutex);
    if (r == 0) {
        *out = s;
        atomic_fetch_add(&p->n_known, 1);
    }
    return r;
}

/* Puts an error of the decoder into a client's words. */
static int picture_explain(int r, const char *place, struct err *err) {
    struct err e = *err;

    if (r == -ENOSPC)
        return err_set_code(err, 503, "overloaded", place,
                            "%s: the requests under way have more pictures than there is memory "
                            "for. Send the request again.",
                            place);
    if (r != -EINVAL && r != -ENOMEM)
        return err_set_code(err, 503, "image_decoder_unavailable", place,
                            "%s: the process that decodes pictures cannot be started.", place);
    if (r == -ENOMEM && !*e.message)
        return r;
    return err_set_code(err, 400, "invalid_image", place, "%s: the picture cannot be used: %s.",
                        place, e.message);
}

int picture_table_look(struct picture_table *p, const struct picture_way *way, uint64_t *free_bytes,
                       uint8_t **file, size_t n, const char *place, struct picture_seen **out,
                       struct err *err) {
    uint8_t key[32];

    assert(p->decode);
    picture_key(way, *file, n, key);
    int r = recognise(p, key, file, n, out);
    if (r == 1 && !free_bytes)
        return -EAGAIN;
    if (r == 1)
        r = picture_learn(p, way, free_bytes, key, file, n, out, err);
    free(*file);
    *file = NULL;
    if (r < 0)
        return picture_explain(r, place, err);
    return 0;
}

struct picture_seen *picture_use(struct picture_seen *s) {
    pthread_mutex_lock(&s->of->mutex);
    use(s);
    pthread_mutex_unlock(&s->of->mutex);
    return s;
}

struct picture_seen *picture_release(struct picture_seen *s) {
    struct picture_table *p = s ? s->of : NULL;

    if (!s)
        return NULL;
    pthread_mutex_lock(&p->mutex);
    picture_release_use(s);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

uint8_t *picture_acquire_pixels(struct picture_seen *s) {
    uint8_t *pixels;

    pthread_mutex_lock(&s->of->mutex);
    pixels = s->pixels;
    if (pixels) {
        list_remove(&s->has_pixels);
        s->of->pixel_bytes -= picture_seen_bytes(s);
        s->pixels = NULL;
    }
    pthread_mutex_unlock(&s->of->mutex);
    return pixels;
}

int picture_make_pixels(struct picture_seen *s, uint8_t **out, struct err *err) {
    struct picture_layout layout;
    uint8_t digest[32];

    assert(s->n_refs > 0 && s->file);
    int r = picture_make(s->of, &s->way, NULL, s->file, s->n_file, &layout, out, err);
    if (r < 0)
        return picture_explain(r, "image", err);
    digest_of(&s->way, &layout, *out, digest);
    if (memcmp(digest, s->shown.digest, sizeof(digest)) == 0)
        return 0;
    free(*out);
    *out = NULL;
    return err_set_code(err, 500, "internal_error", NULL,
                        "A picture was decoded twice, with different results.");
}

void picture_table_count_refused(struct picture_table *p, const struct err *err) {
    enum picture_refusal why = REFUSED_OTHER;

    if (strcmp(err->code, "invalid_image_url") == 0)
        why = REFUSED_URL;
    else if (strcmp(err->code, "image_too_large") == 0)
        why = REFUSED_TOO_LARGE;
    else if (strcmp(err->code, "invalid_image") == 0 || strcmp(err->code, "invalid_base64") == 0)
        why = REFUSED_BAD_FILE;
    atomic_fetch_add(&p->n_refused[why], 1);
}

void picture_table_deinit(struct picture_table *p) {
    while (!list_empty(&p->idle))
        picture_forget(LIST_ENTRY(p->idle.next, struct picture_seen, use));
    assert(p->file_bytes == 0 && p->pixel_bytes == 0);
    pthread_mutex_destroy(&p->mutex);
}
