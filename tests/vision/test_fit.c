/*
 * Pictures that are resized while they are decoded: the bytes that decoding, turning and resizing
 * one after the other give, in the memory of a few rows; and what has to be held as a whole has a
 * limit.
 */

#include <criterion/criterion.h>
#include <gif_lib.h>
#include <jpeglib.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <webp/encode.h>

#include "tests/vision/pictures.h"
#include "vision/decoder.h"

/* Sides of 32 pixels for a row. */
static struct picture_fit make_fit(uint32_t least, uint32_t most) {
    return (struct picture_fit){.projector = {.kind = PROJECTOR_QWEN3VL,
                                              .patch = 16,
                                              .merge = 2,
                                              .least = least,
                                              .most = most,
                                              .filter = FILTER_BICUBIC},
                                .max_megapixels = 32};
}

/* Tiles of 64 pixels, and a small picture of four rows. */
static struct picture_fit make_tiles(void) {
    struct picture_fit f = make_fit(1, 4);

    f.projector.kind = PROJECTOR_LFM2;
    f.projector.filter = FILTER_BILINEAR;
    f.projector.tile = 64;
    f.projector.least_tiles = 2;
    f.projector.most_tiles = 10;
    f.projector.marks = MARKS_PLACE;
    return f;
}

static struct picture make_noise(uint32_t width, uint32_t height) {
    struct picture p = {0};

    cr_assert(picture_new(&p, width, height, NULL) == 0);
    for (size_t i = 0; i < picture_bytes(width, height); i++)
        p.rgb[i] = (uint8_t)((i * i * 31 + i * 7) >> 5);
    return p;
}

/* Turns @in as EXIF orientation @o says, pixel by pixel. */
static struct picture turn(const struct picture *in, int o) {
    struct picture p = {0};
    bool turns = o > 4;

    cr_assert(
        picture_new(&p, turns ? in->height : in->width, turns ? in->width : in->height, NULL) == 0);
    for (uint32_t y = 0; y < p.height; y++)
        for (uint32_t x = 0; x < p.width; x++) {
            bool right = o == 2 || o == 3 || o == 6 || o == 7,
                 bottom = o == 3 || o == 4 || o == 7 || o == 8;
            uint32_t u = right ? p.width - 1 - x : x, v = bottom ? p.height - 1 - y : y;
            const uint8_t *from =
                in->rgb + ((size_t)(turns ? u : v) * in->width + (turns ? v : u)) * 3;

            memcpy(p.rgb + ((size_t)y * p.width + x) * 3, from, 3);
        }
    return p;
}

static void expect_same(const struct picture *a, const struct picture *b, const char *what, int o) {
    cr_assert(a->width == b->width && a->height == b->height,
              "%s, orientation %d: %u x %u, %u x %u", what, o, a->width, a->height, b->width,
              b->height);
    cr_expect(memcmp(a->rgb, b->rgb, picture_bytes(a->width, a->height)) == 0, "%s, orientation %d",
              what, o);
}

/* Fits @in row by row, and beside that turned first and then as a whole. */
static void fit_twice(const struct picture_fit *fit, const struct picture *in, int o,
                      const char *what) {
    CLEANUP(fitter_deinit) struct fitter f = {.fit = fit};
    CLEANUP(picture_deinit) struct picture turned = turn(in, o);
    CLEANUP(picture_deinit) struct picture whole = {0};
    struct picture_layout l;

    cr_assert(fitter_begin(&f, in->width, in->height, o, NULL) == 0);
    for (uint32_t y = 0; y < in->height; y++)
        fitter_add(&f, in->rgb + (size_t)y * in->width * 3);
    picture_fit_layout(fit, turned.width, turned.height, &l);
    cr_expect(memcmp(&l, &f.layout, sizeof(l)) == 0, "%s, orientation %d", what, o);
    cr_assert(projector_fit(&fit->projector, &turned, &l, fit->pads, &whole, NULL) == 0);
    expect_same(&f.out, &whole, what, o);
}

Test(fit, rows_give_the_bytes_of_the_whole) {
    static const uint32_t sizes[][2] = {{200, 90}, {31, 257}, {640, 9},
                                        {1, 70},   {64, 64},  {96, 33}};
    const struct {
        struct picture_fit fit;
        const char *name;
    } fits[] = {
        {make_fit(1, 16), "smaller"}, {make_fit(64, 256), "larger"}, {make_tiles(), "tiles"}};

    for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
        CLEANUP(picture_deinit) struct picture in = make_noise(sizes[s][0], sizes[s][1]);

        for (size_t i = 0; i < 2 * ARRAY_SIZE(fits); i++)
            for (int o = 1; o <= 8; o++) {
                struct picture_fit fit = fits[i / 2].fit;

                fit.pads = i & 1;
                fit_twice(&fit, &in, o, fits[i / 2].name);
            }
    }
}

/* Rows like the one above are not resized again. Mirrored columns are, and give the same bytes in
 * the other order. */
Test(fit, rows_that_come_again_give_the_same_bytes) {
    CLEANUP(picture_deinit) struct picture in = make_noise(200, 90);
    const struct picture_fit fit = make_fit(1, 16);

    for (uint32_t y = 0; y < in.height; y++)
        if (y % 7 > 2)
            memcpy(in.rgb + y * 600, in.rgb + (y - 1) * 600, 600);
    CLEANUP(picture_deinit) struct picture mirrored = turn(&in, 2);
    for (int o = 1; o <= 4; o += 3) { /* from the top, and from the bottom */
        CLEANUP(fitter_deinit) struct fitter a = {.fit = &fit}, b = {.fit = &fit};

        cr_assert(fitter_begin(&a, 200, 90, o, NULL) == 0);
        cr_assert(fitter_begin(&b, 200, 90, o == 1 ? 2 : 3, NULL) == 0);
        for (uint32_t y = 0; y < in.height; y++) {
            fitter_add(&a, in.rgb + y * 600);
            fitter_add(&b, mirrored.rgb + y * 600);
        }
        expect_same(&a.out, &b.out, "repeated", o);
    }
}

/* Files of every kind in a process that decodes, against decoding, and fitting what came of it. */
Test(fit, the_process_gives_what_a_model_is_shown) {
    char path[1024];
    struct decoder *d = NULL;
    struct expected e[64];
    size_t n = expected_read(e, 64), n_fitted = 0;

    snprintf(path, sizeof(path), "%s/weft-gguf", getenv("WEFT_BUILD"));
    cr_assert(decoder_new(&d, path) == 0);
    for (size_t i = 0; i < 2 * n; i++) {
        CLEANUP(file_deinit) struct file f = file_read("decode", e[i / 2].name);
        CLEANUP(picture_deinit) struct picture whole = {0}, here = {0}, there = {0};
        struct picture_fit fit = i & 1 ? make_tiles() : make_fit(1, 16);
        struct picture_layout l, m;
        struct err err = {0}, err_here = {0};
        int r = picture_decode(f.data, f.len, &whole, &err_here);

        fit.max_megapixels = PICTURE_MEGAPIXELS_MAX;

        cr_expect(decoder_run(d, f.data, f.len, &fit, &there, &l, &err) == r, "%s", e[i / 2].name);
        if (r < 0) {
            cr_expect(strcmp(err.message, err_here.message) == 0, "%s: %s", e[i / 2].name,
                      err.message);
            continue;
        }
        picture_fit_layout(&fit, whole.width, whole.height, &m);
        cr_expect(memcmp(&l, &m, sizeof(l)) == 0, "%s", e[i / 2].name);
        cr_assert(projector_fit(&fit.projector, &whole, &l, false, &here, NULL) == 0);
        expect_same(&there, &here, e[i / 2].name, 0);
        n_fitted++;
    }
    cr_expect(n_fitted == 40, "%zu", n_fitted);
    decoder_free(d);
}

/* ---- limits ---- */

static void append(png_structp png, png_bytep data, png_size_t n) {
    struct file *f = png_get_io_ptr(png);

    f->data = realloc(f->data, f->len + n);
    memcpy(f->data + f->len, data, n);
    f->len += n;
}

static int append_gif(GifFileType *gif, const GifByteType *data, int n) {
    struct file *f = gif->UserData;

    f->data = realloc(f->data, f->len + (size_t)n);
    memcpy(f->data + f->len, data, (size_t)n);
    f->len += (size_t)n;
    return n;
}

/* A PNG file of gray lines on black, each of another gray, with @n texts beside its pixels. */
static struct file make_told_png(uint32_t width, uint32_t height, int depth, int interlace,
                                 const png_text *texts, int n_texts) {
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    uint8_t *row = calloc(width, 6);
    struct file f = {0};

    png_set_write_fn(png, &f, append, NULL);
    png_set_IHDR(png, info, width, height, depth, PNG_COLOR_TYPE_RGB, interlace, 0, 0);
    png_set_text(png, info, texts, n_texts);
    png_write_info(png, info);
    for (int n = png_set_interlace_handling(png); n > 0; n--)
        for (uint32_t y = 0; y < height; y++) {
            memset(row, (int)(y % 256), MIN(width, 16) * 3);
            png_write_row(png, row);
        }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    free(row);
    return f;
}

static struct file make_png(uint32_t width, uint32_t height, int interlace) {
    return make_told_png(width, height, 8, interlace, NULL, 0);
}

Test(fit, passes_give_the_pixels_of_rows) {
    CLEANUP(file_deinit) struct file rows = make_png(37, 29, 0), passes = make_png(37, 29, 1);
    CLEANUP(picture_deinit) struct picture p = {0}, q = {0};
    struct err err = {0};

    cr_assert(picture_decode(rows.data, rows.len, &p, &err) == 0, "%s", err.message);
    cr_assert(picture_decode(passes.data, passes.len, &q, &err) == 0, "%s", err.message);
    cr_expect(p.rgb[28 * 37 * 3] == 28 && p.rgb[36 * 3] == 0);
    cr_expect(memcmp(p.rgb, q.rgb, picture_bytes(37, 29)) == 0);
}

/* The chunk may be anywhere before the end, so it is looked for before pixels are decoded. */
static void check_orientation_of(uint32_t width, uint32_t height) {
    static const uint8_t chunk[] =
        "\0\0\0\x1a"
        "eXIfMM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0";
    CLEANUP(file_deinit) struct file f = make_png(width, height, 0);
    CLEANUP(picture_deinit) struct picture p = {0};
    size_t n = sizeof(chunk) - 1 + 4, end = f.len - 12;
    struct err err = {0};

    f.data = realloc(f.data, f.len + n);
    memmove(f.data + end + n, f.data + end, 12);
    memset(f.data + end, 0, n);
    memcpy(f.data + end, chunk, sizeof(chunk) - 1);
    cr_assert(picture_decode(f.data, f.len + n, &p, &err) == 0, "%s", err.message);
    cr_expect(p.width == height && p.height == width, "%u x %u", p.width, p.height);
}

Test(fit, an_orientation_behind_the_pixels_is_applied) {
    check_orientation_of(5, 3);
    check_orientation_of(600, 700); /* a chunk of more than a kilobyte comes before */
}

static int decode(const struct file *f, uint32_t max_megapixels, struct err *err) {
    CLEANUP(picture_deinit) struct picture p = {0};
    struct picture_fit fit = make_fit(1, 16);
    struct picture_layout l;

    fit.max_megapixels = max_megapixels;
    return picture_decode_fit(f->data, f->len, &fit, &p, &l, err);
}

Test(fit, sizes_have_the_limit_of_the_option) {
    CLEANUP(file_deinit) struct file f = make_png(2048, 513, 0);
    CLEANUP(picture_deinit) struct picture p = {0};
    struct err err = {0};

    cr_expect(decode(&f, 2, &err) == 0, "%s", err.message);
    cr_expect(decode(&f, 1, &err) < 0 &&
                  strstr(err.message, "2048 x 513 pixels; at most 16384 a side and 1 meg"),
              "%s", err.message);
    cr_expect(picture_decode(f.data, f.len, &p, &err) == 0);
}

/* Two bytes for each pixel that is allowed: 2 MiB. */
Test(fit, what_is_decoded_as_a_whole_has_a_limit) {
    static uint8_t pixels[1000 * 700 * 3];
    CLEANUP(file_deinit) struct file small = make_png(1000, 600, 1), large = make_png(1000, 800, 1);
    struct file webp[2] = {0}, jpeg = file_read("decode", "progressive.jpg");
    struct fitter f = {.fit = &(struct picture_fit){.max_megapixels = 1}};
    struct err err = {0};

    cr_expect(decode(&small, 1, &err) == 0, "%s", err.message);
    cr_expect(decode(&large, 1, &err) < 0 &&
                  strstr(err.message, "as a whole, which takes 2 MiB for 1000 x 800"),
              "%s", err.message);
    cr_expect(decode(&large, 2, &err) == 0, "%s", err.message);
    webp[0].len = WebPEncodeRGB(pixels, 1000, 690, 3000, 50, &webp[0].data);
    webp[1].len = WebPEncodeLosslessRGB(pixels, 1000, 690, 3000, &webp[1].data);
    for (int i = 0; i < 2; i++) { /* the lossless one takes 4.6 MiB */
        cr_expect((decode(&webp[i], 1, &err) == 0) == (i == 0) && decode(&webp[i], 3, &err) == 0,
                  "%d: %s", i, err.message);
        WebPFree(webp[i].data);
    }
    cr_expect(fitter_hold(&f, 2u << 20, &err) == 0 && fitter_hold(&f, (2u << 20) + 1, &err) < 0);
    cr_expect(decode(&jpeg, 1, &err) == 0, "%s", err.message);
    file_deinit(&jpeg);
}

/* A gray JPEG file of @side x @side pixels: a scan of means, and one for each of @n - 1 other
 * coefficients. */
static struct file make_scans(uint32_t side, int n) {
    struct jpeg_error_mgr errors;
    struct jpeg_compress_struct jpeg = {.err = jpeg_std_error(&errors)};
    uint8_t *row = calloc(side, 1);
    jpeg_scan_info scans[64];
    struct file f = {0};
    unsigned long len = 0;

    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &f.data, &len);
    jpeg.image_width = jpeg.image_height = side;
    jpeg.input_components = 1;
    jpeg.in_color_space = JCS_GRAYSCALE;
    jpeg_set_defaults(&jpeg);
    for (int i = 0; i < n; i++)
        scans[i] = (jpeg_scan_info){.comps_in_scan = 1, .Ss = i, .Se = i};
    jpeg.scan_info = scans;
    jpeg.num_scans = n;
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < side)
        jpeg_write_scanlines(&jpeg, &row, 1);
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    free(row);
    f.len = len;
    return f;
}

/* Each scan costs a pass over the whole: 16 of the largest that its bytes do not pay for. */
Test(fit, a_large_jpeg_has_few_scans) {
    CLEANUP(file_deinit) struct file few = make_scans(2360, 16), many = make_scans(2360, 18);
    CLEANUP(file_deinit) struct file small = make_scans(1024, 64);
    struct err err = {0};

    cr_expect(decode(&few, 8, &err) == 0, "%s", err.message);
    cr_expect(decode(&many, 8, &err) < 0 && strstr(err.message, "more than 16 scans"), "%s",
              err.message);
    cr_expect(decode(&small, 8, &err) == 0, "%s", err.message);
}

/* Returns the bytes of all IDAT chunks of a PNG file. */
static size_t data_bytes(const struct file *f) {
    size_t sum = 0;

    for (size_t at = 8, n; at < f->len; at += n + 12) {
        n = (size_t)f->data[at + 2] << 8 | f->data[at + 3];
        sum += memcmp(f->data + at + 4, "IDAT", 4) == 0 ? n : 0;
    }
    return sum;
}

/* Adds zeros behind the pixels of a PNG file, which no decoder reads, until all of its IDAT chunks
 * have @n bytes. */
static void pad(struct file *f, size_t n) {
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    static const uint8_t zeros[4096];
    size_t have = data_bytes(f);

    cr_assert(have <= n);
    png_set_write_fn(png, f, append, NULL);
    f->len -= 12;
    for (; have < n; have += MIN(n - have, sizeof(zeros)))
        png_write_chunk(png, (const uint8_t *)"IDAT", zeros, MIN(n - have, sizeof(zeros)));
    png_write_chunk(png, (const uint8_t *)"IEND", NULL, 0);
    png_destroy_write_struct(&png, NULL);
}

static void expect_unpaid(const struct file *f, const char *part) {
    struct err err = {0};

    cr_expect(decode(f, 32, &err) < 0 && strstr(err.message, part), "'%s' in '%s'", part,
              err.message);
}

/* Four bytes a pixel, and a byte of compressed pixels for 880 of them. */
Test(fit, a_file_pays_for_its_pixels) {
    CLEANUP(file_deinit) struct file screen = make_png(3840, 2160, 0);
    CLEANUP(file_deinit) struct file large = make_png(16384, 513, 0);
    struct err err = {0};

    cr_expect(decode(&screen, 32, &err) == 0, "%s", err.message);
    pad(&large, 38204);
    expect_unpaid(&large, "16384 x 513 pixels of its kind count 32 MiB, and 37 KiB of compressed");
    pad(&large, 38205); /* 4 * 16384 * 513 / 880, rounded up */
    cr_expect(decode(&large, 32, &err) == 0, "%s", err.message);
}

/* At most 32 MiB are free; these kinds count 10, 7 and 6 bytes a pixel. */
Test(fit, kinds_that_take_longer_count_more) {
    struct file deep[] = {make_told_png(1831, 1832, 16, 0, NULL, 0),
                          make_told_png(1832, 1832, 16, 0, NULL, 0)};
    struct file passes[] = {make_png(2189, 2189, 1), make_png(2190, 2190, 1)};
    struct file scans[] = {make_scans(2360, 2), make_scans(2368, 2)};
    struct err err = {0};

    cr_expect(decode(&deep[0], 32, &err) == 0, "%s", err.message);
    expect_unpaid(&deep[1], "1832 x 1832 pixels of its kind");
    cr_expect(decode(&passes[0], 32, &err) == 0, "%s", err.message);
    expect_unpaid(&passes[1], "2190 x 2190 pixels of its kind");
    cr_expect(decode(&scans[0], 32, &err) == 0, "%s", err.message);
    expect_unpaid(&scans[1], "2368 x 2368 pixels of its kind");
    for (int i = 0; i < 2; i++) {
        file_deinit(&deep[i]);
        file_deinit(&passes[i]);
        file_deinit(&scans[i]);
    }
}

/* A GIF file of one colour. */
static struct file make_gif(int width, int height) {
    GifColorType colours[2] = {{0, 0, 0}, {9, 9, 9}};
    ColorMapObject *map = GifMakeMapObject(2, colours);
    uint8_t *row = calloc((size_t)width, 1);
    struct file f = {0};
    int e;
    GifFileType *gif = EGifOpen(&f, append_gif, &e);

    cr_assert(EGifPutScreenDesc(gif, width, height, 1, 0, map) == GIF_OK);
    cr_assert(EGifPutImageDesc(gif, 0, 0, width, height, false, NULL) == GIF_OK);
    for (int y = 0; y < height; y++)
        cr_assert(EGifPutLine(gif, row, width) == GIF_OK);
    EGifCloseFile(gif, &e);
    GifFreeMapObject(map);
    free(row);
    return f;
}

/* Returns the bytes that @f takes from those that are free. */
static uint64_t taken_by(const struct file *f) {
    uint64_t left = PICTURE_REQUEST_FREE;
    struct picture_fit fit = make_fit(1, 16);
    CLEANUP(picture_deinit) struct picture p = {0};
    struct picture_layout l;
    struct err err = {0};

    fit.free_bytes = &left;
    cr_assert(picture_decode_fit(f->data, f->len, &fit, &p, &l, &err) == 0, "%s", err.message);
    return PICTURE_REQUEST_FREE - left;
}

/* Inserts @n bytes at @at of @f. */
static void insert(struct file *f, size_t at, const void *data, size_t n) {
    f->data = realloc(f->data, f->len + n);
    memmove(f->data + at + n, f->data + at, f->len - at);
    memcpy(f->data + at, data, n);
    f->len += n;
}

/* A file is as cheap as one with more bytes beside its pixels. */
Test(fit, only_compressed_pixels_pay) {
    static const uint8_t zeros[1000], comment[1000] = {0xFF, 0xFE, 998 >> 8, 998 & 255};
    static uint8_t pixels[4000 * 300 * 3];
    char text[500] = {0};
    png_text texts = {.compression = PNG_TEXT_COMPRESSION_NONE, .key = (char *)"k", .text = text};
    struct file files[] = {
        make_png(4000, 300, 0), make_scans(1000, 2), make_gif(4000, 300), {0}, {0}};
    uint64_t taken[ARRAY_SIZE(files)];

    memset(text, 'a', sizeof(text) - 1);
    files[3].len = WebPEncodeRGB(pixels, 4000, 300, 12000, 50, &files[3].data);
    files[4].len = WebPEncodeLosslessRGB(pixels, 4000, 300, 12000, &files[4].data);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        taken[i] = taken_by(&files[i]);
        cr_expect(taken[i] > 0, "%zu pays for itself", i);
        insert(&files[i], files[i].len, zeros, sizeof(zeros));
        cr_expect_eq(taken_by(&files[i]), taken[i], "%zu: behind the end", i);
    }
    struct file told = make_told_png(4000, 300, 8, 0, &texts, 1);
    insert(&files[1], 2, comment, sizeof(comment));
    cr_expect_eq(taken_by(&told), taken[0], "a text");
    cr_expect_eq(taken_by(&files[1]), taken[1], "a comment");
    file_deinit(&told);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        file_deinit(&files[i]);
}

/* Bytes that a file does not pay for are taken from the request's, here and in the process. */
Test(fit, pictures_of_a_request_share_what_is_free) {
    CLEANUP(file_deinit) struct file f = make_png(2048, 1024, 0);
    uint64_t costs = (8u << 20) - data_bytes(&f) * PICTURE_BYTES_PAID;
    struct decoder *d = NULL;
    char path[1024];

    snprintf(path, sizeof(path), "%s/weft-gguf", getenv("WEFT_BUILD"));
    cr_assert(decoder_new(&d, path) == 0);
    for (int there = 0; there < 2; there++) {
        uint64_t left = 2 * costs + 10;
        struct picture_fit fit = make_fit(1, 16);

        fit.free_bytes = &left;
        for (int i = 0; i < 3; i++) {
            CLEANUP(picture_deinit) struct picture p = {0};
            struct picture_layout l;
            struct err err = {0};
            int r = there ? decoder_run(d, f.data, f.len, &fit, &p, &l, &err)
                          : picture_decode_fit(f.data, f.len, &fit, &p, &l, &err);

            cr_expect((r == 0) == (i < 2), "%d, %d: %s", there, i, err.message);
            cr_expect_eq(left, (i == 0) * costs + 10, "%d, %d: %zu", there, i, (size_t)left);
        }
    }
    pad(&f, (8u << 20) / PICTURE_BYTES_PAID + 1); /* pays for all */
    uint64_t left = 0;
    struct picture_fit fit = make_fit(1, 16);
    CLEANUP(picture_deinit) struct picture p = {0};
    struct picture_layout l;
    struct err err = {0};

    fit.free_bytes = &left;
    cr_expect(decoder_run(d, f.data, f.len, &fit, &p, &l, &err) == 0, "%s", err.message);
    decoder_free(d);
}

/* Without the address sanitizer, whose memory is not the decoder's. */
#ifndef __SANITIZE_ADDRESS__
/* Decodes a file with 16 MiB above what there is, a sixth of its pixels. */
static int decode_in_little_memory(const struct file *f) {
    struct err err = {0};
    unsigned long pages;
    FILE *in = fopen("/proc/self/statm", "r");

    if (!in || fscanf(in, "%lu", &pages) != 1)
        return 1;
    rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (16u << 20);
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
    return decode(f, 64, &err) == 0 ? 0 : 2;
}

Test(fit, a_large_picture_takes_the_memory_of_a_few_rows) {
    CLEANUP(file_deinit) struct file f = make_png(16384, 2048, 0);
    int status;

    pad(&f, (128u << 20) / PICTURE_BYTES_PAID + 1);
    pid_t pid = fork();

    if (pid == 0)
        _exit(decode_in_little_memory(&f));
    cr_expect(waitpid(pid, &status, 0) == pid && status == 0, "%x", status);
}

static long peak_mib(void) {
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss >> 10;
}

/* Returns the MiB by which decoding raised the peak of this process; 255: it failed. */
static int decode_and_grow(const struct file *f) {
    struct err err = {0};
    long before = peak_mib();

    return decode(f, 1, &err) == 0 ? (int)(peak_mib() - before) : 255;
}

/* A hundred texts of 1 MB are 100 KB in a file. */
Test(fit, compressed_texts_are_not_inflated) {
    static char long_text[1000000];
    png_text texts[100];
    int status;

    memset(long_text, 'a', sizeof(long_text) - 1);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        texts[i] = (png_text){
            .compression = PNG_TEXT_COMPRESSION_zTXt, .key = (char *)"k", .text = long_text};
    CLEANUP(file_deinit) struct file f = make_told_png(16, 16, 8, 0, texts, ARRAY_SIZE(texts));
    pid_t pid = fork();

    if (pid == 0)
        _exit(decode_and_grow(&f));
    cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "%x", status);
    cr_expect(WEXITSTATUS(status) < 16, "%d MiB", WEXITSTATUS(status));
}
#endif
