/*
 * 1Pipe's host library, best effort: Table 1 of Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks",
 * SIGCOMM 2021. Link with -lonepipe_c. docs/onepipe.md of understudy tells the rest.
 *
 * Functions may be called by any thread, but for onepipe_exit. Those that fail return a negative number, see enum onepipe_error.
 */
#ifndef ONEPIPE_H
#define ONEPIPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A process of 1Pipe, with its polling thread. One at a time, and once in a program: DPDK cannot be started twice. */
typedef struct onepipe onepipe_t;

/* Why a call failed. */
enum onepipe_error {
    ONEPIPE_OK = 0,
    ONEPIPE_CONFIG = -1,     /* the configuration cannot be used */
    ONEPIPE_START = -2,      /* DPDK, the port or a thread did not start */
    ONEPIPE_EMPTY = -3,      /* a scattering of no message */
    ONEPIPE_UNKNOWN = -4,    /* a receiver is not among the peers */
    ONEPIPE_DEAD = -5,       /* a receiver has failed */
    ONEPIPE_TOO_LONG = -6,   /* a message of more than 16 MiB */
    ONEPIPE_TOO_LARGE = -7,  /* messages for one receiver never fit into its window */
    ONEPIPE_TOO_MUCH = -8,   /* a scattering that never fits into the send buffer */
    ONEPIPE_FULL = -9,       /* no room now: receive, and try again */
    ONEPIPE_LEFT = -10,      /* this process has left, or its threads have ended */
    ONEPIPE_TOO_SMALL = -11, /* the message is longer than the buffer; it stays the next */
    ONEPIPE_BUSY = -12,      /* another thread is receiving, or this is a callback of a receive */
    ONEPIPE_ARGUMENT = -13   /* a null pointer, or a path that is not UTF-8 */
};

/* Why a message failed. */
enum onepipe_failure {
    ONEPIPE_FAILED_LOST = 1,
    ONEPIPE_FAILED_LATE = 2,
    ONEPIPE_FAILED_NO_ROOM = 3,
    /* in these cases it may have been delivered */
    ONEPIPE_FAILED_NO_ANSWER = 4,
    ONEPIPE_FAILED_DEAD = 5,
    ONEPIPE_FAILED_LEFT = 6
};

/* No timestamp: the scattering got none. */
#define ONEPIPE_NO_TIMESTAMP UINT64_MAX

/* A message to be sent. */
typedef struct onepipe_message {
    uint32_t dst;     /* the receiver */
    const void *data; /* may be null if len is 0 */
    size_t len;       /* in bytes */
} onepipe_message_t;

/* A message that failed. */
typedef struct onepipe_failed {
    uint64_t scattering; /* which one, as onepipe_unreliable_send told */
    uint64_t timestamp;  /* its timestamp, or ONEPIPE_NO_TIMESTAMP */
    uint32_t dst;        /* the receiver */
    uint32_t part;       /* which message of the call */
    int why;             /* enum onepipe_failure */
} onepipe_failed_t;

typedef void (*onepipe_send_fail_fn)(const onepipe_failed_t *failed, void *arg);

/* Joins, as a file like HOST.process.toml of `understudy plan` says. */
int onepipe_init(const char *config, onepipe_t **endpoint);

/*
 * Leaves in order: what was sent is given some time-outs to be acknowledged. Returns when it has. What was delivered until then can
 * be received; whoever waits for more gets ONEPIPE_LEFT. Not inside a callback.
 */
void onepipe_leave(onepipe_t *endpoint);

/*
 * The same, if that has not been done, calls back of what has failed, and frees the endpoint. It is the last function that is called
 * with it: no other thread may be in one, or call one later. Not inside a callback.
 */
void onepipe_exit(onepipe_t *endpoint);

/* 1Pipe's clock: 48 bits of nanoseconds, which begin anew every 78 hours. Never goes back, and is past every message received. */
uint64_t onepipe_get_timestamp(const onepipe_t *endpoint);

/* Whether one timestamp comes before another, of two that are less than 39 hours apart. */
static inline int onepipe_precedes(uint64_t one, uint64_t other) {
    uint64_t distance = (other - one) & ((UINT64_C(1) << 48) - 1);
    return distance != 0 && distance < UINT64_C(1) << 47;
}

/*
 * Sends messages to any processes, all at one time. The bytes are copied, nothing is waited for. `scattering`, if it is not null,
 * is told the number by which failures speak of it.
 */
int onepipe_unreliable_send(onepipe_t *endpoint, const onepipe_message_t *messages, size_t count, uint64_t *scattering);

/*
 * The next message in the order of timestamp and sender, which is waited for up to `timeout_us`. 1 if there is one: its bytes are in
 * `buffer`, and `len` says how many. 0 if there is none. ONEPIPE_TOO_SMALL if `capacity` does not suffice; `len` says what does.
 * ONEPIPE_LEFT when it has left and nothing more will come. Calls back of what has failed, if no message waits for a larger buffer.
 */
int onepipe_unreliable_recv(onepipe_t *endpoint, uint64_t timeout_us, uint64_t *timestamp, uint32_t *src, void *buffer,
                            size_t capacity, size_t *len);

/*
 * Has `callback` called of each message that fails, with `arg`, in the thread that receives or exits, while it does. It may send, and
 * must not exit; receiving and another callback are ONEPIPE_BUSY. Null: nobody is called.
 */
int onepipe_send_fail_callback(onepipe_t *endpoint, onepipe_send_fail_fn callback, void *arg);

/* Says whether a process is there (`alive` is not 0), as whoever watches over processes knows. */
int onepipe_set_alive(onepipe_t *endpoint, uint32_t id, int alive);

/* What an error, or a failure, means. Never null. */
const char *onepipe_strerror(int error);
const char *onepipe_strfailure(int failure);

/* What was wrong when onepipe_init last failed in this thread, in lines; empty before. Until the next call here. */
const char *onepipe_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
