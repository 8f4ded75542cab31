/*
 * The RDMA operations that no packaged program uses: immediate data and invalidation on
 * RC and UC, empty messages and messages of odd lengths, and requests that a responder refuses.
 *
 *     odd_verbs GID-INDEX              server
 *     odd_verbs GID-INDEX ADDRESS      client
 *
 * The two exchange their addresses over TCP, as perftest does. The client sends one
 * operation after the other and checks how each completes; the server checks that what it
 * receives has the expected length and immediate data. Exit code 0: all as expected.
 * programs.py lists the packets.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TCP_PORT 18515
#define BUFFER_LEN 8192
#define TWO_PACKETS 2000 /* bytes, with a path MTU of 1024 */
#define RECEIVES 16
#define RNR_TIMER_164_MS 28
/* soft-RoCE returns the kernel's value of the flag, which in user space is IBV_WC_IP_CSUM_OK. */
#define SOFT_ROCE_WITH_INV 4

enum { RC, UC, RC_BAD_RKEY, RC_NO_READS, RC_TOO_LONG, RC_NOT_READY, QP_COUNT };

struct address {
    union ibv_gid gid;
    uint32_t qpn[QP_COUNT];
    uint32_t psn;
    uint32_t rkey;
    uint32_t window_rkey[2]; /* to be invalidated by the peer */
    uint64_t buffer;
};

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *region;
static struct ibv_qp *qps[QP_COUNT];
static char buffer[BUFFER_LEN] __attribute__((aligned(4096)));
static int tcp;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "odd_verbs: %s\n", what);
        exit(1);
    }
}

/* --- the side channel ------------------------------------------------------------- */

static void tcp_connect(const char *server)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    int one = 1;

    tcp = socket(AF_INET, SOCK_STREAM, 0);
    if (server) {
        check(inet_pton(AF_INET, server, &at.sin_addr) == 1, "the server's address is not IPv4");
        if (connect(tcp, (struct sockaddr *)&at, sizeof at))
            die("connect");
        return;
    }
    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(tcp, (struct sockaddr *)&at, sizeof at) || listen(tcp, 1))
        die("listen");
    tcp = accept(tcp, NULL, NULL);
    if (tcp < 0)
        die("accept");
}

static void swap(const void *ours, void *theirs, size_t len)
{
    if (write(tcp, ours, len) != (ssize_t)len || recv(tcp, theirs, len, MSG_WAITALL) != (ssize_t)len)
        die("TCP connection to the other side");
}

/* Waits until both sides have reached this point. */
static void meet(void)
{
    char mine = 'm', theirs;

    swap(&mine, &theirs, 1);
}

/* --- queue pairs ---------------------------------------------------------------------- */

static void create(int index)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = index == UC ? IBV_QPT_UC : IBV_QPT_RC,
    };

    qps[index] = ibv_create_qp(pd, &attr);
    if (!qps[index])
        die("ibv_create_qp");
}

static void connect_qp(int index, int gid_index, uint32_t psn, const struct address *peer)
{
    bool reliable = index != UC;
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (index == RC_NO_READS ? 0 : IBV_ACCESS_REMOTE_READ),
    };
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qpn[index],
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = RNR_TIMER_164_MS,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}},
    };
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = psn,
        .max_rd_atomic = 1,
        .timeout = 20, /* 4 s: an emulated host is slow */
        .retry_cnt = 7,
        .rnr_retry = 7,
    };
    int always = IBV_QP_STATE;

    if (ibv_modify_qp(qps[index], &init, always | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("to INIT");
    if (ibv_modify_qp(qps[index], &receive,
                      always | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)))
        die("to RTR");
    if (ibv_modify_qp(qps[index], &send,
                      always | IBV_QP_SQ_PSN |
                          (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                          IBV_QP_MAX_QP_RD_ATOMIC
                                    : 0)))
        die("to RTS");
}

static void post_receive(int index, uint32_t len)
{
    struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = len, .lkey = region->lkey};
    struct ibv_recv_wr work = {.sg_list = &sge, .num_sge = 1}, *bad;

    if (ibv_post_recv(qps[index], &work, &bad))
        die("ibv_post_recv");
}

static struct ibv_wc completion(void)
{
    struct ibv_wc done;
    int count;

    while ((count = ibv_poll_cq(cq, 1, &done)) == 0)
        usleep(1000);
    check(count == 1, "ibv_poll_cq failed");
    return done;
}

/* --- the client --------------------------------------------------------------------------- */

/* Performs an operation on the peer's buffer, or sends it a message, and waits for the completion. */
static void perform(int index, struct ibv_send_wr work, uint32_t len, enum ibv_wc_status expected)
{
    struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = len, .lkey = region->lkey};
    struct ibv_send_wr *bad;
    struct ibv_wc done;

    work.sg_list = &sge;
    work.num_sge = 1;
    work.send_flags = IBV_SEND_SIGNALED;
    check(ibv_post_send(qps[index], &work, &bad) == 0, "ibv_post_send failed");
    if (index == RC_NOT_READY) {
        usleep(50000); /* the request is refused before the server is notified */
        meet();
    }
    done = completion();
    if (done.status != expected) {
        fprintf(stderr, "odd_verbs: queue pair %d, opcode %d, %u bytes: %s instead of %s\n", index, work.opcode,
                len, ibv_wc_status_str(done.status), ibv_wc_status_str(expected));
        exit(1);
    }
}

#define OPERATION(kind, ...) (struct ibv_send_wr){.opcode = IBV_WR_##kind, __VA_ARGS__}
#define REMOTE(at, key) .wr.rdma = {.remote_addr = (at), .rkey = (key)}
/* The length is the immediate data, so that the server can check that they match. */
#define IMM(len) .imm_data = htonl(len)

static void client(const struct address *peer)
{
    const uint32_t sizes[] = {100, TWO_PACKETS};

    for (int i = 0; i < 2; i++) {
        uint32_t len = sizes[i];

        perform(RC, OPERATION(SEND_WITH_IMM, IMM(len)), len, IBV_WC_SUCCESS);
        perform(RC, OPERATION(RDMA_WRITE_WITH_IMM, IMM(len), REMOTE(peer->buffer, peer->rkey)), len, IBV_WC_SUCCESS);
        perform(RC, OPERATION(SEND_WITH_INV, .invalidate_rkey = peer->window_rkey[i]), len, IBV_WC_SUCCESS);
        perform(UC, OPERATION(SEND_WITH_IMM, IMM(len)), len, IBV_WC_SUCCESS);
        perform(UC, OPERATION(RDMA_WRITE_WITH_IMM, IMM(len), REMOTE(peer->buffer, peer->rkey)), len, IBV_WC_SUCCESS);
    }
    for (uint32_t len = 0; len < 4; len++)
        perform(RC, OPERATION(SEND), len, IBV_WC_SUCCESS);
    perform(RC, OPERATION(RDMA_WRITE, REMOTE(peer->buffer, peer->rkey)), 0, IBV_WC_SUCCESS);
    perform(RC, OPERATION(RDMA_WRITE, REMOTE(peer->buffer, peer->rkey)), 2049, IBV_WC_SUCCESS);
    perform(RC, OPERATION(RDMA_READ, REMOTE(peer->buffer, peer->rkey)), 3, IBV_WC_SUCCESS);
    perform(RC, OPERATION(RDMA_READ, REMOTE(peer->buffer, peer->rkey)), 2501, IBV_WC_SUCCESS);
    perform(UC, OPERATION(SEND), 1, IBV_WC_SUCCESS);
    perform(UC, OPERATION(RDMA_WRITE, REMOTE(peer->buffer, peer->rkey)), 2, IBV_WC_SUCCESS);

    perform(RC_BAD_RKEY, OPERATION(RDMA_WRITE, REMOTE(peer->buffer, peer->rkey ^ 0xff)), 64, IBV_WC_REM_ACCESS_ERR);
    perform(RC_NO_READS, OPERATION(RDMA_READ, REMOTE(peer->buffer, peer->rkey)), 64, IBV_WC_REM_INV_REQ_ERR);
    perform(RC_TOO_LONG, OPERATION(SEND), 64, IBV_WC_REM_OP_ERR); /* soft-RoCE's status */
    perform(RC_NOT_READY, OPERATION(SEND), 64, IBV_WC_SUCCESS);
}

/* --- the server --------------------------------------------------------------------------- */

/* A memory window over the buffer, whose key the client may invalidate. */
static uint32_t bind_window(void)
{
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    struct ibv_send_wr work = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

    if (!window)
        die("ibv_alloc_mw");
    work.bind_mw.mw = window;
    work.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    work.bind_mw.bind_info = (struct ibv_mw_bind_info){
        .mr = region, .addr = (uintptr_t)buffer, .length = BUFFER_LEN, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if (ibv_post_send(qps[RC], &work, &bad))
        die("binding a memory window");
    check(completion().status == IBV_WC_SUCCESS, "a memory window was not bound");
    return work.bind_mw.rkey;
}

static void server(void)
{
    int immediates = 0, invalidations = 0, plain = 0;

    for (int received = 0; received < 15; received++) {
        struct ibv_wc done = completion();

        check(done.status == IBV_WC_SUCCESS, ibv_wc_status_str(done.status));
        if (done.wc_flags & IBV_WC_WITH_IMM) {
            check(ntohl(done.imm_data) == done.byte_len, "immediate data and length disagree");
            immediates++;
        } else if (done.wc_flags & (IBV_WC_WITH_INV | SOFT_ROCE_WITH_INV)) {
            invalidations++;
        } else {
            check(done.byte_len < 4, "a plain SEND is longer than 3 bytes");
            plain++;
        }
    }
    check(immediates == 8 && invalidations == 2 && plain == 5, "messages are missing");
    check(completion().status != IBV_WC_SUCCESS, "a message longer than its receive buffer was accepted");
    meet(); /* the client's SEND has found no receive buffer */
    post_receive(RC_NOT_READY, BUFFER_LEN);
    check(completion().byte_len == 64, "the SEND that was first refused does not have 64 bytes");
}

int main(int argc, char **argv)
{
    const char *server_address = argc > 2 ? argv[2] : NULL;
    struct address ours = {.psn = 0xfffff8}, theirs; /* so that the PSN wraps during the run */
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    int gid_index;

    check(argc > 1, "usage: odd_verbs GID-INDEX [SERVER]");
    gid_index = atoi(argv[1]);
    check(devices && devices[0], "no RDMA device");
    context = ibv_open_device(devices[0]);
    if (!context)
        die("ibv_open_device");
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, QP_COUNT * RECEIVES, NULL, NULL, 0);
    region = ibv_reg_mr(pd, buffer, BUFFER_LEN,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                            IBV_ACCESS_MW_BIND);
    if (!pd || !cq || !region || ibv_query_gid(context, 1, gid_index, &ours.gid))
        die("setting up the device");
    for (int i = 0; i < QP_COUNT; i++) {
        create(i);
        ours.qpn[i] = qps[i]->qp_num;
    }
    ours.rkey = region->rkey;
    ours.buffer = (uintptr_t)buffer;

    tcp_connect(server_address);
    swap(&ours, &theirs, sizeof ours);
    for (int i = 0; i < QP_COUNT; i++)
        connect_qp(i, gid_index, ours.psn, &theirs);
    if (!server_address) {
        for (int i = 0; i < RECEIVES; i++) {
            post_receive(RC, BUFFER_LEN);
            post_receive(UC, BUFFER_LEN);
        }
        post_receive(RC_TOO_LONG, 8);
        ours.window_rkey[0] = bind_window();
        ours.window_rkey[1] = bind_window();
    }
    swap(&ours, &theirs, sizeof ours);

    if (server_address)
        client(&theirs);
    else
        server();
    meet();
    return 0;
}
