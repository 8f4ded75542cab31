/*
 * Locks in a server's memory, as users of disaggregated memory write them, in plain ibverbs.
 *
 *     lock_peer server HOW CLIENTS LOCKS
 *     lock_peer client HOW ADDRESS ID CLIENTS ROUNDS [leaves]
 *
 * A client is a thread with a queue pair; a command runs CLIENTS of them, numbered from ID. HOW is either the index of the GID
 * to use, and queue pairs are exchanged over TCP, where the switch does not observe them; or `cm`, and queue pairs are connected
 * by rdma_cm, and the server accepts every other connection request, too. With `leaves`, clients exit after their rounds without
 * notifying the server, while other clients go on. In a round a client takes a lock with CAS (0 -> its number), READs the
 * counter that the lock guards, checks that it still holds the lock, WRITEs the counter plus one, and directly after that,
 * without waiting for its completion, WRITEs 0 into the lock; then it draws a ticket with FETCH_ADD. The counters of the first
 * half of the locks are next to their locks, the other counters are on separate pages.
 *
 * At the end the server checks that the counters were incremented once per round, that no lock is held, and that each ticket
 * was drawn once. Exit code 0: all checks passed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TCP_PORT 18600
/* A fixed address, so that a configuration can name it */
#define MEMORY 0x200000000000ULL
#define BYTES (1 << 16)
#define STRIDE 64
#define PAGE 4096
#define MAX_CLIENTS 64
#define READS 4
#define WAIT_MS 5000
#define TIMEOUT 18 /* 1 s: an emulated host is slow */
#define RETRIES 6  /* 7 means unlimited in soft-RoCE */

struct address {
    union ibv_gid gid;
    uint64_t va;
    uint32_t qpn;
    uint32_t psn;
    uint32_t rkey;
    uint32_t locks;
};

/* Results of a client, which it sends to the server */
struct account {
    uint64_t rounds;
    uint64_t attempts;
    uint64_t tickets; /* their sum */
};

static struct ibv_context *device;
static struct ibv_pd *pd;
static int gid_index;
static bool by_cm;
static bool leaves;

static void die(const char *what)
{
    fprintf(stderr, "lock_peer: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "lock_peer: %s\n", what);
        exit(1);
    }
}

static void send_all(int tcp, const void *bytes, size_t len)
{
    if (write(tcp, bytes, len) != (ssize_t)len)
        die("TCP connection to the other side");
}

static void receive_all(int tcp, void *bytes, size_t len)
{
    if (recv(tcp, bytes, len, MSG_WAITALL) != (ssize_t)len)
        die("TCP connection to the other side");
}

static void open_device(const char *index)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);

    check(devices && devices[0], "no RDMA device");
    gid_index = atoi(index);
    device = ibv_open_device(devices[0]);
    if (!device)
        die("ibv_open_device");
    pd = ibv_alloc_pd(device);
    if (!pd)
        die("ibv_alloc_pd");
}

static struct ibv_qp_init_attr qp_attr(struct ibv_cq *cq)
{
    return (struct ibv_qp_init_attr){
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
}

static struct ibv_qp *create(struct ibv_cq *cq, struct address *ours)
{
    struct ibv_qp_init_attr attr = qp_attr(cq);
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);

    if (!qp || ibv_query_gid(device, 1, gid_index, &ours->gid))
        die("ibv_create_qp");
    ours->qpn = qp->qp_num;
    return qp;
}

static void connect_qp(struct ibv_qp *qp, const struct address *ours, const struct address *peer)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = READS,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}},
    };
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = ours->psn,
        .max_rd_atomic = READS,
        .timeout = TIMEOUT,
        .retry_cnt = RETRIES,
        .rnr_retry = 7,
    };

    if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("to INIT");
    if (ibv_modify_qp(qp, &receive,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        die("to RTR");
    if (ibv_modify_qp(qp, &send,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC))
        die("to RTS");
}

/* --- by rdma_cm ------------------------------------------------------------------------------- */

static struct rdma_conn_param cm_param(void)
{
    return (struct rdma_conn_param){
        .responder_resources = READS, .initiator_depth = READS, .retry_count = RETRIES, .rnr_retry_count = 7};
}

/* A connection to a server, whose verbs are then those of its own device's context. */
static struct rdma_cm_id *cm_connect(const char *server, struct ibv_cq **cq)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    struct rdma_conn_param param = cm_param();
    struct rdma_cm_id *id;
    uint8_t timeout = TIMEOUT;

    check(inet_pton(AF_INET, server, &at.sin_addr) == 1, "the server's address is not IPv4");
    /* Without an event channel, each call waits for its own event. */
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP))
        die("rdma_create_id");
    if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout))
        die("rdma_set_option");
    if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, WAIT_MS) || rdma_resolve_route(id, WAIT_MS))
        die("rdma_resolve_route");
    *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
    if (!*cq)
        die("ibv_create_cq");
    struct ibv_qp_init_attr attr = qp_attr(*cq);
    if (rdma_create_qp(id, NULL, &attr) || rdma_connect(id, &param))
        die("rdma_connect");
    return id;
}

static struct rdma_event_channel *channel;

/* Accepts connections as long as the server runs: those of clients, which all have the same rights, and the switch's own. */
static void *cm_accept(void *unused)
{
    struct rdma_conn_param param = cm_param();

    for (;;) {
        struct rdma_cm_event *event;

        if (rdma_get_cm_event(channel, &event))
            die("rdma_get_cm_event");
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type type = event->event;
        rdma_ack_cm_event(event);
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            struct ibv_qp_init_attr attr = qp_attr(ibv_create_cq(id->verbs, 16, NULL, NULL, 0));

            if (rdma_create_qp(id, pd, &attr) || rdma_accept(id, &param))
                die("rdma_accept");
        } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
            rdma_disconnect(id);
        }
    }
    return unused;
}

static void cm_listen(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    struct rdma_cm_id *id;

    struct ibv_context **devices = rdma_get_devices(NULL);
    pthread_t thread;

    if (!devices || !devices[0] || !(pd = ibv_alloc_pd(devices[0])))
        die("ibv_alloc_pd");
    channel = rdma_create_event_channel();
    if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
        rdma_bind_addr(id, (struct sockaddr *)&at) || rdma_listen(id, MAX_CLIENTS))
        die("rdma_listen");
    if (pthread_create(&thread, NULL, cm_accept, NULL))
        die("pthread_create");
}

/* --- memory layout ---------------------------------------------------------------------------- */

static uint64_t lock_at(uint32_t lock)
{
    return (uint64_t)lock * STRIDE;
}

static uint64_t guarded_at(uint32_t lock, uint32_t locks)
{
    return lock < (locks + 1) / 2 ? lock_at(lock) + 8 : BYTES / 2 + (uint64_t)lock * PAGE;
}

static uint64_t ticket_at(uint32_t locks)
{
    return lock_at(locks);
}

/* --- clients ---------------------------------------------------------------------------------- */

struct client {
    pthread_t thread;
    const char *server;
    uint64_t id;
    uint64_t rounds;
    struct account account;
    int tcp;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct address theirs;
    uint64_t words[4] __attribute__((aligned(64)));
};

static void post(struct client *me, enum ibv_wr_opcode opcode, int word, uint64_t offset, uint64_t compare_add,
                 uint64_t swap, bool signaled)
{
    struct ibv_sge sge = {.addr = (uintptr_t)&me->words[word], .length = 8, .lkey = me->mr->lkey};
    struct ibv_send_wr *bad, work = {.sg_list = &sge, .num_sge = 1, .opcode = opcode};

    work.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        work.wr.atomic.remote_addr = me->theirs.va + offset;
        work.wr.atomic.rkey = me->theirs.rkey;
        work.wr.atomic.compare_add = compare_add;
        work.wr.atomic.swap = swap;
    } else {
        work.wr.rdma.remote_addr = me->theirs.va + offset;
        work.wr.rdma.rkey = me->theirs.rkey;
    }
    check(ibv_post_send(me->qp, &work, &bad) == 0, "ibv_post_send failed");
}

static void wait_for(struct client *me)
{
    struct ibv_wc done;
    int found;

    while ((found = ibv_poll_cq(me->cq, 1, &done)) == 0)
        usleep(200);
    if (found < 0 || done.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "lock_peer: client %llu: %s\n", (unsigned long long)me->id,
                found < 0 ? "ibv_poll_cq" : ibv_wc_status_str(done.status));
        exit(1);
    }
}

static uint64_t perform(struct client *me, enum ibv_wr_opcode opcode, uint64_t offset, uint64_t compare_add,
                        uint64_t swap)
{
    post(me, opcode, 0, offset, compare_add, swap, true);
    wait_for(me);
    return me->words[0];
}

static void round_of(struct client *me, uint32_t lock)
{
    uint32_t locks = me->theirs.locks;
    uint64_t guarded = guarded_at(lock, locks);

    do
        me->account.attempts++;
    while (perform(me, IBV_WR_ATOMIC_CMP_AND_SWP, lock_at(lock), 0, me->id) != 0);
    uint64_t count = perform(me, IBV_WR_RDMA_READ, guarded, 0, 0);
    check(perform(me, IBV_WR_RDMA_READ, lock_at(lock), 0, 0) == me->id, "the lock word changed while the client held the lock");
    me->words[1] = count + 1;
    me->words[2] = 0;
    post(me, IBV_WR_RDMA_WRITE, 1, guarded, 0, 0, false);
    post(me, IBV_WR_RDMA_WRITE, 2, lock_at(lock), 0, 0, true);
    wait_for(me);
}

static int connect_tcp(const char *server)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    int tcp = socket(AF_INET, SOCK_STREAM, 0);

    check(inet_pton(AF_INET, server, &at.sin_addr) == 1, "the server's address is not IPv4");
    if (connect(tcp, (struct sockaddr *)&at, sizeof at))
        die("connect");
    return tcp;
}

static void *client(void *of)
{
    struct client *me = of;
    struct address ours = {.psn = (uint32_t)(0x1000000 - 8 * me->id) & 0xffffff}; /* so that the PSN wraps during the run */
    struct rdma_cm_id *id = NULL;
    uint64_t last = 0;
    char go;

    me->tcp = connect_tcp(me->server);
    if (by_cm) {
        id = cm_connect(me->server, &me->cq);
        me->qp = id->qp;
    } else {
        me->cq = ibv_create_cq(device, 16, NULL, NULL, 0);
        if (!me->cq)
            die("ibv_create_cq");
        me->qp = create(me->cq, &ours);
    }
    me->mr = ibv_reg_mr(id ? id->pd : pd, me->words, sizeof me->words, IBV_ACCESS_LOCAL_WRITE);
    if (!me->mr)
        die("ibv_reg_mr");
    send_all(me->tcp, &ours, sizeof ours);
    receive_all(me->tcp, &me->theirs, sizeof me->theirs);
    if (!id)
        connect_qp(me->qp, &ours, &me->theirs);
    send_all(me->tcp, "r", 1);
    receive_all(me->tcp, &go, 1);
    for (uint64_t n = 0; n < me->rounds; n++) {
        round_of(me, (uint32_t)(n % me->theirs.locks));
        uint64_t ticket = perform(me, IBV_WR_ATOMIC_FETCH_AND_ADD, ticket_at(me->theirs.locks), 1, 0);
        check(n == 0 || ticket > last, "a ticket is not greater than the previous one of the client");
        last = ticket;
        me->account.tickets += ticket;
        me->account.rounds++;
    }
    send_all(me->tcp, &me->account, sizeof me->account);
    if (leaves)
        return NULL;
    receive_all(me->tcp, &go, 1);
    if (id)
        rdma_disconnect(id);
    return NULL;
}

static int clients(const char *server, uint64_t first, int count, uint64_t rounds)
{
    static struct client all[MAX_CLIENTS];
    uint64_t attempts = 0;

    check(first > 0 && count > 0 && count <= MAX_CLIENTS, "invalid arguments: ID is 1 or more, CLIENTS 1 to 64");
    for (int n = 0; n < count; n++) {
        all[n].server = server;
        all[n].id = first + (uint64_t)n;
        all[n].rounds = rounds;
        if (pthread_create(&all[n].thread, NULL, client, &all[n]))
            die("pthread_create");
    }
    for (int n = 0; n < count; n++) {
        pthread_join(all[n].thread, NULL);
        attempts += all[n].account.attempts;
    }
    printf("rounds %llu attempts %llu\n", (unsigned long long)(rounds * (uint64_t)count), (unsigned long long)attempts);
    return 0;
}

/* --- the server ------------------------------------------------------------------------------- */

static int server(int count, uint32_t locks)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(TCP_PORT)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, tcp[MAX_CLIENTS];
    struct account sum = {0};
    char *memory = mmap((void *)MEMORY, BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    struct ibv_cq *cq = by_cm ? NULL : ibv_create_cq(device, 16, NULL, NULL, 0);
    struct ibv_mr *mr;

    if (memory == MAP_FAILED || (!by_cm && !cq))
        die("mmap");
    check(count > 0 && count <= MAX_CLIENTS && locks > 0 && locks <= 8, "invalid arguments: CLIENTS is 1 to 64, LOCKS 1 to 8");
    if (by_cm)
        cm_listen();
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, MAX_CLIENTS))
        die("listen");
    mr = ibv_reg_mr(pd, memory, BYTES,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC);
    if (!mr)
        die("ibv_reg_mr");
    for (int n = 0; n < count; n++) {
        struct address ours = {.psn = 0xfffff0, .va = MEMORY, .rkey = mr->rkey, .locks = locks}, theirs;

        tcp[n] = accept(listener, NULL, NULL);
        if (tcp[n] < 0)
            die("accept");
        receive_all(tcp[n], &theirs, sizeof theirs);
        if (!by_cm)
            connect_qp(create(cq, &ours), &ours, &theirs);
        send_all(tcp[n], &ours, sizeof ours);
    }
    /* Start all clients together, once all are connected. */
    for (int n = 0; n < count; n++) {
        char ready;

        receive_all(tcp[n], &ready, 1);
    }
    for (int n = 0; n < count; n++)
        send_all(tcp[n], "g", 1);
    for (int n = 0; n < count; n++) {
        struct account account;

        receive_all(tcp[n], &account, sizeof account);
        sum.rounds += account.rounds;
        sum.attempts += account.attempts;
        sum.tickets += account.tickets;
    }
    uint64_t counted = 0, taken = 0, tickets;
    for (uint32_t lock = 0; lock < locks; lock++) {
        uint64_t value;

        memcpy(&value, memory + guarded_at(lock, locks), 8);
        counted += value;
        memcpy(&value, memory + lock_at(lock), 8);
        taken += value != 0;
    }
    memcpy(&tickets, memory + ticket_at(locks), 8);
    /* Clients that have exited do not receive it. */
    signal(SIGPIPE, SIG_IGN);
    for (int n = 0; n < count; n++)
        (void)!write(tcp[n], "e", 1);
    printf("rounds %llu counted %llu attempts %llu tickets %llu taken %llu\n", (unsigned long long)sum.rounds,
           (unsigned long long)counted, (unsigned long long)sum.attempts, (unsigned long long)tickets,
           (unsigned long long)taken);
    check(counted == sum.rounds, "the counters differ from the rounds: two clients held a lock at the same time");
    check(taken == 0, "a lock is still held after all rounds");
    check(tickets == sum.rounds && sum.tickets == tickets * (tickets - 1) / 2, "a ticket was drawn twice or not at all");
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    leaves = argc == 8 && !strcmp(argv[7], "leaves");
    check(argc == 5 || argc == 7 || leaves, "usage: server HOW CLIENTS LOCKS, or client HOW ADDRESS ID CLIENTS ROUNDS [leaves]");
    by_cm = !strcmp(argv[2], "cm");
    if (!by_cm)
        open_device(argv[2]);
    if (argc == 5)
        return server(atoi(argv[3]), (uint32_t)atoi(argv[4]));
    return clients(argv[3], (uint64_t)atoll(argv[4]), atoi(argv[5]), (uint64_t)atoll(argv[6]));
}
