/* Frames between front and worker: the bytes go through a channel; each frame's payload is parsed
 * by its type, by both sides' parsers. A parsed message packs to a payload that parses. */

#include <sys/socket.h>
#include <unistd.h>

#include "base/chan.h"
#include "proto/messages.h"
#include "tests/fuzz/fuzz.h"

static uint64_t sum;

static void read_events(const void *data, uint32_t len) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct event_cursor c;
    struct event e;

    msg_events_begin(&c, data, len);
    while (msg_events_next(&c, &e) == 0) {
        for (uint32_t i = 0; i < e.n_vector; i++)
            sum += e.vector[i] > 0;
        for (uint32_t i = 0; i < e.text.len; i++)
            sum += (uint8_t)e.text.data[i];
        msg_event_pack(&b, &e);
    }
}

static void read_submit(const void *data, uint32_t len) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct submit m, again;

    if (msg_submit_parse(data, len, &m) < 0)
        return;
    for (uint32_t i = 0; i < m.n_tokens; i++)
        sum += (uint32_t)m.tokens[i];
    for (uint32_t i = 0; i < m.n_pictures; i++)
        sum += m.pictures[i].digest[PICTURE_DIGEST - 1] +
               (uint32_t)m.tokens[m.pictures[i].at + m.pictures[i].n_rows - 1];
    FUZZ_ASSERT(msg_submit_pack(&b, &m) == 0);
    FUZZ_ASSERT(msg_submit_parse(b.data, (uint32_t)b.len, &again) == 0);
    FUZZ_ASSERT(again.n_tokens == m.n_tokens && again.id == m.id);
    FUZZ_ASSERT(msg_submit_len(&m) == b.len);
}

/* Takes a part; a request whose last part has come is read. */
static void read_part(struct submit_parts *parts, const void *data, uint32_t len) {
    int r = msg_submit_add_part(parts, data, len);

    FUZZ_ASSERT(r < 0 || parts->text.len <= parts->total);
    if (r != 1)
        return;
    FUZZ_ASSERT(parts->text.len == parts->total);
    read_submit(parts->text.data, parts->total);
    submit_parts_deinit(parts);
}

static void read_picture(const void *data, uint32_t len) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct msg_picture m, again;

    if (msg_picture_parse(data, len, &m) < 0)
        return;
    for (uint32_t i = 0; i < m.rgb.len; i++)
        sum += (uint8_t)m.rgb.data[i];
    FUZZ_ASSERT(m.rgb.len <= PICTURE_BYTES_MAX - m.offset);
    FUZZ_ASSERT(msg_picture_pack(&b, &m) == 0);
    FUZZ_ASSERT(msg_picture_parse(b.data, (uint32_t)b.len, &again) == 0);
    FUZZ_ASSERT(again.offset == m.offset && again.why.len == m.why.len);
}

static void read_frame(const struct chan_frame *f, struct submit_parts *parts) {
    const struct msg_served *served;
    struct msg_open open;
    struct msg_progress progress;
    struct msg_ready ready;
    struct msg_blocks blocks;
    struct msg_need_picture need;
    struct turn_end turn;
    uint64_t id;

    FUZZ_ASSERT((uintptr_t)f->data % 8 == 0);
    switch (f->type) {
    case MSG_OPEN:
        msg_open_parse(f->data, f->len, &open);
        break;
    case MSG_PROGRESS:
        msg_progress_parse(f->data, f->len, &progress);
        break;
    case MSG_READY:
        msg_ready_parse(f->data, f->len, &ready);
        break;
    case MSG_SUBMIT:
        read_submit(f->data, f->len);
        break;
    case MSG_CANCEL:
        if (msg_cancel_parse(f->data, f->len, &id) == 0)
            msg_submit_drop(parts, id);
        break;
    case MSG_SUBMIT_PART:
        read_part(parts, f->data, f->len);
        break;
    case MSG_EVENTS:
        read_events(f->data, f->len);
        break;
    case MSG_TURN_END:
        msg_turn_end_parse(f->data, f->len, &turn);
        break;
    case MSG_BLOCKS:
        msg_blocks_parse(f->data, f->len, &blocks);
        break;
    case MSG_NEED_PICTURE:
        msg_need_picture_parse(f->data, f->len, &need);
        break;
    case MSG_PICTURE:
        read_picture(f->data, f->len);
        break;
    case MSG_SERVED:
        msg_served_parse(f->data, f->len, &served);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct chan c;
    struct submit_parts parts = {0};
    struct chan_frame f;
    int fd[2], r;

    if (len > 64 << 10)
        return -1;
    FUZZ_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    FUZZ_ASSERT(write(fd[1], data, len) == (ssize_t)len);
    FUZZ_ASSERT(shutdown(fd[1], SHUT_WR) == 0); /* close() may be late: others may look at it */
    close(fd[1]);
    chan_init(&c, fd[0], 1 << 20, 2 << 20);
    while ((r = chan_recv(&c, &f)) == 0)
        read_frame(&f, &parts);
    FUZZ_ASSERT(r < 0); /* the other end is closed */
    submit_parts_deinit(&parts);
    chan_deinit(&c);
    return 0;
}

static void frame(struct buf *out, uint16_t type, const struct buf *payload) {
    uint32_t head[2] = {(uint32_t)payload->len, type};

    FUZZ_ASSERT(buf_add(out, head, sizeof(head)) == 0);
    FUZZ_ASSERT(buf_add(out, payload->data, payload->len) == 0);
    while (out->len % 8)
        FUZZ_ASSERT(buf_add_char(out, 0) == 0);
}

bool fuzz_seed(size_t i, struct buf *out) {
    static const int32_t tokens[] = {1, 2, 3, 4};
    static const float vector[] = {0.5f, -1};
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};
    static const struct submit_picture picture = {1, 2, 2, 1, 2, 28, 14, {1, 2, 3}};
    struct submit s = {.id = 7,
                       .tokens = tokens,
                       .n_tokens = 4,
                       .n_prompt = 3,
                       .max_new = 5,
                       .n_pictures = 1,
                       .pictures = &picture};
    struct msg_picture part = {.id = 7, .offset = 3, .total = 9, .rgb = {"abc", 3}};
    struct msg_need_picture need = {7, 0, 0};
    struct event e = {
        .kind = EVENT_FINISH, .finish = FINISH_STOP, .id = 7, .n_vector = 2, .vector = vector};
    struct msg_open open = {.options = {"a\0b", 4}};
    struct msg_progress progress = {.what = {"weights", 7}, .fraction = 0.5f};
    int r = 0;

    params_init(&s.sampling);
    switch (i) {
    case 0:
        r = msg_submit_pack(&b, &s);
        frame(out, MSG_SUBMIT, &b);
        break;
    case 1:
        r = msg_event_pack(&b, &e);
        frame(out, MSG_EVENTS, &b);
        break;
    case 2:
        r = msg_open_pack(&b, &open);
        frame(out, MSG_OPEN, &b);
        break;
    case 3:
        r = msg_progress_pack(&b, &progress);
        frame(out, MSG_PROGRESS, &b);
        break;
    case 4:
        r = msg_cancel_pack(&b, 7);
        frame(out, MSG_CANCEL, &b);
        break;
    case 5:
        r = msg_picture_pack(&b, &part);
        frame(out, MSG_PICTURE, &b);
        break;
    case 6:
        r = msg_need_picture_pack(&b, &need);
        frame(out, MSG_NEED_PICTURE, &b);
        break;
    case 7:
        r = MIN(msg_submit_pack_part(&b, &s, 0), 0);
        frame(out, MSG_SUBMIT_PART, &b);
        break;
    default:
        return false;
    }
    FUZZ_ASSERT(r == 0);
    return true;
}
