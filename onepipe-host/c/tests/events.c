/*
 * Tests the events: "events CONFIG". Prints those of the admission, of a scattering of best effort to the process itself, of
 * two reliable ones, the second of which has a receiver that is no member, and of the process's failure. Then prints whether
 * there are barriers, and the start of what the controller has reported.
 */
#include <inttypes.h>
#include <onepipe.h>
#include <stdio.h>
#include <string.h>

/* Prints an event, and returns its kind. */
static int print(const char *service, const onepipe_event_t *event) {
    const char *stamped = event->timestamp == ONEPIPE_NO_TIMESTAMP ? "unstamped" : "stamped";
    switch (event->kind) {
    case ONEPIPE_EVENT_ADMITTED:
        printf("%s admitted, incarnation %" PRIu32 "\n", service, event->incarnation);
        break;
    case ONEPIPE_EVENT_FENCED:
        printf("%s fenced, %s\n", service, stamped);
        break;
    case ONEPIPE_EVENT_STALLED:
        printf("stalled\n");
        break;
    case ONEPIPE_EVENT_RECOVERED:
        printf("recovered\n");
        break;
    case ONEPIPE_EVENT_SEND_FAILED:
        printf("%s message %" PRIu32 " of %" PRIu64 " to %" PRIu32 ": %s\n", service, event->part, event->scattering,
               event->dst, onepipe_strfailure(event->why));
        break;
    case ONEPIPE_EVENT_SETTLED:
        printf("%s settled %" PRIu64 ", failed %" PRIu32 ", %s\n", service, event->scattering, event->failed, stamped);
        break;
    default:
        printf("%s kind %d\n", service, event->kind);
    }
    fflush(stdout);
    return event->kind;
}

/* Prints events, and takes messages, until an event of a kind has come. Returns 0, or an error. */
static int wait_for(onepipe_t *endpoint, int (*poll)(onepipe_t *, onepipe_event_t *), int kind) {
    for (;;) {
        onepipe_event_t event;
        char buffer[8];
        int some = poll(endpoint, &event);
        if (some < 0)
            return some;
        if (some == 1 && print(poll == onepipe_poll_event ? "best effort:" : "reliable:", &event) == kind)
            return 0;
        int received = onepipe_reliable_recv(endpoint, 0, NULL, NULL, buffer, sizeof buffer, NULL);
        if (received >= 0)
            received = onepipe_unreliable_recv(endpoint, some ? 0 : 100, NULL, NULL, buffer, sizeof buffer, NULL);
        if (received < 0)
            return received;
    }
}

/* Sends a scattering of two messages. */
static int send_two(onepipe_t *endpoint, uint32_t other,
                    int (*by)(onepipe_t *, const onepipe_message_t *, size_t, uint64_t *)) {
    onepipe_message_t messages[] = {{1, "x", 1}, {other, "y", 1}};
    return by(endpoint, messages, 2, NULL);
}

static int run(onepipe_t *endpoint) {
    int (*reliable)(onepipe_t *, onepipe_event_t *) = onepipe_poll_reliable_event;
    int error = wait_for(endpoint, reliable, ONEPIPE_EVENT_STALLED);
    /* The controller has the link's barriers counted from now on. */
    error = error ? error : wait_for(endpoint, reliable, ONEPIPE_EVENT_RECOVERED);
    error = error ? error : send_two(endpoint, 1, onepipe_unreliable_send);
    error = error ? error : wait_for(endpoint, onepipe_poll_event, ONEPIPE_EVENT_SETTLED);
    error = error ? error : send_two(endpoint, 1, onepipe_reliable_send);
    error = error ? error : wait_for(endpoint, reliable, ONEPIPE_EVENT_SETTLED);
    error = error ? error : send_two(endpoint, 3, onepipe_reliable_send);
    error = error ? error : wait_for(endpoint, reliable, ONEPIPE_EVENT_SETTLED);
    uint64_t best_effort, commit;
    error = error ? error : onepipe_barriers(endpoint, &best_effort, &commit);
    printf("barriers: %d %d\n", best_effort != ONEPIPE_NO_TIMESTAMP, commit != ONEPIPE_NO_TIMESTAMP);
    printf("ready\n");
    fflush(stdout);
    return error ? error : wait_for(endpoint, reliable, ONEPIPE_EVENT_FENCED);
}

int main(int argc, char **argv) {
    onepipe_t *endpoint;
    char text[8] = "";
    if (argc != 2 || onepipe_init(argv[1], &endpoint) != ONEPIPE_OK) {
        fprintf(stderr, "%s", onepipe_last_error());
        return 2;
    }
    int error = run(endpoint);
    printf("error: %s\n", onepipe_strerror(error));
    /* The test refuses what the process asks for after its failure. */
    while (onepipe_controller_report(endpoint, NULL, 0) == 0) {
        char buffer[8];
        if (onepipe_unreliable_recv(endpoint, 100, NULL, NULL, buffer, sizeof buffer, NULL) < 0)
            return 1;
    }
    int is_longer = onepipe_controller_report(endpoint, text, sizeof text) > strlen(text);
    printf("report: %s, longer: %d\n", text, is_longer);
    printf("null: %d %d %d\n", onepipe_poll_event(NULL, NULL), onepipe_poll_event(endpoint, NULL),
           onepipe_barriers(NULL, NULL, NULL));
    onepipe_exit(endpoint);
    return 0;
}
