#include <string.h>

#include "base/try.h"
#include "vision/formats.h"

static const struct format {
    const char *name, *magic;
    uint8_t n_magic;
    int (*decode)(const uint8_t *data, size_t len, struct fitter *out, struct err *err);
} formats[] = {
    {"PNG", "\x89PNG\r\n\x1a\n", 8, decode_png},
    {"JPEG", "\xFF\xD8\xFF", 3, decode_jpeg},
    {"WebP", "RIFF", 4, decode_webp}, /* "RIFF" is followed by a length and "WEBP" */
    {"GIF", "GIF8", 4, decode_gif},
};

/* Returns the format of the file; NULL if its first bytes are not those of a known one. */
static const struct format *decode_find_format(const uint8_t *data, size_t len) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        const struct format *f = &formats[i];

        if (len < 12 || memcmp(data, f->magic, f->n_magic) != 0)
            continue;
        if (f->decode != decode_webp || memcmp(data + 8, "WEBP", 4) == 0)
            return f;
    }
    return NULL;
}

const char *picture_type(const void *data, size_t len) {
    const struct format *f = decode_find_format(data, len);

    if (!f)
        return NULL;
    return f->name;
}

/* Describes a file that is no picture of a known type. */
static int refuse_type(const void *data, size_t len, struct err *err) {
    const char *other = picture_other_type(data, len);

    if (!other)
        return err_set(err, 0, NULL, "the bytes are no PNG, JPEG, WebP or GIF file");
    return err_set(err, 0, NULL, "the bytes are %s, and only PNG, JPEG, WebP and GIF are read",
                   other);
}

int picture_decode_rows(const void *data, size_t len, struct fitter *out, struct err *err) {
    const struct format *f = decode_find_format(data, len);

    if (len > PICTURE_FILE_MAX)
        return err_set(err, 0, NULL, "the picture's file has %zu bytes; at most %u are allowed",
                       len, PICTURE_FILE_MAX);
    if (!f)
        return refuse_type(data, len, err);
    TRY(f->decode(data, len, out, err));
    uint64_t paid = out->n_data * PICTURE_BYTES_PAID;
    if (out->fit && out->fit->free_bytes && out->n_counted > paid)
        *out->fit->free_bytes -= out->n_counted - paid;
    return 0;
}

int picture_decode(const void *data, size_t len, struct picture *out, struct err *err) {
    CLEANUP(fitter_deinit) struct fitter f = {0};

    TRY(picture_decode_rows(data, len, &f, err));
    *out = f.out;
    f.out = (struct picture){0};
    return 0;
}

int picture_decode_fit(const void *data, size_t len, const struct picture_fit *fit,
                       struct picture *out, struct picture_layout *layout, struct err *err) {
    CLEANUP(fitter_deinit) struct fitter f = {.fit = fit};

    TRY(picture_decode_rows(data, len, &f, err));
    *out = f.out;
    *layout = f.layout;
    f.out = (struct picture){0};
    return 0;
}
