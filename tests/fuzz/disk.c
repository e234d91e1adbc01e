/* The file of the disk tier: any bytes, opened with a model's sizes. Slots are read, entered into a
 * pager, and written over. The first byte chooses whether there are states. */

#include <sys/mman.h>
#include <unistd.h>

#include "kvpager/store.h"
#include "tests/fuzz/fuzz.h"

#define T 4u
#define PAGE 300u
#define STATE 9000u
#define FILE_MAX 65536u

static struct store *open_store(int fd, bool states) {
    struct store_opts o = {.fd = fd,
                           .n_bytes = FILE_MAX,
                           .page_tokens = T,
                           .page_bytes = PAGE,
                           .state_bytes = states ? STATE : 0,
                           .identity = "a",
                           .n_identity = 1};
    struct store *s = NULL;
    int r = store_open(&s, &o);

    FUZZ_ASSERT(r == 0 || r == STORE_NEW || r == STORE_CLEARED);
    return s;
}

/* Transfers all pieces after the answer @r. */
static int go(struct store_io *io, int r) {
    if (r == 0)
        while ((r = store_go_on(io)) == STORE_MORE)
            ;
    store_io_free(io);
    return r;
}

static void use_slot(struct store *s, uint32_t i, uint8_t *bytes) {
    struct store_io *io = NULL;
    struct store_head head;
    struct kv_medium media[STORE_MEDIA] = {{.n_rows = 2}, {.n_rows = 1}};
    int32_t tokens[T];
    int r = store_read_head(s, i, &head, tokens, media);

    FUZZ_ASSERT(r == 0 || r == STORE_FREE || r == STORE_BAD);
    if (r == 0) {
        int e = store_read(&io, s, i, &head.id, bytes);

        e = go(io, e);
        FUZZ_ASSERT(e == 0 || e == STORE_BAD || e == STORE_FREE);
    }
    struct store_head own = {.id = {9, i + 1}, .stamp = i};
    io = NULL;
    r = store_write(&io, s, i, &own, (int32_t[T]){1, -1, -1, -2}, media, bytes);
    FUZZ_ASSERT(go(io, r) == 0);
    io = NULL;
    r = store_read(&io, s, i, &own.id, bytes);
    FUZZ_ASSERT(go(io, r) == 0);
}

static void enter(struct store *s) {
    CLEANUP(kv_pager_freep) struct kv_pager *p = NULL;
    CLEANUP(kv_media_deinit) struct kv_media media = {0};
    struct kv_opts o = {.n_pages = store_n_slots(s),
                        .page_tokens = T,
                        .max_seqs = 1,
                        .max_seq_tokens = store_n_slots(s) * T,
                        .n_snapshots = store_n_states(s)};
    uint32_t n = store_n_slots(s) + store_n_states(s);
    CLEANUP(freep) struct store_id *id = calloc(n, sizeof(*id));
    CLEANUP(freep) bool *written = calloc(n, 1);
    uint64_t stamp = 0, n_bad = 0;

    FUZZ_ASSERT(id && written && kv_pager_new(&p, &o) == 0 && kv_media_init(&media, 4) == 0);
    FUZZ_ASSERT(store_enter(s, p, &media, id, written, &stamp, &n_bad) == 0);
    kv_pager_check(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static uint8_t bytes[STATE];

    if (len == 0 || len > FILE_MAX)
        return -1;
    fuzz_file(data + 1, len - 1);
    struct store *s = open_store(fuzz_file_fd(), data[0] & 1);
    enter(s);
    for (uint32_t i = 0; i < store_n_slots(s) + store_n_states(s); i++)
        use_slot(s, i, bytes);
    store_free(s);
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    static uint8_t bytes[STATE];

    if (i > 1)
        return false;
    fuzz_file("", 0);
    struct store *s = open_store(fuzz_file_fd(), i);
    for (uint32_t k = 0; k < MIN(store_n_slots(s), 3u); k++)
        use_slot(s, k, bytes);
    store_free(s);
    FUZZ_ASSERT(buf_add_char(out, (char)i) == 0 && buf_reserve(out, FILE_MAX) == 0);
    ssize_t n = pread(fuzz_file_fd(), out->data + out->len, 32768, 0);
    FUZZ_ASSERT(n > 0);
    out->len += (size_t)n;
    return true;
}
