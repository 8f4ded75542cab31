/*
 * Sends scatterings to processes, and prints received messages in order of delivery: "TIMESTAMP SENDER TEXT".
 *
 *     scatter CONFIG.toml SCATTERINGS EXPECTED [RECEIVER ...]
 *
 * Ends when EXPECTED messages were received or have failed, or when none was received for ten seconds.
 */
#include <inttypes.h>
#include <onepipe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIVERS = 16, BUFFER = 64, WAIT_US = 10 * 1000, PATIENCE_US = 10 * 1000 * 1000 };

static void failed(const onepipe_failed_t *message, void *arg) {
    unsigned long *count = arg;
    ++*count;
    printf("failed: message %" PRIu32 " of scattering %" PRIu64 " to %" PRIu32 ": %s\n", message->part,
           message->scattering, message->dst, onepipe_strfailure(message->why));
}

/* Receives a message. Returns its length, or a negative number if there was none in time. */
static long receive(onepipe_t *endpoint, uint64_t timeout_us, uint64_t *before) {
    uint64_t timestamp;
    uint32_t src;
    char small[1], text[BUFFER];
    size_t len;
    /* The first buffer is too small for most messages; none is lost by that. */
    int result = onepipe_unreliable_recv(endpoint, timeout_us, &timestamp, &src, small, 0, &len);
    if (result == ONEPIPE_TOO_SMALL)
        result = onepipe_unreliable_recv(endpoint, 0, &timestamp, &src, text, sizeof text, &len);
    if (result <= 0)
        return result < 0 ? result : -100;
    int early = *before != ONEPIPE_NO_TIMESTAMP && onepipe_precedes(timestamp, *before);
    if (early || !onepipe_precedes(timestamp, onepipe_get_timestamp(endpoint))) {
        fprintf(stderr, "out of order: %" PRIu64 " after %" PRIu64 "\n", timestamp, *before);
        exit(1);
    }
    *before = timestamp;
    printf("%" PRIu64 " %" PRIu32 " %.*s\n", timestamp, src, (int)len, text);
    return (long)len;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc - 4 > RECEIVERS) {
        fprintf(stderr, "usage: %s CONFIG.toml SCATTERINGS EXPECTED [RECEIVER ...]\n", argv[0]);
        return 2;
    }
    onepipe_t *endpoint;
    int error = onepipe_init(argv[1], &endpoint);
    if (error) {
        fprintf(stderr, "%s\n%s\n", onepipe_strerror(error), onepipe_last_error());
        return 2;
    }
    unsigned long failures = 0, scatterings = strtoul(argv[2], NULL, 10), expected = strtoul(argv[3], NULL, 10);
    unsigned long received = 0;
    uint64_t before = ONEPIPE_NO_TIMESTAMP;
    onepipe_send_fail_callback(endpoint, failed, &failures);

    /* Until then, this process would refuse its own messages, and others theirs. */
    while (!onepipe_is_open(endpoint))
        received += receive(endpoint, 1000, &before) >= 0;

    onepipe_message_t messages[RECEIVERS];
    size_t count = (size_t)argc - 4;
    for (unsigned long n = 0; n < scatterings;) {
        char text[RECEIVERS][BUFFER];
        for (size_t at = 0; at < count; at++) {
            messages[at].dst = (uint32_t)strtoul(argv[4 + at], NULL, 10);
            messages[at].data = text[at];
            messages[at].len = (size_t)snprintf(text[at], BUFFER, "message %lu", n);
        }
        uint64_t number;
        error = onepipe_unreliable_send(endpoint, messages, count, &number);
        if (error == 0 && number == n)
            n++;
        else if (error != ONEPIPE_FULL) {
            fprintf(stderr, "scattering %lu: %s\n", n, onepipe_strerror(error));
            return 1;
        }
        while (receive(endpoint, 0, &before) >= 0)
            received++;
    }
    /* Short waits, because the callback is called during them. */
    for (unsigned waits = 0; received + failures < expected && waits < PATIENCE_US / WAIT_US; waits++)
        while (receive(endpoint, WAIT_US, &before) >= 0) {
            received++;
            waits = 0;
        }
    onepipe_leave(endpoint);
    while (receive(endpoint, 0, &before) >= 0)
        received++;
    fprintf(stderr, "received %lu, failed %lu\n", received, failures);
    onepipe_exit(endpoint);
    return received + failures == expected ? 0 : 1;
}
