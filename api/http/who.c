#include "api/http/who.h"

#include <netinet/in.h>
#include <stdio.h>

#include "api/http/conn.h"

void who_client(struct conn *c, char out[WHO_CLIENT]) {
    struct sockaddr_storage sa = {0};
    int len = sizeof(sa);
    uid_t uid;

    snprintf(out, WHO_CLIENT, "-");
    if (c->local && conn_peer_uid(c, &uid))
        snprintf(out, WHO_CLIENT, "uid:%u", (unsigned)uid);
    if (c->local || uv_tcp_getpeername(&c->h.tcp, (struct sockaddr *)&sa, &len) < 0)
        return;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&sa;
    if (sa.ss_family == AF_INET) {
        uv_ip4_name((const struct sockaddr_in *)&sa, out, WHO_CLIENT);
    } else if (sa.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        uv_inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, out, WHO_CLIENT);
    } else if (sa.ss_family == AF_INET6) {
        uv_ip6_name(v6, out, WHO_CLIENT);
    }
}
