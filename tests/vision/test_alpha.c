/* Transparent pixels lie on a background, in every form in which a file can have them. */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <webp/decode.h>
#include <webp/encode.h>

#include "tests/vision/pictures.h"
#include "vision/formats.h"

/* ---- PNG ---- */

static void append(png_structp png, png_bytep data, png_size_t n) {
    struct file *f = png_get_io_ptr(png);

    f->data = realloc(f->data, f->len + n);
    memcpy(f->data + f->len, data, n);
    f->len += n;
}

/* A picture of two pixels in one row, and what they are on white. */
struct form {
    const char *name;
    int type, depth;
    uint8_t row[16];
    uint8_t n_palette, palette[6], n_alpha, alpha[2];
    bool has_key;
    png_color_16 key;
    uint8_t white[6];
};

static const struct form forms[] = {
    {"colours with alpha",
     PNG_COLOR_TYPE_RGBA,
     8,
     {9, 8, 7, 0, 255, 0, 100, 128},
     .white = {255, 255, 255, 255, 127, 177}},
    {"all opaque",
     PNG_COLOR_TYPE_RGBA,
     8,
     {9, 8, 7, 255, 1, 2, 3, 255},
     .white = {9, 8, 7, 1, 2, 3}},
    {"16 bits with alpha",
     PNG_COLOR_TYPE_RGBA,
     16,
     {9, 1, 8, 1, 7, 1, 0, 0, 255, 1, 0, 1, 100, 1, 128, 1},
     .white = {255, 255, 255, 255, 127, 177}},
    {"gray with alpha",
     PNG_COLOR_TYPE_GRAY_ALPHA,
     8,
     {7, 0, 50, 51},
     .white = {255, 255, 255, 214, 214, 214}},
    {"gray of 16 bits with alpha",
     PNG_COLOR_TYPE_GRAY_ALPHA,
     16,
     {7, 9, 0, 9, 50, 9, 51, 9},
     .white = {255, 255, 255, 214, 214, 214}},
    {"palette with alpha",
     PNG_COLOR_TYPE_PALETTE,
     8,
     {0, 1},
     .n_palette = 2,
     .palette = {1, 2, 3, 4, 5, 6},
     .n_alpha = 1,
     .alpha = {0},
     .white = {255, 255, 255, 4, 5, 6}},
    {"palette of one bit with alpha",
     PNG_COLOR_TYPE_PALETTE,
     1,
     {0x40},
     .n_palette = 2,
     .palette = {1, 2, 3, 4, 5, 6},
     .n_alpha = 2,
     .alpha = {255, 0},
     .white = {1, 2, 3, 255, 255, 255}},
    {"one colour is transparent",
     PNG_COLOR_TYPE_RGB,
     8,
     {9, 9, 9, 9, 9, 8},
     .has_key = true,
     .key = {.red = 9, .green = 9, .blue = 9},
     .white = {255, 255, 255, 9, 9, 8}},
    {"one colour of 16 bits is transparent",
     PNG_COLOR_TYPE_RGB,
     16,
     {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 3},
     .has_key = true,
     .key = {.red = 258, .green = 258, .blue = 258},
     .white = {255, 255, 255, 1, 1, 1}},
    {"one gray is transparent",
     PNG_COLOR_TYPE_GRAY,
     2,
     {0x10},
     .has_key = true,
     .key = {.gray = 1},
     .white = {0, 0, 0}},
};

static struct file make_png(const struct form *form, int interlace) {
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_color palette[2] = {0};
    struct file f = {0};

    cr_assert(setjmp(png_jmpbuf(png)) == 0, "%s", form->name);
    png_set_write_fn(png, &f, append, NULL);
    png_set_IHDR(png, info, 2, 1, form->depth, form->type, interlace, 0, 0);
    memcpy(palette, form->palette, sizeof(form->palette));
    if (form->n_palette)
        png_set_PLTE(png, info, palette, form->n_palette);
    if (form->n_alpha)
        png_set_tRNS(png, info, form->alpha, form->n_alpha, NULL);
    if (form->has_key)
        png_set_tRNS(png, info, NULL, 0, &form->key);
    png_write_info(png, info);
    for (int n = png_set_interlace_handling(png); n > 0; n--)
        png_write_row(png, form->row);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return f;
}

static void expect_pixels(const struct file *f, const uint8_t *pixels, size_t n, const char *name) {
    CLEANUP(picture_deinit) struct picture p = {0};
    struct err err = {0};

    cr_assert(picture_decode(f->data, f->len, &p, &err) == 0, "%s: %s", name, err.message);
    cr_assert_eq(picture_bytes(p.width, p.height), n);
    for (size_t i = 0; i < n; i++)
        cr_expect_eq(p.rgb[i], pixels[i], "%s: byte %zu is %u, expected %u", name, i, p.rgb[i],
                     pixels[i]);
}

Test(alpha, every_form_of_png_lies_on_white) {
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        struct form form = forms[i];

        if (form.type == PNG_COLOR_TYPE_GRAY) { /* its pixels are 0 and the transparent 1 */
            memset(form.white, 0, 3);
            memset(form.white + 3, 255, 3);
        }
        for (int interlace = PNG_INTERLACE_NONE; interlace <= PNG_INTERLACE_ADAM7; interlace++) {
            CLEANUP(file_deinit) struct file f = make_png(&form, interlace);

            expect_pixels(&f, form.white, 6, form.name);
        }
    }
}

/* A model cannot see what is hidden, and a cached picture cannot tell. */
Test(alpha, hidden_colours_make_no_difference) {
    struct form one = forms[0], other = forms[0];

    memcpy(one.row, (uint8_t[]){1, 2, 3, 0, 4, 5, 6, 0}, 8);
    memcpy(other.row, (uint8_t[]){200, 100, 50, 0, 0, 0, 0, 0}, 8);
    memset(one.white, 255, 6);
    CLEANUP(file_deinit) struct file f = make_png(&one, PNG_INTERLACE_NONE);
    CLEANUP(file_deinit) struct file g = make_png(&other, PNG_INTERLACE_NONE);

    expect_pixels(&f, one.white, 6, "one");
    expect_pixels(&g, one.white, 6, "other");
}

Test(alpha, the_background_can_be_another_one) {
    static const struct {
        enum picture_background background;
        uint8_t pixels[6];
    } rows[] = {
        {BACKGROUND_WHITE, {255, 255, 255, 255, 127, 177}},
        {BACKGROUND_GREY, {128, 128, 128, 192, 64, 114}},
        {BACKGROUND_BLACK, {0, 0, 0, 128, 0, 50}},
    };
    CLEANUP(file_deinit) struct file f = make_png(&forms[0], PNG_INTERLACE_NONE);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(fitter_deinit) struct fitter out = {.background = rows[i].background};
        struct err err = {0};

        cr_assert(picture_decode_rows(f.data, f.len, &out, &err) == 0, "%s", err.message);
        cr_expect_eq(memcmp(out.out.rgb, rows[i].pixels, 6), 0, "background %zu", i);
    }
}

/* ---- WebP ---- */

/* Random colours and alpha, as pixels of four bytes. */
static void make_pixels(uint8_t *out, size_t n) {
    struct rng r = {7};

    for (size_t i = 0; i < 4 * n; i++)
        out[i] = (uint8_t)rng_next(&r);
}

/* Puts libwebp's own pixels on white, in floating point. */
static void on_white(const uint8_t *rgba, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) {
            double alpha = rgba[4 * i + 3] / 255.0;

            out[3 * i + c] = (uint8_t)lround(rgba[4 * i + c] * alpha + 255 * (1 - alpha));
        }
}

/* Makes an animation of one frame with the chunks of a still picture, which has an extended
 * head. */
static struct file make_animation(const struct file *still, uint8_t side) {
    static const size_t head = 30; /* of the file: RIFF, WEBP and VP8X */
    uint32_t n = (uint32_t)(still->len - head), at = 0;
    struct file f = {calloc(1, still->len + 100), 0};
    const uint8_t frame[16] = {[6] = (uint8_t)(side - 1), [9] = (uint8_t)(side - 1)};

    cr_assert_eq(memcmp(still->data + 12, "VP8X", 4), 0);
#define PUT(p, len)                                                                                \
    memcpy(f.data + at, p, len);                                                                   \
    at += len
    PUT(still->data, head);
    f.data[20] |= 2; /* animation */
    PUT("ANIM\6\0\0\0\0\0\0\0\0\0", 14);
    PUT("ANMF", 4);
    n += 16;
    PUT(&n, 4);
    PUT(frame, 16);
    PUT(still->data + head, still->len - head);
#undef PUT
    f.len = at;
    at -= 8;
    memcpy(f.data + 4, &at, 4);
    return f;
}

Test(alpha, webp_and_its_first_frame_lie_on_white) {
    enum { SIDE = 24, N = SIDE * SIDE };
    uint8_t pixels[4 * N], white[3 * N];
    struct file files[3] = {0};

    make_pixels(pixels, N);
    files[0].len = WebPEncodeRGBA(pixels, SIDE, SIDE, 4 * SIDE, 60, &files[0].data);
    files[1].len = WebPEncodeLosslessRGBA(pixels, SIDE, SIDE, 4 * SIDE, &files[1].data);
    files[2] = make_animation(&files[0], SIDE);
    for (int i = 0; i < 3; i++) {
        const struct file *still = &files[i == 2 ? 0 : i];
        int width, height;
        uint8_t *own = WebPDecodeRGBA(still->data, still->len, &width, &height);

        cr_assert(own && width == SIDE && height == SIDE);
        on_white(own, N, white);
        expect_pixels(&files[i], white, sizeof(white), i == 2 ? "animation" : "still");
        WebPFree(own);
    }
    WebPFree(files[0].data);
    WebPFree(files[1].data);
    file_deinit(&files[2]);
}

/* ---- GIF ---- */

/* A GIF of two colours and 3 x 3 pixels, of which the frame has the one in the middle; @entry of
 * its palette is transparent. */
static void expect_gif(uint8_t entry, uint8_t around, uint8_t middle) {
    static const char gif[] = "GIF89a\x03\0\x03\0\x80\0\0\x0A\x14\x1E\x28\x32\x3C"
                              "!\xF9\x04\x01\0\0\0\0"
                              ",\x01\0\x01\0\x01\0\x01\0\0\x02\x02\x4C\x01\0;";
    CLEANUP(picture_deinit) struct picture p = {0};
    uint8_t data[sizeof(gif) - 1];
    struct err err = {0};

    memcpy(data, gif, sizeof(data));
    data[25] = entry;
    cr_assert(picture_decode(data, sizeof(data), &p, &err) == 0, "%s", err.message);
    for (int i = 0; i < 9; i++)
        cr_expect_eq(p.rgb[3 * i], i == 4 ? middle : around, "entry %u, pixel %d: %u", entry, i,
                     p.rgb[3 * i]);
}

Test(alpha, gif_lies_on_white_where_it_is_transparent) {
    expect_gif(1, 255, 255);
    expect_gif(0, 255, 0x28);
    expect_gif(9, 255, 0x28);
}

/* ---- golden files ---- */

/* rgba8.png has the colours of rgb8.png: those on white and on black tell its alpha, and with it
 * each pixel. */
Test(alpha, golden_file_is_mixed_by_its_alpha) {
    CLEANUP(file_deinit) struct file f = file_read("decode", "rgba8.png");
    CLEANUP(picture_deinit) struct picture colours = picture_read("decode", "rgb8.png");
    CLEANUP(fitter_deinit) struct fitter white = {0}, black = {.background = BACKGROUND_BLACK};
    struct err err = {0};
    size_t n_mixed = 0;

    cr_assert(picture_decode_rows(f.data, f.len, &white, &err) == 0, "%s", err.message);
    cr_assert(picture_decode_rows(f.data, f.len, &black, &err) == 0, "%s", err.message);
    for (size_t i = 0; i < picture_bytes(colours.width, colours.height); i++) {
        double alpha = 1 - (white.out.rgb[i] - black.out.rgb[i]) / 255.0;
        double should = colours.rgb[i] * alpha;

        cr_assert(fabs(should - black.out.rgb[i]) <= 1, "byte %zu", i);
        cr_assert(fabs(should + 255 * (1 - alpha) - white.out.rgb[i]) <= 1, "byte %zu", i);
        n_mixed += alpha > 0.01 && alpha < 0.99;
    }
    cr_assert_gt(n_mixed, 100);
}
