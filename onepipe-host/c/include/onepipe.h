/*
 * Host library of 1Pipe, both services: Table 1 of Li et al., "1Pipe: Scalable Total Order Communication in Data
 * Center Networks", SIGCOMM 2021. Link with `pkg-config --libs onepipe`. See docs/onepipe.md of understudy.
 *
 * Call order: onepipe_init; then onepipe_unreliable_send and onepipe_unreliable_recv; at the end onepipe_leave, if other
 * threads may still be receiving, and onepipe_exit. All functions but onepipe_exit are thread-safe. Functions that return
 * int return a negative number on failure, see enum onepipe_error.
 */
#ifndef ONEPIPE_H
#define ONEPIPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Endpoint: a process of 1Pipe, with its polling thread. Only one per program, once: DPDK cannot be started twice. */
typedef struct onepipe onepipe_t;

/* Reasons why a call failed. */
enum onepipe_error {
    ONEPIPE_OK = 0,
    ONEPIPE_CONFIG = -1,     /* invalid configuration, see onepipe_last_error */
    ONEPIPE_START = -2,      /* DPDK, the port or a thread failed to start, see onepipe_last_error */
    ONEPIPE_EMPTY = -3,      /* the scattering has no messages */
    ONEPIPE_UNKNOWN = -4,    /* the process is not among the peers */
    ONEPIPE_DEAD = -5,       /* a receiver has failed */
    ONEPIPE_TOO_LONG = -6,   /* a message is longer than 16 MiB */
    ONEPIPE_TOO_LARGE = -7,  /* the messages for one receiver never fit into its window */
    ONEPIPE_TOO_MUCH = -8,   /* the scattering never fits into the send buffer */
    ONEPIPE_FULL = -9,       /* no room now; receive, and try again */
    ONEPIPE_LEFT = -10,      /* this process has left, or its threads have ended */
    ONEPIPE_TOO_SMALL = -11, /* the message is longer than the buffer; it remains the next one */
    ONEPIPE_BUSY = -12,      /* another thread is receiving, or called from a callback */
    ONEPIPE_ARGUMENT = -13,  /* a null pointer, or a path that is not UTF-8 */
    /* Of the reliable service */
    ONEPIPE_NO_CONTROLLER = -14, /* the configuration has no [controller] */
    ONEPIPE_MERGED = -15,        /* [controller] has merged = true; use onepipe_recv */
    ONEPIPE_NOT_MERGED = -16,    /* [controller] has merged = false; receive each service by its own function */
    ONEPIPE_NOT_ADMITTED = -17,  /* the controller has not admitted this process, or it has failed */
    ONEPIPE_FENCED = -18,        /* this process has failed, as the controller has decided */
    ONEPIPE_NOT_MEMBER = -19     /* a receiver is not a member of the reliable service */
};

/* Reasons why a message failed. */
enum onepipe_failure {
    ONEPIPE_FAILED_LOST = 1,    /* the message, or a part of it, was lost in the network */
    ONEPIPE_FAILED_LATE = 2,    /* it arrived when later messages might have been delivered already */
    ONEPIPE_FAILED_NO_ROOM = 3, /* the receiver had no room for it */
    /* In the following cases, the message may have been delivered. */
    ONEPIPE_FAILED_NOT_ACKNOWLEDGED = 4, /* it was not acknowledged in time */
    ONEPIPE_FAILED_DEAD = 5,             /* the receiver is known to have failed */
    ONEPIPE_FAILED_LEFT = 6,             /* this process left before it was acknowledged */
    /* Of the reliable service, beside ONEPIPE_FAILED_DEAD and ONEPIPE_FAILED_LEFT */
    ONEPIPE_FAILED_RECALLED = 7,     /* recalled, as another receiver of its scattering has failed */
    ONEPIPE_FAILED_FENCED = 8,       /* this process was excluded; the message may have been delivered */
    ONEPIPE_FAILED_NOT_ADMITTED = 9, /* a receiver, or this process, was no member; nothing was sent */
    /* Previous name of ONEPIPE_FAILED_NOT_ACKNOWLEDGED */
    ONEPIPE_FAILED_NO_ANSWER = ONEPIPE_FAILED_NOT_ACKNOWLEDGED
};

/* In place of a timestamp: the scattering was not stamped, or the endpoint is null. */
#define ONEPIPE_NO_TIMESTAMP UINT64_MAX

/* A message to be sent. */
typedef struct onepipe_message {
    uint32_t dst;     /* receiver */
    const void *data; /* payload; may be null if len is 0 */
    size_t len;       /* length of the payload, in bytes */
} onepipe_message_t;

/* A message that failed. */
typedef struct onepipe_failed {
    uint64_t scattering; /* number of the scattering, from onepipe_unreliable_send */
    uint64_t timestamp;  /* timestamp of the scattering, or ONEPIPE_NO_TIMESTAMP */
    uint32_t dst;        /* receiver */
    uint32_t part;       /* index of the message in the call */
    int why;             /* reason: enum onepipe_failure */
} onepipe_failed_t;

/* Callback for a message that failed. `failed` is valid during the call only. */
typedef void (*onepipe_send_fail_fn)(const onepipe_failed_t *failed, void *arg);

/* Kinds of events. Best effort has ONEPIPE_EVENT_SETTLED only; its failures and stalls have callbacks. */
enum onepipe_event_kind {
    ONEPIPE_EVENT_ADMITTED = 1,    /* this process is a member and may send, as incarnation `incarnation` */
    ONEPIPE_EVENT_FENCED = 2,      /* this process has failed at `timestamp`; it joins again by itself */
    ONEPIPE_EVENT_STALLED = 3,     /* the commit barrier stands still */
    ONEPIPE_EVENT_RECOVERED = 4,   /* the commit barrier rises again */
    ONEPIPE_EVENT_SEND_FAILED = 5, /* message `part` of `scattering` to `dst` has failed for the reason `why` */
    /*
     * The result of each message of `scattering` is known, and `failed` of them have failed. A reliable scattering has been
     * delivered by all receivers that do not fail, or all of its messages have failed. Only if `[process]` has
     * tell_settled = true.
     */
    ONEPIPE_EVENT_SETTLED = 6
};

/* An event. What a kind does not name is 0, or ONEPIPE_NO_TIMESTAMP. */
typedef struct onepipe_event {
    int kind;             /* enum onepipe_event_kind */
    int why;              /* enum onepipe_failure */
    uint64_t scattering;  /* number of the scattering, from the function that has sent it */
    uint64_t timestamp;   /* timestamp of the event, or of the scattering if it was stamped */
    uint32_t dst;         /* receiver */
    uint32_t part;        /* index of the message in the call */
    uint32_t failed;      /* number of messages of the scattering that have failed */
    uint32_t incarnation; /* number that the controller has given to this process for its membership */
} onepipe_event_t;

/*
 * Callback for the barrier of the process's link: `stalled` is 1 if it has not risen for `stall_after_us`, so that nothing is
 * delivered, and 0 if it rises again. `barrier` is ONEPIPE_NO_TIMESTAMP if there has not been any.
 */
typedef void (*onepipe_stall_fn)(void *arg, int stalled, uint64_t barrier);

/*
 * Starts an endpoint with a configuration file, such as HOST.process.toml of `understudy plan`, and writes it to
 * `*endpoint`. Returns ONEPIPE_OK, ONEPIPE_CONFIG, ONEPIPE_START or ONEPIPE_ARGUMENT.
 */
int onepipe_init(const char *config, onepipe_t **endpoint);

/*
 * Leaves: waits some time-outs for messages to be acknowledged, then announces that nothing follows. Returns when the
 * process has left. Messages delivered before can still be received; after them, onepipe_unreliable_recv returns
 * ONEPIPE_LEFT, also in a thread that is waiting. Must not be called from a callback.
 */
void onepipe_leave(onepipe_t *endpoint);

/*
 * Leaves, unless onepipe_leave was called, calls the callback for messages that have failed, and frees the endpoint. Must
 * be the last call with it: no other thread may be inside a function with this endpoint, or call one later. Must not be
 * called from a callback.
 */
void onepipe_exit(onepipe_t *endpoint);

/*
 * Returns 1Pipe's time: nanoseconds in 48 bits, which wrap every 78 hours. It never goes back, and is later than every
 * message received.
 */
uint64_t onepipe_get_timestamp(const onepipe_t *endpoint);

/*
 * Writes the barriers of the process's link as last published, or ONEPIPE_NO_TIMESTAMP: best effort delivers messages below
 * `*best_effort`, the reliable service those up to `*commit`. Either pointer may be null.
 */
int onepipe_barriers(const onepipe_t *endpoint, uint64_t *best_effort, uint64_t *commit);

/* Returns whether timestamp `one` is earlier than `other`, for timestamps less than 39 hours apart. */
static inline int onepipe_precedes(uint64_t one, uint64_t other) {
    uint64_t distance = (other - one) & ((UINT64_C(1) << 48) - 1);
    return distance != 0 && distance < UINT64_C(1) << 47;
}

/*
 * Sends `count` messages to any processes as one scattering with one timestamp. The bytes are copied; the call does not
 * block. Writes the scattering's number, which failures refer to, to `*scattering` if that is not null.
 */
int onepipe_unreliable_send(onepipe_t *endpoint, const onepipe_message_t *messages, size_t count, uint64_t *scattering);

/*
 * Receives the next message in the order of timestamp and sender; waits for it for up to `timeout_us` microseconds.
 *
 * Returns 1 if there is a message: its bytes are in `buffer`, and `*len` is their number. Returns 0 if there is none;
 * ONEPIPE_TOO_SMALL if `capacity` is less than the message's length, which is in `*len`; ONEPIPE_LEFT when the process has
 * left and no message remains. `timestamp`, `src` and `len` may be null. Calls the callback for messages that have failed,
 * unless a message is waiting for a larger buffer.
 */
int onepipe_unreliable_recv(onepipe_t *endpoint, uint64_t timeout_us, uint64_t *timestamp, uint32_t *src, void *buffer,
                            size_t capacity, size_t *len);

/*
 * Sets the callback for messages that fail, replacing an earlier one; null removes it. It is called with `arg` in the thread
 * that is inside onepipe_unreliable_recv or onepipe_exit. It may send. It must not leave or exit; inside it, receiving and
 * setting a callback return ONEPIPE_BUSY.
 */
int onepipe_send_fail_callback(onepipe_t *endpoint, onepipe_send_fail_fn callback, void *arg);

/*
 * Writes the next event of best effort to `*event` and returns 1, or returns 0 if there is none. Best effort has events only
 * if `[process]` has tell_settled = true: then one of the kind ONEPIPE_EVENT_SETTLED for each scattering. In this case it has
 * to be called now and then: callbacks for later failures follow the events before them, and if thousands of events wait, no
 * more scatterings are sent. Calls the callbacks, as onepipe_unreliable_recv does.
 */
int onepipe_poll_event(onepipe_t *endpoint, onepipe_event_t *event);

/*
 * Sets the callback for a barrier that stands still or rises again, replacing an earlier one; null removes it. It is called
 * where that for failed messages is, and the same rules apply to it.
 */
int onepipe_stall_callback(onepipe_t *endpoint, onepipe_stall_fn callback, void *arg);

/*
 * The reliable service. It needs [controller] in the configuration file; without it, these functions return
 * ONEPIPE_NO_CONTROLLER.
 */

/* Callback for a process that has failed: its messages later than `timestamp` are discarded everywhere. */
typedef void (*onepipe_proc_fail_fn)(void *arg, uint32_t process, uint64_t timestamp);

/*
 * Sends `count` messages to members as one scattering: all receivers that do not fail deliver it, or none does. Otherwise as
 * onepipe_unreliable_send; both services count scatterings together. Returns ONEPIPE_NOT_ADMITTED before the process is a
 * member. A message that fails is an event.
 */
int onepipe_reliable_send(onepipe_t *endpoint, const onepipe_message_t *messages, size_t count, uint64_t *scattering);

/*
 * Receives the next reliable message; as onepipe_unreliable_recv. Returns ONEPIPE_MERGED if [controller] has merged = true.
 */
int onepipe_reliable_recv(onepipe_t *endpoint, uint64_t timeout_us, uint64_t *timestamp, uint32_t *src, void *buffer,
                          size_t capacity, size_t *len);

/*
 * Receives the next message of either service, in one order; as onepipe_unreliable_recv, which returns nothing then. Returns
 * ONEPIPE_NOT_MERGED unless [controller] has merged = true.
 */
int onepipe_recv(onepipe_t *endpoint, uint64_t timeout_us, uint64_t *timestamp, uint32_t *src, void *buffer, size_t capacity,
                 size_t *len);

/*
 * Sets the callback for processes that fail, replacing an earlier one; null removes it. It is called where that for failed
 * messages is, and in onepipe_reliable_recv, onepipe_recv and onepipe_poll_reliable_event; the same rules apply to it. All
 * processes wait until it has returned: a program that does not call one of these functions for longer than the
 * controller's respond_within_ms fails.
 */
int onepipe_proc_fail_callback(onepipe_t *endpoint, onepipe_proc_fail_fn callback, void *arg);

/*
 * Writes the next event to `*event` and returns 1, or returns 0 if there is none. Has to be called now and then: if thousands
 * of events wait, no more scatterings are sent.
 */
int onepipe_poll_reliable_event(onepipe_t *endpoint, onepipe_event_t *event);

/* Returns 1 if this process is a member and may send, otherwise 0. */
int onepipe_is_admitted(const onepipe_t *endpoint);

/* Returns 1 if process `id` is a member, as far as this process knows, otherwise 0. */
int onepipe_is_member(const onepipe_t *endpoint, uint32_t id);

/*
 * Copies what the controller has last reported to `text`: why this process waits or is refused, or why no controller can be
 * reached. Writes at most `capacity` bytes, a null at the end included, and returns the length of the whole report, 0 if
 * there is none. Without [controller] there is none.
 */
size_t onepipe_controller_report(const onepipe_t *endpoint, char *text, size_t capacity);

/*
 * Returns 1 if a barrier is known and the process accepts messages that are stamped now, otherwise 0. A process that starts
 * refuses what was sent before. Messages to a process that is not open yet fail as ONEPIPE_FAILED_NO_ANSWER.
 */
int onepipe_is_open(const onepipe_t *endpoint);

/*
 * Sets whether a process is alive (`alive` is not 0) or has failed, as the control plane has determined. Returns ONEPIPE_OK,
 * ONEPIPE_UNKNOWN if the process is not among the peers, or ONEPIPE_LEFT if the endpoint has ended.
 */
int onepipe_set_alive(onepipe_t *endpoint, uint32_t id, int alive);

/* Return the message of an error or of a failure. Never null. */
const char *onepipe_strerror(int error);
const char *onepipe_strfailure(int failure);

/*
 * Returns why onepipe_init last failed in this thread, in one or more lines; empty if it did not. Valid until the next
 * call of onepipe_init in this thread.
 */
const char *onepipe_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
