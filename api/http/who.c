#include "api/http/who.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include "api/http/conn.h"
#include "api/http/exchange.h"
#include "base/util.h"

/* Writes the address of the peer, or "uid:N" at a UNIX socket; "-": it is not known. */
static void note_client(struct exchange *x) {
    struct conn *c = x->conn;
    struct sockaddr_storage sa = {0};
    int len = sizeof(sa);
    uid_t uid;

    snprintf(x->client, sizeof(x->client), "-");
    if (c->local && conn_peer_uid(c, &uid))
        snprintf(x->client, sizeof(x->client), "uid:%u", (unsigned)uid);
    if (c->local || uv_tcp_getpeername(&c->h.tcp, (struct sockaddr *)&sa, &len) < 0)
        return;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&sa;
    if (sa.ss_family == AF_INET) {
        uv_ip4_name((const struct sockaddr_in *)&sa, x->client, sizeof(x->client));
    } else if (sa.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        uv_inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, x->client, sizeof(x->client));
    } else if (sa.ss_family == AF_INET6) {
        uv_ip6_name(v6, x->client, sizeof(x->client));
    }
}

void who_note(struct exchange *x) {
    const struct http *h = &x->conn->http;
    const char *agent = http_header(h, "user-agent", NULL);

    note_client(x);
    snprintf(x->agent, sizeof(x->agent), "%s", agent ? agent : "");
    if (!h->head_done)
        return;
    const char *target = http_target(h); /* a query may hold a key */
    snprintf(x->path, sizeof(x->path), "%.*s", (int)strcspn(target, "?#"), target);
}
