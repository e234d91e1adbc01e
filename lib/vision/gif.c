/*
 * Decodes GIF with giflib, up to the first frame. A frame that is smaller than the picture lies on
 * the file's background colour; in a file with transparent pixels, on the background behind these.
 */

#include <errno.h>
#include <gif_lib.h>
#include <string.h>

#include "base/try.h"
#include "vision/formats.h"

struct source {
    const uint8_t *data;
    size_t at, len;
};

static int gif_read_bytes(GifFileType *gif, GifByteType *out, int n) {
    struct source *s = gif->UserData;
    size_t take = MIN((size_t)MAX(n, 0), s->len - s->at);

    memcpy(out, s->data + s->at, take);
    s->at += take;
    return (int)take;
}

static int gif_refuse(struct err *err, const char *why) {
    return err_set(err, 0, NULL, "the GIF file is damaged: %s", why);
}

/* Reads the transparent colour of a graphic control extension, whose first byte is its length. */
static void read_control(const GifByteType *block, int *transparent) {
    GraphicsControlBlock control;

    if (DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
        *transparent = control.TransparentColor;
}

/* Reads records up to the first frame's head. Sets *transparent to the palette entry that is
 * transparent in it; -1: none. */
static int find_frame(GifFileType *gif, int *transparent, struct err *err) {
    *transparent = NO_TRANSPARENT_COLOR;
    for (;;) {
        GifRecordType type;
        GifByteType *block;
        int code;

        if (DGifGetRecordType(gif, &type) == GIF_ERROR)
            return gif_refuse(err, "a record is cut off");
        if (type == IMAGE_DESC_RECORD_TYPE) {
            if (DGifGetImageDesc(gif) != GIF_OK)
                return gif_refuse(err, "a frame's head is cut off");
            return 0;
        }
        if (type != EXTENSION_RECORD_TYPE)
            return gif_refuse(err, "it has no frame");
        for (int r = DGifGetExtension(gif, &code, &block);; r = DGifGetExtensionNext(gif, &block)) {
            if (r == GIF_ERROR)
                return gif_refuse(err, "an extension is cut off");
            if (!block)
                break;
            if (code == GRAPHICS_EXT_FUNC_CODE)
                read_control(block, transparent);
        }
    }
}

/* Writes the colour of the background behind transparent pixels. */
static void put_background(const struct fitter *f, uint8_t *out) {
    memset(out, fitter_background(f), 3);
}

/* Writes the colour of palette entry @i, black if the palette has none. */
static void put_colour(const ColorMapObject *map, unsigned i, uint8_t *out) {
    GifColorType c = {0};

    if (map && i < (unsigned)map->ColorCount)
        c = map->Colors[i];
    out[0] = c.Red;
    out[1] = c.Green;
    out[2] = c.Blue;
}

static int gif_read_line(GifFileType *gif, GifPixelType *line, struct err *err) {
    if (DGifGetLine(gif, line, gif->Image.Width) == GIF_ERROR)
        return gif_refuse(err, "its pixels are cut off or no LZW data");
    return 0;
}

/* Reads the frame's rows into @lines in the order of the file: every 8th row, then the rows between
 * them, in four passes. */
static int gif_read_passes(GifFileType *gif, GifPixelType *lines, struct err *err) {
    static const uint32_t first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    const GifImageDesc *f = &gif->Image;

    for (int pass = 0; pass < 4; pass++)
        for (uint32_t y = first[pass]; y < (uint32_t)f->Height; y += step[pass])
            TRY(gif_read_line(gif, lines + (size_t)y * (uint32_t)f->Width, err));
    return 0;
}

/* Reads the frame, in which palette entry @transparent is transparent, and adds all rows of the
 * picture. @row: two rows of the background's colour. */
static int gif_read_rows(GifFileType *gif, int transparent, uint8_t *row, struct fitter *out,
                         struct err *err) {
    const GifImageDesc *f = &gif->Image;
    const ColorMapObject *map = f->ColorMap ? f->ColorMap : gif->SColorMap;
    uint32_t top = (uint32_t)f->Top, end = top + (uint32_t)f->Height;
    size_t width = (uint32_t)f->Width, n = width * (f->Interlace ? (uint32_t)f->Height : 1);
    uint8_t *mixed = row + (size_t)out->width * 3;

    if (f->Interlace)
        TRY(fitter_hold(out, n, err));
    CLEANUP(freep) GifPixelType *lines = malloc(n);
    if (!lines)
        return -ENOMEM;
    if (f->Interlace)
        TRY(gif_read_passes(gif, lines, err));
    for (uint32_t y = 0; y < out->height; y++) {
        const GifPixelType *line = lines + (f->Interlace && y >= top ? (y - top) * width : 0);

        if (y < top || y >= end) {
            fitter_add(out, row);
            continue;
        }
        TRY(f->Interlace ? 0 : gif_read_line(gif, lines, err));
        for (size_t x = 0; x < width; x++) {
            uint8_t *pixel = mixed + ((size_t)f->Left + x) * 3;

            if (line[x] == transparent)
                put_background(out, pixel);
            else
                put_colour(map, line[x], pixel);
        }
        fitter_add(out, mixed);
    }
    return 0;
}

/* Returns the bytes of the blocks from the position of @s to an empty block. */
static uint64_t block_bytes(const struct source *s) {
    uint64_t n = 0;

    for (size_t at = s->at; at < s->len && s->data[at] > 0; at += 1 + s->data[at])
        n += s->data[at];
    return n;
}

static int gif_read_file(GifFileType *gif, struct fitter *out, struct err *err) {
    const GifImageDesc *f = &gif->Image;
    int transparent;

    TRY(find_frame(gif, &transparent, err));
    out->n_data = block_bytes(gif->UserData);
    if (f->Left < 0 || f->Top < 0 || f->Width <= 0 || f->Height <= 0)
        return gif_refuse(err, "its frame has no pixels");
    /* Some writers leave out the size of the screen. */
    uint32_t width = (uint32_t)MAX(gif->SWidth, f->Left + f->Width);
    uint32_t height = (uint32_t)MAX(gif->SHeight, f->Top + f->Height);
    TRY(fitter_begin(out, width, height, 1, err));
    CLEANUP(freep) uint8_t *row = malloc((size_t)width * 6);
    if (!row)
        return -ENOMEM;
    for (size_t x = 0; x < 2 * (size_t)width; x++) {
        if (transparent == NO_TRANSPARENT_COLOR)
            put_colour(gif->SColorMap, (unsigned)gif->SBackGroundColor, row + 3 * x);
        else
            put_background(out, row + 3 * x);
    }
    return gif_read_rows(gif, transparent, row, out, err);
}

int decode_gif(const uint8_t *data, size_t len, struct fitter *out, struct err *err) {
    struct source source = {data, 0, len};
    int code = 0;
    GifFileType *gif = DGifOpen(&source, gif_read_bytes, &code);

    if (!gif) {
        if (code == D_GIF_ERR_NOT_ENOUGH_MEM)
            return -ENOMEM;
        return gif_refuse(err, "its head is cut off");
    }
    int r = gif_read_file(gif, out, err);
    DGifCloseFile(gif, &code);
    return r;
}
