/*
 * Tests the end of an endpoint. "leave CONFIG": one thread waits for a message while another one leaves; then calls the
 * functions that are still valid. "exit CONFIG": a message to a process that does not exist is called back before
 * onepipe_exit returns. "stall CONFIG": the barrier never rises, which is called back. Prints the results.
 */
#include <onepipe.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const uint64_t MINUTE_US = 60000000;

static int send_to(onepipe_t *endpoint, uint32_t dst) {
    onepipe_message_t message = {dst, "x", 1};
    return onepipe_unreliable_send(endpoint, &message, 1, NULL);
}

static int receive(onepipe_t *endpoint) {
    char buffer[8];
    size_t len;
    return onepipe_unreliable_recv(endpoint, MINUTE_US, NULL, NULL, buffer, sizeof buffer, &len);
}

static void *wait_for_message(void *endpoint) {
    static int result;
    result = receive(endpoint);
    return &result;
}

struct called {
    onepipe_t *endpoint;
    int times;
};

static void on_failure(const onepipe_failed_t *failed, void *arg) {
    struct called *called = arg;
    ++called->times;
    printf("to %u: %s\n", failed->dst, onepipe_strfailure(failed->why));
    /* During the callback, the endpoint is complete. */
    printf("callback: %d, receive: %d, send: %d\n", onepipe_send_fail_callback(called->endpoint, NULL, NULL),
           receive(called->endpoint), send_to(called->endpoint, 3));
}

static void on_stall(void *arg, int stalled, uint64_t barrier) {
    struct called *called = arg;
    ++called->times;
    printf("stalled: %d, barrier: %d, callback: %d\n", stalled, barrier != ONEPIPE_NO_TIMESTAMP,
           onepipe_stall_callback(called->endpoint, NULL, NULL));
}

int main(int argc, char **argv) {
    onepipe_t *endpoint;
    pthread_t waits;
    void *waited;
    struct called called = {NULL, 0};
    /* Null endpoints are ignored. */
    onepipe_leave(NULL);
    onepipe_exit(NULL);
    if (argc != 3 || onepipe_init(argv[2], &endpoint) != ONEPIPE_OK) {
        fprintf(stderr, "%s", onepipe_last_error());
        return 2;
    }
    called.endpoint = endpoint;
    if (strcmp(argv[1], "exit") == 0) {
        if (onepipe_send_fail_callback(endpoint, on_failure, &called) != ONEPIPE_OK || send_to(endpoint, 3) != ONEPIPE_OK) {
            return 1;
        }
        onepipe_exit(endpoint);
        printf("callbacks: %d\n", called.times);
        return 0;
    }
    if (strcmp(argv[1], "stall") == 0) {
        if (onepipe_stall_callback(endpoint, on_stall, &called) != ONEPIPE_OK || onepipe_is_open(endpoint)) {
            return 1;
        }
        while (called.times == 0) {
            char buffer[8];
            if (onepipe_unreliable_recv(endpoint, 1000, NULL, NULL, buffer, sizeof buffer, NULL) != 0) {
                return 1;
            }
        }
        printf("open: %d %d\n", onepipe_is_open(endpoint), onepipe_is_open(NULL));
        onepipe_exit(endpoint);
        return 0;
    }
    if (send_to(endpoint, 2) != ONEPIPE_OK || receive(endpoint) != 1) {
        return 1;
    }
    if (pthread_create(&waits, NULL, wait_for_message, endpoint) != 0) {
        return 1;
    }
    onepipe_leave(endpoint);
    if (pthread_join(waits, &waited) != 0) {
        return 1;
    }
    printf("waiting receiver: %d\n", *(int *)waited);
    /* A second call has no effect. */
    onepipe_leave(endpoint);
    printf("receive: %d, send: %d, alive: %d, unknown: %d\n", receive(endpoint), send_to(endpoint, 2),
           onepipe_set_alive(endpoint, 2, 0), onepipe_set_alive(endpoint, 9, 0));
    printf("time: %d\n", onepipe_get_timestamp(endpoint) != ONEPIPE_NO_TIMESTAMP);
    onepipe_exit(endpoint);
    return 0;
}
