#include "stream.h"

#include <criterion/criterion.h>
#include <string.h>

void reply_normalise(struct buf *b) {
    static const char *const keys[] = {R"("id":")", R"("created":)"};

    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        for (char *at = b->data; at && (at = strstr(at, keys[k]));) {
            at += strlen(keys[k]);
            size_t n = k ? strcspn(at, ",") : strcspn(at, R"(")");
            memmove(at + 1, at + n, strlen(at + n) + 1);
            b->len -= n - 1;
            *at++ = 'X';
        }
    }
}

void reply_expect(struct reply *r, int status, const char *want) {
    reply_normalise(&r->body);
    cr_expect_eq(r->status, status, "%d, not %d", r->status, status);
    cr_expect_str_eq(r->body.data, want);
    reply_deinit(r);
}
