#include "daemon/front/picture_decoder.h"

#include <pthread.h>

#include "base/try.h"
#include "vision/decoder.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct decoder *decoder; /* decoder process; NULL: not needed yet */

/* Starts the decoder process. Returns 0 or -errno. */
static int picture_decoder_start(struct decoder **out) {
    int r = 0;

    pthread_mutex_lock(&mutex);
    if (!decoder)
        r = decoder_new(&decoder, "/proc/self/exe");
    *out = decoder;
    pthread_mutex_unlock(&mutex);
    return r;
}

int picture_decoder_run(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                        struct picture *out, struct picture_layout *layout, struct err *err) {
    struct decoder *d = NULL;

    TRY(picture_decoder_start(&d));
    return decoder_run(d, data, len, fit, out, layout, err);
}

void picture_decoder_stop(void) {
    decoder = decoder_free(decoder);
}
