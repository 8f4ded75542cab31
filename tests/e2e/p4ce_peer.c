/*
 * A leader and a replica of P4CE, with rdma_cm and ibverbs only.
 *
 *     p4ce_peer replica ADDRESS PORT BYTES
 *     p4ce_peer leader SWITCH PORT QUORUM REPLICA,... [-n COUNT] [-w MILLISECONDS] SIZE...
 *
 * The replica registers BYTES of memory for each connection request and announces it in its reply.
 * When it is disconnected, it prints the number of bytes, from the first, that match a leader's
 * writes, and exits. The leader requests a group of the replicas, which listen at PORT, from the
 * switch, and writes messages of the SIZEs one after the other, all of them COUNT times,
 * MILLISECONDS apart. Exit code 0: each was acknowledged; 3: the switch refused, with a reason.
 *
 * The layouts of private data are in docs/p4ce.md.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SWITCH_PORT "18515"
#define WAIT_MS 10000
#define DEPTH 64
#define REFUSED 3

struct group_request {
    char magic[2];
    uint8_t version, flags, count, quorum;
    uint16_t port;
    uint8_t replicas[48];
} __attribute__((packed));

struct region {
    uint64_t va;
    uint32_t rkey, zero;
    uint64_t size;
} __attribute__((packed));

struct refusal {
    char magic[2];
    uint8_t version, code;
    uint16_t reason, family;
    uint8_t replica[16];
} __attribute__((packed));

static struct rdma_event_channel *channel;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void fail(const char *what)
{
    fprintf(stderr, "p4ce_peer: %s\n", what);
    exit(1);
}

static uint8_t pattern(uint64_t at)
{
    return (uint8_t)((at * 2654435761u) >> 13) | 1;
}

static struct rdma_cm_event *next_event(void)
{
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(channel, &event))
        die("rdma_get_cm_event");
    return event;
}

static void expect(enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event = next_event();
    if (event->event != wanted) {
        fprintf(stderr, "p4ce_peer: event %s (status %d) instead of %s\n", rdma_event_str(event->event), event->status,
                rdma_event_str(wanted));
        exit(1);
    }
    rdma_ack_cm_event(event);
}

static struct sockaddr *resolve(const char *address, const char *port)
{
    struct addrinfo *found, hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address, port, &hints, &found))
        fail("an argument is not an IP address");
    return found->ai_addr;
}

static void create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (rdma_create_qp(id, pd, &attributes))
        die("rdma_create_qp");
}

static void replica(const char *address, const char *port, size_t bytes)
{
    struct rdma_cm_id *listener;
    if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
        die("rdma_create_id");
    if (rdma_bind_addr(listener, resolve(address, port)) || rdma_listen(listener, 4))
        die("rdma_listen");
    uint8_t *memory = NULL;
    for (;;) {
        struct rdma_cm_event *event = next_event();
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            struct rdma_cm_id *id = event->id;
            struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
            struct ibv_cq *cq = ibv_create_cq(id->verbs, 2, NULL, NULL, 0);
            if (!pd || !cq || posix_memalign((void **)&memory, 4096, bytes))
                die("memory for a connection");
            memset(memory, 0, bytes);
            struct ibv_mr *mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
            if (!mr)
                die("ibv_reg_mr");
            create_qp(id, pd, cq);
            struct region region = {
                .va = htobe64((uintptr_t)memory), .rkey = htonl(mr->rkey), .size = htobe64(bytes)};
            struct rdma_conn_param param = {
                .private_data = &region, .private_data_len = sizeof region, .rnr_retry_count = 7};
            if (rdma_accept(id, &param))
                die("rdma_accept");
        } else if (event->event == RDMA_CM_EVENT_DISCONNECTED) {
            size_t holds = 0;
            while (holds < bytes && memory[holds] == pattern(holds))
                holds++;
            printf("holds %zu\n", holds);
            rdma_ack_cm_event(event);
            return;
        }
        rdma_ack_cm_event(event);
    }
}

static void print_refusal(const struct rdma_cm_event *event)
{
    static const char *const reasons[] = {
        "unknown reason", "the request is invalid", "too few or too many replicas, or a duplicate",
        "the quorum is larger than the group", "addresses of different families", "no such list",
        "no room for another group", "a replica refused", "a replica did not respond",
        "a replica's response describes no memory", "a replica has another amount of memory",
        "this address cannot be a replica", "too many requests: retry after a second",
        "this address cannot be a leader", "the request has no valid tag"};
    const struct refusal *refusal = event->param.conn.private_data;
    char address[INET6_ADDRSTRLEN] = "";
    unsigned code = 0;
    if (event->param.conn.private_data_len >= sizeof *refusal && !memcmp(refusal->magic, "P4", 2)) {
        code = refusal->code < sizeof reasons / sizeof *reasons ? refusal->code : 0;
        bool v4 = ntohs(refusal->family) == 4;
        inet_ntop(v4 ? AF_INET : AF_INET6, refusal->replica + (v4 ? 12 : 0), address, sizeof address);
    }
    printf("refused (%d): %s, %s, reason %u\n", event->status, reasons[code], address,
           code ? ntohs(refusal->reason) : 0);
}

static void wait_for(struct ibv_cq *cq)
{
    struct ibv_wc done;
    int found;
    do {
        found = ibv_poll_cq(cq, 1, &done);
        if (found == 0)
            usleep(100);
    } while (found == 0);
    if (found < 0)
        die("ibv_poll_cq");
    if (done.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "p4ce_peer: a write failed: %s\n", ibv_wc_status_str(done.status));
        exit(1);
    }
}

static void leader(int argc, char **argv)
{
    struct group_request request = {.magic = "P4", .version = 1, .quorum = (uint8_t)atoi(argv[4])};
    request.port = htons((uint16_t)atoi(argv[3]));
    size_t used = 0;
    for (char *name = strtok(argv[5], ","); name; name = strtok(NULL, ",")) {
        bool v6 = strchr(name, ':');
        if (used + (v6 ? 16 : 4) > sizeof request.replicas)
            fail("too many replicas for private data");
        if (inet_pton(v6 ? AF_INET6 : AF_INET, name, request.replicas + used) != 1)
            fail("a replica is not an IP address");
        used += v6 ? 16 : 4;
        request.flags = v6;
        request.count++;
    }
    int count = 1, pause_ms = 0, option;
    optind = 6;
    while ((option = getopt(argc, argv, "n:w:")) != -1) {
        if (option == 'n')
            count = atoi(optarg);
        else if (option == 'w')
            pause_ms = atoi(optarg);
        else
            fail("unknown option; the options are -n COUNT and -w MILLISECONDS");
    }
    struct rdma_cm_id *id;
    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
        die("rdma_create_id");
    if (rdma_resolve_addr(id, NULL, resolve(argv[2], SWITCH_PORT), WAIT_MS))
        die("rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    if (rdma_resolve_route(id, WAIT_MS))
        die("rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    struct ibv_cq *cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0);
    if (!pd || !cq)
        die("ibv_alloc_pd");
    create_qp(id, pd, cq);
    struct rdma_conn_param param = {
        .private_data = &request, .private_data_len = (uint8_t)(8 + used), .retry_count = 7, .rnr_retry_count = 7};
    if (rdma_connect(id, &param))
        die("rdma_connect");
    struct rdma_cm_event *event = next_event();
    if (event->event == RDMA_CM_EVENT_REJECTED) {
        print_refusal(event);
        exit(REFUSED);
    }
    if (event->event != RDMA_CM_EVENT_ESTABLISHED)
        fail(rdma_event_str(event->event));
    struct region region;
    memcpy(&region, event->param.conn.private_data, sizeof region);
    rdma_ack_cm_event(event);
    uint64_t size = be64toh(region.size);
    printf("connected\n");
    uint8_t *memory = malloc(size);
    struct ibv_mr *mr = memory ? ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!mr)
        die("ibv_reg_mr");
    for (uint64_t at = 0; at < size; at++)
        memory[at] = pattern(at);
    uint64_t at = 0;
    int writes = 0;
    for (int turn = 0; turn < count; turn++) {
        for (int n = optind; n < argc; n++) {
            uint32_t len = (uint32_t)atol(argv[n]);
            if (at + len > size)
                fail("the writes exceed the replicas' memory; give the replicas more BYTES");
            struct ibv_sge sge = {.addr = (uintptr_t)memory + at, .length = len, .lkey = mr->lkey};
            struct ibv_send_wr *bad, work = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
            work.wr.rdma.remote_addr = be64toh(region.va) + at;
            work.wr.rdma.rkey = ntohl(region.rkey);
            if (ibv_post_send(id->qp, &work, &bad))
                die("ibv_post_send");
            wait_for(cq);
            at += len;
            writes++;
            if (pause_ms)
                usleep((useconds_t)pause_ms * 1000);
        }
    }
    rdma_disconnect(id);
    printf("wrote %llu in %d writes\n", (unsigned long long)at, writes);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    channel = rdma_create_event_channel();
    if (!channel)
        die("rdma_create_event_channel");
    if (argc == 5 && !strcmp(argv[1], "replica"))
        replica(argv[2], argv[3], (size_t)atol(argv[4]));
    else if (argc > 6 && !strcmp(argv[1], "leader"))
        leader(argc, argv);
    else
        fail("usage: replica ADDRESS PORT BYTES, or leader SWITCH PORT QUORUM REPLICA,... [-n COUNT] [-w MS] SIZE...");
    return 0;
}
