#include <errno.h>
#include <gif_lib.h>
#include <string.h>
#include "vision/formats.h"

/*
 * GIF by giflib, up to the first frame. A frame that is smaller than the picture lies on the
 * background colour; transparent pixels have the colour that they have in the palette.
 */

struct source {
    const uint8_t *data;
    size_t at, len;
};

static int read_bytes(GifFileType *gif, GifByteType *out, int n) {
    struct source *s = gif->UserData;
    size_t take = MIN((size_t)MAX(n, 0), s->len - s->at);

    memcpy(out, s->data + s->at, take);
    s->at += take;
    return (int)take;
}

static int refuse(struct err *err, const char *why) {
    return err_set(err, 0, NULL, "the GIF file is damaged: %s", why);
}

/* Reads records up to the first frame's head. */
static int find_frame(GifFileType *gif, struct err *err) {
    for (;;) {
        GifRecordType type;
        GifByteType *block;
        int code;

        if (DGifGetRecordType(gif, &type) == GIF_ERROR)
            return refuse(err, "a record is cut off");
        if (type == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(gif) == GIF_OK ? 0 : refuse(err, "a frame's head is cut off");
        if (type != EXTENSION_RECORD_TYPE)
            return refuse(err, "it has no frame");
        for (int r = DGifGetExtension(gif, &code, &block);; r = DGifGetExtensionNext(gif, &block)) {
            if (r == GIF_ERROR)
                return refuse(err, "an extension is cut off");
            if (!block)
                break;
        }
    }
}

/* Writes the colour of palette entry @i, black where the palette has none. */
static void put_colour(const ColorMapObject *map, unsigned i, uint8_t *out) {
    GifColorType c = {0};

    if (map && i < (unsigned)map->ColorCount)
        c = map->Colors[i];
    out[0] = c.Red;
    out[1] = c.Green;
    out[2] = c.Blue;
}

/* Reads row @y of the frame, counted from its top, into the picture. */
static int read_row(GifFileType *gif, GifPixelType *line, uint32_t y, struct picture *out,
                    struct err *err) {
    const GifImageDesc *f = &gif->Image;
    const ColorMapObject *map = f->ColorMap ? f->ColorMap : gif->SColorMap;

    if (DGifGetLine(gif, line, f->Width) == GIF_ERROR)
        return refuse(err, "its pixels are cut off or no LZW data");
    uint8_t *to = out->rgb + ((size_t)((uint32_t)f->Top + y) * out->width + (uint32_t)f->Left) * 3;
    for (int x = 0; x < f->Width; x++)
        put_colour(map, line[x], to + 3 * (size_t)x);
    return 0;
}

/* Reads the frame's rows in the order of the file: one after the other, or every 8th, then those
 * between them, in four passes. */
static int read_frame(GifFileType *gif, struct picture *out, struct err *err) {
    static const uint32_t first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    const GifImageDesc *f = &gif->Image;
    CLEANUP(freep) GifPixelType *line = malloc((size_t)MAX(f->Width, 1));
    uint32_t height = (uint32_t)f->Height;
    int r = 0;

    if (!line)
        return -ENOMEM;
    if (!f->Interlace)
        for (uint32_t y = 0; y < height && r == 0; y++)
            r = read_row(gif, line, y, out, err);
    for (int pass = 0; f->Interlace && pass < 4; pass++)
        for (uint32_t y = first[pass]; y < height && r == 0; y += step[pass])
            r = read_row(gif, line, y, out, err);
    return r;
}

static int read_file(GifFileType *gif, struct picture *out, struct err *err) {
    const GifImageDesc *f = &gif->Image;
    int r = find_frame(gif, err);

    if (r < 0)
        return r;
    if (f->Left < 0 || f->Top < 0 || f->Width <= 0 || f->Height <= 0)
        return refuse(err, "its frame has no pixels");
    /* Some writers leave the size of the screen out. */
    r = picture_new(out, (uint64_t)MAX(gif->SWidth, f->Left + f->Width),
                    (uint64_t)MAX(gif->SHeight, f->Top + f->Height), err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < (size_t)out->width * out->height; i++)
        put_colour(gif->SColorMap, (unsigned)gif->SBackGroundColor, out->rgb + 3 * i);
    return read_frame(gif, out, err);
}

int decode_gif(const uint8_t *data, size_t len, struct picture *out, int *orientation,
               struct err *err) {
    struct source source = {data, 0, len};
    int code = 0;
    GifFileType *gif = DGifOpen(&source, read_bytes, &code);

    if (!gif)
        return code == D_GIF_ERR_NOT_ENOUGH_MEM ? -ENOMEM : refuse(err, "its head is cut off");
    int r = read_file(gif, out, err);
    DGifCloseFile(gif, &code);
    return r;
}
