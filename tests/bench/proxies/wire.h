// What the mock engine and the load generator agree on, and what both of them need.

#ifndef WIRE_H
#define WIRE_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MODEL "bench-model"
#define WEIGHT_VERSION "7"

// The prompt asks for its answer: bytes of the whole JSON body, or so many chunks (0 is not
// streamed), one every so many microseconds. It is the one part of a request that every gateway
// passes on unread, also those that parse the body and write it anew. Fixed widths, so that the
// load generator can change the numbers in place.
#define ORDER "answer=%08ld chunks=%06ld interval=%08ld;"

// One chunk, always of the same length: id, number of the token, time of sending in nanoseconds of
// the monotonic clock. Shaped as SGLang's.
#define EVENT                                                                                      \
    "data: {\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\","                     \
    "\"created\":1764460000,\"model\":\"" MODEL "\",\"choices\":[{\"index\":0,\"delta\":"          \
    "{\"role\":null,\"content\":\" t%06ld\",\"reasoning_content\":null,\"tool_calls\":null},"      \
    "\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}],\"usage\":null,"             \
    "\"t\":%20llu}\n\n"
#define STAMP "\"t\":"
#define DONE "data: [DONE]\n\n"

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline void *grown(void *old, size_t bytes) {
    void *new = realloc(old, bytes);
    if (!new) die("realloc");
    return new;
}

// Neither program may outlive whoever started it: it ends with its parent, and by itself after
// `seconds`, whatever happens. (End of standard input is a third way, watched by each loop.)
static inline void live_at_most(unsigned seconds) {
    pid_t parent = getppid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("prctl");
    if (getppid() != parent) exit(1);
    signal(SIGPIPE, SIG_IGN);
    alarm(seconds);
}

// Whether the standard input has ended. Only asked when epoll says that it is readable.
static inline int input_ended(void) {
    char ignored[256];
    return read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
}

#endif
