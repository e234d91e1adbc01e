/*
 * Decodes PNG with libpng. Its errors return by longjmp() to the one setjmp() of decode_png();
 * memory that is freed afterwards is held by a struct in the caller's frame and not by local
 * variables.
 */

#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "base/try.h"
#include "vision/formats.h"

struct reader {
    const uint8_t *data;
    size_t at, len;
    struct fitter *out;
    uint32_t width;
    bool has_alpha;
    /* one row, or the whole picture */
    uint8_t *pixels;
    /* addresses of all rows in the whole picture */
    png_bytep *rows;
    struct err *err;
    int result;
};

static void decode_png_on_error(png_structp png, png_const_charp message) {
    struct reader *r = png_get_error_ptr(png);

    err_set(r->err, 0, NULL, "the PNG file is damaged: %s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message) {}

static void decode_png_read_bytes(png_structp png, png_bytep out, size_t n) {
    struct reader *r = png_get_io_ptr(png);

    if (n > r->len - r->at)
        png_error(png, "it is cut off");
    memcpy(out, r->data + r->at, n);
    r->at += n;
}

/* Asks for three bytes a pixel from any kind of file, and one more for alpha where it has
 * transparent pixels: palettes, gray and a transparent colour are converted, the lower byte of 16
 * bits is dropped. */
static void set_rgb(png_structp png) {
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
}

static uint32_t decode_png_u32_at(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Returns the orientation, whose chunk may come after the pixels, and sets *n_data to the bytes of
 * all IDAT chunks. */
static int find_chunks(const uint8_t *data, size_t len, uint64_t *n_data) {
    int orientation = 1;

    *n_data = 0;
    for (size_t at = 8; len - at >= 12;) {
        size_t n = decode_png_u32_at(data + at);

        if (n > len - at - 12)
            break;
        if (memcmp(data + at + 4, "eXIf", 4) == 0)
            orientation = exif_orientation(data + at + 8, n);
        if (memcmp(data + at + 4, "IDAT", 4) == 0)
            *n_data += n;
        at += n + 12;
    }
    return orientation;
}

static void decode_png_add_row(const struct reader *r, uint8_t *row) {
    if (r->has_alpha)
        fitter_add_rgba(r->out, row, r->width);
    else
        fitter_add(r->out, row);
}

/* Reads the rows of a file that stores them in the order of the picture. */
static int decode_png_read_rows(png_structp png, size_t n_row, struct reader *r, uint32_t height) {
    r->pixels = malloc(n_row);
    if (!r->pixels)
        return -ENOMEM;
    for (uint32_t y = 0; y < height; y++) {
        png_read_row(png, r->pixels, NULL);
        decode_png_add_row(r, r->pixels);
    }
    return 0;
}

/* Reads a file that stores its rows in seven passes. */
static int decode_png_read_passes(png_structp png, size_t n_row, struct reader *r,
                                  uint32_t height) {
    TRY(fitter_hold(r->out, (uint64_t)n_row * height, r->err));
    TRY(fitter_count(r->out, (uint64_t)n_row * height, r->err));
    r->pixels = malloc(n_row * height);
    r->rows = malloc(height * sizeof(*r->rows));
    if (!r->pixels || !r->rows)
        return -ENOMEM;
    for (uint32_t y = 0; y < height; y++)
        r->rows[y] = r->pixels + y * n_row;
    png_read_image(png, r->rows);
    for (uint32_t y = 0; y < height; y++)
        decode_png_add_row(r, r->rows[y]);
    return 0;
}

/* Reads the file. Errors leave the function by longjmp(), except those of memory and size. */
static int decode_png_read_file(png_structp png, png_infop info, struct reader *r) {
    png_set_read_fn(png, r, decode_png_read_bytes);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_QUIET_USE);
#ifdef PNG_IGNORE_ADLER32 /* since libpng 1.6.43 only where that was built with it */
    /* each chunk has a checksum, which is enough */
    png_set_option(png, PNG_IGNORE_ADLER32, PNG_OPTION_ON);
#endif
    /* Skips texts and profiles: libpng would inflate and keep a thousand of them. */
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    /* the limits are in picture_check() */
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(png, info);
    uint32_t width = png_get_image_width(png, info), height = png_get_image_height(png, info);
    int orientation = find_chunks(r->data, r->len, &r->out->n_data);
    TRY(fitter_begin(r->out, width, height, orientation, r->err));
    if (png_get_bit_depth(png, info) == 16) /* filtered byte by byte, without vector instructions */
        TRY(fitter_count(r->out, (uint64_t)png_get_rowbytes(png, info) * height, r->err));
    set_rgb(png);
    png_read_update_info(png, info);
    size_t n_row = png_get_rowbytes(png, info);
    r->width = width;
    r->has_alpha = n_row == (size_t)width * 4;
    if (!r->has_alpha && n_row != (size_t)width * 3)
        png_error(png, "its rows have an unknown form");
    bool passes = png_get_interlace_type(png, info) != PNG_INTERLACE_NONE;
    TRY((passes ? decode_png_read_passes : decode_png_read_rows)(png, n_row, r, height));
    png_read_end(png, info);
    return 0;
}

int decode_png(const uint8_t *data, size_t len, struct fitter *out, struct err *err) {
    struct reader r = {.data = data, .len = len, .out = out, .err = err};
    png_structp png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, decode_png_on_error, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;

    r.result = -ENOMEM;
    if (info)
        r.result = setjmp(png_jmpbuf(png)) == 0 ? decode_png_read_file(png, info, &r) : -EINVAL;
    png_destroy_read_struct(&png, &info, NULL);
    free(r.rows);
    free(r.pixels);
    return r.result;
}
