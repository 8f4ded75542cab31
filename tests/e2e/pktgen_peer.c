/*
 * A queue pair that a packet generator sends to: opened by plain ibverbs, without an exchange
 * of addresses, since the generator's profile contains them.
 *
 *     pktgen_peer GID-INDEX REMOTE-IP PSN SIZE SLOTS
 *
 * Prints the queue pair's number, the key and the address of SLOTS slots of SIZE bytes, and
 * waits for /tmp/check. Then it prints the queue pair's state, the PSN that it expects, and
 * the content of memory: `pattern` if each byte matches the generator's payloads,
 * `count N` if each slot is a number and their sum is N, or the first byte that is neither.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INITIAL_BYTE 0xee

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Returns an address as a GID: IPv4 addresses are mapped. */
static union ibv_gid gid_of(const char *text)
{
    union ibv_gid gid = {0};

    if (inet_pton(AF_INET6, text, gid.raw) == 1)
        return gid;
    memset(gid.raw, 0, 10);
    gid.raw[10] = gid.raw[11] = 0xff;
    if (inet_pton(AF_INET, text, gid.raw + 12) != 1)
        die("the remote address");
    return gid;
}

static struct ibv_qp *connected(struct ibv_pd *pd, struct ibv_cq *cq, int gid_index, union ibv_gid remote, uint32_t psn)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .rq_psn = psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = remote, .sgid_index = gid_index, .hop_limit = 64}},
    };

    if (!qp)
        die("ibv_create_qp");
    /* A generator's streams have the same number at both ends. */
    receive.dest_qp_num = qp->qp_num;
    if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("to INIT");
    if (ibv_modify_qp(qp, &receive,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        die("to RTR");
    return qp;
}

static void print_memory(const unsigned char *memory, size_t size, size_t slots)
{
    uint64_t sum = 0;
    size_t wrong = size * slots;

    for (size_t at = 0; at < size * slots; at++) {
        /* Each packet's payload counts from 0, and the path MTU is a multiple of 256. */
        if (memory[at] != (unsigned char)(at % size) && wrong == size * slots)
            wrong = at;
    }
    for (size_t slot = 0; slot < slots && size == 8; slot++) {
        uint64_t word;

        memcpy(&word, memory + slot * size, 8);
        sum += word;
    }
    if (wrong == size * slots)
        printf("pattern\n");
    else if (size == 8)
        printf("count %llu\n", (unsigned long long)sum);
    else
        printf("byte %zu of slot %zu is %#x%s\n", wrong % size, wrong / size, memory[wrong],
               memory[wrong] == INITIAL_BYTE ? ", never written" : "");
}

int main(int argc, char **argv)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_qp_init_attr attr;
    struct ibv_qp_attr state;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *region;
    struct ibv_qp *qp;
    unsigned char *memory;
    size_t size, slots;

    if (argc != 6) {
        fprintf(stderr, "usage: pktgen_peer GID-INDEX REMOTE-IP PSN SIZE SLOTS\n");
        return 1;
    }
    size = strtoul(argv[4], NULL, 0);
    slots = strtoul(argv[5], NULL, 0);
    memory = aligned_alloc(4096, (size * slots + 4095) / 4096 * 4096);
    if (!memory || !devices || !devices[0] || !(context = ibv_open_device(devices[0])))
        die("ibv_open_device");
    /* FETCH_ADD words start at 0; memory for WRITEs starts with bytes that differ from the payload. */
    memset(memory, size == 8 ? 0 : INITIAL_BYTE, size * slots);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    region = ibv_reg_mr(pd, memory, size * slots,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                            IBV_ACCESS_REMOTE_ATOMIC);
    if (!pd || !cq || !region)
        die("setting up the device");
    qp = connected(pd, cq, atoi(argv[1]), gid_of(argv[2]), strtoul(argv[3], NULL, 0));
    printf("%u %u %llu\n", qp->qp_num, region->rkey, (unsigned long long)(uintptr_t)memory);
    fflush(stdout);
    while (access("/tmp/check", F_OK))
        usleep(10000);
    if (ibv_query_qp(qp, &state, IBV_QP_STATE | IBV_QP_RQ_PSN, &attr))
        die("ibv_query_qp");
    printf("%s %u ", state.qp_state == IBV_QPS_RTR ? "ready" : "in another state", state.rq_psn);
    print_memory(memory, size, slots);
    return 0;
}
