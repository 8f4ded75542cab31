/*
 * Sends reliable scatterings to processes, and prints received messages in order of delivery: "TIMESTAMP SENDER TEXT", and
 * failed processes: "process_failed PROCESS TIMESTAMP".
 *
 *     reliable CONFIG.toml SCATTERINGS EXPECTED FAILURES [RECEIVER ...]
 *
 * Ends when EXPECTED messages were received or have failed, and FAILURES processes have failed, or when nothing has happened
 * for ten seconds. The configuration has [controller].
 */
#include <inttypes.h>
#include <onepipe.h>
#include <stdio.h>
#include <stdlib.h>

enum { RECEIVERS = 16, BUFFER = 64, WAIT_US = 10 * 1000, PATIENCE_US = 10 * 1000 * 1000 };

struct state {
    unsigned long received, failed, failures;
    uint64_t before;
};

static void process_failed(void *arg, uint32_t process, uint64_t timestamp) {
    struct state *state = arg;
    state->failures++;
    printf("process_failed %" PRIu32 " %" PRIu64 "\n", process, timestamp);
}

/* Takes an event and a message. Returns whether there was one, or a negative number. */
static int receive(onepipe_t *endpoint, uint64_t timeout_us, struct state *state) {
    onepipe_event_t event;
    int some = onepipe_poll_reliable_event(endpoint, &event);
    if (some == 1 && event.kind == ONEPIPE_EVENT_ADMITTED)
        printf("admitted\n");
    if (some == 1 && event.kind == ONEPIPE_EVENT_SEND_FAILED) {
        state->failed++;
        printf("failed: message %" PRIu32 " of scattering %" PRIu64 " to %" PRIu32 ": %s\n", event.part,
               event.scattering, event.dst, onepipe_strfailure(event.why));
    }
    uint64_t timestamp;
    uint32_t src;
    char text[BUFFER];
    size_t len;
    int result = onepipe_reliable_recv(endpoint, some == 1 ? 0 : timeout_us, &timestamp, &src, text, sizeof text, &len);
    if (result == 1) {
        if (state->before != ONEPIPE_NO_TIMESTAMP && onepipe_precedes(timestamp, state->before)) {
            fprintf(stderr, "out of order: %" PRIu64 " after %" PRIu64 "\n", timestamp, state->before);
            exit(1);
        }
        state->before = timestamp;
        state->received++;
        printf("%" PRIu64 " %" PRIu32 " %.*s\n", timestamp, src, (int)len, text);
    }
    return result < 0 ? result : some == 1 || result == 1;
}

/* Sends a scattering. Returns 1 if it was sent, 0 if there is no room, or a negative number. */
static int send_to_all(onepipe_t *endpoint, unsigned long n, char **receivers, size_t count) {
    onepipe_message_t messages[RECEIVERS];
    char text[RECEIVERS][BUFFER];
    for (size_t at = 0; at < count; at++) {
        messages[at].dst = (uint32_t)strtoul(receivers[at], NULL, 10);
        messages[at].data = text[at];
        messages[at].len = (size_t)snprintf(text[at], BUFFER, "message %lu", n);
    }
    int error = onepipe_reliable_send(endpoint, messages, count, NULL);
    return error == ONEPIPE_FULL ? 0 : error < 0 ? error : 1;
}

int main(int argc, char **argv) {
    if (argc < 5 || argc - 5 > RECEIVERS) {
        fprintf(stderr, "usage: %s CONFIG.toml SCATTERINGS EXPECTED FAILURES [RECEIVER ...]\n", argv[0]);
        return 2;
    }
    onepipe_t *endpoint;
    int error = onepipe_init(argv[1], &endpoint);
    if (error) {
        fprintf(stderr, "%s\n%s\n", onepipe_strerror(error), onepipe_last_error());
        return 2;
    }
    unsigned long scatterings = strtoul(argv[2], NULL, 10), expected = strtoul(argv[3], NULL, 10);
    unsigned long failures = strtoul(argv[4], NULL, 10);
    struct state state = {0, 0, 0, ONEPIPE_NO_TIMESTAMP};
    error = onepipe_proc_fail_callback(endpoint, process_failed, &state);
    if (error) {
        fprintf(stderr, "%s\n", onepipe_strerror(error));
        return 1;
    }
    for (unsigned waits = 0; !onepipe_is_admitted(endpoint) && waits < PATIENCE_US / WAIT_US; waits++)
        receive(endpoint, WAIT_US, &state);
    for (unsigned long n = 0; n < scatterings;) {
        int sent = send_to_all(endpoint, n, argv + 5, (size_t)argc - 5);
        if (sent < 0) {
            fprintf(stderr, "scattering %lu: %s\n", n, onepipe_strerror(sent));
            return 1;
        }
        n += (unsigned long)sent;
        while (receive(endpoint, 0, &state) > 0) {
        }
    }
    fflush(stdout);
    for (unsigned waits = 0;
         (state.received + state.failed < expected || state.failures < failures) && waits < PATIENCE_US / WAIT_US; waits++)
        while (receive(endpoint, WAIT_US, &state) > 0)
            waits = 0;
    fprintf(stderr, "received %lu, failed %lu, processes failed %lu\n", state.received, state.failed, state.failures);
    int done = state.received + state.failed == expected && state.failures == failures;
    onepipe_exit(endpoint);
    return done ? 0 : 1;
}
