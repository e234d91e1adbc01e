#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <string.h>
#include "vision/formats.h"

/*
 * PNG by libpng. Its errors come by longjmp to the one setjmp() of decode_png(); what is freed
 * after one lies in a struct of the caller's frame, not in local variables.
 */

struct reader {
    const uint8_t *data;
    size_t at, len;
    struct picture *out;
    png_bytep *rows;
    struct err *err;
    int *orientation;
    int result;
};

static void on_error(png_structp png, png_const_charp message) {
    struct reader *r = png_get_error_ptr(png);

    err_set(r->err, 0, NULL, "the PNG file is damaged: %s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message) {}

static void read_bytes(png_structp png, png_bytep out, size_t n) {
    struct reader *r = png_get_io_ptr(png);

    if (n > r->len - r->at)
        png_error(png, "it is cut off");
    memcpy(out, r->data + r->at, n);
    r->at += n;
}

/* Three bytes a pixel of any kind of file: palettes and gray are looked up and tripled, the lower
 * byte of 16 bits and alpha are dropped. */
static void set_rgb(png_structp png) {
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    png_set_interlace_handling(png);
}

static void read_orientation(png_structp png, png_infop info, int *out) {
#ifdef PNG_eXIf_SUPPORTED
    png_bytep exif;
    png_uint_32 n;

    if (png_get_eXIf_1(png, info, &n, &exif))
        *out = exif_orientation(exif, n);
#endif
}

/* Reads the file. Errors leave by longjmp, but for those of memory and size. */
static int read_file(png_structp png, png_infop info, struct reader *r) {
    png_set_read_fn(png, r, read_bytes);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_QUIET_USE);
    png_set_chunk_malloc_max(png, 1u << 20);
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* picture_new() has the limits */
    png_read_info(png, info);
    uint32_t width = png_get_image_width(png, info), height = png_get_image_height(png, info);
    int result = picture_new(r->out, width, height, r->err);
    if (result < 0)
        return result;
    set_rgb(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != (size_t)width * 3)
        png_error(png, "its rows have an unknown form");
    r->rows = malloc(height * sizeof(*r->rows));
    if (!r->rows)
        return -ENOMEM;
    for (uint32_t y = 0; y < height; y++)
        r->rows[y] = r->out->rgb + (size_t)y * width * 3;
    png_read_image(png, r->rows);
    png_read_end(png, info);
    read_orientation(png, info, r->orientation);
    return 0;
}

int decode_png(const uint8_t *data, size_t len, struct picture *out, int *orientation,
               struct err *err) {
    struct reader r = {
        .data = data, .len = len, .out = out, .err = err, .orientation = orientation};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;

    r.result = -ENOMEM;
    if (info)
        r.result = setjmp(png_jmpbuf(png)) == 0 ? read_file(png, info, &r) : -EINVAL;
    png_destroy_read_struct(&png, &info, NULL);
    free(r.rows);
    return r.result;
}
